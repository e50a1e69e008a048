"""The directory that a store was opened in, held by a descriptor.

A path may lead somewhere else from one call to the next: somebody renames the directory or one above it, switches the
link that the path is, mounts something there, or deletes the directory and makes it anew. What this file guarantees:

- Whoever names files relative to `Tree.descriptor` reads and writes in the directory that was opened and in no other
  one, whatever becomes of its path. So nothing is ever done half in one directory and half in another.
- `Tree.check` says whether the path still leads there. While the descriptor is open, no other directory can get its
  inode number.
- No link below the directory is followed; see `opslog.backends.local.beneath`.

The descriptor is closed when nobody refers to the tree any more. So a call that is under way in one thread, while
another one closes the backend, never finds somebody else's directory under that number. A forked child has a descriptor
of its own, which excludes nobody from anything.
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

    :ivar descriptor: what calls with ``dir_fd`` are relative to.
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
        """The path itself, for a call relative to the descriptor.

        :raises OSError: there is a link on the way to it.
        """
        beneath.check(path, self.descriptor)
        return path

    def is_replaced(self) -> bool:
        """Whether another directory stands at the path now.

        :raises OSError: none does.
        """
        return identity(os.stat(self.path)) != self._identity

    def check(self) -> None:
        """Return if the path leads to this directory.

        :raises ReopenError: it leads to another one.
        :raises OSError: it leads nowhere.
        """
        if self.is_replaced():
            raise ReopenError(
                f"another directory stands at {self.path} than the one that was opened: that one was moved away or "
                "deleted, or a link on the way to it leads elsewhere now. Nothing was changed in either. Close the "
                "store and open it again"
            )


class OpenFile:
    """A file that is open at `descriptor`, and the `path` at which others look for it."""

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        self._identity = identity(os.fstat(descriptor))

    def is_in_place(self) -> bool:
        """Whether whoever opens the path now finds this very file.

        :raises OSError: it cannot be found out.
        """
        try:
            return identity(os.lstat(self._path)) == self._identity
        except (FileNotFoundError, NotADirectoryError):
            return False


def identity(status: os.stat_result) -> tuple[int, int]:
    """What distinguishes a file or directory from every other one, for as long as somebody has it open."""
    return status.st_dev, status.st_ino
