"""Many threads on one store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.format.commits import Set
from opslog.store import replica_of
from tests.support.places import DIRECTORY, REMOTE, SERVERS, Place

Store = opslog.Store[dict[str, Any]]

THREADS = 16
MARKS = {
    REMOTE: pytest.mark.long,
    "moto-s3fs": pytest.mark.long,
    "moto-obstore": pytest.mark.slow,
    "ceph-s3fs": pytest.mark.slow,
    "ceph-obstore": pytest.mark.long,
}
EVERYWHERE = pytest.mark.parametrize(
    "place",
    [
        DIRECTORY,
        *(pytest.param(place, marks=MARKS.get(place, ())) for place in (REMOTE, *SERVERS)),
    ],
    indirect=True,
)


def at_once(*works: Callable[[], object]) -> list[Any]:
    """The results of these calls. All start at the same moment, each in a thread of its own."""
    barrier = threading.Barrier(len(works))

    def begin(work: Callable[[], object]) -> object:
        barrier.wait()
        return work()

    with ThreadPoolExecutor(len(works)) as pool:
        return [future.result() for future in [pool.submit(begin, work) for work in works]]


class Running:
    """Runs functions in threads again and again, beside a `with` block and at least once. Raises what they raised."""

    def __init__(self, *works: Callable[[], object]) -> None:
        self._works = works
        self._over = threading.Event()
        self._pool = ThreadPoolExecutor(len(works))

    def __enter__(self) -> None:
        self._futures = [self._pool.submit(self._repeat, work) for work in self._works]

    def _repeat(self, work: Callable[[], object]) -> None:
        work()
        while not self._over.is_set():
            work()

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._pool.shutdown()
        for future in self._futures:
            future.result()


@pytest.mark.parametrize("sets", [60, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@EVERYWHERE
def test_threads_setting_at_once_lose_nothing_and_keep_one_order(place: Place, sets: int, durability: Any) -> None:
    with opslog.open(place.url(), agent="a", durability=durability, compact_after=None) as store:

        def setting(thread: int) -> Callable[[], None]:
            def work() -> None:
                for number in range(sets):
                    store[f"{thread}-{number}"] = {"thread": thread, "number": number}
                    store["shared"] = {"thread": thread, "number": number}
                    assert store[f"{thread}-{number}"] == {"thread": thread, "number": number}

            return work

        at_once(*map(setting, range(THREADS)))
        documents = dict(store.items())
        commits = list(store.ops())
        assert store.stats().commits == len(commits)
    assert len(documents) == THREADS * sets + 1
    # The log has the order of the clocks: 1, 2, 3 ..., and each thread's commits are in order.
    assert [commit.clock for commit in commits] == list(range(1, 2 * THREADS * sets + 1))
    for thread in range(THREADS):
        own = [
            commit.document["number"]
            for commit in commits
            if isinstance(commit, opslog.Set) and commit.id == "shared" and commit.document["thread"] == thread
        ]
        assert own == list(range(sets))
    # Memory applied them in the same order: in the end everybody saw the last one in the log.
    last = next(commit for commit in reversed(commits) if isinstance(commit, opslog.Set) and commit.id == "shared")
    assert documents["shared"] == last.document
    with opslog.open(place.url(), read_only=True) as fresh:
        assert dict(fresh.items()) == documents


def test_concurrent_threads_share_appends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one append is on its way to the disk, all other commits queue up, and the next append takes them all."""
    from opslog.backends.local.fs_log import FsAppender

    real, lengths = FsAppender.append, list[int]()

    def append(self: FsAppender, data: bytes) -> Any:
        lengths.append(data.count(b"\n"))
        writer = replica_of(store).log
        assert writer is not None
        if len(lengths) == 1:
            event = threading.Event()
            while len(writer._queue) < THREADS - 1:
                event.wait(0.001)
        return real(self, data)

    with opslog.open(tmp_path, agent="a") as store:
        monkeypatch.setattr(FsAppender, "append", append)
        at_once(*[lambda number=number: store.set(str(number), {}) for number in range(THREADS)])
    assert lengths == [1, THREADS - 1]


