"""The rows that a stream delivers, without Spark: every commit once, and the state after a gap."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes

import opslog
from opslog.backends import open_backend
from opslog.compaction import compact as compaction
from opslog.environment import REAL, format_ts
from opslog.format.commits import Seal, Set, encode_commit
from opslog.format.layout import segment_path
from opslog.log.reader import list_log
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.stream.offsets import Follower
from opslog.spark.stream.streaming import StreamReader
from tests.support import bucket
from tests.support.stream_sink import Row, Sink

assert bucket.BUCKETS is not None  # which registers bucket://, where each append is a segment
EVERYTHING = ReadAllAvailable()
SETTINGS = opslog.Settings(undo_window=3, grace_seconds=0.0)
SEALING = opslog.Settings(undo_window=3, grace_seconds=0.0, undo_ttl_seconds=0.0)
"""The logs of idle agents are sealed and compacted whole."""
_numbers = itertools.count()


def rows(reader: StreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[Row]:
    return [row for task in reader.partitions(start, end) for batch in reader.read(task) for row in batch.to_pylist()]


class Stream:
    """A stream that delivers into a sink."""

    def __init__(self, url: str, limit: ReadLimit = EVERYTHING, **options: str) -> None:
        self.reader = StreamReader(url, {}, options)
        self.limit = limit
        self.offset = self.reader.initialOffset()
        self.sink = Sink()

    def step(self) -> list[Row]:
        """Process one batch."""
        end = self.reader.latestOffset(self.offset, self.limit)
        return self.deliver(end)

    def deliver(self, end: dict[str, Any]) -> list[Row]:
        found = rows(self.reader, self.offset, end)
        self.sink.take(found)
        self.offset = end
        return found

    def drain(self) -> None:
        """Process batches until nothing is left."""
        while (before := self.offset) is not None:
            found = self.step()
            if self.offset == before:
                assert found == []
                return


def state(url: str) -> dict[str, str]:
    with opslog.open(url, read_only=True) as store:
        return {record.id: bytes(record.data).decode() for record in store.records()}


def compact(url: str) -> compaction.Compaction:
    with closing(open_backend(url)) as backend:
        return compaction.compact(backend, REAL)


def logged(url: str) -> Counter[tuple[str, int]]:
    with opslog.open(url, read_only=True) as store:
        return Counter((commit.agent, commit.clock) for commit in store.ops() if not isinstance(commit, Seal))


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two kinds: segments grow, or each append is a segment."""
    return str(tmp_path / "store") if request.param == "directory" else f"bucket://streaming-{next(_numbers)}"


class Writers:
    """Three agents that do random things."""

    def __init__(self, url: str, choices: random.Random) -> None:
        self.url = url
        self._settings = choices.choice([SETTINGS, SEALING])
        self._choices = choices
        self._open: dict[str, opslog.Store[dict[str, Any]]] = {}
        self.some_writes()

    def _store(self) -> opslog.Store[dict[str, Any]]:
        agent = self._choices.choice("abc")
        if agent not in self._open:
            self._open[agent] = opslog.open(
                self.url, agent=agent, settings=self._settings, compact_after=None, durability="buffered"
            )
        return self._open[agent]

    def _id(self) -> str:
        return f"task-{self._choices.randrange(8)}"

    def some_writes(self) -> None:
        store, choices = self._store(), self._choices
        kind = choices.random()
        if kind < 0.1:
            store.undo()
        elif kind < 0.2:
            store.refresh()
            store.pop(self._id(), None)
        elif kind < 0.3:
            with store.batch():
                store[self._id()] = {"batch": choices.randrange(1000)}
                store[self._id()] = {"é": choices.randrange(1000)}
        elif kind < 0.45:
            self._open.popitem()[1].close()  # the next session begins a new segment
            return
        else:
            for _ in range(choices.randrange(8)):
                store[self._id()] = {"n": choices.randrange(1000)}
        store.flush()

    def close(self) -> None:
        for store in self._open.values():
            store.close()


