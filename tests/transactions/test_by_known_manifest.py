"""A transaction reads the logs by the last manifest that was read, as long as that is recent, and misses nothing by
it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog import Environment, Settings
from opslog.backends import Entry
from opslog.backends.local.fs import FsBackend
from opslog.format.layout import MANIFESTS, log_prefix
from opslog.store import replica_of

# By the storage's clock it ends soon. The clock of the store under test moves only when a test says so.
GRACE_SECONDS = 0.05


def counted(document: dict[str, Any] | None) -> dict[str, Any]:
    return {"n": (document or {"n": 0})["n"] + 1}


@pytest.fixture
def clock() -> list[float]:
    return [1000.0]


@pytest.fixture
def store(tmp_path: Path, clock: list[float]) -> opslog.Store[dict[str, Any]]:
    settings = Settings(grace_seconds=GRACE_SECONDS, undo_window=0)
    environment = Environment(monotonic=lambda: clock[0])
    return opslog.open(tmp_path, agent="a", compact_after=None, settings=settings, environment=environment)


def compact_and_collect(root: Path, id: str) -> None:
    """An agent comes, writes and goes. All its commits are compacted, sealed and collected."""
    with opslog.open(root, agent="b", compact_after=None) as b:
        b[id] = {"n": 40}
    with opslog.open(root, agent="c", compact_after=None) as compactor:
        backend = FsBackend(root)
        while backend.list(log_prefix("b")):
            compactor.compact()


def test_manifests_are_listed_once_in_a_while(
    store: opslog.Store[dict[str, Any]], clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: list[str] = []
    real = FsBackend.list

    def list_(self: FsBackend, prefix: str, after: str = "") -> list[Entry]:
        listed.append(prefix)
        return real(self, prefix, after)

    monkeypatch.setattr(FsBackend, "list", list_)
    store.refresh()
    for _ in range(3):
        store.modify("x", counted)
    assert listed == [MANIFESTS], "the refresh"
    clock[0] += GRACE_SECONDS
    for _ in range(3):
        store.modify("x", counted)
    assert listed == [MANIFESTS] * 2
    store.refresh()
    assert listed == [MANIFESTS] * 3, "who refreshes wants the newest one"
    assert store["x"] == {"n": 6}


def test_what_was_compacted_and_collected_since_is_seen(
    store: opslog.Store[dict[str, Any]], tmp_path: Path, clock: list[float]
) -> None:
    store.modify("x", counted)
    compact_and_collect(tmp_path, "x")
    clock[0] += GRACE_SECONDS
    assert store.modify("x", counted) == {"n": 41}


def test_a_process_that_is_paused_before_it_lists_the_logs_reads_the_newest_manifest(
    store: opslog.Store[dict[str, Any]], tmp_path: Path, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.modify("other", counted)
    real = FsBackend.list_logs
    paused: list[bool] = []

    def list_logs(self: FsBackend, seen: Mapping[str, int]) -> list[Entry]:
        if not paused:
            paused.append(True)
            compact_and_collect(tmp_path, "x")
            clock[0] += GRACE_SECONDS
        return real(self, seen)

    monkeypatch.setattr(FsBackend, "list_logs", list_logs)
    assert store.modify("x", counted) == {"n": 41}
    assert paused


def test_what_a_load_found_is_known(
    store: opslog.Store[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each transaction would find that memory uses a run which the manifest does not have, and load again."""
    monkeypatch.setattr("opslog.snapshot.runs.LOADED_BYTES", 0)
    store.modify("x", counted)
    compact_and_collect(tmp_path, "y")
    replica = replica_of(store)
    replica.invalidate()
    assert store["y"] == {"n": 40}
    loaded = replica.state
    store.modify("x", counted)
    assert replica.state is loaded