@EVERYWHERE
def test_readers_never_see_half_a_batch(place: Place) -> None:
    """Each batch moves an amount between accounts. The sum is always the same, for the writers' own store and for
    another one."""
    accounts = [f"account-{number}" for number in range(8)]
    with (
        opslog.open(place.url(), agent="a", compact_after=50, **place.options) as store,
        opslog.open(place.url(), agent="b", compact_after=None) as other,
    ):
        with store.batch():
            for account in accounts:
                store[account] = {"amount": 100}
        other.refresh()
        moving = threading.Lock()

        def move(thread: int) -> None:
            for step in range(40 if place.is_directory else 8):
                source, target = accounts[(thread + step) % 8], accounts[(thread * 3 + step * 5 + 1) % 8]
                if source == target:
                    continue
                with moving, store.batch():
                    store[source] = {"amount": store[source]["amount"] - 1}
                    store[target] = {"amount": store[target]["amount"] + 1}

        def check(view: Store) -> None:
            assert sum(document["amount"] for _, document in view.items()) == 800
            assert sum(document["amount"] for document in view.values()) == 800
            assert len(view) == 8

        def refresh_and_check() -> None:
            other.refresh()
            check(other)

        with Running(lambda: check(store), refresh_and_check, lambda: check(other)):
            at_once(*[lambda thread=thread: move(thread) for thread in range(4)])
        check(store)
        other.refresh()
        assert dict(other.items()) == dict(store.items())


def test_a_batch_is_seen_by_its_own_thread_alone(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"turn": 1}
        with store.batch():
            store["x"] = {"turn": 2}
            store["y"] = {}
            assert at_once(lambda: (dict(store.items()), len(store), "y" in store)) == [({"x": {"turn": 1}}, 1, False)]
            at_once(lambda: store.set("z", {}))
            assert set(store) == {"x", "y", "z"}
        assert at_once(lambda: dict(store.items())) == [{"x": {"turn": 2}, "y": {}, "z": {}}]


@EVERYWHERE
def test_each_commit_is_undone_once_by_concurrent_undos(place: Place) -> None:
    with opslog.open(place.url("0"), agent="a", compact_after=None) as store:
        for number in range(40):
            store["x"] = {"number": number}
        # The window of 32 commits counts the undos, too: the 16th still reaches what was set 31 commits before it.
        assert at_once(*[store.undo] * THREADS) == [True] * THREADS
        assert store["x"] == {"number": 23}
        targets = [commit.target for commit in store.ops() if isinstance(commit, opslog.Undo)]
        assert targets == list(range(40, 24, -1))
        assert store.undo() is False
    with opslog.open(place.url("0"), read_only=True) as fresh:
        assert fresh["x"] == {"number": 23}


@EVERYWHERE
def test_concurrent_undos_take_back_the_newest_commits_in_either_log(place: Place) -> None:
    with opslog.open(place.url("0"), agent="a", compact_after=None) as store:
        for turn in range(10):
            for number in range(3):
                store[f"plain-{turn}-{number}"] = {}
                store.create(f"transaction-{turn}-{number}", {})
            assert at_once(*[store.undo] * 3) == [True] * 3
            assert {id for id in store if id.split("-")[1] == str(turn)} == {
                f"plain-{turn}-0",
                f"transaction-{turn}-0",
                f"plain-{turn}-1",
            }


