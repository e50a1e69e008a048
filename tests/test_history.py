"""The past: every state as it was, the history of a document, and how far back it reaches."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import opslog
from opslog.backends import open_backend
from opslog.compaction.compact import compact
from opslog.doors.operations import Operations
from opslog.environment import REAL, Environment, format_ts, parse_ts
from opslog.format.commits import Commit, Set, Undo
from opslog.format.layout import manifest_path
from opslog.merge.merge import reference
from opslog.snapshot.manifests import ManifestStore

_numbers = itertools.count()

NEAR_A_WHOLE_SECOND = st.integers(-(10**9), 2 * 10**9).flatmap(lambda whole: st.floats(whole - 3e-6, whole + 3e-6))

pytestmark = pytest.mark.usefixtures("snapshots")


@pytest.fixture
def url() -> str:
    return f"memory://history-{next(_numbers)}"


def documents(commits: list[Commit]) -> dict[str, Any]:
    return {id: record.document for id, record in reference(commits).items() if isinstance(record, Set)}


def act(store: opslog.Store[Any], chance: random.Random, number: int) -> None:
    ids = "abcdef"
    match chance.randrange(6):
        case 0:
            store.undo()
        case 1 if len(store):
            store.delete(chance.choice(list(store)))
        case 2:
            with store.batch():
                for id in chance.sample(ids, 2):
                    store[id] = {"batch": number}
        case 3:
            store.refresh()
        case _:
            store[chance.choice(ids)] = {"number": number}


@pytest.mark.parametrize("seed", range(5))
def test_every_state_that_ever_was_can_be_had_again(url: str, seed: int) -> None:
    """By clock and by time, at every commit, with compactions in between that keep history."""
    chance = random.Random(seed)
    ticks = itertools.count(1_800_000_000)
    environment = Environment(time=lambda: float(next(ticks)))
    open_backend(url, now=environment.time)
    settings = opslog.Settings(undo_window=3)
    agents = [
        opslog.open(url, agent=name, settings=settings, compact_after=None, environment=environment) for name in "pqr"
    ]
    for number in range(80):
        act(chance.choice(agents), chance, number)
        if chance.random() < 0.1:
            agents[0].compact(keep_history="forever")
    everything = list(agents[0].ops())
    for agent in agents:
        agent.close()
    assert [commit.stamp for commit in everything] == sorted(commit.stamp for commit in everything)
    for point in range(everything[-1].clock + 1):
        with opslog.open(url, as_of=point) as past:
            assert dict(past.items()) == documents([commit for commit in everything if commit.clock <= point])
    for ts in sorted({commit.ts for commit in everything}):
        wanted = documents([commit for commit in everything if commit.ts <= ts])
        moment = datetime.fromtimestamp(parse_ts(ts), UTC)
        for as_of in (ts, moment, moment.astimezone(None)):
            with opslog.open(url, as_of=as_of) as past:
                assert dict(past.items()) == wanted
                assert len(past) == len(wanted)


class Clocks:
    """A store whose storage has the right time, set by hand, and agents whose clocks are off by some seconds each."""

    def __init__(self, url: str, **settings: Any) -> None:
        self.url = url
        self.seconds = 1_800_000_000.0
        self.settings = opslog.Settings(keep_history_seconds=None, **settings)
        self.backend = open_backend(url, now=lambda: self.seconds)

    def open(self, agent: str, ahead: float = 0.0) -> opslog.Store[Any]:
        environment = Environment(time=lambda: self.seconds + ahead)
        return opslog.open(self.url, agent=agent, environment=environment, settings=self.settings, compact_after=None)

    @property
    def ts(self) -> str:
        return format_ts(self.seconds)


@pytest.mark.parametrize("seed", range(8))
def test_with_wrong_clocks_a_commit_was_written_when_it_was_compacted_at_the_latest(url: str, seed: int) -> None:
    """At any time, however clocks are off: each commit counts from its `ts` on, or from the first manifest that
    compacted it. An undo counts at the latest from when its target would have been compacted."""
    chance = random.Random(seed)
    clocks = Clocks(url, undo_window=chance.choice([0, 1, 3]))
    agents = [
        clocks.open(name, ahead) for name, ahead in (("p", 0.0), ("q", chance.choice([40.0, 1e7])), ("r", -300.0))
    ]
    folded: dict[tuple[str, int], str] = {}
    """For each agent and position in its log, the time by which a commit was compacted."""
    for number in range(80):
        clocks.seconds += chance.choice([0.001, 1.0, 20.0])
        act(chance.choice(agents), chance, number)
        if chance.random() < 0.15:
            clocks.seconds += 1.0
            compact(clocks.backend, REAL)
            manifest = ManifestStore(clocks.backend).newest()
            for agent, cut in manifest.cut.items():
                for place in range(cut.commits):
                    folded.setdefault((agent, place), manifest.folded)
    logs: dict[str, list[Commit]] = {}
    for commit in agents[0].ops():
        logs.setdefault(commit.agent, []).append(commit)
    written: list[tuple[str, Commit]] = []
    for agent, log in logs.items():
        places = {commit.clock: place for place, commit in enumerate(log)}
        for place, commit in enumerate(log):
            of = places[commit.target] if isinstance(commit, Undo) else place
            written.append((min(commit.ts, folded.get((agent, of), commit.ts)), commit))
    for store in agents:
        store.close()
    points = sorted({when for when, _ in written} | {commit.ts for _, commit in written} | set(folded.values()))
    for point in points:
        with opslog.open(url, as_of=point) as past:
            assert dict(past.items()) == documents([commit for when, commit in written if when <= point]), point


@pytest.mark.parametrize("window", [0, 3])
@pytest.mark.parametrize("older", [False, True], ids=["", "by an older program"])
def test_a_commit_from_the_future_takes_away_no_past(url: str, window: int, older: bool) -> None:
    """Not even if older programs wrote the manifests that compacted it."""
    clocks = Clocks(url, undo_window=window)
    expected: list[tuple[str, Any]] = []
    with clocks.open("good") as good:
        with clocks.open("bad", ahead=60 * 86400.0) as bad:
            for number in range(5):
                bad[f"oops-{number}"] = {}
        for number in range(10):
            good["x"] = {"n": number}
            good.refresh()
            clocks.seconds += 1
            made = compact(clocks.backend, REAL).number
            clocks.seconds += 1
            if older and made and number < 5:
                manifests = ManifestStore(clocks.backend)
                newest = manifests.newest()
                clocks.backend.delete([manifest_path(newest.number)])
                manifests.create(msgspec.structs.replace(newest, folded=""))
            expected.append((clocks.ts, good["x"]))
            clocks.seconds += 1
    for point, document in expected:
        with opslog.open(url, as_of=point) as past:
            assert past["x"] == document
            assert "oops-0" in past, "it was compacted by then"


def test_a_commit_from_the_future_is_not_there_before_it_was_compacted(url: str) -> None:
    clocks = Clocks(url, undo_window=0)
    with clocks.open("bad", ahead=60 * 86400.0) as bad, clocks.open("good") as good:
        good["x"] = {}
        bad["oops"] = {}
        before = clocks.ts
        clocks.seconds += 10
        good.compact()
        after = clocks.ts
    with opslog.open(url, as_of=before) as past:
        assert set(past) == {"x"}
    with opslog.open(url, as_of=after) as past:
        assert set(past) == {"x", "oops"}


def test_the_past_does_not_move_and_cannot_be_written(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {"n": 1}
        store["y"] = {}
        with opslog.open(url, as_of=1) as past:
            store["x"] = {"n": 2}
            assert past.refresh() == []
            assert dict(past.items()) == {"x": {"n": 1}}
            assert [commit.clock for commit in past.ops()] == [1]
            assert [revision.record.clock for revision in past.history("x")] == [1]
            newest = store.stats().clock
            for write in (lambda: past.set("x", {}), lambda: past.delete("x"), past.undo, past.compact):
                with pytest.raises(opslog.ReadOnlyError):
                    write()
    with opslog.open(url, as_of=newest) as past:
        assert past["x"] == {"n": 2}


@pytest.mark.parametrize(
    "point",
    [
        "yesterday",
        "2026-11-20T12:00:00",
        "9999-12-31T23:59:59-14:00",
        datetime(2026, 1, 1),  # noqa: DTZ001
        True,
        1.5,
        "",
    ],
)
def test_invalid_points_are_refused(url: str, point: Any) -> None:
    with opslog.open(url, agent="a"):
        pass
    with pytest.raises(opslog.UsageError, match="as_of takes a clock"):
        opslog.open(url, as_of=point)


def gone(url: str) -> opslog.Settings:
    """A store of which the first 20 of 30 commits were compacted, and everything before was collected."""
    settings = opslog.Settings(undo_window=10, grace_seconds=0)
    with opslog.open(url, agent="a", settings=settings, compact_after=None) as store:
        for number in range(30):
            store[f"{number:02}"] = {"number": number}
    backend = open_backend(url)
    compact(backend, REAL)
    backend.delete([manifest_path(1)])
    return settings


def test_an_error_about_compacted_history_names_the_oldest_point(url: str) -> None:
    gone(url)
    for point in (0, 5, 29, "2000-01-01T00:00:00Z"):
        with pytest.raises(opslog.HistoryGoneError, match="the oldest that can be had is at clock 30") as caught:
            opslog.open(url, as_of=point)
        assert caught.value.oldest == 30
    with opslog.open(url, as_of=30) as past:
        assert len(past) == 30
        with pytest.raises(opslog.HistoryGoneError, match="all of them are there from 30 on"):
            past.ops(since=29)
        assert list(past.ops(since=30)) == []


def test_without_a_point_ops_gives_what_is_retained(url: str) -> None:
    gone(url)
    with opslog.open(url, read_only=True) as store:
        assert [commit.clock for commit in store.ops()] == list(range(1, 31)), "its segment is still there"


def test_ops_are_those_after_the_clock(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        a["x"] = {}
        b["y"] = {}
        b["z"] = {}
        assert [commit.stamp for commit in a.ops()] == [(1, "a"), (1, "b"), (2, "b")]
        assert [commit.stamp for commit in a.ops(since=0)] == [(1, "a"), (1, "b"), (2, "b")]
        assert [commit.stamp for commit in a.ops(since=1)] == [(2, "b")]
        assert list(a.ops(since=99)) == []


def test_the_history_of_a_document(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b", version=2) as b:
        a["x"] = {"n": 1}
        b.refresh()
        b["x"] = {"n": 2}
        a.refresh()
        with a.batch():
            a["x"] = {"n": 3}
            del a["x"]
            a["other"] = {}
        a.undo()
        found = [(one.record.op, one.record.stamp, one.undone) for one in a.history("x")]
        assert found == [("set", (1, "a"), False), ("set", (2, "b"), False), ("delete", (3, "a"), True)]
        assert a.history("nobody") == []


def history_of(store: opslog.Store[Any]) -> None:
    assert store.history("x")[-1].record.clock > 5


def newest_of_ops(store: opslog.Store[Any]) -> None:
    assert max(commit.clock for commit in store.ops()) > 5


def first_of_ops(store: opslog.Store[Any]) -> None:
    """What comes behind it was listed when the call began."""
    assert next(store.ops()).clock == 1


def archived(store: opslog.Store[Any]) -> None:
    assert store.load_archive("then") == {"x": {"by": "b", "n": 4}}


def archive_page(store: opslog.Store[Any]) -> None:
    assert [entry.id for entry in Operations(store).archived("then").items] == ["x"]


def set_x(store: opslog.Store[Any]) -> None:
    store["x"] = {"answers": True}


def set_x_in_a_batch(store: opslog.Store[Any]) -> None:
    with store.batch():
        store["y"] = {}
        set_x(store)


@pytest.mark.parametrize("write", [set_x, set_x_in_a_batch])
@pytest.mark.parametrize("show", [history_of, newest_of_ops, first_of_ops, archived, archive_page])
def test_an_answer_to_what_was_read_from_storage_outranks_it(
    url: str, show: Callable[[opslog.Store[Any]], None], write: Callable[[opslog.Store[Any]], None]
) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        a["x"] = {"by": "a"}
        b.refresh()
        for number in range(5):
            b["x"] = {"by": "b", "n": number}
        b.archive(lambda document: True, "then")
        show(a)
        write(a)
        with opslog.open(url, read_only=True) as fresh:
            assert fresh["x"] == {"answers": True}
            assert dict(a.items()) == dict(fresh.items())


def test_the_oldest_known_revision_may_be_in_a_snapshot(url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(url, agent="a", settings=settings, compact_after=None) as store:
        store["x"] = {"n": 1}
        store["x"] = {"n": 2}
    with opslog.open(url, agent="a", compact_after=None) as store:
        store["x"] = {"n": 3}
    backend = open_backend(url)
    compact(backend, REAL)
    backend.delete([manifest_path(1), "ops/a/00000000000000000001.jsonl"])
    with opslog.open(url, agent="a", compact_after=None) as store:
        store["x"] = {"n": 4}
        found = [one.record for one in store.history("x")]
        assert [record.clock for record in found] == [3, 4]


def test_collected_while_it_is_read(url: str) -> None:
    """Reading may take longer than the grace period. Then it ends with an error, and not with a gap."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    for _ in range(3):
        with opslog.open(url, agent="a", settings=settings, compact_after=None) as store:
            store["x"] = {}
    backend = open_backend(url)
    with opslog.open(url, read_only=True) as reader:
        commits = reader.ops()
        assert next(commits).clock == 1
        for _ in range(2):
            with opslog.open(url, agent="b", compact_after=None) as store:
                store["y"] = {}
            compact(backend, REAL)
        with pytest.raises(opslog.HistoryGoneError, match="collected commits before they were read") as caught:
            list(commits)
        assert caught.value.oldest > 0


