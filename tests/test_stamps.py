"""The order of stamps."""

from __future__ import annotations

from itertools import permutations

import msgspec

from opslog.format.commits import Set
from opslog.merge.stamps import FIELDS, is_greater, newer, outranks, stamp_of

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
