"""Logs: reading what is new, and writing in groups."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from opslog.backends import Backend, Position, open_backend
from opslog.environment import REAL
from opslog.errors import (
    ClosedError,
    CommitUnknownError,
    CorruptError,
    MissingFileError,
    OpslogError,
    ReopenError,
    WriteFailedError,
)
from opslog.format.commits import Commit, Set, encode_commit
from opslog.format.layout import segment_path
from opslog.format.manifest import Cut, Manifest
from opslog.format.torn import joined
from opslog.log import reader as log_module
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, bytes_after, list_log, list_segments, read_logs
from opslog.log.session import WriterSession
from opslog.log.writer import Buffer, LogWriter, Pending
from opslog.merge.clock import LamportClock
from opslog.snapshot.manifests import ManifestStore

TS = "2026-11-20T12:00:00.000000Z"

Read = Callable[[Cursor, Backend], list[int]]
"""Reads what is new in a log, and returns its clocks."""


def line(clock: int, agent: str = "a", size: int = 0) -> bytes:
    return encode_commit(Set(TS, clock, agent, f"id-{clock}", msgspec.Raw(b'{"t":"%b"}' % (b"x" * size))))


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = open_backend("memory://")
    yield backend
    backend.close()


def segment(backend: Backend, number: int, data: bytes, agent: str = "a") -> None:
    backend.create(segment_path(agent, number), data)


def read_on(cursor: Cursor, backend: Backend) -> list[int]:
    return [commit.clock for _, commit in cursor.read(backend, list_log(backend, cursor.agent))]


def read_newest_first(cursor: Cursor, backend: Backend) -> list[int]:
    chunks = list(cursor.read_newest_first(backend, list_log(backend, cursor.agent)))
    for chunk in chunks:
        starts = [offset for segment, offset in chunk.positions() if segment == chunk.segment]
        ends = [*starts[1:], chunk.offset + len(chunk.lines)]
        data = backend.read(segment_path(cursor.agent, chunk.segment))
        assert chunk.lines == data[chunk.offset :][: len(chunk.lines)]
        lines = [data[start:end] for start, end in zip(starts, ends, strict=True)]
        assert lines == [encode_commit(commit) for commit in chunk.commits]
    return [commit.clock for chunk in reversed(chunks) for commit in chunk.commits]


# -- reading


@pytest.fixture(params=[read_on, read_newest_first])
def read(request: pytest.FixtureRequest) -> Read:
    """Both ways of reading."""
    way: Read = request.param
    return way


def test_a_cursor_goes_on_where_it_was(backend: Backend, read: Read) -> None:
    appender = backend.appender("a")
    cursor = Cursor("a")
    assert read(cursor, backend) == []
    appender.append(line(1) + line(2))
    assert read(cursor, backend) == [1, 2]
    assert read(cursor, backend) == []
    appender.append(line(5))
    assert read(cursor, backend) == [5]
    assert cursor.cut == Cut(1, len(line(1) + line(2) + line(5)), 3)
    assert cursor.clock == 5
    appender.close()


def test_each_commit_comes_with_its_position(backend: Backend) -> None:
    segment(backend, 1, line(1) + line(2))
    segment(backend, 2, b"")
    segment(backend, 3, line(3))
    cursor = Cursor("a")
    positions = [position for position, _ in cursor.read(backend, list_log(backend, "a"))]
    assert positions == [Cut(1, 0, 0), Cut(1, len(line(1)), 1), Cut(3, 0, 2)]
    for position in positions:
        assert next(cursor_at(position).read(backend, list_log(backend, "a")))[0] == position


def cursor_at(cut: Cut) -> Cursor:
    return Cursor.at("a", cut)


def test_an_unfinished_line_waits_for_its_end(backend: Backend, read: Read) -> None:
    whole = line(2)
    for cut in range(len(whole)):
        path = segment_path("a", 1)
        backend.delete([path])
        backend.create(path, line(1) + whole[:cut])
        cursor = Cursor("a")
        assert read(cursor, backend) == [1]
        backend.delete([path])
        backend.create(path, line(1) + whole)
        assert read(cursor, backend) == [2]


@pytest.mark.parametrize("torn", [b"{", line(2)[:-1], b"\0\0\0"])
def test_a_torn_tail_is_passed_over_once_the_log_goes_on(backend: Backend, read: Read, torn: bytes) -> None:
    segment(backend, 1, line(1) + torn)
    segment(backend, 2, line(2))
    assert read(Cursor("a"), backend) == [1, 2]


def test_lines_longer_than_a_read(backend: Backend, read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "_READ_BYTES", 64)
    monkeypatch.setattr(log_module, "_CHUNK_BYTES", 64)
    sizes = [0, 10, 63, 64, 65, 500, 5000, 0, 1]
    segment(backend, 1, b"".join(line(number + 1, size=size) for number, size in enumerate(sizes)))
    assert read(Cursor("a"), backend) == list(range(1, len(sizes) + 1))


@pytest.mark.parametrize("read_bytes", [64, 1024])
@pytest.mark.parametrize(
    ("second", "text"),
    [
        (line(1), "at clock 1, where only one of 'a' above 1 can be"),
        (line(2, "b"), "a commit of agent 'b' at clock 2"),
        (b"nonsense\n", "this line cannot be read"),
    ],
)
def test_commits_that_cannot_be_the_next_one(
    backend: Backend, read: Read, monkeypatch: pytest.MonkeyPatch, *, read_bytes: int, second: bytes, text: str
) -> None:
    monkeypatch.setattr(log_module, "_READ_BYTES", read_bytes)
    monkeypatch.setattr(log_module, "_CHUNK_BYTES", read_bytes)
    segment(backend, 1, line(1) + second + line(5))
    segment(backend, 2, line(6) + second)
    with pytest.raises(CorruptError, match=text.partition(" above")[0]) as caught:
        read(Cursor("a"), backend)
    first = (segment_path("a", 1), len(line(1)))
    assert (caught.value.path, caught.value.offset) in (first, (segment_path("a", 2), len(line(6))))
    backend.delete([segment_path("a", 2)])
    with pytest.raises(CorruptError, match=text) as caught:
        read(Cursor("a"), backend)
    assert (caught.value.path, caught.value.offset) == first


def test_segments_that_are_not_each_others_next(backend: Backend, read: Read) -> None:
    segment(backend, 1, line(3))
    segment(backend, 2, line(3))
    with pytest.raises(CorruptError, match="at clock 3, where only one of 'a' above 3 can be") as caught:
        read(Cursor("a"), backend)
    assert (caught.value.path, caught.value.offset) == (segment_path("a", 2), 0)
    cursor = Cursor("a", 2, clock=3)
    with pytest.raises(CorruptError, match="above 3 can be"):
        read(cursor, backend)
    assert cursor == Cursor("a", 2, clock=3), "it can be tried again"


def test_missing_segments_are_named(backend: Backend, read: Read) -> None:
    for number in (1, 2, 4):
        segment(backend, number, line(number))
    with pytest.raises(MissingFileError, match="is missing, though the log goes on") as caught:
        read(Cursor("a"), backend)
    assert caught.value.path == segment_path("a", 3)
    assert read(Cursor("a", 4), backend) == [4]
    with pytest.raises(MissingFileError, match="up to byte 10 of it"):
        read(Cursor("a", 5, 10, 2), backend)
    with pytest.raises(MissingFileError, match=r"ends at byte \d+, and had 9999 bytes before"):
        read(Cursor("a", 4, 9999, 2), backend)
    assert read(Cursor("a", 5, 0, 2), backend) == [], "where the log goes on, should it ever"
    with pytest.raises(MissingFileError, match="is missing, and was there"):
        read(Cursor.at("a", Cut(5, 0, 2, there=True)), backend)
    assert read(Cursor("b"), backend) == []


@pytest.mark.parametrize("logs", [3, 40])
def test_logs_are_read_by_turns_the_newest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: int) -> None:
    monkeypatch.setattr(log_module, "_CHUNK_BYTES", 1000)
    agents = [f"agent-{number:02}" for number in range(logs)]
    with closing(open_backend(tmp_path / "store")) as backend:
        for first, agent in enumerate(agents, 1):
            clocks = range(first, 100 * logs, logs)
            segment(backend, 1, b"".join(line(clock, agent) for clock in clocks), agent)
        cursors: dict[str, Cursor] = {}
        read = list(read_logs(backend, cursors, list_segments(backend)))
    assert sorted(commit.clock for _, chunk in read for commit in chunk.commits) == list(range(1, 100 * logs))
    assert {agent: cursor.commits for agent, cursor in cursors.items()} == {
        agent: sum(len(chunk.commits) for whose, chunk in read if whose == agent) for agent in agents
    }
    # Logs are not read one after the other, nor all of 40 at once: no chunk comes before one that is newer by two
    # chunks.
    for group in (set(agents[:3]), set(agents[32:])):
        newest = [chunk.commits[-1].clock for agent, chunk in read if agent in group]
        chunk_clocks = max(len(chunk.commits) for _, chunk in read) * logs
        assert all(later - earlier <= 2 * chunk_clocks for earlier, later in pairwise(newest))


def test_listings(backend: Backend) -> None:
    for agent, number in (("b", 2), ("a", 10), ("a", 9), ("b", 1)):
        segment(backend, number, line(number, agent), agent)
    backend.create("ops/a/notes", b"")
    backend.create("ops/bad name/00000000000000000001.jsonl", b"")
    segments = list_segments(backend)
    assert {agent: [one.number for one in listed] for agent, listed in segments.items()} == {"a": [9, 10], "b": [1, 2]}
    everything = sum(one.bytes for listed in segments.values() for one in listed)
    assert bytes_after(segments, {}) == everything
    assert bytes_after(segments, {"a": Cut(10, 5, 1)}) == everything - len(line(9)) - 5


# -- writing


class Disk:
    """An appender whose appends wait until they may continue, and then do what the test asks."""

    def __init__(self) -> None:
        self.groups: list[bytes] = []
        self.outcomes: list[OpslogError] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Semaphore(0)
        self.closed = False

    def append(self, data: bytes) -> Position:
        self.entered.release()
        assert self.may_go.wait(60)
        self.groups.append(data)
        if self.outcomes:
            raise self.outcomes.pop(0)
        return Position(1, 0)

    def check_name(self) -> None:
        """Nobody else holds the name."""

    def advance(self, segment: int) -> None:
        assert segment == 0, "the log is new"

    def close(self) -> None:
        self.closed = True


class Log:
    """A writer on such a disk, with what it applied to memory: the clocks in `applied`."""

    def __init__(self, *, buffered: bool = False) -> None:
        self.disk = Disk()
        self.applied: list[int] = []
        self.grown = 0
        self.clock = LamportClock()
        backend = open_backend("memory://")
        manifest = Manifest(number=1, created=TS)
        freshness = Freshness(ManifestStore(backend), REAL, manifest, REAL.monotonic())
        session = WriterSession(backend, self.disk, Cursor("a"), freshness, self.clock)
        self.writer = LogWriter(session, self, Buffer(0.1, 1000) if buffered else None)

    guards = 0

    def apply(self, commits: Iterable[Commit]) -> None:
        self.applied.extend(commit.clock for commit in commits)

    def invalidate(self) -> None:
        raise AssertionError("there is no seal")

    def appended(self, cost: int) -> None:
        self.grown += cost

    def queue(self) -> Pending:
        return self.writer.queue(self.commit())

    @staticmethod
    def commit() -> Commit:
        return Set("", 0, "", "x", msgspec.Raw(b"{}"))

    def set(self) -> int:
        pending = self.queue()
        self.writer.wait(pending)
        return pending.commit.clock


@pytest.fixture
def log() -> Log:
    return Log()


def run_all(works: list[Any]) -> list[threading.Thread]:
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def test_one_caller_writes_one_line_at_a_time(log: Log) -> None:
    assert [log.set() for _ in range(3)] == [1, 2, 3]
    assert log.applied == [1, 2, 3]
    assert len(log.disk.groups) == 3


def test_callers_that_arrive_while_the_disk_is_busy_share_the_next_append(log: Log) -> None:
    log.disk.may_go.clear()
    (leader,) = run_all([log.set])
    assert log.disk.entered.acquire(timeout=60)
    followers = run_all([log.set] * 20)
    while log.clock.value < 21:
        pass
    log.disk.may_go.set()
    for thread in (leader, *followers):
        thread.join(60)
    assert [group.count(b"\n") for group in log.disk.groups] == [1, 20]
    assert log.applied == list(range(1, 22)), "in the order of their clocks"


class TakenMeanwhile(LogWriter):
    """Another thread takes the queue to write it, each time this thread has checked whether one is writing."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name == "_group" and found is None and self._queue:
            self._take()
        return found