@pytest.mark.parametrize("limit", [EVERYTHING, ReadMaxBytes(400)], ids=["all", "limited"])
@pytest.mark.parametrize("seed", range(3))
def test_every_commit_comes_once_and_they_make_the_state(url: str, seed: int, limit: ReadLimit) -> None:
    follow_at_random(url, seed, limit)


@pytest.mark.slow
@pytest.mark.parametrize("limit", [EVERYTHING, ReadMaxBytes(400)], ids=["all", "limited"])
@pytest.mark.parametrize("hundred", range(3))
def test_many_random_streams(url: str, hundred: int, limit: ReadLimit) -> None:
    for seed in range(hundred * 100, hundred * 100 + 100):
        follow_at_random(f"{url}-{seed}", seed, limit)


def follow_at_random(url: str, seed: int, limit: ReadLimit) -> None:
    choices = random.Random(seed)
    writers = Writers(url, choices)
    stream = Stream(url, limit)
    for _ in range(60):
        chance = choices.random()
        if chance < 0.75:
            writers.some_writes()
        elif chance < 0.85:
            compact(url)
        elif chance < 0.95:
            stream.step()
        else:
            # Planned, but carried out only after its commits were collected: the driver was killed in between.
            end = stream.reader.latestOffset(stream.offset, limit)
            for _ in range(10):
                writers.some_writes()
            compact(url)
            stream.deliver(end)
    stream.drain()
    writers.close()
    assert stream.sink.state() == state(url)
    assert set(stream.sink.delivered.values()) <= {1}
    assert set(stream.sink.delivered) >= set(logged(url)), "what is retained was delivered"


def write(url: str, agent: str, count: int, first: int = 0, settings: opslog.Settings = SETTINGS) -> None:
    durability: Literal["fsync", "buffered"] = "fsync" if url.startswith("bucket") else "buffered"
    with opslog.open(url, agent=agent, settings=settings, compact_after=None, durability=durability) as store:
        store.refresh()
        for number in range(first, first + count):
            store[f"task-{number % 5}"] = {"n": number}


def test_without_a_gap_everything_is_an_op(url: str) -> None:
    write(url, "a", 10)
    stream = Stream(url)
    stream.drain()
    write(url, "b", 10)
    stream.drain()
    assert {row["delivery"] for row in stream.sink.rows} == {"op"}
    assert stream.sink.delivered == logged(url)
    assert [row["clock"] for row in stream.sink.rows] == list(range(1, 21))


def test_a_stream_that_was_stopped_resyncs(url: str) -> None:
    write(url, "a", 10)
    stream = Stream(url)
    stream.drain()
    write(url, "b", 4)
    write(url, "a", 20, first=100)
    write(url, "a", 20, first=200)
    compact(url)
    compact(url)  # collects what the first one compacted
    found = stream.step()
    heads = [row for row in found if row["op"] == "resync"]
    assert [(row["delivery"], row["id"]) for row in heads] == [("resync", None)]
    snapshot = [row for row in found if row["delivery"] == "resync" and row["segment"] is None and row["id"]]
    assert snapshot
    assert stream.sink.state() == state(url)
    assert set(stream.sink.delivered.values()) == {1}
    assert stream.step() == []


def test_a_stream_that_must_not_resync_says_what_is_missing(url: str) -> None:
    write(url, "a", 10)
    write(url, "a", 10)
    compact(url)
    compact(url)
    stream = Stream(url, ongap="fail")
    stream.drain()  # the very first state is not a gap
    assert stream.sink.resyncs <= 1
    write(url, "a", 10)
    write(url, "a", 10)
    compact(url)
    compact(url)
    with pytest.raises(opslog.HistoryGoneError, match=r"agent 'a' from segment .* before this stream read them"):
        stream.step()


def test_commits_collected_after_they_were_read_are_no_gap(url: str) -> None:
    """The end of a removed segment was read. What follows is in the next segment, and nothing is missing."""
    write(url, "a", 10)
    stream = Stream(url, ongap="fail")
    stream.drain()
    write(url, "a", 10)
    stream.drain()
    for _ in range(3):
        write(url, "a", 10)
        stream.drain()
        compact(url)
    assert stream.sink.resyncs == 0
    assert stream.sink.state() == state(url)


