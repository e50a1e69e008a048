"""Real histories: two git repositories' first-parent commits as operations of their many authors, with the true trees.

The agent of its author makes each commit, after it has read what the others wrote. Compactions run in between. At ten
points the documents must be exactly git's tree: live at that moment, and afterwards through `as_of`.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.snapshot import runs
from tests.support import bucket, served_storage  # noqa: F401  (stores at bucket:// and served+lossy://)
from tests.support.places import SERVERS, Place

DATA = Path(__file__).parents[2] / "shared" / "data"

pytestmark = pytest.mark.skipif(not DATA.is_dir(), reason=f"the histories are not at {DATA}")


def lines(name: str) -> Iterator[Any]:
    with gzip.open(DATA / f"{name}.jsonl.gz", "rb") as stream:
        yield from map(json.loads, stream)


def commit(store: opslog.Store[Any], ops: list[dict[str, Any]]) -> None:
    with store.batch():
        for op in ops:
            if op["op"] == "set":
                store[op["id"]] = op["data"]
            else:
                del store[op["id"]]


def tree(store: opslog.Store[Any]) -> dict[str, str]:
    return {id: document["blob"] for id, document in store.items()}


@pytest.mark.parametrize(
    ("history", "compact_every", "url", "loaded_bytes"),
    [
        ("httpx", 97, "memory://httpx", 2**30),
        pytest.param("httpx", 97, "memory://httpx-on-storage", 0, marks=pytest.mark.long),
        pytest.param("redis", 500, "memory://redis", runs.LOADED_BYTES, marks=pytest.mark.long),
        pytest.param("httpx", 97, "bucket://httpx", 0, marks=pytest.mark.slow),
        pytest.param("httpx", 97, "served+lossy://httpx", runs.LOADED_BYTES, marks=pytest.mark.slow),
        pytest.param("redis", 500, "served+lossy://redis", runs.LOADED_BYTES, marks=pytest.mark.slow),
    ],
)
def test_a_real_history_gives_the_true_trees(
    history: str, compact_every: int, url: str, loaded_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOADED_BYTES", loaded_bytes)
    replay(history, compact_every, url)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("place", SERVERS, indirect=True)
def test_a_real_history_on_a_server_gives_the_true_trees(place: Place) -> None:
    replay("httpx", 97, place.url())


def replay(history: str, compact_every: int, url: str) -> dict[int, int]:
    """Repeat a history in a store, and compare it with git's trees. Returns the clocks of the compared points, by the
    number of commits before them."""
    trees = {point["after_commits"]: point["tree"] for point in lines(f"{history}-tree")}
    clocks: dict[int, int] = {}
    settings = opslog.Settings(grace_seconds=0)
    with ExitStack() as stack:
        agents: dict[str, opslog.Store[Any]] = {}
        judge = stack.enter_context(opslog.open(url, agent="judge", compact_after=None, settings=settings))
        for number, entry in enumerate(lines(f"{history}-history"), start=1):
            name = entry["agent"]
            if name not in agents:
                agents[name] = stack.enter_context(opslog.open(url, agent=name, compact_after=None))
            store = agents[name]
            store.refresh()
            commit(store, entry["ops"])
            if number % compact_every == 0:
                judge.compact(full=number % (4 * compact_every) == 0, keep_history="forever")
            if number in trees:
                judge.refresh()
                assert tree(store) == tree(judge) == trees[number]
                clocks[number] = judge.stats().clock
        assert len(agents) == {"httpx": 256, "redis": 513}[history]
        judge.compact(keep_history="forever")
        assert len(clocks) == 10
        for number, clock in clocks.items():
            with opslog.open(url, as_of=clock) as past:
                assert tree(past) == trees[number], f"as of clock {clock}, after commit {number}"
        with opslog.open(url, read_only=True) as fresh:
            assert tree(fresh) == trees[max(trees)]
    return clocks
