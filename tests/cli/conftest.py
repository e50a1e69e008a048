from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.cli.calling import Result, call

Opslog = Callable[..., Result]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def opslog(root: Path) -> Opslog:
    """Runs a command on the store at `root`, which does not exist yet."""
    return partial(call, root)