# -- logs of which nothing is left


def vanish(url: str) -> None:
    """Compactions seal the logs of idle agents, and compact and collect all of their commits."""
    for _ in range(3):
        compact(url)


def vanished(url: str, agent: str) -> bool:
    with closing(open_backend(url)) as backend:
        return list_log(backend, agent) == [] and agent in ManifestStore(backend).newest().cut


@pytest.fixture
def bucket_url() -> str:
    """A store where each append is a segment, so that a log may vanish as a whole."""
    return f"bucket://streaming-{next(_numbers)}"


@pytest.mark.parametrize("known", [False, True], ids=["new agent", "known agent"])
@pytest.mark.parametrize("available_now", [False, True])
def test_commits_of_a_log_that_vanished_unread_are_a_gap(bucket_url: str, known: bool, available_now: bool) -> None:
    write(bucket_url, "a", 5, settings=SEALING)
    if known:
        write(bucket_url, "b", 1)
    stream = Stream(bucket_url)
    stream.drain()
    assert stream.sink.resyncs == 0
    write(bucket_url, "b", 4, first=100)
    vanish(bucket_url)
    assert vanished(bucket_url, "b")
    if available_now:
        stream.reader.prepareForTriggerAvailableNow()
    stream.drain()
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(bucket_url)
    write(bucket_url, "b", 1, first=200)
    if available_now:
        stream.reader.prepareForTriggerAvailableNow()
    stream.drain()
    assert stream.sink.resyncs == 1, "from there on it goes on as ever"
    assert stream.sink.state() == state(bucket_url)
    assert set(stream.sink.delivered.values()) == {1}


def test_a_log_that_vanishes_between_planning_and_reading_is_a_gap(bucket_url: str) -> None:
    write(bucket_url, "a", 5, settings=SEALING)
    stream = Stream(bucket_url)
    stream.drain()
    write(bucket_url, "b", 4, first=100)
    end = stream.reader.latestOffset(stream.offset, EVERYTHING)
    vanish(bucket_url)
    stream.deliver(end)
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(bucket_url)


def test_a_stream_that_must_not_resync_says_that_a_log_vanished(bucket_url: str) -> None:
    write(bucket_url, "a", 5, settings=SEALING)
    stream = Stream(bucket_url, ongap="fail")
    stream.drain()
    write(bucket_url, "b", 4)
    vanish(bucket_url)
    with pytest.raises(opslog.HistoryGoneError, match=r"agent 'b' from segment 1, byte 0 on were compacted"):
        stream.step()


def test_a_seal_that_vanished_unread_is_no_gap(bucket_url: str) -> None:
    """Everything that the agents wrote was read. Every agent that is idle for a day is sealed."""
    for agent in "abc":
        write(bucket_url, agent, 5, settings=SEALING)
    stream = Stream(bucket_url, ongap="fail")
    stream.drain()
    vanish(bucket_url)
    assert all(vanished(bucket_url, agent) for agent in "abc")
    assert stream.step() == []
    write(bucket_url, "a", 2, first=100)
    stream.drain()
    assert stream.sink.resyncs == 0
    assert stream.sink.state() == state(bucket_url)


def test_a_commit_of_a_store_without_an_undo_window_is_not_mistaken_for_a_seal(bucket_url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0.0)
    write(bucket_url, "a", 5, settings=settings)
    stream = Stream(bucket_url)
    stream.drain()
    write(bucket_url, "a", 1, first=100, settings=settings)
    vanish(bucket_url)
    assert vanished(bucket_url, "a")
    stream.drain()
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(bucket_url)


def test_a_stream_from_now_on_knows_logs_of_which_nothing_is_left(bucket_url: str) -> None:
    write(bucket_url, "a", 5, settings=SEALING)
    vanish(bucket_url)
    assert vanished(bucket_url, "a")
    stream = Stream(bucket_url, startingat="latest", ongap="fail")
    assert stream.step() == []
    write(bucket_url, "a", 2)
    stream.drain()
    assert sorted(row["clock"] for row in stream.sink.rows) == [7, 8]