def test_a_full_buffer_is_full_also_while_it_is_taken_to_be_written() -> None:
    log = Log(buffered=True)
    while not log.writer.is_full:
        log.queue()
    log.writer.__class__ = TakenMeanwhile
    assert log.writer.is_full
    assert log.writer.is_full, "it is on its way"


def test_a_partial_failure_acknowledges_what_is_durable(log: Log) -> None:
    pending = [log.queue() for _ in range(4)]
    length = len(pending[0].line) + len(joined(pending[1].line))
    log.disk.outcomes.append(WriteFailedError("disk full", durable=length + 5))
    for one in pending[:2]:
        log.writer.wait(one)
    for one in pending[2:]:
        with pytest.raises(WriteFailedError, match=f"commit {one.commit.clock} of 'a' is not in the log: disk full"):
            log.writer.wait(one)
    assert log.applied == [1, 2]
    assert log.grown == length + 5, "so many bytes are in the log, and no segment was begun"
    assert log.writer.failure is None
    assert log.set() == 5, "the log can be written to again"


def test_an_unknown_outcome_ends_writing(log: Log) -> None:
    pending = [log.queue() for _ in range(2)]
    log.disk.outcomes.append(CommitUnknownError("fdatasync failed"))
    errors = []
    for one in pending:
        with pytest.raises(CommitUnknownError, match="may or may not be in the log") as caught:
            log.writer.wait(one)
        errors.append(caught.value)
    assert errors[0] is not errors[1], "each caller raises an exception of its own"
    with pytest.raises(ReopenError, match="close this store and open it again"):
        log.queue()
    assert log.applied == []