@given(st.floats(-62_135_596_800, 253_402_300_799) | NEAR_A_WHOLE_SECOND)
@example(0.9999995)
@example(-0.0000005)
@example(1_795_521_600.9999998)
def test_times_are_those_of_datetime(seconds: float) -> None:
    assert format_ts(seconds) == datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")[:-6] + "Z"


def test_times_are_written_in_one_form() -> None:
    assert format_ts(0) == "1970-01-01T00:00:00.000000Z"
    assert parse_ts("2026-11-20T12:00:00+02:00") == parse_ts("2026-11-20T10:00:00Z")
    now = 1_795_521_600.123456
    assert parse_ts(format_ts(now)) == now
    with pytest.raises(ValueError, match="has no time zone"):
        parse_ts("2026-11-20T12:00:00")


# -- points that there are not


@pytest.mark.parametrize("clock", [-1, -(2**70)])
def test_a_negative_clock_is_refused_as_such(url: str, clock: int) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {}
        with pytest.raises(opslog.UsageError, match=r"since is a clock.*from 0 on"):
            store.ops(since=clock)
    with pytest.raises(opslog.UsageError, match=r"as_of is a clock.*from 0 on"):
        opslog.open(url, as_of=clock)


@pytest.mark.parametrize("since", [True, "5", 1.5])
def test_ops_since_what_is_no_clock_is_refused(url: str, since: Any) -> None:
    with opslog.open(url, agent="a") as store, pytest.raises(opslog.UsageError, match="since is a clock"):
        store.ops(since=since)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_point_in_the_future_is_refused_and_the_error_names_the_newest(url: str, compacted: bool) -> None:
    settings = opslog.Settings(undo_window=0)
    with opslog.open(url, agent="a", settings=settings) as store:
        for number in range(3):
            store["x"] = {"n": number}
        if compacted:
            store.compact()
        newest = [commit.ts for commit in store.ops()][-1]
    for point in (4, 2**60, "9999-12-31T23:59:59.999999Z", datetime(2999, 1, 1, tzinfo=UTC)):
        with pytest.raises(opslog.UsageError, match=rf"in the future: the newest commit is at clock 3 \({newest}\)"):
            opslog.open(url, as_of=point)
    for point in (3, newest, datetime.now(UTC)):
        with opslog.open(url, as_of=point) as past:
            assert past["x"] == {"n": 2}


def test_a_time_is_no_future_that_a_commit_has_already(url: str) -> None:
    with opslog.open(url, agent="ahead", environment=Environment(time=lambda: REAL.time() + 3600)) as store:
        store["x"] = {}
        (commit,) = store.ops()
    with opslog.open(url, as_of=commit.ts) as past:
        assert "x" in past


def test_the_past_of_an_empty_store_has_a_clock_and_no_other(url: str) -> None:
    opslog.open(url, agent="a").close()
    with opslog.open(url, as_of=0) as past:
        assert len(past) == 0
    with pytest.raises(opslog.UsageError, match="in the future: nothing was written"):
        opslog.open(url, as_of=1)
