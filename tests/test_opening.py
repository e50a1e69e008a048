"""A store is opened in a signal handler that interrupted another open, or in a child of a fork during one."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import make_dataclass
from typing import Any

import pytest

import opslog

_handlers: list[Callable[[], None]] = []


def interrupted() -> type[str]:
    """Stands in for `str` in an annotation. Handlers of signals may run in its place."""
    while _handlers:
        _handlers.pop()()
    return str


def a_type(name: str, annotation: str) -> Any:
    return make_dataclass(name, [("title", annotation)], namespace={"__module__": __name__})


def test_a_handler_opens_a_store_while_its_thread_analyses_a_type() -> None:
    """A type that is half analysed would end the process with a segmentation fault."""
    refused: list[opslog.UsageError] = []
    task, note = a_type("Task", "interrupted()"), a_type("Note", "str")

    def handler() -> None:
        with opslog.open("memory://opened-in-handler", agent="handler") as store:
            store["a"] = {"title": "plain"}
        for each in (task, note):
            with pytest.raises(opslog.UsageError, match=r"interrupted another call of opslog\.open with") as caught:
                opslog.open("memory://opened-in-handler", read_only=True, type=each)
            refused.append(caught.value)

    _handlers.append(handler)
    with opslog.open("memory://opened-in-handler", agent="main", type=task) as store:
        assert store["a"].title == "plain"
    assert len(refused) == 2
    opslog.open("memory://opened-in-handler", read_only=True, type=note).close()


FORKED = """
import os, signal, sys, threading
from dataclasses import make_dataclass
import opslog
from opslog.concurrency.interpreter import short_switch_interval

inside, may_go_on = threading.Event(), threading.Event()

def paused():
    if threading.current_thread() is not threading.main_thread():
        inside.set()
        may_go_on.wait()
    return str

def open_typed(name):
    opslog.open(f"memory://{name}", agent=name, type=Task).close()

def shorten(name):
    with short_switch_interval():
        pass

def set_interval(seconds, really=sys.setswitchinterval):
    paused()
    really(seconds)

Task = make_dataclass("Task", [("title", "paused()")], namespace={"__module__": __name__})
call = globals()[sys.argv[1]]
# An import during the fork would block the child, too.
opslog.open("memory://imports", agent="a", type=make_dataclass("Other", [])).close()
sys.setswitchinterval(60)  # after the event is set, the thread goes on only when this one waits
sys.setswitchinterval = set_interval
thread = threading.Thread(target=call, args=["parent"])
thread.start()
inside.wait()
os.register_at_fork(before=may_go_on.set)
child = os.fork()
if child == 0:
    signal.alarm(60)
    call("child")
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
thread.join()
"""


@pytest.mark.parametrize("call", ["open_typed", "shorten"])
def test_a_child_of_a_fork_does_not_wait_for_a_thread_of_its_parent(call: str) -> None:
    program = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKED, call]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
