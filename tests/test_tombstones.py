"""Tombstones: how long they stay in a snapshot, and that nothing deleted comes back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.compaction.compact import compact
from opslog.environment import REAL, Environment, format_ts
from opslog.format.commits import Delete, Record, encode_commit
from opslog.format.snapshot import Row
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.verify.verify import verify

Store = opslog.Store[dict[str, Any]]
DAY = 86400
_numbers = itertools.count()

pytestmark = pytest.mark.usefixtures("snapshots")


@pytest.fixture
def url() -> str:
    return f"memory://tombstones-{next(_numbers)}"


@pytest.fixture
def seconds(url: str) -> Iterator[list[float]]:
    """The storage's clock, in seconds since 1970, set by hand. Request it before `backend`."""
    now = [1_800_000_000.0]
    first = open_backend(url, now=lambda: now[0])
    yield now
    first.close()


@pytest.fixture
def backend(url: str) -> Backend:
    return open_backend(url)


def open_store(url: str, agent: str = "a", **settings: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, settings=opslog.Settings(**settings))


def store_ids(url: str) -> list[str]:
    with opslog.open(url, read_only=True) as store:
        return list(store)


def snapshot_of(backend: Backend) -> dict[str, Record]:
    """The content of the live snapshot, newest run first."""
    found: dict[str, Record] = {}
    for run in ManifestStore(backend).newest().runs:
        for row in BlockRun(backend, run).rows():
            found.setdefault(row.id, row.record)
    return found


def fill(store: Store, count: int, prefix: str = "") -> None:
    for number in range(count):
        store[f"{prefix}{number:04}"] = {"number": number}


def test_a_tombstone_hides_until_the_oldest_run_takes_part(url: str, seconds: list[float], backend: Backend) -> None:
    with open_store(url, undo_window=0, tombstone_ttl_seconds=10) as store:
        fill(store, 2000)
        store.compact()
        del store["0001"]
        store.compact()
        assert isinstance(snapshot_of(backend)["0001"], Delete)
        seconds[0] += 11
        store["new"] = {}
        store.compact()
        assert isinstance(snapshot_of(backend)["0001"], Delete), "expired, and the run below still has the document"
        store.compact(full=True)
        assert "0001" not in snapshot_of(backend)
        assert "0001" not in store
    assert "0001" not in store_ids(url)


def test_a_young_tombstone_survives_a_full_compaction(url: str, backend: Backend) -> None:
    """A set from before the delete may still come."""
    with open_store(url, undo_window=0) as store, open_store(url, "late") as late:
        fill(store, 10)
        del store["0001"]
        store.compact(full=True)
        assert isinstance(snapshot_of(backend)["0001"], Delete)
        late["0001"] = {"from": "before"}
        late.refresh()
        assert "0001" not in late
        late.compact(full=True)
    assert "0001" not in store_ids(url)


def test_an_expired_tombstone_stays_while_an_older_set_is_not_compacted(
    url: str, seconds: list[float], backend: Backend
) -> None:
    with open_store(url, undo_window=4, tombstone_ttl_seconds=10) as slow, open_store(url, "b") as busy:
        slow["doomed"] = {}
        busy.refresh()
        del busy["doomed"]
        fill(busy, 10)
        busy.compact()
        seconds[0] += 11
        busy.compact(full=True)
        assert isinstance(snapshot_of(backend)["doomed"], Delete), "the set is still within its agent's undo window"
        assert "doomed" not in store_ids(url)
        slow.refresh()
        fill(slow, 4)
        slow.compact(full=True)
        assert "doomed" not in snapshot_of(backend), "both are compacted, and neither is needed any more"
        assert "doomed" not in store_ids(url)


TIMES = {
    "an import of old data": -20 * 365 * DAY,
    "a slow clock": -8 * DAY,
    "a right clock": 0.0,
    "the future": 8 * DAY,
}


