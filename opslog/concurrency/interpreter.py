"""Settings of the interpreter, which the whole process shares: how soon threads switch, and when garbage is collected.

Only programs of our own set the garbage collector: the command line and the server. A library must not.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from opslog.backends import forking

# A thread that computes keeps the interpreter for `sys.getswitchinterval()`, 5 ms unless the program sets another
# value. A durable set waits for the disk for only a small part of that time, but then for the interpreter, more than
# once. A still shorter interval would slow down the computing thread, and hardly shorten the wait.
_SECONDS = 0.0005

# In a server, the collector searches the youngest objects when this many more were made than freed: some megabytes.
_NEW_OBJECTS = 20_000


class _SwitchInterval:
    """The interval, which is one for the whole process. An exception may interrupt any of this.

    A signal handler may find its own thread in here, and another thread may fork: `forking.lock` is made for both.
    """

    def __init__(self) -> None:
        self._users: frozenset[object] = frozenset()
        # The interval that was found; None if it has not been shortened.
        self._before: float | None = None

    def shorten(self, user: object) -> None:
        with forking.lock:
            self._users = self._users | {user}
            if self._before is None:
                found = sys.getswitchinterval()
                if found > _SECONDS:
                    self._before = found
                    sys.setswitchinterval(_SECONDS)

    def put_back(self, user: object) -> None:
        """Call it again if it was interrupted."""
        with forking.lock:
            self._users = self._users - {user}
            if self._before is not None and not self._users:
                if sys.getswitchinterval() == _SECONDS:  # otherwise other code has set it meanwhile
                    sys.setswitchinterval(self._before)
                self._before = None


_INTERVAL = _SwitchInterval()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """While any thread is in such a block, threads that compute let others go on after half a millisecond.

    The interval belongs to the whole process. A program that has set a shorter one keeps it. The last block to end
    restores the value that the first one found, unless other code has set another one since.
    """
    user = object()
    try:
        _INTERVAL.shorten(user)
        yield
    finally:
        try:
            _INTERVAL.put_back(user)
        finally:
            _INTERVAL.put_back(user)  # again, since an exception may have ended the first one


@contextmanager
def lasting_imports() -> Iterator[None]:
    """The garbage collector does not run in such a block, and never traverses the objects that exist at its end.

    It is for imports that a program keeps until its end. Searching them several times took a fifth of the time of a
    short command.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def rare_collection() -> Iterator[None]:
    """The garbage collector runs less often in such a block, and does not traverse the objects that existed before.

    By default, Python searches for garbage when 700 more objects were made than freed. The requests of 64 connections
    make more than that, so the search took a fifth of the time of an append. It found nothing, since requests leave no
    reference cycles.
    """
    before, had_frozen = gc.get_threshold(), gc.get_freeze_count() > 0
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 10, 10)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if not had_frozen:
            gc.unfreeze()


def end_quickly() -> None:
    """Call it before the end of a program, so that its last search for garbage has nothing to traverse."""
    gc.freeze()
