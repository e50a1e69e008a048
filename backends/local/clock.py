"""The clock of the store's filesystem: the time that a file gets when it is touched."""

from __future__ import annotations

import os
from contextlib import suppress

from opslog.backends import posix
from opslog.backends.local.tree import Tree
from opslog.format.layout import LOCKS

CLOCK = f"{LOCKS}clock"


def touch(tree: Tree) -> float:
    """The time now, in seconds since 1970.

    :raises OSError: the file cannot be touched.
    """
    path, at = (
        tree.checked(f"{CLOCK}/")[:-1],
        tree.descriptor,
    )  # with the slash, so that the file itself is checked, too
    try:
        os.utime(path, dir_fd=at)
    except FileNotFoundError:
        with suppress(FileExistsError):
            os.mkdir(LOCKS, posix.DIRECTORY_MODE, dir_fd=at)
        [descriptor] = posix.opening(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, at)
        os.close(descriptor)
        os.utime(path, dir_fd=at)
    return os.stat(path, dir_fd=at).st_mtime
