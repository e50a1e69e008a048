"""Automatic compaction: when it runs, that nobody waits for it, and what happens after its failures."""

from __future__ import annotations

import itertools
import logging
import threading
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.memory import MemoryBackend
from opslog.compaction import automatic as autocompaction
from opslog.compaction import compact as compaction
from opslog.log.reader import SEGMENT_COST
from opslog.log.survey import at_cut, list_logs
from opslog.replica import state
from opslog.snapshot import runs
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from tests.support import bucket  # noqa: F401  (stores at bucket://)
from tests.support.waiting import until

_numbers = itertools.count()
Store = opslog.Store[dict[str, Any]]


@pytest.fixture
def url() -> str:
    return f"memory://autocompaction-{next(_numbers)}"


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads in which compactions ran."""
    threads: list[str] = []
    real = compaction.compact

    def count(*arguments: Any, **options: Any) -> compaction.Compaction:
        threads.append(threading.current_thread().name)
        return real(*arguments, **options)

    monkeypatch.setattr(compaction, "compact", count)
    return threads


def compacted(url: str) -> int:
    return ManifestStore(open_backend(url)).newest().commits


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store[str(number)] = {"number": number}


def test_it_runs_when_the_tail_is_long_enough(url: str, ran: list[str]) -> None:
    with opslog.open(url, agent="a", compact_after=100) as store:
        fill(store, 99)
        assert ran == []
        fill(store, 1)
        until(lambda: compacted(url) == 100 - 32)
        fill(store, 40)
        assert set(ran) == {"opslog-compact"}
    assert compacted(url) <= 140 - 32


def test_commits_during_a_compaction_count_towards_the_next(
    url: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = compaction.compact
    with opslog.open(url, agent="a", compact_after=100) as store:

        def and_write(*arguments: Any) -> Any:
            result = counting(*arguments)
            monkeypatch.setattr(compaction, "compact", counting)
            fill(store, 90)
            return result

        monkeypatch.setattr(compaction, "compact", and_write)
        fill(store, 100)
        until(lambda: compacted(url) == 190 - 32)
        assert len(ran) == 2


@pytest.mark.parametrize("by_itself", [True, False])
def test_a_store_that_only_writes_forgets_what_was_compacted(
    url: str, by_itself: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is that of the tail. It still hands out others' commits, each once."""
    monkeypatch.setattr(state, "_WINNERS_MAX", 50)
    with (
        opslog.open(url, agent="a", compact_after=100 if by_itself else None) as store,
        opslog.open(url, agent="b", compact_after=None) as other,
    ):
        handed_out = []
        for lap in range(5):
            for number in range(100):
                store[f"{lap}-{number}"] = {"number": number}
            other[f"other-{lap}"] = {}
            if by_itself:
                until(lambda: len(replica_of(store).state.winners) < 150)
            else:
                store.compact()
                assert len(replica_of(store).state.winners) < 50
            if lap == 2:
                handed_out += store.refresh()
        handed_out += store.refresh()
        assert (len(store), store["0-1"]) == (505, {"number": 1})
        assert [commit.id for commit in handed_out if isinstance(commit, opslog.Set)] == [
            f"other-{n}" for n in range(5)
        ]
        assert store.undo()
        assert (len(store), "4-99" in store) == (504, False)


