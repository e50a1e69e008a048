"""The directory that a store was opened in, held by a descriptor.

A path may lead somewhere else at the next call. Somebody may rename the directory or one above it, change the link that
the path is, mount something there, or delete the directory and make a new one. What this file guarantees:

- Calls that name files relative to `Tree.descriptor` read and write in the directory that was opened and in no other
  one, whatever happens to its path. So no call works half in one directory and half in another.
- `Tree.check` says whether the path still leads there. While the descriptor is open, no other directory can get its
  inode number.
- No link below the directory is followed; see `opslog.backends.local.beneath`.

The descriptor is closed when nothing refers to the tree any more. So if one thread closes the backend during a call of
another thread, that call never finds another directory under the same descriptor number. A forked child has a
descriptor of its own, which holds no lock.
"""

from __future__ import annotations

import os

from opslog.backends import posix
from opslog.backends.local import beneath
from opslog.errors import ReopenError

# O_PATH takes no right to read the directory, as paths take none. macOS does not have it.
_HOLD = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY


class Tree:
    """The directory at `path`, which may be a link to it.

    :ivar descriptor: the ``dir_fd`` for calls.
    :raises OSError: it cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._close = os.close
        [self.descriptor] = posix.opening(path, _HOLD)
        self._identity = identity(os.fstat(self.descriptor))

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            self._close(self.descriptor)

    def checked(self, path: str) -> str:
        """Check a path for a call relative to the descriptor, and return it.

        :raises OSError: a directory on the way to it is a link.
        """
        beneath.check(path, self.descriptor)
        return path

    def is_replaced(self) -> bool:
        """Whether another directory is at the path now.

        :raises OSError: there is none.
        """
        return identity(os.stat(self.path)) != self._identity

    def check(self) -> None:
        """Check that the path still leads to this directory.

        :raises ReopenError: it leads to another one.
        :raises OSError: it leads nowhere.
        """
        if self.is_replaced():
            raise ReopenError(
                f"another directory stands at {self.path} now: the one that was opened was moved or deleted, or a link "
                "on the way to it leads elsewhere. Nothing was changed in either. Close the store and open it again"
            )


class OpenFile:
    """An open file, and the path at which others look for it.

    :ivar identity: its device and inode, see `identity`.
    :ivar size: its length when this object was made, in bytes.
    """

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        status = os.fstat(descriptor)
        self.identity = identity(status)
        self.size = status.st_size

    def is_in_place(self) -> bool:
        """Whether the path still leads to this file.

        :raises OSError: that cannot be found out.
        """
        return self.size_in_place() is not None

    def size_in_place(self) -> int | None:
        """The length of the file now, in bytes. None if it is not in place. Errors as in `is_in_place`."""
        try:
            status = os.lstat(self._path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_size if identity(status) == self.identity else None


def identity(status: os.stat_result) -> tuple[int, int]:
    """The device and inode of a file or directory. No other one has them while this one is open."""
    return status.st_dev, status.st_ino
