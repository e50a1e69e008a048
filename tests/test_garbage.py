"""Garbage collection: what it removes, what it keeps, and for how long."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends import Backend, Entry, Position, open_backend
from opslog.backends.memory import MemoryBackend
from opslog.compaction import compact as compaction
from opslog.compaction.compact import Compaction, compact
from opslog.compaction.garbage import collect, find_garbage
from opslog.environment import REAL
from opslog.format.commits import Set, encode_commit
from opslog.format.layout import TRANSACTIONS, manifest_path, segment_path
from opslog.log import sealing
from opslog.verify.verify import verify
from tests.test_layout import HOSTILE_NAMES

HOUR = 3600.0
_numbers = itertools.count()


class Clock:
    """The storage's clock: files get its time when they are created or written."""

    def __init__(self) -> None:
        self.now = 1_000_000.0
        self.written: dict[str, float] = {}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    listing, create = MemoryBackend.list, MemoryBackend.create

    def list_aged(self: MemoryBackend, prefix: str, after: str = "") -> list[Entry]:
        entries = listing(self, prefix, after)
        return [entry._replace(modified=clock.written.get(entry.path, 1_000_000.0)) for entry in entries]

    def create_now(self: MemoryBackend, path: str, data: bytes) -> None:
        create(self, path, data)
        clock.written[path] = clock.now

    monkeypatch.setattr(MemoryBackend, "list", list_aged)
    monkeypatch.setattr(MemoryBackend, "create", create_now)
    monkeypatch.setattr(MemoryBackend, "now", lambda self: clock.now)
    return clock


@pytest.fixture
def url() -> str:
    return f"memory://garbage-{next(_numbers)}"


@pytest.fixture
def backend(url: str) -> Iterator[Backend]:
    backend = open_backend(url)
    yield backend
    backend.close()


def session(url: str, count: int = 4, agent: str = "a", **settings: Any) -> None:
    """One session of an agent: one more segment."""
    wanted = opslog.Settings(**({"undo_window": 1} | settings))
    with opslog.open(url, agent=agent, compact_after=None, settings=wanted) as store:
        for number in range(count):
            store[f"{agent}-{number}"] = {"number": number}


def paths(backend: Backend, prefix: str = "") -> list[str]:
    return [entry.path for entry in backend.list(prefix)]


def runs(backend: Backend) -> set[int]:
    """The numbers of the manifests for which the runs on storage were written."""
    return {int(path.split("/")[1].partition("-")[0]) for path in paths(backend, "snapshots/")}


def test_superseded_files_stay_for_the_grace_period(url: str, backend: Backend, clock: Clock) -> None:
    session(url)
    compact(backend, REAL)
    session(url)
    clock.now += HOUR
    done = compact(backend, REAL, full=True)
    assert done.garbage.paths == [manifest_path(1)], "superseded an hour ago; what it needs is still needed"
    assert runs(backend) == {2, 3}
    session(url)
    clock.now += 599
    assert compact(backend, REAL, full=True).garbage.paths == []
    session(url)
    clock.now += 2
    done = compact(backend, REAL, full=True)
    assert done.garbage.paths[0] == manifest_path(2)
    assert {path.split("/")[0] for path in done.garbage.paths} == {"manifests", "snapshots", "ops"}
    assert done.garbage.bytes > 0
    assert paths(backend, "manifests/") == [manifest_path(number) for number in (3, 4, 5)]
    assert runs(backend) == {3, 4, 5}
    # The cut of manifest 3 is in segment 2. So segment 2 stays, and only the one before it was removed.
    assert paths(backend, "ops/") == [segment_path("a", number) for number in (2, 3, 4)]


