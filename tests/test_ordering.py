from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.merge.ordering import in_order


@given(st.sets(st.text()))
def test_any_ids_come_in_order(ids: set[str]) -> None:
    assert list(in_order(ids)) == sorted(ids)


@pytest.mark.parametrize("count", [0, 1, 508, 509, 510, 20_000])
def test_many_ids_come_in_order_whatever_order_they_were_in(count: int) -> None:
    rising = [f"{number:06}" for number in range(count)]
    taking_turns = [f"{'task' if number % 2 else 'user'}-{number}" for number in range(count)]
    scattered = [f"{number * 7919 % 1_000_003}" for number in range(count)]
    for ids in (rising, rising[::-1], taking_turns, scattered):
        assert list(in_order(ids)) == sorted(ids)


def test_ids_may_go_away_while_the_ordered_ones_are_taken() -> None:
    ids = dict.fromkeys(map(str, range(2000)))
    assert [id for id in in_order(ids) if ids.pop(id) is None] == sorted(map(str, range(2000)))
    assert not ids