def test_a_delayed_write_under_a_collected_number_is_not_what_comes_next(bucket_url: str) -> None:
    write(bucket_url, "a", 5, settings=SEALING)
    stream = Stream(bucket_url)
    stream.drain()
    number = stream.offset["logs"]["a"]["segment"]
    write(bucket_url, "a", 5, first=100)
    vanish(bucket_url)
    late = Set(format_ts(0.0), 6, "a", "late", msgspec.Raw(b"{}"))
    with closing(open_backend(bucket_url)) as backend:
        backend.create(segment_path("a", number), encode_commit(late))
    stream.drain()
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(bucket_url)
    assert "late" not in stream.sink.state()


def test_a_segment_that_was_removed_by_hand_is_damage(url: str) -> None:
    write(url, "a", 5)
    stream = Stream(url)
    stream.drain()
    for _ in range(2):
        write(url, "a", 5, first=100)
    with closing(open_backend(url)) as backend:
        (*_, before, _) = list_log(backend, "a")
        backend.delete([segment_path("a", before.number)])
    with pytest.raises(opslog.CorruptError, match="is missing"):
        stream.step()


@pytest.mark.parametrize("known", [False, True], ids=["new agent", "known agent"])
def test_planned_files_removed_by_hand_are_damage(url: str, known: bool) -> None:
    write(url, "a", 5)
    if known:
        write(url, "b", 1)
    stream = Stream(url)
    stream.drain()
    write(url, "b", 4, first=100)
    end = stream.reader.latestOffset(stream.offset, EVERYTHING)
    with closing(open_backend(url)) as backend:
        number = stream.offset["logs"].get("b", {"segment": 0})["segment"]
        backend.delete([segment_path("b", one.number) for one in list_log(backend, "b") if one.number > number])
    with pytest.raises(opslog.CorruptError, match="is missing"):
        stream.deliver(end)


def test_a_log_that_ends_before_what_was_read_of_it_is_damage(url: str) -> None:
    """As in a store restored from a backup: the agent's next commits would have numbers that were already read."""
    write(url, "a", 5)
    write(url, "a", 5)
    stream = Stream(url)
    stream.drain()
    with closing(open_backend(url)) as backend:
        backend.delete([segment_path("a", list_log(backend, "a")[-1].number)])
    with pytest.raises(opslog.CorruptError, match="is missing"):
        stream.step()
    write(url, "a", 1)
    with closing(open_backend(url)) as backend:
        backend.delete([segment_path("a", list_log(backend, "a")[-1].number)])
    with pytest.raises(opslog.CorruptError, match="is missing"):
        stream.step()


# -- a batch that was planned before commits were collected, and is carried out after


def test_a_planned_batch_before_a_gap_does_not_deliver_the_state_twice(url: str) -> None:
    """The batch ends before the gap, so the next one begins with the state. One state is enough."""
    write(url, "a", 10)
    stream = Stream(url)
    stream.drain()
    write(url, "a", 4, first=100)
    before = stream.sink.state()
    end = stream.reader.latestOffset(stream.offset, EVERYTHING)
    for first in (200, 300):
        write(url, "a", 20, first=first)
    compact(url)
    compact(url)
    found = stream.deliver(end)
    assert {row["delivery"] for row in found} <= {"folded"}
    assert stream.sink.state() == before, "until the state comes"
    stream.drain()
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(url)
    assert set(stream.sink.delivered.values()) == {1}


def test_a_planned_resync_that_was_overtaken_does_not_deliver_the_state_twice(url: str) -> None:
    def fall_behind(first: int) -> None:
        write(url, "a", 20, first=first)
        write(url, "a", 20, first=first + 100)
        compact(url)
        compact(url)

    write(url, "a", 10)
    stream = Stream(url)
    stream.drain()
    fall_behind(200)
    end = stream.reader.latestOffset(stream.offset, EVERYTHING)
    assert end["resync"]
    fall_behind(400)
    stream.deliver(end)
    stream.drain()
    assert stream.sink.resyncs == 1
    assert stream.sink.state() == state(url)
    assert set(stream.sink.delivered.values()) == {1}