def test_manifests_are_durably_deleted_before_the_files_they_name(
    url: str, backend: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletions of one call may reach a disk in any order. If a power cut brings a manifest back, its runs are
    there."""
    calls: list[set[str]] = []
    delete = MemoryBackend.delete

    def recorded(self: MemoryBackend, paths: Iterable[str]) -> None:
        paths = list(paths)
        calls.append({path.partition("/")[0] for path in paths})
        delete(self, paths)

    monkeypatch.setattr(MemoryBackend, "delete", recorded)
    for _ in range(3):
        session(url, grace_seconds=0)
        clock.now += HOUR
        compact(backend, REAL, full=True)
    assert {"snapshots", "ops"} in calls
    assert all(call == {"manifests"} for call in calls if "manifests" in call)


def test_the_last_segment_of_a_log_goes_when_its_agent_is_gone(url: str, backend: Backend, clock: Clock) -> None:
    session(url, undo_ttl_seconds=0.0, grace_seconds=0.0)
    left = []
    for _ in range(4):
        clock.now += HOUR
        compact(backend, REAL)
        left.append(paths(backend, "ops/a/"))
        session(url, agent="b")
    assert left[1] == [segment_path("a", 2)], "the seal"
    assert left[-1] == []
    session(url)
    assert paths(backend, "ops/a/") == [segment_path("a", 3)], "a number is never used twice"


def test_the_last_segment_of_the_shared_log_stays(url: str, backend: Backend, clock: Clock) -> None:
    """A writer that has read the log to its end appends there, however long ago it read. And nobody else may continue
    from a position before that."""

    def append(number: int, end: Position) -> Position:
        commit = Set(
            "2026-11-24T12:00:00.000000Z", 1000 * number, TRANSACTIONS, "shared", msgspec.Raw(b'{"n":%d}' % number)
        )
        line = encode_commit(commit)
        assert backend.append_at(TRANSACTIONS, end, line) == end
        return Position(end.segment, end.offset + len(line))

    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    opslog.open(url, agent="a", compact_after=None, settings=settings).close()
    end = append(1, Position(1, 0))
    for _ in range(4):
        clock.now += HOUR
        compact(backend, REAL)
        session(url, agent="b", undo_window=0)
    assert paths(backend, f"ops/{TRANSACTIONS}/") == [segment_path(TRANSACTIONS, 1)]
    with opslog.open(url, read_only=True) as reader:
        assert reader["shared"] == {"n": 1}
        append(2, end)
        reader.refresh()
        assert reader["shared"] == {"n": 2}


@pytest.mark.parametrize("opened", ["before", "after"])
def test_an_agent_that_comes_back_while_its_log_is_collected_goes_on_behind_it(
    url: str, backend: Backend, clock: Clock, monkeypatch: pytest.MonkeyPatch, opened: str
) -> None:
    """It was opened after a compaction found its name free: before the manifest that says where the log continues, or
    after it."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    with opslog.open(url, agent="a", compact_after=None, settings=settings) as a:
        a["a"] = {}
    clock.now += HOUR
    compact(backend, REAL)
    real = sealing.logs_of_the_gone
    came_back: list[opslog.Store[dict[str, Any]]] = []

    def come_back(*args: Any) -> Any:
        gone = real(*args)
        assert list(gone) == ["a"]
        monkeypatch.setattr(compaction, "logs_of_the_gone", real)
        if opened == "before":
            came_back.append(opslog.open(url, agent="a", compact_after=None))
        return gone

    monkeypatch.setattr(compaction, "logs_of_the_gone", come_back)
    with opslog.open(url, agent="reader", compact_after=None) as reader:
        for _ in range(3):
            clock.now += HOUR
            session(url, agent="b", undo_window=0)
            compact(backend, REAL)
        assert paths(backend, "ops/a/") == []
        a = came_back.pop() if came_back else opslog.open(url, agent="a", compact_after=None)
        with a:
            assert {commit.agent for commit in reader.refresh()} == {"b"}
            for number in range(2):
                a["back"] = {"number": number}
                (commit,) = reader.refresh()
                assert (commit.agent, reader["back"]) == ("a", {"number": number})
                a.refresh()
        assert paths(backend, "ops/a/") == [segment_path("a", 2)]
        assert list(reader.refresh()) == []
        assert verify(backend).ok
        with opslog.open(url, read_only=True) as anew:
            assert dict(anew.items()) == dict(reader.items())


def test_the_last_segment_of_an_agent_that_has_its_store_open_stays(url: str, backend: Backend, clock: Clock) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    with (
        opslog.open(url, agent="a", compact_after=None, settings=settings) as a,
        opslog.open(url, agent="reader", compact_after=None) as reader,
    ):
        for number in range(4):
            clock.now += HOUR
            a["x"] = {"n": number}
            for _ in range(3):
                clock.now += HOUR
                session(url, agent="b", undo_window=0)
                compact(backend, REAL)
            assert paths(backend, "ops/a/") == [segment_path("a", 1)]
            assert any(commit.agent == "a" for commit in reader.refresh())
            assert reader["x"] == {"n": number}


@pytest.mark.parametrize(("keep", "left"), [("forever", 5), (2 * HOUR, 3), (0.0, 2)])
def test_keep_history(url: str, backend: Backend, clock: Clock, keep: Any, left: int) -> None:
    session(url)
    compact(backend, REAL, keep_history=keep)
    for _ in range(3):
        clock.now += HOUR + 1
        session(url)
        compact(backend, REAL)
    assert len(paths(backend, "manifests/")) == left
    assert len(paths(backend, "ops/")) == min(4, left)


def test_parts_of_no_manifest_go_once_their_number_is_used(url: str, backend: Backend, clock: Clock) -> None:
    for number in (1, 2, 3):
        for kind in ("jsonl", "index"):
            backend.create(f"snapshots/{number:020}-dead/part-00000.{kind}", b"garbage\n")
    session(url)
    compact(backend, REAL)
    assert [path for path in paths(backend, "snapshots/") if "dead" in path] == [
        f"snapshots/{3:020}-dead/part-00000.{kind}" for kind in ("index", "jsonl")
    ], "who aims at manifest 3 may still publish it"
    session(url)
    compact(backend, REAL)
    assert not [path for path in paths(backend, "snapshots/") if "dead" in path]


def test_garbage_is_reason_enough_for_a_compaction(url: str, backend: Backend, clock: Clock) -> None:
    session(url)
    compact(backend, REAL)
    assert compact(backend, REAL) == Compaction()
    backend.create(f"snapshots/{2:020}-dead/part-00000.jsonl", b"garbage\n")
    done = compact(backend, REAL)
    assert (done.number, len(done.garbage.runs)) == (3, 1)


def test_temporary_files_go_after_an_hour(url: str, backend: Backend, clock: Clock) -> None:
    temporary = [
        "manifests/00000000000000000002.json.tmp-a",
        "snapshots/x/part-00000.jsonl.tmp-b",
        "ops/a/1.jsonl.tmp-c",
    ]
    for path in temporary:
        backend.create(path, b"half")
    session(url)
    clock.now += HOUR - 1
    assert compact(backend, REAL).garbage.temporary == []
    session(url)
    clock.now += 2
    assert [entry.path for entry in compact(backend, REAL).garbage.temporary] == temporary
    assert not [path for path in paths(backend) if ".tmp-" in path]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_no_name_makes_a_log_or_an_archive_garbage(url: str, backend: Backend, clock: Clock, name: str) -> None:
    session(url)
    with opslog.open(url, agent=name, compact_after=None) as store:
        store["kept"] = {"by": name}
        store["filed"] = {"by": name}
        store.archive(lambda document: document.get("by") == name, name)
        store["kept"] = {"by": name}
    before = paths(backend, f"ops/{name}/") + paths(backend, "archive/")
    for _ in range(2):
        clock.now += 2 * HOUR
        session(url)
        compact(backend, REAL)
    report = verify(backend, repair=True)
    assert (report.problems, report.repaired) == ([], [])
    assert paths(backend, f"ops/{name}/") + paths(backend, "archive/") == before
    with opslog.open(url, read_only=True) as store:
        assert store["kept"] == {"by": name}
        assert set(store.load_archive(name)) == {"kept", "filed"}


def test_only_the_publisher_of_the_newest_manifest_collects(url: str, backend: Backend, clock: Clock) -> None:
    session(url, grace_seconds=0.0)
    for _ in range(3):
        session(url)
        clock.now += HOUR
        compact(backend, REAL, keep_history="forever")
    compact(backend, REAL, keep_history=0.0)
    before = paths(backend)
    assert find_garbage(backend, clock.now + HOUR, 4, 4).paths == []
    assert collect(backend, 4).paths == []
    assert paths(backend) == before


def test_unknown_files_are_left_alone(url: str, backend: Backend, clock: Clock) -> None:
    strangers = [
        "notes.txt",
        "manifests/readme",
        "ops/a/notes",
        "snapshots/old/part",
        "archive/p/x.jsonl",
        "removed/n/x",
    ]
    for path in strangers:
        backend.create(path, b"mine")
    session(url, grace_seconds=0.0)
    for _ in range(3):
        clock.now += HOUR
        session(url)
        compact(backend, REAL)
    assert set(strangers) <= set(paths(backend))


def test_a_manifest_that_came_back_is_collected_again(url: str, backend: Backend, clock: Clock) -> None:
    """Its creation was delayed by more than the grace period. No reader takes it for the current one."""
    session(url, grace_seconds=0.0)
    old = backend.read(manifest_path(1))
    for _ in range(3):
        clock.now += HOUR
        session(url)
        compact(backend, REAL)
    assert manifest_path(1) not in paths(backend)
    clock.now += HOUR
    backend.create(manifest_path(1), old)
    with opslog.open(url, read_only=True) as store:
        assert len(store) == 4
    session(url)
    assert compact(backend, REAL).garbage.manifests[0].path == manifest_path(1)


def test_a_segment_that_came_back_after_its_collection_is_no_damage(url: str, backend: Backend, clock: Clock) -> None:
    """A power cut can undo some of the deletions of a collection, and not others."""
    session(url, grace_seconds=0)
    first = backend.read(segment_path("a", 1))
    for _ in range(3):
        session(url)
        clock.now += HOUR
        compact(backend, REAL, full=True)
    assert segment_path("a", 2) not in paths(backend)
    backend.create(segment_path("a", 1), first)
    assert [problem for problem in verify(backend).problems if problem.severity == "error"] == []
