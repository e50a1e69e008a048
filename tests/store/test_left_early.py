"""A refresh or a watch that is left early, by an exception, by `break` or by cancelling: afterwards the state is right,
and each commit of others is handed out once."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import opslog
from opslog.backends.memory import MemoryBackend
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places
from tests.support import bucket  # noqa: F401  (stores at bucket://)

_numbers = itertools.count()
Store = opslog.Store[dict[str, Any]]
DAY = 86_400.0


class InterruptError(BaseException):
    """As a signal handler raises it."""


class NothingNewError(Exception):
    """A watch would have to wait."""


def do_not_wait(seconds: float) -> None:
    raise NothingNewError


@pytest.fixture(params=["memory", "bucket"])
def url(request: pytest.FixtureRequest) -> str:
    return f"{request.param}://left-early-{next(_numbers)}"


def write(store: Store, *ids: str) -> None:
    for id in ids:
        store[id] = {"id": id}


def handed(commits: list[opslog.Commit]) -> list[str]:
    return [getattr(commit, "id", commit.op) for commit in commits]


# -- exceptions from signal handlers


class Interrupting:
    """A signal handler that raises at one place."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.came_there = False

    def __call__(self, place: Place) -> None:
        if place.number == self.number:
            self.came_there = True
            if not place.where.startswith("opslog.log.writer"):  # tests of its own cover this module
                raise InterruptError


class Story(NamedTuple):
    """What others have done since the last refresh.

    :ivar compacts: whether they compact, so that reading on is not enough and the store has to be loaded again.
    """

    url: str
    compacts: bool
    ids: list[str]

    def begin(self) -> Store:
        """An open store that has read some of it."""
        settings = opslog.Settings(undo_window=0)
        environment = opslog.Environment(sleep=do_not_wait)
        store = opslog.open(self.url, agent="a", compact_after=None, settings=settings, environment=environment)
        write(store, "mine")
        with (
            opslog.open(self.url, agent="b", compact_after=None) as b,
            opslog.open(self.url, agent="c", compact_after=None) as c,
        ):
            write(b, "seen")
            assert handed(store.refresh()) == ["seen"]
            write(b, *self.ids[:2])
            if self.compacts:
                b.compact()
            write(c, *self.ids[2:])
        return store

    def check(self, store: Store, commits: list[opslog.Commit]) -> None:
        with opslog.open(self.url, read_only=True) as fresh:
            assert dict(store.items()) == dict(fresh.items())
            assert len(store) == len(fresh) == 2 + len(self.ids)
            assert store.stats().commits == fresh.stats().commits
        assert sorted(handed(commits)) == sorted(self.ids), "each once"
        assert replica_of(store).clock.value >= max(record.clock for record in store.records())


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("compacts", [False, True])
def test_a_refresh_after_an_interrupted_one_completes_it(url: str, compacts: bool, every: int) -> None:
    for number in itertools.count(1, (4 if compacts else 1) * every):
        story = Story(f"{url}-{number}", compacts, ["x", "y", "z"])
        interrupt = Interrupting(number)
        with story.begin() as store:
            try:
                commits = at_places(store.refresh, interrupt)
            except InterruptError:
                commits = store.refresh()
            story.check(store, commits)
        if not interrupt.came_there:
            break
    assert number > 100


@pytest.mark.parametrize("compacts", [False, True])
def test_refreshes_that_are_interrupted_again_and_again_lose_nothing(compacts: bool) -> None:
    """Each refresh comes one place further than the one before, and what it handed out counts."""

    story = Story(f"bucket://left-early-{next(_numbers)}", compacts, ["x", "y", "z"])
    with story.begin() as store:
        commits = None
        for number in itertools.count(1):
            if commits is not None:
                break
            with suppress(InterruptError):
                commits = at_places(store.refresh, Interrupting(number))
        assert commits is not None
        story.check(store, commits)


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("compacts", [False, True])
def test_a_watch_that_is_interrupted_has_handed_out_what_it_gave_and_no_more(compacts: bool, every: int) -> None:
    url = f"memory://left-early-{next(_numbers)}"
    for number in itertools.count(1, (5 if compacts else 2) * every):
        story = Story(f"{url}-{number}", compacts, ["x", "y", "z"])
        interrupt = Interrupting(number)
        with story.begin() as store:
            watching = store.watch()
            given: list[opslog.Commit] = []
            try:
                while len(given) < len(story.ids):
                    commit = at_places(lambda: next(watching), interrupt)  # noqa: B023
                    given.append(commit)
            except InterruptError:
                given += store.refresh()
            story.check(store, given)
        if not interrupt.came_there:
            break


@pytest.mark.parametrize("compacts", [False, True])
def test_a_writer_outranks_what_it_has_read(url: str, compacts: bool) -> None:
    """Whatever can be read while a refresh is at some place, the store's clock was raised first."""
    outranked: list[bool] = []

    def check(place: Place) -> None:
        with suppress(opslog.UsageError):  # while the state is being changed
            clocks = [record.clock for record in store.records()]
            assert max(clocks) <= replica_of(store).clock.value, place.where
            outranked.append(len(clocks) > 2)

    story = Story(url, compacts, ["x", "y", "z"])
    with story.begin() as store:
        at_places(store.refresh, check)
    assert True in outranked


