"""What must not travel into a forked child: the right to use a backend, and the descriptors that hold its locks.

`generation` counts the forks that lie between this process and the first one. Whoever remembers its value at opening
can tell with one comparison whether it is used by a forked child.

A lock taken with flock belongs to the open file, which a child shares: a child that lives on would hold its parent's
lock after the parent's death, and a child that unlocks would unlock its parent. So the child closes (never unlocks) the
registered descriptors before it runs anything else. Forks wait while a descriptor is being opened or closed, so none is
missed.

Not covered: a fork made by native code, which Python's hooks do not see. Children started by `subprocess` are no
problem: the descriptors close on exec.

Roads not taken: comparing `os.getpid()` costs a system call on every append; weak references to the owners instead of
descriptors would miss an owner that was dropped without being closed.
"""

from __future__ import annotations

import os
import threading

from opslog.backends import posix

generation = 0

_lock = threading.Lock()
_descriptors: set[int] = set()


def open_descriptor(path: str, flags: int, at: int | None = None) -> int:
    """`os.open` (mode 0o664 less the umask) for a descriptor that a forked child must not keep.

    :param at: the directory that `path` is relative to, as a descriptor.
    """
    with _lock:
        descriptor = os.open(path, flags, posix.FILE_MODE, dir_fd=at)
        _descriptors.add(descriptor)
        return descriptor


def close_descriptor(descriptor: int) -> None:
    """Close what `open_descriptor` returned."""
    with _lock:
        _descriptors.discard(descriptor)
        os.close(descriptor)


def _in_child() -> None:
    global generation  # noqa: PLW0603  (there is one process, and this counts its forks)
    generation += 1
    for descriptor in _descriptors:
        os.close(descriptor)
    _descriptors.clear()
    _lock.release()


os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_in_child)
