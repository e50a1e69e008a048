"""A query: which documents, in which order, and how many; and its evaluation on documents. Pure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from heapq import merge
from itertools import chain, compress, count, islice, repeat
from typing import Any, NamedTuple

from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.query.conditions import EVERYTHING, And, Condition, compiled, compiled_for_rows, paths_of
from opslog.query.faults import Fault
from opslog.query.mapping import parse_mapping
from opslog.query.paths import Path, parse_path
from opslog.query.rows import Names, Rows, sets_of
from opslog.query.text import parse_text
from opslog.query.values import MISSING, Key, Rank, key_of, keys_of, rank, value_of

# A condition as a text or as a mapping; `docs/queries.md` describes both.
Where = str | Mapping[str, Any]
# A path or several. A minus before a path reverses its order.
OrderBy = str | Sequence[str]

# No store has more documents. An offset and a limit of so many are together still a number that `islice` takes.
_MANY = sys.maxsize // 2


class Order(NamedTuple):
    """Sort by the values at a path. Documents with equal values are in order of id."""

    path: Path
    is_descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.is_descending else ''}{self.path}"


class Question(NamedTuple):
    """The arguments of `find`, parsed.

    :ivar limit: the largest number of documents; None: all of them.
    """

    condition: Condition
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def last(self) -> int | None:
        """The number of matches that are enough for the answer, if they come in its order; None: all."""
        return None if self.limit is None else self.offset + self.limit

    @property
    def names(self) -> Names:
        """The fields that must be read to find the answer. None if every document is in it: then fields are of no
        use."""
        if self.condition == EVERYTHING and not self.order:
            return None
        return names_of(chain(paths_of(self.condition), (order.path for order in self.order)))

    def matches(self, rows: Iterable[Rows], read: Callable[[Set], Document]) -> Iterator[tuple[Set, Document | None]]:
        """The answer: records, each with its document if that was read. Without an order they come in the order of
        `rows`.

        :param rows: all documents, or all that may fulfil the condition, in order of id. Where fields were read, they
            are `names`.
        :param read: returns the document of a record, which then belongs to the caller.
        """
        chosen = _Chosen(self.condition, read)
        if self.order:
            yield from ((record, None) for record in self._sorted(rows, chosen))
        elif self.limit != 0:
            yield from islice(chain.from_iterable(map(chosen.documents, rows)), self.offset, self.last)

    def _sorted(self, rows: Iterable[Rows], chosen: _Chosen) -> list[Set]:
        # Documents are not kept: there may be very many, of which few are wanted.
        ranked: list[_Ranked] = []
        for some in rows:
            ranked += merge(self._ranked_rows(some, chosen), self._ranked_others(some, chosen), key=_id_of)
        # Sort by the last order first. Sorting is stable, so earlier orders count for more.
        for number, order in reversed(list(enumerate(self.order))):
            ranked.sort(key=partial(_rank_of, number), reverse=order.is_descending)
        return [found.record for found in ranked[self.offset : self.last]]

    def _ranked_rows(self, rows: Rows, chosen: _Chosen) -> Iterator[_Ranked]:
        if not rows.ids:
            return iter(())
        ranks = zip(*(map(rank, keys_of(order.path.column(rows))) for order in self.order), strict=True)
        found = zip(rows.ids, ranks, count())
        return (_Ranked(id, own, rows, number) for id, own, number in compress(found, chosen.of_rows(rows)))

    def _ranked_others(self, rows: Rows, chosen: _Chosen) -> Iterator[_Ranked]:
        getters = [order.path.getter() for order in self.order]
        for record, document in chosen.others(rows):
            ranks = tuple(rank(key_of(get(document, record))) for get in getters)
            yield _Ranked(record.id, ranks, record)


class _Ranked(NamedTuple):
    """A document with its ranks in each order.

    :ivar source: its record, or the rows that have it; then `number` is its place there.
    """

    id: str
    ranks: tuple[Rank, ...]
    source: Set | Rows
    number: int = 0

    @property
    def record(self) -> Set:
        return self.source if isinstance(self.source, Set) else self.source.sets([self.number])[0]


def _id_of(ranked: _Ranked) -> str:
    return ranked.id


def _rank_of(number: int, ranked: _Ranked) -> Rank:
    return ranked.ranks[number]


class _Chosen:
    """Chooses the documents that fulfil a condition."""

    def __init__(self, condition: Condition, read: Callable[[Set], Document]) -> None:
        self._of_rows = compiled_for_rows(condition)
        self._is_true = compiled(condition)
        self._is_everything = condition == EVERYTHING
        self._read = read

    def of_rows(self, rows: Rows) -> Iterable[object]:
        """For each document whose fields were read, whether it is chosen."""
        return self._of_rows(rows) if rows.ids else ()

    def documents(self, rows: Rows) -> Iterator[tuple[Set, Document | None]]:
        """The chosen records in order of id, each with its document if that was read."""
        if not rows.ids:
            return zip(sets_of(rows.others), repeat(None)) if self._is_everything else self.others(rows)
        found = iter(rows.matches(compress(count(), self.of_rows(rows))))
        return self._with_others(found, rows) if rows.others else found

    def _with_others(
        self, found: Iterable[tuple[Set, Document | None]], rows: Rows
    ) -> Iterator[tuple[Set, Document | None]]:
        """Merge what was found by fields with the chosen ones of the other records, in order of id. Another record is
        read only when it is reached: one that cannot be read may come after all documents that the caller wants."""
        others: Iterable[tuple[Set, Document | None]] = zip(sets_of(rows.others), repeat(None))
        ordered = merge(zip(found, repeat(True)), zip(others, repeat(False)), key=lambda match: match[0][0].id)
        for (record, document), is_chosen in ordered:
            if is_chosen:
                yield record, document
            elif self._is_true(read := self._read(record), record):
                yield record, read

    def others(self, rows: Rows) -> Iterator[tuple[Set, Document]]:
        """The chosen ones of the records whose fields were not read."""
        read, is_true = self._read, self._is_true
        return ((record, document) for record in sets_of(rows.others) if is_true(document := read(record), record))


def names_of(paths: Iterable[Path]) -> Names:
    """The fields with which these paths begin. None if a path needs more than a document's fields and its id."""
    names = {path.field: path.is_id for path in paths if not path.is_id}
    return None if None in names else tuple(names)  # type: ignore[arg-type]