@EVERYWHERE
def test_everything_at_once(place: Place) -> None:
    """Sets, batches, undos, refreshes and compactions of two stores, in many threads. Both end in the same state, which
    a newly opened store finds, too."""
    settings, rounds = opslog.Settings(grace_seconds=0, undo_window=8), 60 if place.is_directory else 12
    with (
        opslog.open(place.url(), agent="a", compact_after=40, settings=settings, **place.options) as a,
        opslog.open(place.url(), agent="b", compact_after=None) as b,
    ):

        def write(store: Store, thread: int) -> None:
            for number in range(rounds):
                store[f"{thread}-{number}"] = {"number": number}
                with store.batch():
                    store["shared"] = {"thread": thread, "number": number}
                    store[f"{thread}-batch"] = {"number": number}

        def take_back(store: Store) -> None:
            store["taken-back"] = {}
            store.undo()

        def compact(store: Store) -> None:
            with suppress(opslog.LockedError):
                store.compact(full=len(store) % 3 == 0)

        with Running(a.refresh, b.refresh, lambda: compact(a), lambda: compact(b), lambda: list(a.items()), b.stats):
            at_once(*[lambda thread=thread: write((a, b)[thread % 2], thread) for thread in range(6)])
        with Running(a.refresh, b.refresh, lambda: compact(a)):
            at_once(*[lambda store=store: take_back(store) for store in (a, a, a, b, b, b)])
        a.refresh()
        b.refresh()
        documents = dict(a.items())
        assert dict(b.items()) == documents
        assert {f"{thread}-{number}" for thread in range(6) for number in range(rounds)} <= set(documents)
    with opslog.open(place.url(), read_only=True) as fresh:
        assert dict(fresh.items()) == documents
        assert len(fresh) == len(documents)


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@EVERYWHERE
def test_closing_beside_everything(place: Place, durability: Any) -> None:
    """Commits that were acknowledged before the close are there; later ones were refused."""
    for turn in range(5):
        store = opslog.open(place.url(), agent="a", durability=durability, compact_after=30)
        begun = threading.Barrier(7)

        def write(thread: int, store: Store, begun: threading.Barrier, turn: int) -> set[str]:
            acknowledged = set[str]()
            begun.wait()
            with suppress(opslog.ClosedError):
                for number in range(100_000):
                    id = f"{turn}-{thread}-{number}"
                    store[id] = {}
                    acknowledged.add(id)
            return acknowledged

        def read(store: Store, begun: threading.Barrier) -> None:
            begun.wait()
            with suppress(opslog.ClosedError):
                while True:
                    store.refresh()
                    store.stats()

        def end(store: Store, begun: threading.Barrier, turn: int) -> None:
            begun.wait()
            while len(store) < 50 * (turn + 1):
                store.flush()
            store.close()

        with ThreadPoolExecutor(7) as pool:
            writing = [pool.submit(write, thread, store, begun, turn) for thread in range(5)]
            others = [pool.submit(read, store, begun), pool.submit(end, store, begun, turn)]
        for future in others:
            future.result()
        acknowledged = {id for future in writing for id in future.result()}
        with opslog.open(place.url(), read_only=True) as fresh:
            assert acknowledged <= set(fresh)
            attempted = {id for id in fresh if id.startswith(f"{turn}-")}
            assert len(attempted - acknowledged) <= 5, "at most the one that each thread was about to have acknowledged"


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_a_set_that_a_close_overtakes_is_refused(tmp_path: Path, durability: Any) -> None:
    """Another thread closes the store when `set` has begun, but has not yet queued its commit."""
    is_past = threading.Event()

    def monotonic() -> float:
        if is_past.is_set():
            is_past.clear()
            at_once(store.close)
        return 0.0

    environment = opslog.Environment(monotonic=monotonic)
    store = opslog.open(tmp_path, agent="a", durability=durability, environment=environment)
    store["before"] = {}
    is_past.set()
    with pytest.raises(opslog.ClosedError, match="closed"):
        store["after"] = {}
    with opslog.open(tmp_path, agent="a") as again:
        assert set(again) == {"before"}


def test_a_get_waits_for_a_change_under_way_and_for_nothing_else(tmp_path: Path) -> None:
    """If a reader sees one half of a change, its next call sees the other half. A thread that holds the lock and
    changes nothing does not hold up anybody who reads from memory."""
    with opslog.open(tmp_path, compact_after=None) as store:
        store["a"], store["b"] = {"n": 1}, {"n": 1}
        replica = replica_of(store)
        half, asking, answered = threading.Event(), threading.Event(), threading.Event()

        def in_two_steps() -> Iterator[Set]:
            for id in ("a", "b"):
                clock = replica.clock.tick()
                yield Set("2026-11-24T12:00:00.000000Z", clock, "main", id, msgspec.Raw(b'{"n":2}'))
                half.set()
                if id == "a":
                    assert asking.wait(60)
                    answered.wait(0.2)  # a get that does not wait would answer now, from between the two

        def read() -> tuple[bool, bool, Any]:
            assert half.wait(60)
            asking.set()
            try:
                return store["a"] == {"n": 2}, store["b"] == {"n": 2}, "b" in store
            finally:
                answered.set()

        assert at_once(lambda: replica.apply(in_two_steps()), read)[1] == (True, True, True)

        def held() -> None:
            with replica._state_lock:
                half.set()
                assert answered.wait(60)

        half.clear()
        answered.clear()
        assert at_once(held, read)[1] == (True, True, True)
