"""Commands with a Spark of their own: they show none of its noise, and Ctrl-C ends everything without a trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import opslog
from tests.cli.calling import INTERRUPTED_PROGRAM, PROGRAM
from tests.support.waiting import until

STARTING = "opslog: starting Spark, which takes some seconds\n"

# Every Python process of Spark's starts with this. One that is to work reports that it is there, and waits for ever.
WAITING = """
import os, pathlib, signal, sys, time
def wait():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    pathlib.Path({file!r}).touch()
    while True:
        time.sleep(60)
if "pyspark.daemon" in sys.orig_argv:
    os.register_at_fork(after_in_child=wait)
"""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "store", agent="a") as store:
        store["task-1"] = {"n": 1}
    return tmp_path / "store"


def started(store: Path, **environment: str) -> subprocess.Popen[str]:
    """Starts a replay. Its processes form a group, as those of a command at a terminal do."""
    command = [*INTERRUPTED_PROGRAM, "replay", "--engine", "spark", str(store), "--to", str(store.with_name("out"))]
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,
        env={**os.environ, **environment},
    )


def interrupt(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Interrupt as Ctrl-C does. Returns the output, as soon as every process that could write some is gone."""
    os.killpg(process.pid, signal.SIGINT)
    try:
        return process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.mark.long
def test_an_interrupt_while_spark_starts_leaves_nothing(store: Path) -> None:
    process = started(store)
    assert process.stderr is not None
    assert process.stderr.readline() == STARTING
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until(lambda: children.read_text() != "")
    assert interrupt(process) == ("", "")
    assert process.returncode == 130
    assert sorted(path.name for path in store.parent.iterdir()) == ["store"]


def test_an_interrupt_during_a_fork_is_not_ignored() -> None:
    """Python ignores exceptions in a function that it calls around a fork."""
    script = """
import os, signal, sys
from opslog.spark import jobs
def start(*_, **__):
    os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.SIGINT))
    if os.fork() == 0:
        os._exit(0)
    os.wait()
    print("started")
jobs.session = start
sys.unraisablehook = lambda _: None
try:
    with jobs.running("test", None):
        print("goes on")
except KeyboardInterrupt:
    print("interrupted")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("started\ninterrupted\n", "")


@pytest.mark.slow
def test_an_interrupt_while_spark_works_leaves_nothing(store: Path) -> None:
    (store.parent / "site").mkdir()
    (store.parent / "site" / "sitecustomize.py").write_text(WAITING.format(file=str(store.with_name("worker"))))
    process = started(store, PYTHONPATH=str(store.parent / "site"))
    until(store.with_name("worker").exists)
    assert interrupt(process) == ("", STARTING)
    assert process.returncode == 130
    assert sorted(path.name for path in store.parent.iterdir()) == ["site", "store", "worker"]


@pytest.mark.slow
def test_nothing_but_the_answer_is_said_to_programs(store: Path, tmp_path: Path) -> None:
    command = [*PROGRAM, "--json", "replay", "--engine", "spark", str(store), "--to", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith('{"documents":1,')


def test_a_spark_that_does_not_start_says_why(store: Path, tmp_path: Path) -> None:
    # PySpark leaves a pipe to it open.
    command = [*INTERRUPTED_PROGRAM, "replay", "--engine", "spark", str(store), "--to", str(tmp_path / "out")]
    environment = {**os.environ, "PYSPARK_SUBMIT_ARGS": "--no-such-option pyspark-shell"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 2
    start, line = done.stderr.splitlines()
    assert start + "\n" == STARTING
    assert line.startswith("opslog: Spark did not start: ")
    assert "no-such-option" in line
