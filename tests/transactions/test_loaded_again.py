"""A state that is loaded again while a transaction of the same store is decided has that transaction once."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import opslog
from opslog.errors import RetryError
from opslog.store import replica_of
from tests.support.bucket import BUCKETS, Fault, Request

Store = opslog.Store[dict[str, Any]]


def in_another_thread(call: Callable[[], object]) -> None:
    """Make a call that the function of a transaction must not make itself."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(call).result()


def check(store: Store, url: str) -> None:
    """The transaction that wrote x is there once, is no news, and an undo takes back all of it."""
    replica = replica_of(store)
    clocks = [entry.commit.clock for entry in replica.state.merge.recent["transactions"]]
    news = store.refresh()
    assert clocks == sorted({*clocks})
    assert not [commit for commit in news if "x" in commit.ids]
    assert [entry.commit.clock for entry in replica.state.merge.recent["transactions"]] == clocks
    assert store["x"] == {"by": "transaction"}
    assert store.undo()
    assert "x" not in store
    store.refresh()
    assert "x" not in store
    assert "x" not in opslog.open(url, read_only=True)


def test_by_a_compaction_of_the_same_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which lets the store forget what is in the snapshot now."""
    monkeypatch.setattr("opslog.replica.state._WINNERS_MAX", 5)
    url = "memory://loaded-again"
    with opslog.open(url, agent="a", compact_after=None) as store:
        for number in range(100):
            store[f"d{number}"] = {"n": number}
        store.create("first", {})

        def write(transaction: opslog.Transaction[dict[str, Any]]) -> None:
            if replica_of(store).state is before:
                in_another_thread(store.compact)
            transaction["x"] = {"by": "transaction"}

        before = replica_of(store).state
        store.transact(write)
        assert replica_of(store).state is not before
        check(store, url)


def test_by_a_refresh_that_could_not_read_what_it_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opslog.backends.objects.backend._READS_MAX", 1)
    url = "bucket://loaded-again"
    with (
        opslog.open(url, agent="a", compact_after=None) as store,
        opslog.open(url, agent="b", compact_after=None) as other,
    ):
        other.create("first", {})
        store.refresh()
        replica = replica_of(store)
        before = replica.state

        def fault(request: Request) -> Fault | None:
            return Fault("refused") if replica.state is not before and request.method in ("list", "get") else None

        def write(transaction: opslog.Transaction[dict[str, Any]]) -> None:
            if replica.state is before:
                for number in range(60):
                    other[f"d{number}"] = {"n": number}
                other.compact()
                with pytest.raises(RetryError), BUCKETS["loaded-again"].failing(fault):
                    in_another_thread(store.refresh)
            transaction["x"] = {"by": "transaction"}

        store.transact(write)
        assert replica.state is not before
        check(store, url)
