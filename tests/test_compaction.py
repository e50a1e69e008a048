"""Compaction: what goes into a snapshot, when runs merge, seals, tombstones, and compactions that meet."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.backends.local.fs import FsBackend
from opslog.backends.memory import MemoryBackend
from opslog.compaction import compact as compaction
from opslog.compaction.compact import Compaction, compact, compact_unlocked
from opslog.environment import REAL
from opslog.errors import WriteFailedError
from opslog.format import snapshot
from opslog.format.commits import Record, Set
from opslog.format.layout import segment_path
from opslog.format.manifest import Manifest
from opslog.log.freshness import Freshness
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.verify.verify import verify

Store = opslog.Store[dict[str, Any]]
DAY = 86400
_numbers = itertools.count()

pytestmark = pytest.mark.usefixtures("snapshots")


@pytest.fixture
def url() -> str:
    return f"memory://compaction-{next(_numbers)}"


@pytest.fixture
def backend(url: str) -> Backend:
    return open_backend(url)


def open_store(url: str, agent: str = "a", **settings: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, settings=opslog.Settings(**settings))


def newest(backend: Backend) -> Manifest:
    return ManifestStore(backend).newest()


def paths(backend: Backend, prefix: str = "") -> list[str]:
    return [entry.path for entry in backend.list(prefix)]


def snapshot_of(backend: Backend) -> dict[str, Record]:
    """The content of the live snapshot, newest run first."""
    found: dict[str, Record] = {}
    for run in newest(backend).runs:
        for row in BlockRun(backend, run).rows():
            found.setdefault(row.id, row.record)
    return found


@pytest.fixture
def seconds(url: str) -> Iterator[list[float]]:
    """The storage's clock, in seconds since 1970, set by hand. Request it before `backend`."""
    now = [1_800_000_000.0]
    first = open_backend(url, now=lambda: now[0])
    yield now
    first.close()


def fill(store: Store, count: int, prefix: str = "") -> None:
    for number in range(count):
        store[f"{prefix}{number:04}"] = {"number": number}


# -- the cut


@pytest.mark.parametrize("window", [0, 1, 5, 32])
def test_the_newest_commits_of_each_log_stay_out(url: str, backend: Backend, window: int) -> None:
    with open_store(url, undo_window=window) as a, open_store(url, "b") as b:
        fill(a, 50)
        fill(b, 3, "b")
        done = a.compact()
    manifest = newest(backend)
    compacted = 50 - window + max(0, 3 - window)
    assert (done.number, done.commits, done.records) == (2, compacted, compacted)
    assert manifest.cut["a"].commits == 50 - window
    assert manifest.cut.keys() == {"a"} | ({"b"} if window < 3 else set())
    assert manifest.documents == len(snapshot_of(backend)) == compacted
    assert manifest.clock == 50, "the greatest that was read, not the greatest that was compacted"


def test_cancelled_commits_are_not_compacted(url: str, backend: Backend) -> None:
    with open_store(url, undo_window=2) as store:
        store["kept"] = {}
        store["undone"] = {}
        store.undo()
        fill(store, 2)
        store.compact()
    assert set(snapshot_of(backend)) == {"kept"}


def test_an_undo_that_is_not_compacted_itself_still_counts(url: str, backend: Backend) -> None:
    with open_store(url, undo_window=2) as store:
        store["x"] = {"n": 1}
        store["x"] = {"n": 2}
        store.undo()
        store["y"] = {}
        assert store.compact().commits == 2
        assert store["x"] == {"n": 1}
    record = snapshot_of(backend)["x"]
    assert isinstance(record, Set)
    assert record.document == {"n": 1}
    with opslog.open(url, read_only=True) as fresh:
        assert dict(fresh.items()) == {"x": {"n": 1}, "y": {}}


def test_a_set_from_an_old_view_does_not_beat_the_snapshot(url: str, backend: Backend) -> None:
    """Its writer had not read what was compacted meanwhile. Its clock is smaller, so it loses, in the snapshot too."""
    with open_store(url, undo_window=1) as a, open_store(url, "late") as late:
        fill(a, 30)
        a["x"] = {"by": "a"}
        a["y"] = {}
        a.compact()
        late["x"] = {"by": "late"}
        late["z"] = {}
        done = a.compact()
        assert (done.commits, done.records) == (1, 0), "what lost is compacted and left no record"
        a.refresh()
        assert a["x"] == {"by": "a"}
    record = snapshot_of(backend)["x"]
    assert record.agent == "a"


