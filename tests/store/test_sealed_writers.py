"""Writers on an object storage whose log was sealed by a compaction, because it took them for gone."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

import opslog
from opslog.backends import Position, open_backend
from opslog.backends.holders import Holders
from opslog.backends.objects import backend as objects
from opslog.compaction.compact import compact
from opslog.environment import REAL
from opslog.format.commits import encode_commit
from opslog.format.layout import segment_path
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.interrupts.places import at_each
from tests.support import bucket  # noqa: F401  (stores at bucket://)

Store = opslog.Store[dict[str, Any]]
_numbers = itertools.count()


@pytest.fixture
def url() -> str:
    return f"bucket://sealed-{next(_numbers)}"


def open_store(url: str, agent: str = "a", **options: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, **options)


def read(url: str) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def damage(url: str) -> list[str]:
    return [str(problem) for problem in verify(open_backend(url)).problems if problem.severity == "error"]


def seal(url: str, monkeypatch: pytest.MonkeyPatch, *others: str) -> None:
    """A compaction elsewhere takes agent "a" for gone. :param others: agents that it does not take for gone."""
    with monkeypatch.context() as patch:
        held = Holders()
        for other in others:
            held.take((url, other), monkeypatch)
        patch.setattr(objects, "_held", held)
        assert compact(open_backend(url), REAL).sealed == ("a",)


@pytest.mark.parametrize("call", ["set", "batch", "undo", "threads"])
@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_a_writer_goes_on_after_a_seal(url: str, monkeypatch: pytest.MonkeyPatch, durability: Any, call: str) -> None:
    """A compaction elsewhere took the writer for gone."""
    settings = opslog.Settings(undo_ttl_seconds=0)
    with open_store(url, settings=settings, durability=durability) as live, open_store(url, "b") as b:
        live["x"] = {}
        live.flush()
        for number in range(10):
            b[str(number)] = {}
        b.refresh()
        seal(url, monkeypatch, "b")
        match call:
            case "set":
                live["y"] = {}
            case "batch":
                with live.batch():
                    live["y"] = {}
                    live["z"] = {}
            case "threads":
                with ThreadPoolExecutor(8) as pool:
                    list(pool.map(lambda number: live.set(f"t{number}", {}), range(40)))
                assert set(live) >= {"x"} | {f"t{number}" for number in range(40)}
                live["y"] = {}
            case _:
                assert not live.undo(), "its window ended with the seal"
                live["y"] = {}
        assert live.undo()
        assert set(live) >= {"x"}
        clocks = [commit.clock for commit in live.ops() if commit.agent == "a"]
        assert clocks == sorted(set(clocks))
        live.refresh()
        assert dict(live.items()) == read(url)
        assert len(live) > 10
    assert damage(url) == []


def test_commits_buffered_before_a_seal_get_new_stamps_and_are_written_in_order(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = opslog.Settings(undo_ttl_seconds=0, undo_window=3)
    options: dict[str, Any] = {"settings": settings, "durability": "buffered", "buffer_seconds": 3600}
    with open_store(url, **options) as live, open_store(url, "b") as b:
        live["x"] = {"turn": 0}
        live.flush()
        for turn in range(1, 6):
            live["x"] = {"turn": turn}
            live[f"{turn}"] = {}
        b.refresh()
        for number in range(30):
            b[f"b-{number}"] = {}
        b["x"] = {"of": "b"}
        seal(url, monkeypatch, "b")
        with live.batch():
            live["x"] = {"turn": 6}
            del live["5"]
        assert live["x"] == {"turn": 6}
        live.flush()
        assert live["x"] == {"turn": 6}
        live.refresh()
        assert live.stats().commits == len(list(live.ops())), "none counts twice"
        own = [commit for commit in live.ops() if commit.agent == "a"]
        sealed = next(place for place, commit in enumerate(own) if commit.op == "seal")
        assert [commit.op for commit in own[sealed:]] == ["seal", *["set"] * 10, "batch"]
        assert [commit.clock for commit in own] == sorted({commit.clock for commit in own})
        turns = [commit.document["turn"] for commit in own if isinstance(commit, opslog.Set) and commit.id == "x"]
        assert turns == list(range(6)), "in their order"
        # Everybody reads in the log which write wins under the new stamps, and what an undo goes back to.
        assert dict(live.items()) == read(url)
        assert live.undo()
        live.flush()
        assert live["x"] == {"turn": 5}
        assert dict(live.items()) == read(url)
    assert damage(url) == []


def test_buffered_commits_meet_one_seal_after_the_other(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is sealed again while the commits with new stamps are being written."""
    settings = opslog.Settings(undo_ttl_seconds=0)
    append, seals = objects.ObjectAppender.append, 0
    with open_store(url, settings=settings, durability="buffered", buffer_seconds=3600) as live:
        live["x"] = {}
        live.flush()

        def meet(self: objects.ObjectAppender, data: bytes) -> Position:
            nonlocal seals
            if b'"agent":"a","op":"set"' in data and seals < 3:
                seals += 1
                objects.ObjectBackend.create(self._backend, *sealing(self._number + 1, seals))
            return append(self, data)

        def sealing(number: int, clock: int) -> tuple[str, bytes]:
            line = encode_commit(opslog.Seal("2026-11-20T12:00:00.000000Z", 100 * clock, "a"))
            return segment_path("a", number), line

        monkeypatch.setattr(objects.ObjectAppender, "append", meet)
        live["y"] = {}
        live["z"] = {}
        live.flush()
        assert seals == 3
        assert dict(live.items()) == read(url) == {"x": {}, "y": {}, "z": {}}
        assert live.stats().clock == 302
    assert damage(url) == []


