from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from opslog.backends.local.fs import FsBackend
from tests.support.scripts import Process


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def backend(root: Path) -> FsBackend:
    return FsBackend(root)


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    started: list[Process] = []

    def start_one(program: str, *args: object) -> Process:
        started.append(Process(program, *args))
        return started[-1]

    yield start_one
    for process in started:
        if process.process.poll() is None:
            process.kill()
