"""A question: which documents, in which order, how many of them. Pure."""

from __future__ import annotations

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
# A path, or several; a minus before one turns its order round.
OrderBy = str | Sequence[str]


class Order(NamedTuple):
    """The order of the values at a path; of documents with equal values the order of their ids."""

    path: Path
    is_descending: bool

    def __str__(self) -> str:
        return f"{'-' if self.is_descending else ''}{self.path}"


class Question(NamedTuple):
    """What `find` is asked.

    :ivar limit: None: all of them.
    """

    condition: Condition
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0

    @property
    def last(self) -> int | None:
        """How many matches are enough to answer it, if they come in its order."""
        return None if self.limit is None else self.offset + self.limit

    @property
    def names(self) -> Names:
        """The fields that have to be read to find its answer; none are of use where every document is in it."""
        if self.condition == EVERYTHING and not self.order:
            return None
        return names_of(chain(paths_of(self.condition), (order.path for order in self.order)))

    def matches(self, rows: Iterable[Rows], read: Callable[[Set], Document]) -> Iterator[tuple[Set, Document | None]]:
        """The answer: records, each with its document if that was read. Without an order they come as they are found.

        :param rows: all documents, or all that can fulfil the condition, in order of id. Of those whose fields were
            read, they are `names`.
        :param read: gives the document of a record, as the caller's own.
        """
        chosen = _Chosen(self.condition, read)
        if self.order:
            yield from ((record, None) for record in self._sorted(rows, chosen))
        elif self.limit != 0:
            yield from islice(chain.from_iterable(map(chosen.documents, rows)), self.offset, self.last)

    def _sorted(self, rows: Iterable[Rows], chosen: _Chosen) -> list[Set]:
        # Without the documents: a few of very many may be wanted.
        ranked: list[_Ranked] = []
        for some in rows:
            ranked += merge(self._ranked_rows(some, chosen), self._ranked_others(some, chosen), key=_id_of)
        # The last order first: sorting leaves what is equal as it is.
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
    """A document with what sorts it.

    :ivar source: its record, or the rows that have it, with its `number` there.
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
    """The documents of which a condition is true."""

    def __init__(self, condition: Condition, read: Callable[[Set], Document]) -> None:
        self._of_rows = compiled_for_rows(condition)
        self._is_true = compiled(condition)
        self._is_everything = condition == EVERYTHING
        self._read = read

    def of_rows(self, rows: Rows) -> Iterable[object]:
        """Of each of the documents whose fields were read, whether it is one of them."""
        return self._of_rows(rows) if rows.ids else ()

    def documents(self, rows: Rows) -> Iterator[tuple[Set, Document | None]]:
        """All of them in order of id, each with its document if that was read."""
        if not rows.ids:
            return zip(sets_of(rows.others), repeat(None)) if self._is_everything else self.others(rows)
        found = iter(rows.matches(compress(count(), self.of_rows(rows))))
        return self._with_others(found, rows) if rows.others else found

    def _with_others(
        self, found: Iterable[tuple[Set, Document | None]], rows: Rows
    ) -> Iterator[tuple[Set, Document | None]]:
        """What was found in the rows, with those of the others around it. Each of these is read when it is reached: it
        may be one that cannot be read, behind all that are wanted."""
        others: Iterable[tuple[Set, Document | None]] = zip(sets_of(rows.others), repeat(None))
        ordered = merge(zip(found, repeat(True)), zip(others, repeat(False)), key=lambda match: match[0][0].id)
        for (record, document), is_chosen in ordered:
            if is_chosen:
                yield record, document
            elif self._is_true(read := self._read(record), record):
                yield record, read

    def others(self, rows: Rows) -> Iterator[tuple[Set, Document]]:
        """Those of which no field was read."""
        read, is_true = self._read, self._is_true
        return ((record, document) for record in sets_of(rows.others) if is_true(document := read(record), record))


def names_of(paths: Iterable[Path]) -> Names:
    """The fields in which these paths begin; None where one needs more than a document's fields and its id."""
    names = {path.field: path.is_id for path in paths if not path.is_id}
    return None if None in names else tuple(names)  # type: ignore[arg-type]


def parse(where: Where | Condition | None) -> Condition:
    """The condition that a text or a mapping is; None is true of every document. One that was parsed stays as it is.

    :raises QueryError: it is none; points at the place in it.
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
    """The condition that is true where all of these are."""
    return conditions[0] if len(conditions) == 1 else And(tuple(conditions))


def parse_order(order_by: OrderBy | None) -> tuple[Order, ...]:
    """The orders that these paths are.

    :raises QueryError: one is none.
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
    """What `find` is asked.

    :raises QueryError: a condition or path is none.
    :raises UsageError: the limit or the offset is no number from 0 on.
    """
    if limit is not None:
        _check_number("limit", limit)
    _check_number("offset", offset)
    return Question(parse(where), parse_order(order_by), limit, offset)


def _check_number(name: str, number: object) -> None:
    if type(number) is not int or number < 0:
        raise UsageError(f"{name} is a number of documents from 0 on, not {number!r:.60}")


class Grouping(NamedTuple):
    """What `group` is asked."""

    path: Path
    condition: Condition

    @property
    def names(self) -> Names:
        """The fields that have to be read to find its answer."""
        return names_of(chain(paths_of(self.condition), [self.path]))


def grouping(by: str, where: Where | None) -> Grouping:
    """What `group` is asked.

    :raises QueryError: the path or the condition is none.
    """
    if not isinstance(by, str):
        raise Fault(f"a path such as due.year is expected here, not {type(by).__name__}").in_values("by")
    return Grouping(parse_path(by), parse(where))


class Group(NamedTuple):
    """How many documents have a value.

    :ivar value: the value; None for null and for documents without the field.
    :ivar documents: how many.
    """

    value: Any
    documents: int


def keys_at(path: Path) -> Callable[[Any, Set], Iterable[Key]]:
    """What says under which keys a document is found by the values at a path: each key once."""
    if path.has_many:
        values = path.values()
        return lambda document, record: frozenset(map(key_of, values(document, record)))
    get = path.getter()
    return lambda document, record: (key_of(get(document, record)),)


def keys_of_rows(path: Path, rows: Rows) -> Iterable[Iterable[Key]]:
    """What `keys_at` says of each of the documents whose field was read."""
    if path.has_many:
        return (frozenset(map(key_of, values)) for values in path.columns(rows))
    return zip(keys_of(path.column(rows)))


def count_of(condition: Condition, rows: Iterable[Rows], read: Callable[[Set], Document]) -> int:
    """How many of these documents fulfil a condition."""
    chosen = _Chosen(condition, read)
    return sum(sum(map(bool, chosen.of_rows(some))) + sum(1 for _ in chosen.others(some)) for some in rows)


def groups_of(asked: Grouping, rows: Iterable[Rows], read: Callable[[Set], Document]) -> list[Group]:
    """The groups of these documents."""
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
    """Each of these documents' ids and keys, about in order of id."""
    keys = keys_at(path)
    for some in rows:
        if some.ids:
            yield from zip(some.ids, keys_of_rows(path, some), strict=True)
        for record in sets_of(some.others):
            yield record.id, keys(read(record), record)


def groups(counts: Mapping[Key, int]) -> list[Group]:
    """The groups of documents by their keys: the greatest first, equal ones in the order of their values."""
    counts = dict(counts)
    if missing := counts.pop(MISSING, 0):
        counts[None] = counts.get(None, 0) + missing
    ordered = sorted(counts.items(), key=lambda item: (-item[1], rank(item[0])))
    return [Group(value_of(key), count) for key, count in ordered if count]
