"""What a closed store leaves in memory."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.store import Store, replica_of

USES: dict[str, Callable[[Store[Any]], object]] = {
    "get": lambda store: store.get("task-5"),
    "items": lambda store: dict(store.items()),
    "find": lambda store: list(store.find("n = 5")),
    "group": lambda store: store.group("n"),
    "history": lambda store: store.history("task-5"),
    "ops": lambda store: list(store.ops()),
    "stats": lambda store: store.stats(),
    "refresh": lambda store: store.refresh(),
}


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("without_collector")
@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("options", [{"as_of": 20}, {"read_only": True}], ids=["as_of", "read_only"])
def test_a_store_that_only_reads_is_freed_when_it_is_closed(
    tmp_path: Path, use: Callable[[Store[Any]], object], options: dict[str, Any]
) -> None:
    """Python's garbage collector may come late: a store of a million documents is a few hundred objects to it. The
    server opens one for each point in the past that it is asked for."""
    with opslog.open(tmp_path / "s", agent="a") as writer:
        for number in range(20):
            writer[f"task-{number}"] = {"n": number}
    store = opslog.open(tmp_path / "s", **options)
    use(store)
    replica = weakref.ref(replica_of(store))
    store.close()
    del store
    assert replica() is None
