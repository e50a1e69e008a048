"""Locks and wake-ups that are safe when a signal handler interrupts them.

CPython runs the handler of a signal in the main thread, between two steps of that thread's code, and so
possibly while it holds a lock. The handler may raise (Ctrl-C, alarms), and it may call the store again. Therefore:

- A lock of `threading` is taken by ``with`` on the lock itself. A handler cannot run between taking it and entering the
  block. Between ``acquire()`` and a ``try``, and inside a context manager written in Python, it can, and the
  lock would stay taken for ever.
- `threading.Condition` and `threading.Event` are such context managers inside; a `Bell` does without.
- Code that a thread must not enter again while it is inside is a `Section`, not a lock.
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

    The same thread comes again only from a signal handler (or a finalizer) that interrupted it in here. With a plain
    lock it would wait for itself; with only a reentrant lock it would continue from a half-done state.

    :ivar holder: the thread that is in it, by `threading.get_ident`; None: nobody, for the moment.
    :ivar lock: held by who is in it.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.holder: int | None = None

    def run(self, work: Callable[..., R], *args: Any) -> R:
        """The result of `work`, called when no other thread is in the section.

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
    """The error for a thread that enters again."""
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
            """It has already been rung since the last wait."""

    def wait(self, seconds: float = _SECONDS_MAX) -> bool:
        """Return when it is rung, or after a while (11 days at the most); returns whether it was rung."""
        return self._silence.acquire(timeout=min(seconds, _SECONDS_MAX))


class Awaited(Protocol):
    """An object that one thread may wait for, while others finish it.

    :ivar bell: of the thread that waits, if one does.
    """

    bell: Bell | None


def sleep(awaited: Awaited) -> None:
    """Wait for `wake`, which may have come already. Return after a while in any case, since the wake may have gone to a
    thread that Ctrl-C ended between queueing and waiting.

    The first call only makes the bell, without which no thread is woken; the caller checks once more before it waits.
    """
    if awaited.bell is None:
        awaited.bell = Bell()
    else:
        awaited.bell.wait(1.0)


def wake(awaited: Awaited) -> None:
    """Let the thread that waits for it check again."""
    if awaited.bell is not None:
        awaited.bell.ring()