def test_the_next_refresh_hands_out_what_a_failed_one_had_read(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_WINNERS_MAX", 50)
    with (
        opslog.open(url, agent="a", compact_after=None) as store,
        opslog.open(url, agent="b", compact_after=None) as b,
        opslog.open(url, agent="c", compact_after=None) as c,
    ):
        fill(store, 100)
        for number in range(3):
            b[f"b-{number}"] = c[f"c-{number}"] = {}
        store.compact()
        assert "b-0" in store, "it was loaded again"
        real, paths = replica_of(store).backend.read, []

        def fails_at_the_second_log(path: str, start: int = 0, stop: int | None = None) -> bytes:
            paths.append(path)
            if "/c/" in path and paths.count(path) == 1:
                raise opslog.RetryError("not now")
            return real(path, start, stop)

        monkeypatch.setattr(replica_of(store).backend, "read", fails_at_the_second_log)
        with pytest.raises(opslog.RetryError):
            store.refresh()
        found = [commit.id for commit in store.refresh() if isinstance(commit, opslog.Set)]
        assert found == ["b-0", "b-1", "b-2", "c-0", "c-1", "c-2"]
        assert store.refresh() == []


def test_writers_that_outrun_a_compaction_wait_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So memory and the tail stay bounded. Nobody waits for a compaction that cannot run."""
    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 10_000)
    real, may_go_on, waited = compaction.compact, threading.Event(), threading.Event()

    def slow(*arguments: Any, **options: Any) -> compaction.Compaction:
        assert may_go_on.wait(60)
        return real(*arguments, **options)

    real_wait = autocompaction.AutoCompaction.wait

    def wait(self: autocompaction.AutoCompaction) -> None:
        waited.set()
        real_wait(self)

    monkeypatch.setattr(compaction, "compact", slow)
    monkeypatch.setattr(autocompaction.AutoCompaction, "wait", wait)
    with opslog.open(url, agent="a") as store:
        writer = threading.Thread(target=fill, args=(store, 1000))
        writer.start()
        assert waited.wait(60)
        assert writer.is_alive()
        may_go_on.set()
        writer.join()
        assert len(store) == 1000
        until(lambda: not replica_of(store).compaction.is_under_way)
        with open_backend(url).lock(compaction.LOCK):
            fill(store, 1000)


def test_it_runs_when_the_tail_is_large_enough(url: str, ran: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 100_000)
    with opslog.open(url, agent="a") as store:
        for number in itertools.count():  # it may begin while everything can still be undone
            store[str(number)] = {"text": "x" * 3000}
            if number % 40 == 39 and compacted(url):
                break


def test_on_object_storages_it_runs_when_there_are_many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each segment is a request for everybody who opens the store, so a quarter of the usual number is enough."""
    url = f"bucket://autocompaction-{next(_numbers)}"
    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 400 * SEGMENT_COST)
    with opslog.open(url, agent="a") as a:
        fill(a, 99)
        assert compacted(url) == 0
        fill(a, 2)
        until(lambda: compacted(url) >= 100 - 32)
    with opslog.open(url, agent="b", compact_after=None) as b, opslog.open(url, agent="c") as c:
        fill(b, 99)
        c.refresh()
        fill(c, 2)
        until(lambda: compacted(url) >= 199 - 3 * 32)


def test_on_object_storages_what_can_be_undone_makes_no_compactions(
    ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten agents keep 320 commits that no compaction may take. Neither those who write little make one for each of
    them, nor does one that writes much read them again for few new commits."""
    url = f"bucket://autocompaction-{next(_numbers)}"
    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 400 * SEGMENT_COST)
    for number in range(10):
        with opslog.open(url, agent=f"agent-{number}", compact_after=None) as store:
            fill(store, 32)
    for number in range(10):
        with opslog.open(url, agent=f"agent-{number}") as store:
            fill(store, 5)
    assert ran == []
    with opslog.open(url, agent="a") as store:
        for _ in range(10):
            fill(store, 100)
            until(lambda: not replica_of(store).compaction.is_under_way)
        until(lambda: len(ran) > 0)
    assert 1 <= len(ran) <= 4


def test_a_limit_that_was_set_for_a_long_tail_ends_with_that_tail(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here another process has compacted the tail."""
    url = f"bucket://autocompaction-{next(_numbers)}"
    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 400 * SEGMENT_COST)
    with opslog.open(url, agent="a", compact_after=None) as a:
        fill(a, 200)
        with opslog.open(url, agent="b") as b:
            a.compact()
            b.refresh()
            fill(b, 101)
            until(lambda: compacted(url) >= 200 - 32 + 100 - 32)


