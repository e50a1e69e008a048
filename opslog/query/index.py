"""An index: which documents have which value at a path. Pure.

Under each value the documents are in order of id. The values are sorted (`opslog.query.values.rank`) when a query first
needs their order.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping, Sequence

from opslog.query.conditions import Range
from opslog.query.paths import Path
from opslog.query.values import MISSING, NUMBER_RANK, TEXT_RANK, Key, rank

# About how many bytes of memory an entry takes for a document, and for a key; measured with 200,000 documents.
_DOCUMENT_BYTES = 100
_KEY_BYTES = 130
# With more changes at once, sorting all values again costs less than inserting each.
_INSERTED_MAX = 500


class Index:
    """The documents by their values at a path.

    :param entries: the id and keys (`keys_at`) of each document. The order of ids takes the least time.
    :ivar bytes: about how much memory the index takes.
    """

    def __init__(self, path: Path, entries: Iterable[tuple[str, Iterable[Key]]]) -> None:
        self.path = path
        self.bytes = 0
        # The keys of each document.
        self._keys: dict[str, tuple[Key, ...]] = {}
        # The documents that have a key: one id, or a sorted list of them.
        self._ids: dict[Key, str | list[str]] = {}
        # The keys in the order of their values; None until a query needs it.
        self._order: list[Key] | None = None
        # All documents with the same keys share one tuple.
        shared: dict[tuple[Key, ...], tuple[Key, ...]] = {}
        for id, found in entries:
            keys = tuple(found)
            self._add(id, shared.setdefault(keys, keys))

    def __len__(self) -> int:
        """The number of documents in the index."""
        return len(self._keys)

    def change(self, changes: Mapping[str, Iterable[Key] | None]) -> None:
        """Record the new keys of documents; None removes a document. If an exception ends this early, the index is
        inconsistent and has to be dropped."""
        if len(changes) > _INSERTED_MAX:
            self._order = None
        for id, found in changes.items():
            before = self._keys.get(id)
            keys = None if found is None else tuple(found)
            if keys != before:
                if before is not None:
                    self._remove(id, before)
                if keys is not None:
                    self._add(id, keys)

    def ids(self, key: Key) -> Sequence[str]:
        """The documents that have a key, in order of id."""
        ids = self._ids.get(key, ())
        return (ids,) if isinstance(ids, str) else ids

    def between(self, ranges: Sequence[Range]) -> Iterator[Key]:
        """The keys of the values that lie in all of these ranges, in the order of the values."""
        order = self._ordered()
        start, stop = 0, len(order)
        for limit in ranges:
            first, last = _bounds(order, limit)
            start, stop = max(start, first), min(stop, last)
        for number in range(start, stop):
            yield order[number]

    def ordered(self, is_descending: bool) -> Iterator[str]:
        """All documents in the order of their values. Documents with equal values are in order of id."""
        order = self._ordered()
        for key in reversed(order) if is_descending else order:
            yield from self.ids(key)

    def counts(self) -> dict[Key, int]:
        """The number of documents that have each key."""
        return {key: 1 if isinstance(ids, str) else len(ids) for key, ids in self._ids.items()}

    def _ordered(self) -> list[Key]:
        if self._order is None:
            self._order = sorted(self._ids, key=rank)
        return self._order

    def _add(self, id: str, keys: tuple[Key, ...]) -> None:
        self._keys[id] = keys
        self.bytes += _DOCUMENT_BYTES + len(id)
        for key in keys:
            ids = self._ids.get(key)
            if ids is None:
                self._ids[key] = id
                self.bytes += _size(key)
                if self._order is not None:
                    insort(self._order, key, key=rank)
            elif isinstance(ids, str):
                self._ids[key] = [ids, id] if ids < id else [id, ids]
            elif ids[-1] < id:
                ids.append(id)
            else:
                insort(ids, id)

    def _remove(self, id: str, keys: tuple[Key, ...]) -> None:
        del self._keys[id]
        self.bytes -= _DOCUMENT_BYTES + len(id)
        for key in keys:
            ids = self._ids[key]
            if isinstance(ids, list):
                del ids[bisect_left(ids, id)]
                if len(ids) == 1:
                    self._ids[key] = ids[0]
                continue
            del self._ids[key]
            self.bytes -= _size(key)
            if self._order is not None:
                del self._order[bisect_left(self._order, rank(key), key=rank)]


def _size(key: Key) -> int:
    """About how much memory a key takes."""
    if isinstance(key, str):
        return _KEY_BYTES + len(key) * (1 if key.isascii() else 4)
    if isinstance(key, tuple):
        return _KEY_BYTES + sum(map(_size, key))
    return _KEY_BYTES


def _bounds(order: list[Key], limit: Range) -> tuple[int, int]:
    """Where a range starts and stops among sorted keys."""
    kind = TEXT_RANK if type(limit.limit) is str else NUMBER_RANK
    if kind == NUMBER_RANK and type(limit.limit) not in (int, float):
        return 0, 0  # nothing is greater or less than a limit of another type
    at = (kind, limit.limit)
    find = bisect_right if limit.operator in (">", "<=") else bisect_left
    place = find(order, at, key=rank)
    if limit.operator in (">", ">="):
        return place, bisect_left(order, (kind + 1,), key=rank)
    return bisect_left(order, (kind,), key=rank), place


def null_and_missing(keys: Iterable[Key]) -> Iterator[Key]:
    """These keys; and if null is one of them, the key of a missing value too, because conditions treat both alike."""
    for key in keys:
        yield key
        if key is None:
            yield MISSING