def test_commits_queued_behind_an_unknown_outcome_are_not_written(log: Log) -> None:
    log.disk.may_go.clear()
    log.disk.outcomes.append(CommitUnknownError("fdatasync failed"))
    caught: list[OpslogError] = []

    def work() -> None:
        try:
            log.set()
        except OpslogError as error:
            caught.append(error)

    (leader,) = run_all([work])
    assert log.disk.entered.acquire(timeout=60)
    followers = run_all([work] * 3)
    while log.clock.value < 4:
        pass
    log.disk.may_go.set()
    for thread in (leader, *followers):
        thread.join(60)
    assert len(caught) == 4
    assert sum(isinstance(error, CommitUnknownError) for error in caught) == 1
    assert len(log.disk.groups) == 1


def test_a_buffered_failure_ends_writing_though_its_outcome_is_known(caplog: pytest.LogCaptureFixture) -> None:
    """Later commits may depend on it: memory had them in this order."""
    log = Log(buffered=True)
    log.queue()
    log.disk.outcomes.append(WriteFailedError("disk full"))
    with caplog.at_level("ERROR", logger="opslog"):
        log.writer.flush()
    assert caplog.messages == ["buffered commits were not written: disk full"]
    assert isinstance(log.writer.failure, WriteFailedError)
    with pytest.raises(ReopenError):
        log.queue()