def test_a_later_start_leaves_out_what_was_before(url: str) -> None:
    write(url, "a", 10)
    compact(url)
    stream = Stream(url, startingat="latest")
    assert stream.step() == []
    write(url, "a", 2)
    write(url, "b", 2)
    stream.drain()
    assert sorted(row["clock"] for row in stream.sink.rows) == [11, 12, 13, 14]


def test_available_now_ends_where_it_began_to_read(url: str) -> None:
    write(url, "a", 10)
    stream = Stream(url, ReadMaxBytes(200))
    stream.reader.prepareForTriggerAvailableNow()
    write(url, "a", 10)
    write(url, "b", 10)
    stream.drain()
    assert stream.sink.delivered == {("a", clock): 1 for clock in range(1, 11)}


def test_a_limit_is_kept_and_nobody_starves(url: str) -> None:
    for agent in "abc":
        write(url, agent, 40)
    stream = Stream(url, ReadMaxBytes(3000))
    first = stream.step()
    assert {row["agent"] for row in first} == {"a", "b", "c"}
    assert len(first) < 60
    stream.drain()
    assert len(stream.sink.rows) == 120


def test_a_torn_line_waits_until_it_is_whole(tmp_path: Path) -> None:
    write(str(tmp_path), "a", 3)
    (segment,) = tmp_path.glob("ops/a/*")
    *whole, last = segment.read_bytes().splitlines(keepends=True)
    stream = Stream(str(tmp_path))
    for end in (0, 1, len(last) - 1):
        segment.write_bytes(b"".join(whole) + last[:end])
        stream.step()
        assert len(stream.sink.rows) == 2
    segment.write_bytes(b"".join(whole) + last)
    stream.step()
    assert [row["clock"] for row in stream.sink.rows] == [1, 2, 3]
    # A line of a dead writer stays torn. The stream passes over it when a new session has begun.
    segment.write_bytes(segment.read_bytes() + last[:20])
    write(str(tmp_path), "a", 1)
    stream.drain()
    assert [row["clock"] for row in stream.sink.rows] == [1, 2, 3, 4]


def test_a_line_that_is_no_commit_is_an_error(tmp_path: Path) -> None:
    write(str(tmp_path), "a", 3)
    (segment,) = tmp_path.glob("ops/a/*")
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(lines[0] + b"nonsense\n" + lines[2])
    with pytest.raises(opslog.CorruptError, match=f"byte {len(lines[0])}"):
        Stream(str(tmp_path)).step()


def test_a_log_that_was_cut_short_is_an_error(tmp_path: Path) -> None:
    write(str(tmp_path), "a", 3)
    stream = Stream(str(tmp_path))
    stream.step()
    (segment,) = tmp_path.glob("ops/a/*")
    segment.write_bytes(segment.read_bytes()[:-10])
    with pytest.raises(opslog.CorruptError, match="ends at byte"):
        stream.step()


def test_large_slices_are_split_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("opslog.spark.stream.offsets.SPLIT_BYTES", 300)
    write(str(tmp_path), "a", 20)
    stream = Stream(str(tmp_path))
    end = stream.reader.latestOffset(stream.offset, EVERYTHING)
    with closing(open_backend(tmp_path)) as backend:
        work = Follower(backend).between(Follower(backend).newest().parse({}), Follower(backend).newest())
    assert len(work.slices) > 5
    stream.deliver(end)
    assert [row["clock"] for row in stream.sink.rows] == list(range(1, 21))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"ongap": "ignore"}, "onGap is resync or fail"),
        ({"startingat": "1"}, "startingAt is earliest or latest"),
        ({"maxbytespertrigger": "0"}, "maxBytesPerTrigger"),
    ],
    ids=["onGap", "startingAt", "maxBytesPerTrigger"],
)
def test_an_option_that_cannot_be_is_refused(options: dict[str, str], words: str) -> None:
    with pytest.raises(opslog.UsageError, match=words):
        StreamReader("nowhere", {}, options)
