"""Whether files are still where they were opened, and still as long.

A process that has a file open does not notice that the file, or a directory above it, is deleted, moved or replaced. It
goes on writing, but nobody will ever read what it writes. If it has mapped the file, and the file is truncated, the
first access to a missing page ends the process with SIGBUS.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from opslog.backends import forking
from opslog.backends.local.tree import identity


class OpenedFiles:
    """Some files at their present paths. They must stay open while this is used, so that no other file can get their
    inode numbers.

    :raises OSError: one of them cannot be found.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        # Absolute, because the process may change its working directory.
        self._files = {path: identity(os.stat(path)) for path in map(os.path.abspath, paths)}

    def problem(self) -> str | None:
        """Describes what happened to one of the files; None: nothing did. Costs one system call for each file."""
        for path, known in self._files.items():
            try:
                status = os.stat(path)
            except OSError as error:
                return f"{path} is not there any more ({error.strerror}): it was deleted or moved{_ADVICE}"
            if identity(status) != known:
                return f"another file stands at {path} than the one that was opened{_ADVICE}"
        return None


class Length:
    """The length of a file that is mapped into memory. The file never shrinks unless it is truncated. Once it was too
    short, it counts as truncated for good, because making it longer again does not bring its contents back.

    Safe to use from many threads, except `note` and `close`.

    :raises OSError: it cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = os.path.abspath(path)
        self._file = forking.Descriptor()
        self._file.open(self._path, os.O_RDWR)
        self._known = 0
        self._problem: str | None = None
        self.note()

    def problem(self) -> str | None:
        """Says that the file was truncated; None: it was not. Called before each read, so it makes only the cheapest
        system call that shows this."""
        known = self._known  # before the size: the file may grow in between
        if self._problem is None and (size := self._size()) < known:
            self._problem = f"{self._path} was truncated to {size} bytes{_ADVICE}"
        return self._problem

    def note(self) -> None:
        """Note the present length, since the file may have grown. Called by the one thread that writes."""
        self._known = max(self._known, self._size())

    def restore(self) -> None:
        """Make a truncated file as long as it was, so that it can be accessed; the truncated part is zeros then."""
        if self.problem() is not None:
            os.ftruncate(self._file.number, self._known)

    def close(self) -> None:
        self._known = 0
        self._file.close()

    def _size(self) -> int:
        # A closed file cannot be too short.
        return os.lseek(self._file.number, 0, os.SEEK_END) if self._file.number >= 0 else 0


_ADVICE = "; stop the server, put back what was moved or restore a backup, and start it again"
