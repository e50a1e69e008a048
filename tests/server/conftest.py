from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opslog.server.directory import DirectoryStorage
from opslog.server.memory import MemoryStorage
from opslog.server.storage import Storage

MAP_BYTES = 2**30


@pytest.fixture(params=["memory", "lmdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Each kind of storage, empty; a directory with several shards, so that all that differs between them shows."""
    opened: Storage = MemoryStorage()
    if request.param == "lmdb":
        opened = DirectoryStorage(tmp_path / "data", shards=3, map_bytes=MAP_BYTES)
    yield opened
    opened.close()


@pytest.fixture
def reopen(tmp_path: Path) -> Callable[..., DirectoryStorage]:
    """Opens the durable storage of a test."""

    def open_it(**options: object) -> DirectoryStorage:
        return DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES, **options)  # type: ignore[arg-type]

    return open_it
