from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

import opslog as library
from tests.cli.calling import Result, call

Opslog = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opslog(root: Path) -> Opslog:
    """Runs a command on the store at `root`, which does not exist yet."""
    return partial(call, root)


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """A store with four tasks."""
    root = tmp_path / "tasks"
    with library.open(root) as store:
        store["a"] = {"status": "active", "hours": 3}
        store["b"] = {"status": "done", "hours": 8}
        store["c"] = {"status": "active", "hours": 5}
        store["d"] = {"status": ["active"]}
    return root
