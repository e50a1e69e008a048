"""The files on the storage."""

from __future__ import annotations

from pathlib import Path

from opslog.backends.local.fs import FsBackend


def files(root: Path) -> list[str]:
    """The paths of all files of a store but those for locks."""
    return [entry.path for entry in FsBackend(root, create=False).list("") if not entry.path.startswith("locks/")]