def test_quiet_keeps_others_out(log: Log) -> None:
    first = log.queue()
    others: list[threading.Thread] = []

    def work(queue: Callable[[Commit], Pending]) -> Pending:
        assert first.done
        others.extend(run_all([log.set] * 3))
        return queue(log.commit())

    mine = log.writer.quiet(work)
    log.writer.wait(mine)
    for thread in others:
        thread.join(60)
    assert mine.commit.clock == 2, "before the others, who had come while it was quiet"
    assert log.applied == [1, 2, 3, 4, 5]


def test_closing_writes_what_is_queued(log: Log) -> None:
    pending = log.queue()
    log.writer.close()
    assert pending.done
    assert log.disk.closed
    with pytest.raises(ClosedError):
        log.queue()


def test_the_next_leader_writes_what_an_interrupted_one_had_only_taken(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the leading thread between taking the queue and writing it."""
    real = LogWriter._try_append

    def interrupt(self: LogWriter, group: Any) -> None:
        monkeypatch.setattr(LogWriter, "_try_append", real)
        raise KeyboardInterrupt

    monkeypatch.setattr(LogWriter, "_try_append", interrupt)
    leader, follower = log.queue(), log.queue()
    with pytest.raises(KeyboardInterrupt):
        log.writer.wait(leader)
    assert log.applied == []
    log.writer.wait(follower)
    assert leader.done
    assert log.applied == [1, 2]
    assert log.set() == 3
