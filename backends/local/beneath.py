"""Links inside a store are not followed: whoever may write to its directory shall not make others read, overwrite or
delete files elsewhere.

The last component of a path is opened with O_NOFOLLOW, or not followed by the call itself (link, unlink, mkdir, rmdir).
The directories above it, up to the root, are checked before each call. The root itself is held by a descriptor
(`opslog.backends.local.tree`); its path may be a link: whoever opened the store chose it.

Roads not taken: to open each directory from the one above it (openat) and hold on to it would also withstand somebody
who puts a link there in the moment between this check and the call; it takes an open and a close per directory and
call, and paths that no longer say in a trace, or in an error, which file is meant. docs/security.md says what is left.
"""

from __future__ import annotations

import errno
import os
import stat


def check(path: str, root: int) -> None:
    """Let a path below the directory open at `root` pass if no directory on the way to it is a link.

    :raises OSError: ELOOP, as the system says it of a link that it must not follow.
    """
    end = path.find("/")
    while end >= 0:
        directory = path[:end]
        try:
            mode = os.lstat(directory, dir_fd=root).st_mode
        except FileNotFoundError:
            return  # and so nothing is below it
        if stat.S_ISLNK(mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), directory)
        end = path.find("/", end + 1)