def test_what_a_refresh_reads_behind_a_new_manifest_counts_once() -> None:
    url = f"bucket://autocompaction-{next(_numbers)}"
    with opslog.open(url, agent="a", compact_after=None) as a, opslog.open(url, agent="b") as b:
        fill(a, 50)
        b.refresh()
        a.compact()
        fill(a, 100)
        b.refresh()
        newest = ManifestStore(open_backend(url)).newest()
        tail = list_logs(open_backend(url), newest, at_cut(newest))
        assert replica_of(b).compaction.tail_cost == tail.log_cost


def test_it_counts_what_others_write_and_what_was_there(url: str, ran: list[str]) -> None:
    with opslog.open(url, agent="a", compact_after=None) as a, opslog.open(url, agent="b", compact_after=150) as b:
        fill(a, 149)
        b.refresh()
        assert ran == []
        b["x"] = {}
        until(lambda: compacted(url) > 0)
    with opslog.open(f"{url}-2", agent="a", compact_after=None) as a:
        fill(a, 200)
    with opslog.open(f"{url}-2", agent="b", compact_after=100) as b:
        b["x"] = {}
        until(lambda: compacted(f"{url}-2") > 0)


def test_it_can_be_turned_off(url: str, ran: list[str]) -> None:
    with opslog.open(url, agent="a", compact_after=None, durability="buffered") as store:
        fill(store, 12_000)
    assert ran == []
    for wrong in (0, -1):
        with pytest.raises(opslog.UsageError, match="compact_after"):
            opslog.open(url, agent="a", compact_after=wrong)


def test_nobody_waits_for_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stuck compaction stops neither sets nor reads nor refreshes. Closing the store lets it end."""
    may_go, inside = threading.Event(), threading.Event()
    create = MemoryBackend.create

    def stuck(self: MemoryBackend, path: str, data: bytes) -> None:
        if path.startswith("snapshots/"):
            inside.set()
            assert may_go.wait(60)
        create(self, path, data)

    monkeypatch.setattr(MemoryBackend, "create", stuck)
    with opslog.open(url, agent="a", compact_after=50) as store, opslog.open(url, agent="b") as other:
        fill(store, 50)
        assert inside.wait(60)
        fill(store, 200)
        other["mine"] = {}
        store.refresh()
        assert len(store) == 201
        assert store.undo()
        may_go.set()
    assert compacted(url) > 0


def test_a_failure_is_reported_and_tried_again(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    create = MemoryBackend.create
    broken = True

    def fail(self: MemoryBackend, path: str, data: bytes) -> None:
        if broken and path.startswith("snapshots/"):
            raise opslog.WriteFailedError("the disk is full")
        create(self, path, data)

    monkeypatch.setattr(MemoryBackend, "create", fail)
    with caplog.at_level(logging.WARNING, "opslog"), opslog.open(url, agent="a", compact_after=50) as store:
        fill(store, 50)
        until(lambda: "automatic compaction failed" in caplog.text)
        assert store.stats().compaction_error == "the disk is full"
        broken = False
        fill(store, 60)
        until(lambda: compacted(url) > 0)
        until(lambda: store.stats().compaction_error is None)
        assert len(store) == 60


@pytest.mark.parametrize("error", [ValueError("not known"), MemoryError("none left"), RuntimeError("no thread")])
def test_any_exception_is_reported_and_tried_again_also_when_nothing_is_written(
    url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    monkeypatch.setattr(autocompaction, "_RETRY_SECONDS", 0.01)
    real, may_work = compaction.compact, threading.Event()

    def fail(*arguments: Any, **options: Any) -> compaction.Compaction:
        if not may_work.is_set():
            raise error
        return real(*arguments, **options)

    monkeypatch.setattr(compaction, "compact", fail)
    with caplog.at_level(logging.WARNING, "opslog"), opslog.open(url, agent="a", compact_after=50) as store:
        fill(store, 50)
        until(lambda: caplog.text.count("automatic compaction failed") >= 2)
        assert store.stats().compaction_error == f"{type(error).__name__}: {error}"
        may_work.set()
        until(lambda: compacted(url) > 0)
        until(lambda: store.stats().compaction_error is None)


@pytest.mark.parametrize("size", ["loaded", "on storage"])
def test_a_part_that_was_cut_to_nothing_is_damage_like_any_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    monkeypatch.setattr(autocompaction, "_RETRY_SECONDS", 0.01)
    if size == "on storage":
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    settings = opslog.Settings(undo_window=0)
    with opslog.open(tmp_path, agent="a", compact_after=50, settings=settings) as store:
        fill(store, 40)
        store.compact()
        (part,) = tmp_path.glob("snapshots/*/*.jsonl")
        lines = part.read_bytes()
        part.write_bytes(b"")
        store["1"] = {"number": 1}

        def read() -> None:
            with opslog.open(tmp_path, read_only=True) as fresh:
                dict(fresh.items())

        for call in (lambda: store.compact(full=True), read):
            with pytest.raises(opslog.CorruptError, match=part.name) as caught:
                call()
            assert caught.value.path == part.relative_to(tmp_path).as_posix()
        for number in range(50):
            store[f"more-{number}"] = {}
        until(lambda: part.name in (store.stats().compaction_error or ""))
        part.write_bytes(lines)
        until(lambda: store.stats().compaction_error is None)


def test_where_no_thread_can_be_started_writes_go_on_and_the_compaction_comes_later(
    url: str, ran: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal starts
        starts += 1
        raise RuntimeError("can't start new thread")

    with opslog.open(url, agent="a", compact_after=1000) as store:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            fill(store, 1100)
            assert store.stats().compaction_error == "this process can start no more threads"
            assert 2 <= starts <= 20, "that costs something, so it is not tried at each commit"
        fill(store, 20)
        until(lambda: compacted(url) > 0)
        until(lambda: store.stats().compaction_error is None)


def test_a_compaction_under_way_elsewhere_is_left_alone(url: str, ran: list[str]) -> None:
    with opslog.open(url, agent="a", compact_after=50) as store:
        with open_backend(url).lock(compaction.LOCK):
            fill(store, 50)
            until(lambda: len(ran) == 1)
        assert store.stats().compaction_error is None
        fill(store, 60)
        until(lambda: compacted(url) > 0)


def test_after_a_failure_a_compaction_under_way_elsewhere_is_no_failure(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here nothing would try again before the tail has grown. So the store would show the old error for as long."""
    with opslog.open(url, agent="a", compact_after=50) as store:
        with monkeypatch.context() as patch:

            def fail(*arguments: Any, **options: Any) -> compaction.Compaction:
                raise opslog.WriteFailedError("the disk is full")

            patch.setattr(compaction, "compact", fail)
            fill(store, 50)
            until(lambda: store.stats().compaction_error == "the disk is full")
        with open_backend(url).lock(compaction.LOCK):
            fill(store, 50)
            until(lambda: store.stats().compaction_error is None)