def parse(where: Where | Condition | None) -> Condition:
    """Parse a condition given as a text or a mapping. None is true of every document. A parsed condition is returned as
    it is.

    :raises QueryError: it is not a condition; the error points at the place.
    """
    if where is None:
        return EVERYTHING
    if isinstance(where, Condition):
        return where
    if isinstance(where, str):
        return parse_text(where)
    if isinstance(where, Mapping):
        return parse_mapping(where)
    raise Fault(f"a condition is a text or a mapping, not {type(where).__name__}").in_values("where")


def all_of(conditions: Sequence[Condition]) -> Condition:
    """The condition that is true if all of these are."""
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))


def parse_order(order_by: OrderBy | None) -> tuple[Order, ...]:
    """Parse the paths to sort by.

    :raises QueryError: one is not a path.
    """
    if order_by is None:
        return ()
    return tuple(map(_order, [order_by] if isinstance(order_by, str) else _texts(order_by)))


def _texts(paths: object) -> Sequence[str]:
    if isinstance(paths, list | tuple) and all(isinstance(path, str) for path in paths):
        return paths
    raise Fault("paths such as due.year, or -due.year, are expected here").in_values("order_by")


def _order(text: str) -> Order:
    order = Order(parse_path(text.removeprefix("-")), text.startswith("-"))
    if order.path.has_many:
        raise Fault("[*] leads to many values, which have no order").in_text(text)
    return order


