"""The files of a store on storage."""

from __future__ import annotations

from pathlib import Path

from opslog.backends.local.fs import FsBackend


def files(root: Path) -> list[str]:
    """The paths of all files of a store, except lock files."""
    return [entry.path for entry in FsBackend(root, create=False).list("") if not entry.path.startswith("locks/")]
