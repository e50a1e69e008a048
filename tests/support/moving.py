"""Changes that people make to a store's directory beside open stores. Each returns the former directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Change = Callable[[Path], Path]


def renamed_and_copied(root: Path) -> Path:
    """Somebody moves the directory and copies it back, for a backup or a restore."""
    former = root.rename(root.with_name("former"))
    shutil.copytree(former, root)
    return former


def renamed_above(root: Path) -> Path:
    former = root.parent.rename(root.parent.with_name("former"))
    shutil.copytree(former, root.parent)
    return former / root.name


def switched(root: Path) -> Path:
    """The path is a link, which now leads to another version."""
    former = root.resolve()
    copy = shutil.copytree(former, former.with_name("v2"))
    os.symlink(copy, root.with_name("next"))
    os.replace(root.with_name("next"), root)
    return former


def place_for(tmp_path: Path, change: Change) -> Path:
    """A place for a store that allows the coming change."""
    above = tmp_path / "above"
    above.mkdir()
    if change is switched:
        (above / "v1").mkdir()
        (above / "store").symlink_to(above / "v1")
    return above / "store"
