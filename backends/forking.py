"""Keeps a forked child from using its parent's backends, and from inheriting the descriptors that hold their locks.

`generation` counts the forks between this process and the first one. An object remembers its value at opening, so one
comparison shows whether a forked child uses it.

A lock taken with flock belongs to the open file, which a child shares. A surviving child would hold its parent's
lock after the parent's death, and a child that unlocks would unlock its parent. So the child closes (never unlocks) the
registered descriptors before it runs anything else. Forks wait while a descriptor is being opened or closed, so none is
missed.

Not covered: a fork made by native code, which Python's hooks do not see. Children started by `subprocess` are no
problem: the descriptors close on exec.

Roads not taken: comparing `os.getpid()` costs a system call on every append. A plain integer is lost, with its lock,
if an interrupt comes between opening the descriptor and storing it.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

from opslog.backends import posix
from opslog.errors import ClosedError

generation = 0

# Forks wait for this lock, so in a forked child it is never held by a thread that no longer exists. Reentrant, for a
# signal handler that runs while its own thread holds it.
lock = threading.RLock()
_numbers: set[int] = set()


class Descriptor:
    """An open file that a forked child must not keep. As an object it can be closed twice, and by everybody who
    may hold it, whatever was interrupted; it is closed at the latest when the last reference is gone.

    No signal handler can run between the first change and the last in `open` and `close`.

    :ivar number: the file's descriptor, -1 while there is none.
    """

    number = -1
    _generation = 0

    def open(self, path: str, flags: int, at: int | None = None) -> None:
        """`os.open` (mode 0o664 less the umask).

        :param at: the directory that `path` is relative to.
        """
        global _numbers  # noqa: PLW0603  (one set for the process, changed in place)
        opening = posix.opening(path, flags, at)
        self._generation = generation
        with lock:
            [self.number] = opening
            _numbers |= {self.number}

    def close(self) -> None:
        global _numbers  # noqa: PLW0603
        with lock:
            number, self.number = self.number, -1
            if number >= 0 and self._generation == generation:
                _numbers -= {number}
                os.close(number)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self.number >= 0 and not is_finalizing():
            self.close()


class ProcessBound:
    """An object that only the process that opened it may use: a child of a fork has to open its own."""

    def __init__(self) -> None:
        self._generation = generation
        self._closed = False

    @property
    def _is_forked(self) -> bool:
        """Whether this process is a child of the one that opened it."""
        return self._generation != generation

    @property
    def _is_closed(self) -> bool:
        return self._closed

    def _check_open(self) -> None:
        """:raises ClosedError: it was closed, or opened by the parent of this process."""
        if self._is_forked:
            raise ClosedError(
                f"{self._name()} was opened by the parent of this process: {self._again()} after the fork"
            )
        if self._is_closed:
            raise ClosedError(f"{self._name()} is closed: {self._again()}")

    def _name(self) -> str:
        """Describes the object in a message."""
        raise NotImplementedError

    def _again(self) -> str:
        return "open it again"


class BoundAppender(ProcessBound):
    """The same for the appender of an agent's log."""

    _agent: str

    def _name(self) -> str:
        return f"the log of agent {self._agent!r}"

    def _again(self) -> str:
        return "open the store again"


def _in_child() -> None:
    global generation  # noqa: PLW0603  (there is one process, and this counts its forks)
    generation += 1
    for number in _numbers:
        os.close(number)
    _numbers.clear()
    lock.release()


os.register_at_fork(before=lock.acquire, after_in_parent=lock.release, after_in_child=_in_child)
