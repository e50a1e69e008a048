"""What the transactions of one group see of each other's writes."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from opslog.format.commits import Record, Set
from opslog.replica.sight import Overlay


def record(id: str, number: int) -> Record:
    return Set("", 0, "", id, msgspec.Raw(b"%d" % number), 1)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 9), max_size=3)))
def test_each_sees_the_newest_of_what_those_before_it_wrote(group: list[dict[str, int]]) -> None:
    overlay, seen = Overlay(), list[dict[str, Record]]()
    expected: dict[str, Record] = {}
    for place, writes in enumerate(group):
        written: dict[str, Record] = {
            id: Set("", 0, "", id, msgspec.Raw(b"%d" % number), 1) for id, number in writes.items()
        }
        assert overlay.before(place) == expected
        seen.append(dict(expected))
        overlay.add(place, written)
        expected |= written
    # What one of them has seen does not change with what those behind it write.
    for place, before in enumerate(seen):
        assert overlay.before(place) == before
        assert {id: overlay.get(id, place) for id in "abc"} == {id: before.get(id) for id in "abc"}
    assert overlay.before(len(group)) == expected
