"""The reach of an undo."""

from __future__ import annotations

import msgspec
import pytest

from opslog.format.commits import Commit, Seal, Set, Undo
from opslog.merge.merge import Merge
from opslog.merge.rules import UndoWindow
from opslog.merge.undo import farthest, reachable_after

TS = "2026-11-20T12:00:00.000000Z"


def record(clock: int, agent: str) -> Set:
    return Set(TS, clock, agent, "x", msgspec.Raw(b"{}"))


@pytest.mark.parametrize("window", [0, 1, 2, 32])
@pytest.mark.parametrize("between", [0, 1, 2, 31, 32, 33])
@pytest.mark.parametrize("seals", [False, True])
def test_an_undo_reaches_the_commits_of_its_window_after_the_last_seal(window: int, between: int, seals: bool) -> None:
    """`apply`, `load` and the verification of a log all follow the rule."""
    log: list[Commit] = [record(clock, "a") for clock in range(1, between + 2)]
    if seals:
        log[-1] = Seal(TS, between + 1, "a")
    log.append(Undo(TS, between + 2, "a", 1))
    reached = between < window and not seals
    assert reached == (len(log) - 1 <= reachable_after(log[-2], window))
    assert seals or reached == (len(log) - 1 <= farthest(0, window))

    one_by_one, whole, verified = Merge(window), Merge(window), UndoWindow(window, is_whole=True)
    for commit in log[:-1]:
        one_by_one.apply(commit)
        verified.follow(commit)
    assert bool(tuple(one_by_one.apply(log[-1]))) == reached
    whole.load([("a", log)])
    assert whole.winners() == one_by_one.winners()
    assert (verified.fault(Undo(TS, between + 2, "a", 1)) is None) == reached