def test_commits_buffered_for_too_long_get_no_new_stamps(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    settings = opslog.Settings(undo_ttl_seconds=0, tombstone_ttl_seconds=1000)
    environment = replace(REAL, monotonic=lambda: now[0])
    live = open_store(url, settings=settings, environment=environment, durability="buffered", buffer_seconds=3600)
    live["x"] = {}
    live.flush()
    live["y"] = {}
    seal(url, monkeypatch)
    now[0] += 700.0
    with pytest.raises(opslog.ReopenError, match="paused for most of the tombstone TTL"):
        live.flush()
    live.close()
    assert set(read(url)) == {"x"}


def test_a_buffered_undo_that_a_seal_overtakes_is_not_said_to_be_done(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit that it should take back came before the seal."""
    settings = opslog.Settings(undo_ttl_seconds=0)
    with open_store(url, settings=settings, durability="buffered", buffer_seconds=3600) as live:
        live["x"] = {}
        live.flush()
        log = replica_of(live).log
        assert log is not None
        wait = log.wait

        def overtake(pending: Any) -> None:
            monkeypatch.setattr(log, "wait", wait)
            seal(url, monkeypatch)
            wait(pending)

        monkeypatch.setattr(log, "wait", overtake)
        assert not live.undo()
        live["y"] = {}
        live.flush()
        assert dict(live.items()) == read(url) == {"x": {}, "y": {}}
    assert damage(url) == []


@pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_an_exception_anywhere_on_the_way_past_a_seal_loses_nothing(
    monkeypatch: pytest.MonkeyPatch, durability: Any, every: int
) -> None:
    class Interrupt(Exception):
        pass

    def interrupt() -> None:
        raise Interrupt

    opened: list[tuple[str, Store]] = []

    def prepare(number: int) -> Callable[[], object]:
        url = f"bucket://sealed-{next(_numbers)}"
        live = open_store(url, settings=opslog.Settings(undo_ttl_seconds=0), durability=durability, buffer_seconds=3600)
        opened.append((url, live))
        live["x"] = {}
        live.flush()
        if durability == "buffered":
            live["y"] = {}
        seal(url, monkeypatch)
        return live.flush if durability == "buffered" else lambda: live.set("y", {})

    unknown = 0
    for place, outcome in at_each(prepare, interrupt, every):
        url, live = opened.pop()
        assert isinstance(outcome, Interrupt | None), (place, outcome)
        try:
            live["z"] = {}
            live.flush()
            assert set(live) - {"y"} == {"x", "z"}, place
            # An undo that was not queued has not happened.
            assert "y" in live or (durability == "fsync" and outcome is not None), place
            assert dict(live.items()) == read(url), place
            assert live.stats().commits == len(list(live.ops())), f"none counts twice: {place}"
        except opslog.ReopenError:
            unknown += 1
        live.close()
        assert damage(url) == [], place
        assert set(read(url)) >= {"x"}, place
    assert unknown, "while it was on its way"
