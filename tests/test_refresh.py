"""refresh and watch: each new commit is seen once, and the cost depends only on what is new."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NamedTuple

import pytest

import opslog
from opslog.backends import Entry
from opslog.backends.memory import MemoryBackend
from opslog.doors.operations import Operations
from opslog.format.commits import encode_commit
from opslog.format.layout import segment_path
from opslog.merge import merge
from opslog.merge.stamps import newer
from opslog.store import replica_of
from tests.support.bucket import BUCKETS

Store = opslog.Store[dict[str, Any]]
_numbers = itertools.count()

pytestmark = pytest.mark.usefixtures("snapshots")


@pytest.fixture
def url() -> str:
    return f"memory://refresh-{next(_numbers)}"


class Read(NamedTuple):
    path: str
    start: int
    bytes: int


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The calls to the storage: `Read`s, and the prefixes of listings."""
    seen: list[Any] = []
    read, listing = MemoryBackend.read, MemoryBackend.list

    def count_read(self: MemoryBackend, path: str, start: int = 0, stop: int | None = None) -> bytes:
        data = read(self, path, start, stop)
        seen.append(Read(path, start, len(data)))
        return data

    def count_list(self: MemoryBackend, prefix: str, after: str = "") -> list[Entry]:
        seen.append(prefix)
        return listing(self, prefix, after)

    monkeypatch.setattr(MemoryBackend, "read", count_read)
    monkeypatch.setattr(MemoryBackend, "list", count_list)
    return seen


def fill(store: Store, count: int) -> None:
    for number in range(count):
        store[f"{number % 500}"] = {"number": number}


# -- what it costs


@pytest.mark.parametrize("tail", [10, 5000])
@pytest.mark.parametrize("agents", [1, 50])
def test_a_refresh_reads_the_new_bytes_and_nothing_else(url: str, calls: list[Any], tail: int, agents: int) -> None:
    for number in range(agents - 1):
        with opslog.open(url, agent=f"other-{number}") as other:
            other[f"other-{number}"] = {}
    with (
        opslog.open(url, agent="writer", compact_after=None, durability="buffered") as writer,
        opslog.open(url, agent="reader", compact_after=None) as reader,
    ):
        fill(writer, tail)
        writer.flush()
        reader.refresh()
        size = MemoryBackend(url.removeprefix("memory://")).list("ops/writer/")[0].size
        calls.clear()
        assert reader.refresh() == []
        assert calls == ["manifests/", "ops/"], "nothing new: two listings, no read"
        calls.clear()
        writer["new"] = {"text": "x" * 100}
        writer.flush()
        (commit,) = reader.refresh()
        line = len(encode_commit(commit))
        listings = ["manifests/", "ops/", "ops/transactions/"]  # the last one only where there is something to read
        assert calls == [*listings, Read(segment_path("writer", 1), size, line)]


