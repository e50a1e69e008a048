"""Putting very many ids in order while other threads work."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterator

# How many ids apart the bounds between two buckets are. A prime number, so that ids which alternate (of users and of
# tasks, one after the other) are sampled equally.
_SAMPLED = 509


def in_order(ids: Collection[str]) -> Iterator[str]:
    """As `sorted`, in steps of a millisecond at the most. Sorting a million ids at once takes more than a second, in
    which the interpreter lets no other thread run.

    :param ids: must not change before the first one is taken.
    """
    bounds = sorted([id for place, id in enumerate(ids) if place % _SAMPLED == 0])
    buckets: list[list[str]] = [[] for _ in range(len(bounds) + 1)]
    for id in ids:
        buckets[bisect_right(bounds, id)].append(id)
    # The garbage collector would traverse lists of a million ids again and again; it ignores tuples of strings.
    chunks: list[tuple[str, ...]] = []
    while buckets:
        chunks.append(tuple(buckets.pop()))
    while chunks:
        yield from sorted(chunks.pop())