def test_figures(url: str) -> None:
    with opslog.open(url, agent="a", compact_after=None) as store:
        fill(store, 100)
        del store["7"]
        store.archive(lambda document: document["number"] == 8, "p")
        before = store.stats()
        assert (before.documents, before.agents, before.clock, before.manifest) == (98, 1, 102, 1)
        assert (before.commits, before.tail_commits, before.snapshot_runs) == (102, 102, 0)
        store.compact()
        after = store.stats()
        assert (after.commits, after.tail_commits) == (102, 32)
        backend = open_backend(url)
        assert after.log_bytes == sum(entry.size for entry in backend.list("ops/"))
        assert after.archive_bytes == sum(entry.size for entry in backend.list("archive/"))
        assert after.log_segments == 1
    with opslog.open(url, read_only=True) as reader:
        figures = reader.stats()
        assert (figures.snapshot_runs, figures.snapshot_records, figures.manifest) == (1, 70, 2)
        assert figures.snapshot_bytes > 0


def test_a_tail_of_commits_that_were_not_read_yet_is_empty(url: str) -> None:
    settings = opslog.Settings(undo_window=0)
    with opslog.open(url, agent="a", settings=settings) as store, opslog.open(url, agent="b") as other:
        fill(store, 1)
        fill(other, 5)
        store.compact()
        assert store.stats().tail_commits == 0
        store["new"] = {}
        store.refresh()
        assert store.stats().tail_commits == 1
