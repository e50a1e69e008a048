"""Splitting many items into chunks. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def batched(items: Iterable[T], count: int) -> Iterator[tuple[T, ...]]:
    """The items in chunks of this size, like `itertools.batched` of Python 3.12. Takes no item before its chunk is
    needed."""
    iterator = iter(items)
    while chunk := tuple(islice(iterator, count)):
        yield chunk


def packed(
    items: Iterable[T], cost: Callable[[T], int], limit: int, count: int | None = None
) -> Iterator[tuple[T, ...]]:
    """The items in chunks that cost no more than the limit each. An item that costs more by itself is a chunk of its
    own.

    :param cost: of one item, from 0.
    :param count: how many items a chunk has at most.
    """
    chunk: list[T] = []
    spent = 0
    for item in items:
        price = cost(item)
        if chunk and (spent + price > limit or len(chunk) == count):
            yield tuple(chunk)
            chunk, spent = [], 0
        chunk.append(item)
        spent += price
    if chunk:
        yield tuple(chunk)