# -- requests that fail


@pytest.mark.parametrize("compacts", [False, True])
@pytest.mark.parametrize("call", ["refresh", "write"])
def test_a_refresh_that_failed_does_not_make_a_view_young(
    call: str, compacts: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From each request on in turn, the storage does not answer. The next write refreshes before it gets its stamp."""
    for failing in itertools.count(1):
        now = [0.0]
        environment = opslog.Environment(monotonic=lambda now=now: now[0])  # type: ignore[misc]
        url = f"memory://left-early-{next(_numbers)}"
        with (
            opslog.open(url, agent="writer", compact_after=None) as writer,
            opslog.open(url, agent="idle", compact_after=None, environment=environment) as idle,
        ):
            write(writer, *(f"{number}" for number in range(40)))
            if compacts:
                writer.compact()
            write(writer, "last")
            now[0] += 4 * DAY
            commits: list[opslog.Commit] = []
            with monkeypatch.context() as patch:
                fail_from(patch, failing)
                try:
                    if call == "refresh":
                        commits += idle.refresh()
                    else:
                        write(idle, "first")
                except opslog.RetryError:
                    failed = True
                else:
                    failed = False
            write(idle, "mine")
            assert {"39", "last", "mine"} < set(idle)
            assert idle.stats().clock >= 42
            assert len(commits + idle.refresh()) == 41
            if not failed:
                break
    assert failing > 3


def fail_from(patch: pytest.MonkeyPatch, number: int) -> None:
    """From this call on the storage does not answer reads."""
    calls = itertools.count(1)

    def failing(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(self: MemoryBackend, *arguments: Any, **named: Any) -> Any:
            if next(calls) >= number:
                raise opslog.RetryError("no answer")
            return method(self, *arguments, **named)

        return call

    for name in ("list", "list_logs", "read"):
        patch.setattr(MemoryBackend, name, failing(getattr(MemoryBackend, name)))


# -- handlers that refresh


CALLS: dict[str, Callable[[Store], object]] = {
    "refresh": lambda store: store.refresh(),
    "watch": lambda store: next(store.watch()),
    "archive": lambda store: store.archive(lambda document: False),
    "compact": lambda store: store.compact(),
}


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize(
    ("call", "compacts"), [*((call, False) for call in CALLS), ("refresh", True), ("watch", True), ("archive", True)]
)
def test_a_handler_that_refreshes_inside_a_refresh_does_not_disturb_it(
    tmp_path: Path, call: str, compacts: bool, every: int
) -> None:
    def handle(place: Place) -> None:
        if place.number != number:
            return
        try:
            result = CALLS[call](store)
        except opslog.UsageError as error:
            refused.append(str(error))
        except NothingNewError:
            assert call == "watch"
        else:
            if call in ("refresh", "watch"):
                inside.extend(result if isinstance(result, list) else [result])  # type: ignore[list-item]

    # A call that is not refused uses the storage, whichever of its calls the thread is in. A directory allows that.
    url = str(tmp_path / "store") if call == "compact" else f"memory://left-early-{next(_numbers)}"
    refused: list[str] = []
    step = {"refresh": 3, "compact": 31}.get(call, 11) * every
    for number in itertools.count(1, step):
        inside: list[opslog.Commit] = []
        story = Story(f"{url}-{number}", compacts, ["x", "y", "z"])
        with story.begin() as store:
            places = 0

            def count(place: Place) -> None:
                nonlocal places
                places = place.number
                handle(place)

            commits = at_places(store.refresh, count)
            story.check(store, inside + commits)
        if places < number:
            break
    assert any("handler of a signal" in text for text in refused) or call == "compact"


def test_a_handler_that_closes_the_store_inside_a_refresh_ends_it(tmp_path: Path) -> None:
    """As a SIGTERM handler does. It is refused while the refresh holds the state or the log."""
    reached: list[int] = []

    def close(place: Place) -> None:
        if place.number == number:
            reached.append(number)
            with suppress(opslog.UsageError):
                store.close()

    for number in itertools.count(1, 17):
        story = Story(f"{tmp_path}/{number}", False, ["x", "y", "z"])
        store = story.begin()
        with suppress(opslog.ClosedError):
            at_places(store.refresh, close)
        store.close()
        if number not in reached:
            break
        with opslog.open(story.url, agent="a") as again:
            assert len(again) == 5


# -- watches that are left


def test_changes_that_a_watch_did_not_give_come_with_the_next(url: str) -> None:
    with opslog.open(url, agent="b") as b, opslog.open(url, agent="a") as a:
        write(b, "1", "2", "3", "4", "5", "6")
        for commit in a.watch():
            assert handed([commit]) == ["1"]
            break
        left = a.watch()
        assert handed([next(left)]) == ["2"]
        assert handed([next(a.watch())]) == ["3"], "though the other one is still there"
        assert handed([next(left)]) == ["4"]
        assert handed(a.refresh()) == ["5", "6"]
        write(b, "7")
        assert handed([next(left)]) == ["7"]


def test_two_watches_at_once_share_what_comes(url: str) -> None:
    wanted = [f"{number}" for number in range(200)]
    given: list[list[opslog.Commit]] = [[], []]
    with opslog.open(url, agent="b") as b, opslog.open(url, agent="a") as a:

        def follow(mine: list[opslog.Commit]) -> None:
            for commit in a.watch(poll_seconds=0.001):
                mine.append(commit)
                if sum(map(len, given)) == len(wanted):
                    a.close()

        threads = [threading.Thread(target=follow, args=(mine,)) for mine in given]
        for thread in threads:
            thread.start()
        write(b, *wanted)
        for thread in threads:
            thread.join()
    assert sorted(handed(given[0] + given[1]), key=int) == wanted
    for mine in given:
        assert [commit.clock for commit in mine] == sorted(commit.clock for commit in mine)


def test_a_watch_that_missed_something_says_so_once(url: str) -> None:
    """If a watch is left before that, the next one reports it."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(url, agent="b", settings=settings) as b:
        write(b, "1")
        reader = opslog.open(url, read_only=True)
        b.compact()
    for ids in ("2", "3"), ("4",):
        with opslog.open(url, agent="b") as b:
            write(b, *ids)
            b.compact()
    with opslog.open(url, agent="b") as b:
        write(b, "5")
        b.compact()
        b.compact()
        write(b, "6")
    given: list[str] = []

    def follow() -> None:
        for commit in reader.watch():
            given.extend(handed([commit]))

    with pytest.raises(opslog.HistoryGoneError):
        follow()
    assert "2" in reader
    assert "2" not in given
    assert handed(reader.refresh()) == []
    with opslog.open(url, agent="b") as b:
        write(b, "7")
    assert handed([next(reader.watch())]) == ["7"]
    reader.close()


# -- asyncio


@pytest.fixture(params=["directory", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else f"bucket://left-early-{next(_numbers)}"


class Gate:
    """Holds up the refreshes of a store in their thread until it is opened."""

    def __init__(self, store: opslog.aio.AsyncStore[Any], monkeypatch: pytest.MonkeyPatch) -> None:
        self.came, self.open = threading.Event(), threading.Event()
        read = replica_of(store).loader.manifests.newest_with_logs

        def newest(seen: Any) -> Any:
            self.came.set()
            self.open.wait()
            return read(seen)

        monkeypatch.setattr(replica_of(store).loader.manifests, "newest_with_logs", newest)


def test_the_next_refresh_returns_what_a_cancelled_one_read(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with opslog.open(place, agent="b") as b:
            async with opslog.aio.open(place, agent="a") as a:
                write(b, "1", "2")
                gate = Gate(a, monkeypatch)
                task = asyncio.create_task(a.refresh())
                await asyncio.to_thread(gate.came.wait)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                gate.open.set()
                assert handed(await a.refresh()) == ["1", "2"]
                assert await a.refresh() == []

    asyncio.run(run(), debug=True)


def test_the_next_watch_gives_what_a_cancelled_one_read(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        with opslog.open(place, agent="b") as b:
            async with opslog.aio.open(place, agent="a") as a:
                write(b, "1", "2", "3")
                left = a.watch()
                assert handed([await anext(left)]) == ["1"]
                async for commit in a.watch():
                    assert handed([commit]) == ["2"]
                    break
                assert handed([await anext(a.watch())]) == ["3"]
                gate = Gate(a, monkeypatch)
                watching = a.watch()
                task = asyncio.ensure_future(anext(watching))
                await asyncio.to_thread(gate.came.wait)
                write(b, "4", "5")
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                gate.open.set()
                assert handed([await anext(a.watch())]) == ["4"]
                assert handed(await a.refresh()) == ["5"]

    asyncio.run(run(), debug=True)


def test_two_tasks_that_watch_share_what_comes(place: str) -> None:
    wanted = [f"{number}" for number in range(50)]

    async def run() -> None:
        given: list[list[str]] = [[], []]
        with opslog.open(place, agent="b") as b:
            async with opslog.aio.open(place, agent="a") as a:

                async def follow(mine: list[str]) -> None:
                    async for commit in a.watch(poll_seconds=0.001):
                        mine += handed([commit])

                tasks = [asyncio.create_task(follow(mine)) for mine in given]
                await asyncio.to_thread(write, b, *wanted)
                while sum(map(len, given)) < len(wanted):
                    await asyncio.sleep(0.001)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                assert await a.refresh() == []
        assert sorted(given[0] + given[1], key=int) == wanted
        assert all(mine == sorted(mine, key=int) for mine in given)

    asyncio.run(run(), debug=True)