def test_nothing_to_do_changes_nothing(url: str, backend: Backend) -> None:
    with open_store(url) as store:
        fill(store, 40)
        store.compact()
        before = paths(backend)
        assert store.compact() == Compaction()
        assert store.compact(full=True) == Compaction()
        fill(store, 0)
        assert paths(backend) == before
    empty = open_backend(f"{url}-empty")
    with opslog.open(f"{url}-empty", agent="a") as store:
        assert store.compact() == Compaction()
    assert paths(empty, "manifests/") == ["manifests/00000000000000000001.json"]


# -- runs


def test_its_cost_is_that_of_the_tail(url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reads and writes of a compaction do not grow with the store, except for the index and the blocks that it
    changes."""
    with open_store(url, undo_window=0) as store:
        for number in range(3000):
            store[f"{number:05}"] = {"text": "x" * 1000}
        store.compact()
        store["00007"] = {"text": "new"}
        moved = {"read": 0, "written": 0}
        read, create = MemoryBackend.read, MemoryBackend.create

        def count_read(self: MemoryBackend, path: str, start: int = 0, stop: int | None = None) -> bytes:
            data = read(self, path, start, stop)
            moved["read"] += len(data)
            return data

        def count_create(self: MemoryBackend, path: str, data: bytes) -> None:
            moved["written"] += len(data)
            create(self, path, data)

        with monkeypatch.context() as patch:
            patch.setattr(MemoryBackend, "read", count_read)
            patch.setattr(MemoryBackend, "create", count_create)
            patch.setattr(MemoryBackend, "map", lambda self, path: None)
            store.compact()
    size = sum(run.bytes for run in newest(backend).runs)
    assert size > 3_000_000
    assert moved["read"] < size / 20
    assert moved["written"] < 3000


def test_runs_of_one_size_merge_by_four(url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 256)
    merged, counts = [], []
    with open_store(url, undo_window=0) as store:
        for batch in range(64):
            fill(store, 2, f"{batch}-")
            merged.append(store.compact().runs_merged)
            counts.append(len(newest(backend).runs))
        assert len(store) == 128
    assert max(counts) <= 3 * 4
    assert sum(count > 0 for count in merged) < 64 / 2, "most compactions merge nothing"
    assert {record.id for record in snapshot_of(backend).values()} == set(store_ids(url))
    assert verify(backend).problems == []


def store_ids(url: str) -> list[str]:
    with opslog.open(url, read_only=True) as store:
        return list(store)


def test_full_makes_one_run_of_what_is_live(url: str, seconds: list[float], backend: Backend) -> None:
    with open_store(url, undo_window=0) as store:
        for turn in range(2):
            fill(store, 20, f"{turn}-")
            store.compact()
        del store["1-0003"]
        store.compact()
        seconds[0] += 8 * DAY
        assert len(newest(backend).runs) > 1
        progress: list[tuple[int, int]] = []
        done = store.compact(full=True, progress=lambda written, total: progress.append((written, total)))
        assert (done.records, done.commits) == (39, 0)
        assert progress[-1][0] == 39
        assert store.compact(full=True) == Compaction()
    (run,) = newest(backend).runs
    assert [row.id for row in BlockRun(backend, run).rows()] == store_ids(url)
    assert newest(backend).documents == 39


def test_a_run_of_many_parts(url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 300)
    monkeypatch.setattr(snapshot, "PART_BYTES", 2000)
    with open_store(url, undo_window=0) as store:
        fill(store, 200)
        store.compact()
        before = dict(store.items())
    (run,) = newest(backend).runs
    assert len(run.parts) > 5
    with opslog.open(url, read_only=True) as store:
        assert dict(store.items()) == before
    assert verify(backend).problems == []


def test_a_part_that_cannot_be_written(url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compaction fails, and leaves nothing of its run, even if other parts are being written meanwhile."""
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 300)
    monkeypatch.setattr(snapshot, "PART_BYTES", 2000)
    create, writers = MemoryBackend.create, set[str]()

    def fail(self: MemoryBackend, path: str, data: bytes) -> None:
        writers.add(threading.current_thread().name)
        if path.endswith("part-00003.jsonl"):
            raise WriteFailedError("no room")
        create(self, path, data)

    with open_store(url, undo_window=0) as store:
        fill(store, 200)
        before = dict(store.items())
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(MemoryBackend, "create", fail)
            with pytest.raises(WriteFailedError, match="no room"):
                store.compact()
        assert "opslog-overlap" in writers
        assert "opslog-overlap" not in {thread.name for thread in threading.enumerate()}
        assert backend.list("snapshots/") == []
        assert store.compact().number == 2
        assert dict(store.items()) == before


