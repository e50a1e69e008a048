"""Whether files are still where they were opened.

A process that has a file open does not notice that somebody deletes, moves or replaces it, or a directory above it: it
goes on writing, and nobody will ever read it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from opslog.backends.local.tree import identity


class Place:
    """Some files at their present paths. They must stay open while this is used, so that no other file can get their
    inode numbers, and they never shrink.

    :raises OSError: one of them cannot be found.
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        # Absolute, because the process may change its working directory.
        found = {os.path.abspath(path): os.stat(path) for path in paths}
        self._files = {path: identity(status) for path, status in found.items()}
        self._sizes = {path: status.st_size for path, status in found.items()}

    def problem(self) -> str | None:
        """What happened to one of the files, if anything did. Costs one system call for each file."""
        for path, known in self._files.items():
            try:
                status = os.stat(path)
            except OSError as error:
                return f"{path} is not there any more ({error.strerror}): it was deleted or moved{_ADVICE}"
            if identity(status) != known:
                return f"another file stands at {path} than the one that was opened{_ADVICE}"
            if status.st_size < self._sizes[path]:
                return f"{path} was truncated to {status.st_size} bytes{_ADVICE}"
            self._sizes[path] = status.st_size
        return None


_ADVICE = "; stop the server, put back what was moved or restore a backup, and start it again"