def test_a_document_that_many_agents_write_is_compared_with_its_winner_alone(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its recent records may be thousands: the undo window of every agent is full of them."""
    compared = 0

    def count(record: Any, best: Any) -> Any:
        nonlocal compared
        compared += 1
        return newer(record, best)

    writers = {f"agent-{number}": opslog.open(url, agent=f"agent-{number}") for number in range(10)}
    with opslog.open(url, read_only=True) as reader:
        monkeypatch.setattr(merge, "newer", count)
        for turn in range(20):
            for agent, writer in writers.items():  # nobody reads what the others write, so clocks are equal
                writer["shared"] = {"turn": turn, "by": agent}
            reader.refresh()
        assert reader["shared"] == {"turn": 19, "by": "agent-9"}
        assert compared <= 200
        # An undo needs the others: the next best one counts.
        assert writers["agent-9"].undo()
        reader.refresh()
        assert reader["shared"] == {"turn": 19, "by": "agent-8"}
    for writer in writers.values():
        writer.close()


def test_a_refresh_after_a_compaction_of_nothing_unread_reads_one_manifest(url: str, calls: list[Any]) -> None:
    with opslog.open(url, agent="writer") as writer, opslog.open(url, agent="reader") as reader:
        fill(writer, 100)
        reader.refresh()
        assert writer.compact().commits == 68
        calls.clear()
        assert reader.refresh() == []
        assert [call for call in calls if isinstance(call, Read)] == [
            Read("manifests/00000000000000000002.json", 0, calls[1].bytes)
        ]


# -- what it gives


def test_each_commit_is_given_once_in_the_order_of_its_log(url: str) -> None:
    with (
        opslog.open(url, agent="a") as a,
        opslog.open(url, agent="b") as b,
        opslog.open(url, agent="reader") as reader,
    ):
        a["x"] = {"by": "a"}
        with b.batch():
            b["y"] = {}
            b["z"] = {}
        b.undo()
        first = reader.refresh()
        assert [(commit.agent, commit.op) for commit in first] == [("a", "set"), ("b", "batch"), ("b", "undo")]
        assert dict(reader.items()) == {"x": {"by": "a"}}
        assert reader.refresh() == []
        reader["mine"] = {}
        assert reader.refresh() == [], "one's own are no news"
        del a["x"]
        assert [commit.op for commit in reader.refresh()] == ["delete"]
        assert set(reader) == {"mine"}


def test_a_refresh_is_not_part_of_a_batch_and_leaves_it_alone(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        a["x"] = {}
        with b.batch():
            b["y"] = {}
            with pytest.raises(opslog.UsageError, match="batch"):
                b.refresh()
        assert len(b.refresh()) == 1
        assert set(b) == {"x", "y"}


def test_commits_compacted_before_they_were_read_are_still_returned(url: str) -> None:
    """Nothing is collected within the grace period, so a reader that comes late misses nothing."""
    with opslog.open(url, agent="writer") as writer, opslog.open(url, agent="reader") as reader:
        fill(writer, 40)
        assert len(reader.refresh()) == 40
        fill(writer, 300)
        writer.compact()
        fill(writer, 5)
        assert [commit.clock for commit in reader.refresh()] == list(range(41, 346))
        assert dict(reader.items()) == dict(writer.items())
        assert reader.refresh() == []


@pytest.fixture
def away(url: str) -> Iterator[Callable[[], Store]]:
    """A reader that read once. While it was away, everything that it had read, and more, was compacted and
    collected."""
    settings = opslog.Settings(undo_window=1, grace_seconds=0)
    readers: list[Store] = []

    def read() -> Store:
        with opslog.open(url, agent="writer", settings=settings) as writer:
            fill(writer, 10)
            readers.append(opslog.open(url, read_only=True))
        with opslog.open(url, agent="writer") as writer:
            for number in range(10):
                writer[f"unread-{number}"] = {}
        with opslog.open(url, agent="writer") as writer:
            writer["last"] = {}
            writer.compact()
            writer["later"] = {}
            assert writer.compact().garbage.segments
        return readers[0]

    yield read
    for reader in readers:
        reader.close()


def test_after_a_long_absence_the_state_is_right(url: str, away: Callable[[], Store]) -> None:
    reader = away()
    given = reader.refresh()
    assert len(reader) == 10 + 10 + 2
    assert len(given) < 12, "what was collected cannot be given"
    assert reader.refresh() == []


def test_watch_says_when_it_has_missed_something(url: str, away: Callable[[], Store]) -> None:
    reader = away()
    with pytest.raises(opslog.HistoryGoneError, match="collected before they were read"):
        for _ in reader.watch():
            pass
    assert "unread-3" in reader
    with opslog.open(url, agent="other") as other:
        other["news"] = {}
    assert next(reader.watch()).agent == "other"


def test_a_segment_that_was_read_to_its_end_is_not_missed(url: str) -> None:
    settings = opslog.Settings(undo_window=1, grace_seconds=0)
    with opslog.open(url, agent="writer", settings=settings) as writer:
        fill(writer, 10)
        reader = opslog.open(url, read_only=True)
    with opslog.open(url, agent="writer") as writer:
        for _ in range(3):
            writer["last"] = {}
            writer.compact()
    follower = reader.watch()
    assert [next(follower).clock for _ in range(3)] == [11, 12, 13]
    reader.close()


# -- watch


def test_watch_gives_what_others_write_until_the_store_is_closed(url: str) -> None:
    slept: list[float] = []
    written = threading.Event()

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        written.wait()

    environment = opslog.Environment(sleep=sleep)
    with opslog.open(url, agent="writer") as writer:
        reader = opslog.open(url, agent="reader", environment=environment)
        seen: list[opslog.Commit] = []
        thread = threading.Thread(target=lambda: seen.extend(reader.watch(0.7)))
        thread.start()
        writer["x"] = {}
        written.set()
        while not seen:
            pass
        reader.close()
        thread.join()
    assert [commit.op for commit in seen] == ["set"]
    assert set(slept) <= {0.7}


def test_refresh_and_watch_share_what_is_new(url: str) -> None:
    with opslog.open(url, agent="writer") as writer, opslog.open(url, agent="reader") as reader:
        writer["x"] = {}
        follower = reader.watch()
        assert next(follower).clock == 1
        writer["y"] = {}
        assert [commit.clock for commit in reader.refresh()] == [2]
        writer["z"] = {}
        assert next(follower).clock == 3


def test_transactions_in_the_name_of_another_author_are_news_of_every_refresh(url: str) -> None:
    """Also of those after the first one, which find them in memory."""
    with opslog.open(url, agent="a") as a:
        for number in range(3):
            for author in ("a", "ann"):
                with a.transaction() as transaction:
                    transaction.author = author
                    transaction[f"{author}-{number}"] = {}
            assert [commit.ids for commit in a.refresh()] == [(f"ann-{number}",)]


def test_operations_leave_the_news_to_the_program_that_asks_for_it(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        operations = Operations(a)
        for number in range(2):
            b[f"{number}"] = {}
            assert operations.count() == number + 1
            assert [commit.ids for commit in a.refresh()] == [(f"{number}",)]


def test_a_store_in_the_past_has_no_news(url: str) -> None:
    with opslog.open(url, agent="writer") as writer:
        writer["x"] = {}
        with opslog.open(url, as_of=1) as past:
            writer["y"] = {}
            assert past.refresh() == []
            assert set(past) == {"x"}


# -- views that got old


def test_a_store_not_refreshed_for_long_refreshes_before_it_writes(url: str) -> None:
    """A tombstone may be removed after its time. A set with a view from before that would bring the document back."""
    now = [0.0]
    environment = opslog.Environment(monotonic=lambda: now[0])
    with (
        opslog.open(url, agent="writer") as writer,
        opslog.open(url, agent="idle", environment=environment) as idle,
    ):
        fill(writer, 50)
        idle["x"] = {}
        assert len(idle) == 1, "it has not refreshed"
        now[0] += 3.5 * 86400 + 1
        idle["y"] = {}
        assert len(idle) == 52
        assert idle.stats().clock == 51
        assert len(idle.refresh()) == 50, "what it saw on the way is still given"


# -- agents that are gone


def steps(call: Callable[[], object]) -> int:
    """How many functions the call calls."""
    count = 0

    def note(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def beside_gone_agents(name: str, count: int) -> tuple[Store, list[str]]:
    """A store on an object storage, with agents that wrote and left. Their logs are compacted and collected."""
    url = f"bucket://{name}-{count}"
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    store = opslog.open(url, agent="a", compact_after=None, settings=settings)
    gone = [f"worker-{number:03}" for number in range(count)]
    for agent in gone:
        with opslog.open(url, agent=agent, compact_after=None) as worker:
            worker[agent] = {}
    for number in range(3):
        store["mine"] = {"number": number}
        store.compact()
    store.refresh()
    assert not [key for key in BUCKETS[f"{name}-{count}"].objects if "worker" in key and "/ops/" in f"/{key}"]
    return store, gone


def test_agents_whose_logs_are_collected_cost_a_refresh_nothing(url: str) -> None:
    costs = []
    for count in (3, 60):
        store, _ = beside_gone_agents(url.partition("://")[2], count)
        costs.append(steps(store.refresh))
        store.close()
    assert costs[0] == costs[1]


def test_an_agent_that_comes_back_is_seen_at_once(url: str) -> None:
    store, gone = beside_gone_agents(url.partition("://")[2], 5)
    with store:
        for agent in gone:
            with opslog.open(replica_of(store).backend.url, agent=agent, compact_after=None) as worker:
                worker["back"] = {"by": agent}
                assert [commit.agent for commit in store.refresh()] == [agent]
                assert store["back"] == {"by": agent}
                del worker["back"]
            assert [commit.op for commit in store.refresh()] == ["delete"]
            store.compact()
            store.compact()
            assert store.refresh() == []


def test_a_log_that_was_there_and_is_not_any_more_is_noticed(url: str) -> None:
    with opslog.open(url, agent="writer") as writer, opslog.open(url, agent="reader") as reader:
        writer["x"] = {}
        reader.refresh()
        replica_of(reader).backend.delete([segment_path("writer", 1)])
        assert reader.refresh() == []
        assert set(reader) == set(), "as whoever opens the store now sees it"


# -- stores that read what others write, and never ask for it


def test_what_came_in_before_the_first_refresh_is_returned_by_it_and_not_kept_until_then(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b, opslog.open(url, log="shared") as c:
        stamps = []
        for number in range(3):
            a[f"a-{number}"] = {}
            a.create(f"created-{number}", {})
            stamps += [record.stamp for id in (f"a-{number}", f"created-{number}") if (record := a.record(id))]
            b.modify("counter", lambda document: {"n": document["n"] + 1 if document else 0})
            c.modify("counter", lambda document: {"n": document["n"] + 1 if document else 0})
            b.changes()
        assert len(b) == len(c) == 7
        for store in (b, c):
            assert not replica_of(store).news._waiting
        found = {commit.stamp for commit in b.refresh() if commit.author == "a"}
        assert found == set(stamps)
        assert b.refresh() == []
        a["later"] = {}
        b.modify("counter", lambda document: document)
        assert [commit.ids for commit in b.refresh() if commit.author == "a"] == [("later",)]


def test_a_first_refresh_that_has_missed_nothing_costs_what_others_do(url: str, calls: list[Any]) -> None:
    with opslog.open(url, agent="a") as a:
        a["x"] = {}
        with opslog.open(url, agent="b") as b:
            calls.clear()
            assert b.refresh() == []
            first = len(calls)
            calls.clear()
            assert b.refresh() == []
            assert len(calls) == first


def test_a_first_watch_long_after_the_open_says_that_commits_were_collected() -> None:
    url = f"bucket://refresh-{next(_numbers)}"
    with (
        opslog.open(url, agent="a", settings=opslog.Settings(undo_window=0, grace_seconds=0), compact_after=None) as a,
        opslog.open(url, agent="b", compact_after=None) as b,
    ):
        for number in range(6):
            a[f"{number}"] = {}
            b.modify("counter", lambda document: document or {})
            a.compact()
        with pytest.raises(opslog.HistoryGoneError, match="collected before they were read"):
            next(commit for commit in b.watch(0) if commit.ids == ("0",))
        a["later"] = {}
        assert next(b.watch(0)).ids == ("later",)
