"""Locks and wake-ups that hold up when a signal's handler comes in between.

CPython runs the handler of a signal in the main thread, between two steps of whatever that thread is doing, and so
possibly while it holds a lock. The handler may raise (Ctrl-C, alarms), and it may call the store again. Therefore:

- A lock of `threading` is taken by ``with`` on the lock itself. Nothing comes in between taking it and being in the
  block. Between ``acquire()`` and a ``try``, and inside a context manager written in Python, something can, and the
  lock would stay taken for ever.
- `threading.Condition` and `threading.Event` are such context managers inside; a `Bell` does without.
- What a thread must not begin again while it is at it is a `Section`, not a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from opslog.errors import UsageError

R = TypeVar("R")

# The longest wait before the lock is tried again, because locks refuse timeouts of centuries.
_SECONDS_MAX = 1e6


class Section:
    """A part of the code that one thread at a time is in, and none twice.

    The same thread comes again only from a signal's handler (or a finalizer) that interrupted it in here. With a plain
    lock it would wait for itself; with a reentrant one alone it would go on with what is half done.

    :ivar holder: the thread that is in it, by `threading.get_ident`; None: nobody, for the moment.
    :ivar lock: held by who is in it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder: int | None = None

    def run(self, work: Callable[..., R], *args: Any) -> R:
        """What `work` returns, called when no other thread is in the section.

        :raises UsageError: the calling thread is in it already; nothing was called.
        """
        me = threading.get_ident()
        if self.holder == me:
            raise reentered()
        # Reentrant, for a handler that comes before the holder is noted: it has all of the section to itself.
        with self.lock:
            try:
                self.holder = me
                result = work(*args)
            finally:
                self.holder = None
        return result


def reentered() -> UsageError:
    """The error for who comes again."""
    return UsageError(
        "this call comes from a signal handler that interrupted another call of the same store, which has to end "
        "first, and nothing was done: let the handler set a flag, and make the call after it"
    )


class Bell:
    """Wakes one waiting thread; a ring that comes before the wait is not lost. Both may be called from anywhere."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        try:
            self._silence.release()
        except RuntimeError:
            """It has been rung since the last wait."""

    def wait(self, seconds: float = _SECONDS_MAX) -> bool:
        """Return when it is rung, or after a while (11 days at the most); whether it was rung."""
        return self._silence.acquire(timeout=min(seconds, _SECONDS_MAX))


class Awaited(Protocol):
    """What one thread may wait for, while others finish it.

    :ivar bell: of the thread that waits, if one does.
    """

    bell: Bell | None


def sleep(awaited: Awaited) -> None:
    """Wait for `wake`, which may have come already; check again after a while in any case: the wake may have gone to a
    thread that Ctrl-C took away between queueing and waiting.

    The first time this only makes the bell, without which nobody is woken; the caller checks once more before it waits.
    """
    if awaited.bell is None:
        awaited.bell = Bell()
    else:
        awaited.bell.wait(1.0)


def wake(awaited: Awaited) -> None:
    """Whoever waits for it checks again."""
    if awaited.bell is not None:
        awaited.bell.ring()
