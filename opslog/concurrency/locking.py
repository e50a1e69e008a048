"""Locks and wake-ups that are safe when a signal handler interrupts them.

CPython runs the handler of a signal in the main thread, between two steps of that thread's code, possibly while the
thread holds a lock. The handler may raise (Ctrl-C, alarms), and it may call the store again. Therefore:

- A lock of `threading` is taken by ``with`` on the lock itself. A handler cannot run between taking it and entering the
  block. It can run between ``acquire()`` and a ``try``, and inside a context manager written in Python; if it raised
  there, the lock would stay taken for ever.
- `threading.Condition` and `threading.Event` are such context managers inside. A `Bell` is not.
- If a thread must not enter some code again while it is inside, that code is a `Section`, not a lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

from opslog.errors import UsageError

R = TypeVar("R")

# The longest timeout of a wait: locks refuse timeouts of centuries.
_SECONDS_MAX = 1e6


class Section:
    """A part of the code that one thread at a time is in. No thread enters it again while it is inside.

    A thread could do that only in a signal handler (or a finalizer) that interrupted it in here. With a plain lock it
    would wait for itself; with only a reentrant lock it would continue from a half-done state.

    :param of: what the calls that go through it are calls of, for the message of the error.
    :ivar holder: the thread that is in it, by `threading.get_ident`; None: no thread, for the moment.
    :ivar lock: the thread that is in it holds this lock.
    """

    def __init__(self, of: str = "the same store") -> None:
        self._of = of
        self.lock = threading.RLock()
        self.holder: int | None = None

    def run(self, work: Callable[..., R], *args: Any) -> R:
        """The result of `work`, called when no other thread is in the section.

        :raises UsageError: the calling thread is in it already; nothing was called.
        """
        me = threading.get_ident()
        if self.holder == me:
            raise reentered(self._of)
        # Reentrant, for a handler that comes before the holder is noted. Nothing is half-done then, so the handler may
        # go through the whole section.
        with self.lock:
            try:
                self.holder = me
                result = work(*args)
            finally:
                self.holder = None
        return result


def reentered(of: str = "the same store") -> UsageError:
    """The error for a thread that enters a section again."""
    return UsageError(
        f"this call comes from a signal handler that interrupted another call of {of}, which has to end first, and "
        "nothing was done: let the handler set a flag, and make the call after it"
    )


class Bell:
    """Wakes one waiting thread. A ring that comes before the wait is not lost. Any thread or signal handler may call
    both methods."""

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        try:
            self._silence.release()
        except RuntimeError:
            """It has already been rung since the last wait."""

    def wait(self, seconds: float = _SECONDS_MAX) -> bool:
        """Wait until it is rung, or for so many seconds (11 days at the most). Returns whether it was rung."""
        return self._silence.acquire(timeout=min(seconds, _SECONDS_MAX))


class made_once(Generic[R]):
    """A property that is made when it is first read. All threads get the same object, also those that come first at
    once: the methods of `functools.cached_property` would make two, since it takes no lock from Python 3.12 on."""

    def __init__(self, make: Callable[[Any], R]) -> None:
        self._make = make
        self._name = make.__name__
        self.__doc__ = make.__doc__

    def __get__(self, instance: Any, owner: type) -> R:
        made: R = instance.__dict__.setdefault(self._name, self._make(instance))
        return made


class Awaited(Protocol):
    """An object that one thread may wait for, while other threads finish it.

    :ivar bell: the bell of the waiting thread, if there is one.
    """

    bell: Bell | None


def sleep(awaited: Awaited) -> None:
    """Wait for `wake`, which may have been called already. Returns after a second in any case, since the wake-up may
    have gone to a thread that Ctrl-C ended between queueing and waiting.

    The first call only makes the bell, without which `wake` does nothing. So the caller checks once more whether it has
    to wait.
    """
    if awaited.bell is None:
        awaited.bell = Bell()
    else:
        awaited.bell.wait(1.0)


def wake(awaited: Awaited) -> None:
    """Wake the thread that waits for an object, so that it checks again."""
    if awaited.bell is not None:
        awaited.bell.ring()
