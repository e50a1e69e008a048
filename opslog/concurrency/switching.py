"""How soon a thread that returns from the disk continues beside one that computes.

A compaction shortens this interval while it runs, the stream server as long as it serves.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

# A thread that computes keeps the interpreter for `sys.getswitchinterval()`, 5 ms unless the program sets another
# value. A durable set waits for the disk for a small part of that, and then for the interpreter, more than once. An
# interval shorter than this one takes more of the computing, and hardly shortens the wait.
_SECONDS = 0.0005


class _SwitchInterval:
    """The interval, which is one for the whole process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may find its own thread in here
        self._users = 0
        self._before = self._ours = 0.0

    def shorten(self) -> None:
        with self._lock:
            self._users += 1
            if self._users == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, _SECONDS))
                self._ours = sys.getswitchinterval()

    def put_back(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and sys.getswitchinterval() == self._ours:  # otherwise other code has set it meanwhile
                sys.setswitchinterval(self._before)


_INTERVAL = _SwitchInterval()


@contextmanager
def short_switch_interval() -> Iterator[None]:
    """While any thread is in such a block, threads that compute let others go on after half a millisecond.

    The interval belongs to the whole process. A program that has set a shorter one keeps it. The last block to end
    restores the value that the first one found, unless other code has set another one since.
    """
    _INTERVAL.shorten()
    try:
        yield
    finally:
        _INTERVAL.put_back()
