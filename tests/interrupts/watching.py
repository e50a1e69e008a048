"""What is raised in the middle of calls, and what must not be left afterwards."""

from __future__ import annotations

import errno
import gc
import os
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

WATCH_SECONDS = float(os.environ.get("OPSLOG_WATCH_SECONDS", "30"))
"""A case takes milliseconds. One that has not ended after this time waits for itself."""


class Timeout(Exception):
    """What a handler of SIGALRM raises."""


EXCEPTIONS: dict[str, Callable[[], BaseException]] = {
    "KeyboardInterrupt": KeyboardInterrupt,
    "Timeout": lambda: Timeout("time is over"),
    "OSError": lambda: OSError(errno.EIO, os.strerror(errno.EIO)),
    "MemoryError": MemoryError,
}


@contextmanager
def resources() -> Iterator[list[str]]:
    """Yields a list. After the block it has the threads and descriptors that were not there before, and says whether
    the interpreter switches between threads in another interval."""
    left: list[str] = []
    interval = sys.getswitchinterval()
    before = _descriptors(), set(threading.enumerate())
    yield left
    for thread in set(threading.enumerate()) - before[1]:
        if thread.is_alive():  # Python remembers threads whose start was interrupted
            thread.join(timeout=WATCH_SECONDS / 2)
            if thread.is_alive():
                left.append(f"thread {thread.name}")
    if set(_descriptors()) - set(before[0]):
        gc.collect()
        left += sorted(set(_descriptors()) - set(before[0]))
    if sys.getswitchinterval() != interval:
        left.append(f"switch interval {sys.getswitchinterval()}")
        sys.setswitchinterval(interval)


def _descriptors() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(f"descriptor {name} of {os.readlink(f'/proc/self/fd/{name}')}")
    return sorted(name for name in found if "/proc/" not in name)


class Complaints:
    """Reports by Python: exceptions that nobody can catch, and warnings.

    :ivar vanished: exceptions that came into a finalizer.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.vanished: list[BaseException | None] = []

    def unraisable(self, report: Any) -> None:
        if getattr(report.object, "__name__", "") == "__del__":
            self.vanished.append(report.exc_value)
        else:
            self.texts.append(f"unraisable: {report.exc_value!r} in {report.object!r}")

    def in_thread(self, report: Any) -> None:
        self.texts.append(f"thread {report.thread.name} died: {report.exc_value!r}")


@contextmanager
def complaints_of() -> Iterator[Complaints]:
    """Python's reports in the block. The list is complete when the block has ended."""
    complaints = Complaints()
    hooks = sys.unraisablehook, threading.excepthook
    sys.unraisablehook, threading.excepthook = complaints.unraisable, complaints.in_thread
    try:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            yield complaints
        texts = map(str, (warning.message for warning in warned))
        # It closes what it reports as not closed: something came between the opening and ``with``.
        complaints.texts += [f"warning: {text}" for text in texts if not text.startswith("unclosed ")]
    finally:
        sys.unraisablehook, threading.excepthook = hooks
