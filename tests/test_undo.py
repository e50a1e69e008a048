"""The basic rules, each stated once: the order of stamps, the reach of an undo, what is retained."""

from __future__ import annotations

from itertools import permutations

import msgspec
import pytest

from opslog.format.commits import Commit, Seal, Set, Undo
from opslog.merge.merge import Merge
from opslog.merge.rules import UndoWindow
from opslog.merge.stamps import FIELDS, is_greater, newer, outranks, stamp_of
from opslog.merge.undo import farthest, reachable_after
from opslog.snapshot.manifests import first_retained

TS = "2026-11-20T12:00:00.000000Z"


def record(clock: int, agent: str) -> Set:
    return Set(TS, clock, agent, "x", msgspec.Raw(b"{}"))


# By clock, then by code point of the agent: upper case comes before lower case, and "é" after both.
ASCENDING = [record(1, "z"), record(2, "B"), record(2, "a"), record(2, "a1"), record(2, "é"), record(10, "a")]


def test_stamps_are_ordered_by_clock_and_then_by_agent() -> None:
    for some in permutations(ASCENDING, 3):
        assert sorted(some, key=stamp_of) == [each for each in ASCENDING if each in some]
    for place, one in enumerate(ASCENDING):
        for other_place, other in enumerate(ASCENDING):
            assert outranks(one, other) == is_greater(one.stamp, other.stamp) == (place > other_place)
            assert newer(one, other) is ASCENDING[max(place, other_place)]
    assert newer(ASCENDING[0], None) is ASCENDING[0]
    assert tuple(getattr(ASCENDING[1], field) for field in FIELDS) == stamp_of(ASCENDING[1])


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


@pytest.mark.parametrize(
    ("numbers", "oldest", "retained"),
    [
        ([], 1, []),
        ([1], 1, [1]),
        ([1, 2, 3], 1, [1, 2, 3]),
        ([1, 2, 3], 2, [2, 3]),
        ([1, 2, 3], 3, [3]),
        ([1, 2, 3], 0, [1, 2, 3]),  # by an older program, which does not name the oldest
        ([1, 4, 5], 1, [4, 5]),  # 1 came back after it was collected
        ([3, 5], 1, [5]),
        ([5], 9, [5]),  # always the newest one
    ],
)
def test_manifests_are_retained_back_to_the_oldest_or_to_a_gap(
    numbers: list[int], oldest: int, retained: list[int]
) -> None:
    assert numbers[first_retained(numbers, oldest) :] == retained
