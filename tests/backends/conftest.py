from __future__ import annotations

from pathlib import Path

import pytest

from opslog.backends.local.fs import FsBackend


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> FsBackend:
    return FsBackend(root)