def question(where: Where | None, order_by: OrderBy | None, limit: int | None, offset: int) -> Question:
    """Parse the arguments of `find`.

    :raises QueryError: the condition or a path cannot be parsed.
    :raises UsageError: the limit or the offset is not an integer from 0 on.
    """
    limit = None if limit is None else _number("limit", limit)
    return Question(parse(where), parse_order(order_by), limit, _number("offset", offset))


def _number(name: str, number: int) -> int:
    """A number of documents, not above `_MANY`."""
    if type(number) is not int or number < 0:
        raise UsageError(f"{name} is a number of documents from 0 on, not {number!r:.60}")
    return min(number, _MANY)


class Grouping(NamedTuple):
    """The arguments of `group`, parsed."""

    path: Path
    condition: Condition

    @property
    def names(self) -> Names:
        """The fields that must be read to find the answer."""
        return names_of(chain(paths_of(self.condition), [self.path]))


def grouping(by: str, where: Where | None) -> Grouping:
    """Parse the arguments of `group`.

    :raises QueryError: the path or the condition cannot be parsed.
    """
    if not isinstance(by, str):
        raise Fault(f"a path such as due.year is expected here, not {type(by).__name__}").in_values("by")
    return Grouping(parse_path(by), parse(where))


class Group(NamedTuple):
    """The number of documents that have a value.

    :ivar value: the value; None for null and for documents without the field.
    :ivar documents: how many documents have it.
    """

    value: Any
    documents: int


def keys_at(path: Path) -> Callable[[Any, Set], Iterable[Key]]:
    """A function that returns the keys of a document's values at a path, each key once. An index lists the document
    under them."""
    if path.has_many:
        values = path.values()
        return lambda document, record: frozenset(map(key_of, values(document, record)))
    get = path.getter()
    return lambda document, record: (key_of(get(document, record)),)


def keys_of_rows(path: Path, rows: Rows) -> Iterable[Iterable[Key]]:
    """The keys that `keys_at` would return, for each document of rows in which the path's field was read."""
    if path.has_many:
        return (frozenset(map(key_of, values)) for values in path.columns(rows))
    return zip(keys_of(path.column(rows)))


def count_of(condition: Condition, rows: Iterable[Rows], read: Callable[[Set], Document]) -> int:
    """The number of these documents that fulfil a condition."""
    chosen = _Chosen(condition, read)
    return sum(sum(map(bool, chosen.of_rows(some))) + sum(1 for _ in chosen.others(some)) for some in rows)


def groups_of(asked: Grouping, rows: Iterable[Rows], read: Callable[[Set], Document]) -> list[Group]:
    """Group these documents by their values at a path."""
    chosen, keys = _Chosen(asked.condition, read), keys_at(asked.path)
    counts: Counter[Key] = Counter()
    for some in rows:
        if some.ids:
            counts.update(chain.from_iterable(compress(keys_of_rows(asked.path, some), chosen.of_rows(some))))
        for record, document in chosen.others(some):
            counts.update(keys(document, record))
    return groups(counts)


def entries_of(
    path: Path, rows: Iterable[Rows], read: Callable[[Set], Document]
) -> Iterator[tuple[str, Iterable[Key]]]:
    """The id and keys of each of these documents, roughly in order of id."""
    keys = keys_at(path)
    for some in rows:
        if some.ids:
            yield from zip(some.ids, keys_of_rows(path, some), strict=True)
        for record in sets_of(some.others):
            yield record.id, keys(read(record), record)


def groups(counts: Mapping[Key, int]) -> list[Group]:
    """The groups for these counts: the largest first, groups of the same size in the order of their values."""
    counts = dict(counts)
    if missing := counts.pop(MISSING, 0):
        counts[None] = counts.get(None, 0) + missing
    ordered = sorted(counts.items(), key=lambda item: (-item[1], rank(item[0])))
    return [Group(value_of(key), count) for key, count in ordered if count]