# -- seals


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The storage's own clock."""
    now = [1_000_000.0]
    monkeypatch.setattr(MemoryBackend, "now", lambda self: now[0])
    listing = MemoryBackend.list
    monkeypatch.setattr(
        MemoryBackend,
        "list",
        lambda self, *place: [entry._replace(modified=1_000_000.0) for entry in listing(self, *place)],
    )
    return now


def test_an_idle_agent_is_sealed_and_compacted_whole(url: str, backend: Backend, clock: list[float]) -> None:
    with open_store(url, "idle") as idle:
        fill(idle, 10)
    clock[0] += DAY - 1
    assert compact(backend, REAL).sealed == ()
    clock[0] += 2
    done = compact(backend, REAL)
    assert (done.sealed, done.commits, done.records) == (("idle",), 11, 10)
    assert compact(backend, REAL).sealed == ()
    with open_store(url, "idle") as idle:
        assert not idle.undo()
        idle["new"] = {}
        assert idle.stats().clock == 12
        assert idle.undo()
        assert len(idle) == 10
    assert verify(backend).problems == []


def test_a_live_agent_is_never_sealed(url: str, backend: Backend, clock: list[float]) -> None:
    with open_store(url, "live") as live:
        fill(live, 10)
        clock[0] += 10 * DAY
        assert compact(backend, REAL) == Compaction(2)  # names the log, and changes nothing else
        assert compact(backend, REAL) == Compaction()
        assert live.undo()


