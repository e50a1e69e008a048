"""`items()` and `values()` of a store: all of it as it was when the iteration began, each document decoded once."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

T = TypeVar("T")

# Begins an iteration over (id, document) pairs, in order of id.
Documents = Callable[[], Iterator[tuple[str, T]]]


class Items(ItemsView[str, T]):
    """(id, document) pairs."""

    def __init__(self, store: Mapping[str, T], documents: Documents[T]) -> None:
        super().__init__(store)
        self._documents = documents

    def __iter__(self) -> Iterator[tuple[str, T]]:
        return self._documents()


class Values(ValuesView[T]):
    """Documents."""

    def __init__(self, store: Mapping[str, T], documents: Documents[T]) -> None:
        super().__init__(store)
        self._documents = documents

    def __iter__(self) -> Iterator[T]:
        return (document for _, document in self._documents())
