"""The decision of a refresh as one table: what was read, what is listed, and what follows."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import pytest

from opslog.format.manifest import START, Cut, Manifest, Run
from opslog.log.reader import Cursor, Segment, Segments
from opslog.replica.refresh import Progress, Step, refresh_decision


def manifest(number: int, cut: dict[str, Cut] | None = None, runs: tuple[str, ...] = ()) -> Manifest:
    return Manifest(
        number=number, created="2026-11-20T12:00:00.000000Z", cut=cut or {}, runs=[Run(name, []) for name in runs]
    )


def listing(**segments: list[tuple[int, int]]) -> Segments:
    """Per agent, (number, bytes) of its segments."""
    return {agent: [Segment(number, size, 0.0) for number, size in listed] for agent, listed in segments.items()}


# Loaded from manifest 3: four commits of "a" in 100 bytes of segment 1, two of "b" in 50 bytes of segment 2.
READ = Progress(3, 3, {"a": Cursor("a", 1, 100, 4), "b": Cursor("b", 2, 50, 2)}, agent="me")
THERE = listing(a=[(1, 100)], b=[(2, 50)], me=[(1, 10)])
SAME = manifest(3, {"a": Cut(1, 40, 2)})
NEWER = manifest(4, {"a": Cut(1, 100, 4), "b": Cut(2, 20, 1)})
BEYOND = manifest(5, {"a": Cut(2, 60, 7)})


class Case(NamedTuple):
    read: Progress
    newest: Manifest
    listed: Segments | None
    step: Step
    logs: tuple[str, ...] = ()
    own_has_more: bool = False


def having(**what: object) -> Progress:
    return msgspec.structs.replace(READ, **what)


CASES = {
    # Before the logs are listed.
    "the same manifest": Case(READ, SAME, None, Step.LIST_LOGS),
    "a newer manifest that compacted what was read": Case(READ, NEWER, None, Step.LIST_LOGS),
    "a newer manifest that compacted what was not read": Case(READ, BEYOND, None, Step.RELOAD),
    "a newer manifest that compacted a log nobody has read": Case(
        READ, manifest(4, {"new": Cut(1, 5, 1)}), None, Step.RELOAD
    ),
    "a newer manifest that compacted more of the own log": Case(
        READ, manifest(4, {"me": Cut(9, 5, 99)}), None, Step.LIST_LOGS
    ),
    "a reader has no own log": Case(having(agent=None), manifest(4, {"me": Cut(9, 5, 99)}), None, Step.RELOAD),
    "a manifest that was read before": Case(having(passed=5), BEYOND, None, Step.LIST_LOGS),
    "a newer manifest than the one that was read": Case(having(passed=4), BEYOND, None, Step.RELOAD),
    "a run on storage is still there": Case(
        having(runs=frozenset({"2-x"})), manifest(4, runs=("4-y", "2-x")), None, Step.LIST_LOGS
    ),
    "a run on storage was replaced": Case(
        having(runs=frozenset({"2-x"})), manifest(4, runs=("4-y",)), None, Step.RELOAD
    ),
    "much in memory, and nothing compacted": Case(having(has_many_winners=True), SAME, None, Step.LIST_LOGS),
    "much in memory, and something compacted": Case(having(has_many_winners=True), NEWER, None, Step.RELOAD),
    "much in memory since a manifest was read": Case(having(has_many_winners=True, passed=4), NEWER, None, Step.RELOAD),
    "torn": Case(having(is_torn=True), SAME, None, Step.RELOAD),
    "torn, with a newer manifest": Case(having(is_torn=True), NEWER, None, Step.RELOAD),
    # With a listing.
    "nothing new": Case(READ, SAME, THERE, Step.NOTHING),
    "nothing new behind a newer manifest": Case(READ, NEWER, THERE, Step.NOTHING),
    "only the own log has more bytes": Case(READ, SAME, {**THERE, **listing(me=[(1, 999)])}, Step.NOTHING),
    "a seal in the own log": Case(READ, SAME, THERE, Step.RELOAD, own_has_more=True),
    "a segment has more bytes": Case(READ, SAME, {**THERE, **listing(a=[(1, 101)])}, Step.READ_ON, ("a",)),
    "a log has another segment": Case(READ, SAME, {**THERE, **listing(b=[(2, 50), (3, 1)])}, Step.READ_ON, ("b",)),
    "a new log": Case(READ, SAME, {**THERE, **listing(new=[(1, 1)])}, Step.READ_ON, ("new",)),
    "a new log, and nothing in it": Case(READ, SAME, {**THERE, **listing(new=[(1, 0)])}, Step.NOTHING),
    "two logs": Case(READ, SAME, {**THERE, **listing(a=[(1, 101)], new=[(1, 1)])}, Step.READ_ON, ("a", "new")),
    # Reading shows what happened to these: they are gone, or shorter than they were.
    "a log is gone": Case(READ, SAME, {**THERE, **listing(a=[])}, Step.READ_ON, ("a",)),
    "a segment is shorter": Case(READ, SAME, {**THERE, **listing(a=[(1, 99)])}, Step.READ_ON, ("a",)),
    "a log without a segment needs none": Case(
        having(cursors={"a": Cursor.at("a", Cut(5, 0, 4))}), SAME, listing(a=[]), Step.NOTHING
    ),
    "a log whose segment at the cut is gone": Case(
        having(cursors={"a": Cursor.at("a", Cut(5, 0, 4, there=True))}), SAME, listing(a=[]), Step.READ_ON, ("a",)
    ),
    "torn, whatever is listed": Case(having(is_torn=True), SAME, THERE, Step.RELOAD),
    "compacted beyond, whatever is listed": Case(READ, BEYOND, THERE, Step.RELOAD),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_refresh_reads_on_loads_again_or_does_nothing(case: Case) -> None:
    decision = refresh_decision(case.read, case.newest, case.listed, own_has_more=case.own_has_more)
    assert decision.step is case.step
    assert tuple(sorted(decision.logs)) == case.logs


def test_no_step_is_without_a_case() -> None:
    assert {case.step for case in CASES.values()} == set(Step)


def test_a_decision_changes_nothing() -> None:
    cursors = {"a": Cursor("a", 1, 100, 4)}
    refresh_decision(having(cursors=cursors), NEWER, listing(a=[(1, 200)]))
    assert cursors == {"a": Cursor("a", 1, 100, 4)}
    assert Cursor("x").position == START.position
