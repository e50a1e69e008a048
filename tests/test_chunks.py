"""Long sequences, some items at a time."""

from __future__ import annotations

import pytest

from opslog.chunks import batched, packed


def test_batches_have_so_many_items() -> None:
    assert list(batched("abcde", 2)) == [("a", "b"), ("c", "d"), ("e",)]
    assert list(batched([], 2)) == []


def test_a_batch_takes_no_item_of_the_next_one() -> None:
    items = iter(range(5))
    assert next(batched(items, 2)) == (0, 1)
    assert next(items) == 2


@pytest.mark.parametrize(
    ("costs", "chunks"),
    [
        ([], []),
        ([3, 3, 3, 9, 1, 1], [(3, 3), (3,), (9,), (1, 1)]),
        ([7], [(7,)]),
        ([0, 0, 0, 0], [(0, 0, 0), (0,)]),
        ([6, 0, 1], [(6, 0), (1,)]),
    ],
)
def test_a_chunk_costs_no_more_than_the_limit(costs: list[int], chunks: list[tuple[int, ...]]) -> None:
    assert list(packed(costs, lambda cost: cost, 6, 3)) == chunks
