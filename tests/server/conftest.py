from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opslog.server.directory import DirectoryStorage
from opslog.server.memory import MemoryStorage
from opslog.server.storage import Storage

MAP_BYTES = 2**30


@pytest.fixture(params=["memory", "lmdb", "lmdb-3-shards"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Each kind of storage, empty."""
    opened = open_storage(request.param, tmp_path)
    yield opened
    opened.close()


def open_storage(kind: str, path: Path) -> Storage:
    if kind == "memory":
        return MemoryStorage()
    return DirectoryStorage(path / "data", shards=3 if kind == "lmdb-3-shards" else None, map_bytes=MAP_BYTES)


@pytest.fixture
def reopen(tmp_path: Path) -> Callable[..., DirectoryStorage]:
    """Opens the durable storage of a test."""

    def open_it(**options: object) -> DirectoryStorage:
        return DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES, **options)  # type: ignore[arg-type]

    return open_it
