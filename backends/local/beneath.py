"""Links inside a store are not followed. So a program that may write to the store's directory cannot make others read,
overwrite or delete files elsewhere.

The last component of a path is opened with O_NOFOLLOW, or the call itself does not follow it (link, unlink, mkdir,
rmdir). The directories above it, up to the root, are checked before each call. The root itself is held by a descriptor
(`opslog.backends.local.tree`). Its path may be a link, because the program that opened the store chose it.

Roads not taken: a chain of openat calls, each directory opened from the one above it, would also withstand an attacker
who creates a link between this check and the call. It would take an open and a close for each directory and call, and
the paths in traces and errors would no longer show which file is meant. docs/security.md says what risk is left.
"""

from __future__ import annotations

import errno
import os
import stat


def check(path: str, root: int) -> None:
    """Check that no directory on the way to a path is a link. The path is relative to the directory open at `root`.

    :raises OSError: ELOOP, as from the system for a link that it must not follow.
    """
    end = path.find("/")
    while end >= 0:
        directory = path[:end]
        try:
            mode = os.lstat(directory, dir_fd=root).st_mode
        except FileNotFoundError:
            return  # so nothing is below it
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), directory)
        end = path.find("/", end + 1)