@pytest.mark.parametrize("ahead", TIMES.values(), ids=TIMES)
def test_tombstones_age_from_when_they_were_compacted(
    url: str, seconds: list[float], backend: Backend, ahead: float
) -> None:
    """By the storage's clock, whatever the clocks of their writer and of the compactions say."""
    elsewhere = Environment(time=lambda: seconds[0] + ahead)
    with (
        open_store(url, undo_window=0) as store,
        opslog.open(url, agent="late", compact_after=None) as late,
        opslog.open(url, agent="deleter", compact_after=None, environment=elsewhere) as deleter,
    ):
        fill(store, 10)
        deleter.refresh()
        del deleter["0001"]
        for environment in (elsewhere, REAL):
            compact(backend, environment, full=True)
            assert isinstance(snapshot_of(backend)["0001"], Delete)
        late["0001"] = {"from": "before"}  # it has not read the delete
        store.refresh()
        assert "0001" not in store
        assert "0001" not in store_ids(url)
        seconds[0] += 7 * DAY - 1
        compact(backend, REAL, full=True)
        assert isinstance(snapshot_of(backend)["0001"], Delete)
        seconds[0] += 2
        compact(backend, REAL, full=True)
        assert "0001" not in snapshot_of(backend)
        assert "0001" not in store_ids(url)
    assert verify(backend).problems == []


def test_a_tombstone_ages_though_it_is_merged_again_and_again(url: str, seconds: list[float], backend: Backend) -> None:
    with open_store(url, undo_window=0) as store:
        fill(store, 10)
        del store["0001"]
        store.compact()
        folded = format_ts(seconds[0])
        for day in range(7):
            tombstone = snapshot_of(backend)["0001"]
            assert isinstance(tombstone, Delete)
            assert tombstone.folded == folded
            seconds[0] += DAY
            store[f"day-{day}"] = {}
            store.compact(full=True)
        assert "0001" not in snapshot_of(backend)


def test_a_tombstone_of_an_older_program_ages_from_when_it_is_merged_first(
    url: str, seconds: list[float], backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its `ts`: it is unknown when it was compacted, but not later than now."""
    stamped = Row.stamped
    elsewhere = Environment(time=lambda: 1_500_000_000.0)
    with opslog.open(
        url, agent="a", compact_after=None, environment=elsewhere, settings=opslog.Settings(undo_window=0)
    ) as store:
        fill(store, 10)
        del store["0001"]
        monkeypatch.setattr(Row, "stamped", lambda row, folded: row)
        store.compact()
        monkeypatch.setattr(Row, "stamped", stamped)
        old = snapshot_of(backend)["0001"]
        assert isinstance(old, Delete)
        assert old.folded is None
        seconds[0] += 30 * DAY
        store.compact(full=True)
        tombstone = snapshot_of(backend)["0001"]
        assert tombstone == msgspec.structs.replace(old, folded=format_ts(seconds[0]))
        seconds[0] += 7 * DAY
        store.compact(full=True)
        assert "0001" not in snapshot_of(backend)


def test_the_compaction_time_of_a_delete_in_a_log_is_ignored(url: str, seconds: list[float], backend: Backend) -> None:
    with open_store(url, undo_window=0) as store:
        fill(store, 10)
    line = encode_commit(Delete(format_ts(0.0), 100, "b", "0001", folded=format_ts(0.0)))
    appender = backend.appender("b")
    appender.append(line)
    appender.close()
    compact(backend, REAL, full=True)
    tombstone = snapshot_of(backend)["0001"]
    assert isinstance(tombstone, Delete)
    assert tombstone.folded == format_ts(seconds[0])


def test_without_a_ttl_a_full_compaction_drops_all_tombstones(url: str, backend: Backend) -> None:
    with open_store(url, undo_window=0, tombstone_ttl_seconds=0) as store:
        fill(store, 10)
        del store["0001"]
        store.compact(full=True)
    assert "0001" not in snapshot_of(backend)


def test_commits_buffered_for_most_of_the_ttl_are_not_written(url: str, backend: Backend) -> None:
    """The tombstone that would hide such a commit may be gone."""
    now = [1000.0]
    environment = Environment(time=lambda: 1_800_000_000.0 + now[0], monotonic=lambda: now[0])
    settings = opslog.Settings(undo_window=0, tombstone_ttl_seconds=100)
    late = opslog.open(
        url, agent="late", durability="buffered", buffer_seconds=3600, environment=environment, settings=settings
    )
    late["doomed"] = {}
    late.flush()
    now[0] += 45  # the view is not too old to write with
    late["doomed"] = {"again": True}
    with opslog.open(url, agent="other", environment=environment) as other:
        other["more"] = {}
        del other["doomed"]
    now[0] += 16
    with pytest.raises(opslog.ReopenError, match="was paused for most of the tombstone TTL"):
        late.flush()
    late.close()
    assert store_ids(url) == ["more"]
