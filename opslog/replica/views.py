"""`items()` and `values()` of a store. An iteration shows the documents as they were when it began."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import TypeVar

T = TypeVar("T")

# Starts an iteration over (id, document) pairs in order of id, in which each document is decoded once.
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