def test_an_agent_that_wrote_while_its_log_was_read_is_not_sealed(
    url: str, backend: Backend, clock: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(url, "idle") as idle:
        fill(idle, 10)
    clock[0] += 2 * DAY
    take = MemoryBackend.appender

    def came_back(self: MemoryBackend, agent: str) -> Any:
        monkeypatch.setattr(MemoryBackend, "appender", take)
        with open_store(url, "idle") as idle:
            idle["back"] = {}
        return take(self, agent)

    monkeypatch.setattr(MemoryBackend, "appender", came_back)
    assert compact(backend, REAL).sealed == ()
    with open_store(url, "idle") as idle:
        assert idle.undo(), "its window is as it was"
        assert "back" not in idle


# -- compactors in each other's way


def racing(monkeypatch: pytest.MonkeyPatch, between: Callable[[], object]) -> None:
    """Run `between` when the next compaction has read everything and not written anything yet."""
    seal = compaction.Tail.seal_idle

    def pause(self: compaction.Tail, backend: Backend, freshness: Freshness) -> tuple[str, ...]:
        monkeypatch.setattr(compaction.Tail, "seal_idle", seal)
        between()
        return seal(self, backend, freshness)

    monkeypatch.setattr(compaction.Tail, "seal_idle", pause)


def test_one_of_two_simultaneous_compactions_publishes(
    url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(url, undo_window=0) as store:
        fill(store, 40)
        racing(monkeypatch, lambda: compact_unlocked(backend, REAL))
        assert compact_unlocked(backend, REAL).number is None
        (run,) = newest(backend).runs
        assert {path.split("/")[1] for path in paths(backend, "snapshots/")} == {run.name}, "the loser left nothing"
        assert dict(store.items()) == {f"{number:04}": {"number": number} for number in range(40)}
    assert verify(backend).problems == []


@pytest.mark.parametrize("is_overtaken", [True, False])
def test_a_compaction_whose_parts_vanish_while_it_writes_them_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_overtaken: bool
) -> None:
    """If another one was first, it has deleted them, and that is no error."""
    backend = open_backend(tmp_path)
    sync = FsBackend.sync_directory

    def vanish(self: FsBackend, directory: str) -> None:
        if directory.startswith("snapshots/"):
            monkeypatch.setattr(FsBackend, "sync_directory", sync)
            if is_overtaken:
                compact_unlocked(open_backend(tmp_path), REAL)
            else:
                shutil.rmtree(tmp_path / directory)
        sync(self, directory)

    with open_store(str(tmp_path), undo_window=0) as store:
        fill(store, 40)
        monkeypatch.setattr(FsBackend, "sync_directory", vanish)
        if is_overtaken:
            assert compact_unlocked(backend, REAL).number is None
        else:
            with pytest.raises(WriteFailedError, match=r"nothing was compacted: .*/part-00000.* may not survive"):
                compact_unlocked(backend, REAL)
        runs = {run.name for run in newest(backend).runs}
        assert len(runs) == is_overtaken
        assert {path.split("/")[1] for path in paths(backend, "snapshots/")} == runs
        assert dict(store.items()) == {f"{number:04}": {"number": number} for number in range(40)}
    assert verify(backend).problems == []


def test_an_empty_segment_may_go_while_a_compaction_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent could not make it durable, and removed it again."""
    with open_store(str(tmp_path), undo_window=0) as store:
        fill(store, 10)
    empty = tmp_path / segment_path("a", 2)
    empty.touch()
    racing(monkeypatch, empty.unlink)
    backend = open_backend(tmp_path)
    assert compact_unlocked(backend, REAL).records == 10
    assert verify(backend).problems == []


@pytest.mark.parametrize("grace", [0, 600])
def test_a_compaction_paused_while_others_went_on_does_no_harm(
    url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch, grace: float
) -> None:
    """There is no grace period, so its number was used and collected before it wakes up. It can create the manifest,
    and readers ignore it."""

    def others() -> None:
        for turn in range(3):
            fill(store, 5, f"{turn}-")
            compact_unlocked(backend, REAL)

    with open_store(url, undo_window=0, grace_seconds=grace) as store:
        fill(store, 40)
        racing(monkeypatch, others)
        assert compact_unlocked(backend, REAL).number is None
        store.refresh()
        assert len(store) == 55
        with opslog.open(url, read_only=True) as fresh:
            assert dict(fresh.items()) == dict(store.items())
        assert verify(backend).ok
        store["more"] = {}
        assert compact_unlocked(backend, REAL).number == 5
        with opslog.open(url, read_only=True) as fresh:
            assert len(fresh) == 56
    assert verify(backend).problems == []


def test_the_lock_lets_one_in(url: str, backend: Backend) -> None:
    with open_store(url) as store:
        with backend.lock(compaction.LOCK), pytest.raises(opslog.LockedError):
            store.compact()
        assert store.compact() == Compaction()


def test_many_compactors_without_lock_and_a_writer(url: str, backend: Backend) -> None:
    failures: list[BaseException] = []
    done: list[Compaction] = []
    stop = threading.Event()

    def work() -> None:
        try:
            while not stop.is_set():
                done.append(compact_unlocked(backend, REAL))
        except BaseException as error:
            failures.append(error)
            raise

    with open_store(url, undo_window=3, grace_seconds=0) as store:
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        number = 0
        while number < 600 or (sum(one.number is not None for one in done) < 2 and not failures):
            store[f"{number % 150:04}"] = {"number": number}
            if number % 7 == 0:
                del store[f"{number % 150:04}"]
            number += 1
        expected = dict(store.items())
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures
    with opslog.open(url, read_only=True) as fresh:
        assert dict(fresh.items()) == expected
    assert verify(backend).ok


# -- options


def test_keep_history_stays_until_it_is_changed(url: str, backend: Backend) -> None:
    with open_store(url) as store:
        fill(store, 40)
        store.compact(keep_history="forever")
        assert newest(backend).settings.keep_history_seconds is None
        fill(store, 5)
        store.compact()
        assert newest(backend).settings.keep_history_seconds is None
        store.compact(keep_history=60)
        assert newest(backend).settings.keep_history_seconds == 60.0
        for wrong in (-1, float("nan"), float("inf"), 10**400, True, "ever", "60"):
            with pytest.raises(opslog.UsageError, match="keep_history is a number of seconds"):
                store.compact(keep_history=wrong)  # type: ignore[arg-type]


def test_a_reader_cannot_compact(url: str) -> None:
    with open_store(url):
        pass
    with opslog.open(url, read_only=True) as reader, pytest.raises(opslog.ReadOnlyError):
        reader.compact()


@pytest.mark.parametrize("call", ["create the part", "create the index", "create the manifest"])
def test_a_failed_write_leaves_the_store_as_it_was(
    url: str, backend: Backend, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    ending = {"create the part": ".jsonl", "create the index": ".index", "create the manifest": ".json"}[call]
    create = MemoryBackend.create

    def fail(self: MemoryBackend, path: str, data: bytes) -> None:
        if path.endswith(ending):
            raise opslog.WriteFailedError("the disk is full")
        create(self, path, data)

    with open_store(url) as store:
        fill(store, 40)
        before = paths(backend)
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBackend, "create", fail)
            with pytest.raises(opslog.WriteFailedError):
                store.compact()
        assert paths(backend) == before
        assert store.compact().number == 2
