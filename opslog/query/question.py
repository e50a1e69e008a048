"""A question: which documents, in which order, how many of them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from opslog.errors import UsageError
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.query.conditions import EVERYTHING, And, Condition, Test, compiled
from opslog.query.faults import Fault
from opslog.query.mapping import parse_mapping
from opslog.query.paths import Path, parse_path
from opslog.query.text import parse_text
from opslog.query.values import MISSING, Key, Rank, key_of, rank, value_of

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

    def matches(self, records: Iterable[Set], read: Callable[[Set], Document]) -> Iterator[tuple[Set, Document | None]]:
        """The answer: records, each with its document if that was read last. Without an order they come one by one.

        :param records: all documents, or all that can fulfil the condition, in order of id.
        :param read: gives the document of a record, as the caller's own.
        """
        is_true = compiled(self.condition)
        if self.order:
            yield from ((record, None) for record in self._sorted(records, read, is_true))
        elif self.limit != 0:
            found: Iterable[tuple[Set, Document | None]]
            if self.condition == EVERYTHING:
                found = ((record, None) for record in records)
            else:
                found = ((record, document) for record in records if is_true(document := read(record), record))
            yield from islice(found, self.offset, self.last)

    def _sorted(self, records: Iterable[Set], read: Callable[[Set], Document], is_true: Test) -> list[Set]:
        # Without the documents: a few of very many may be wanted.
        getters = [order.path.getter() for order in self.order]
        ranked = [
            (record, [rank(key_of(get(document, record))) for get in getters])
            for record in records
            if is_true(document := read(record), record)
        ]
        # The last order first: sorting leaves what is equal as it is.
        for number, order in reversed(list(enumerate(self.order))):
            ranked.sort(key=partial(_rank_of, number), reverse=order.is_descending)
        return [record for record, _ in ranked[self.offset : self.last]]


def _rank_of(number: int, ranked: tuple[Set, list[Rank]]) -> Rank:
    return ranked[1][number]


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


def count_of(condition: Condition, records: Iterable[Set], read: Callable[[Set], Document]) -> int:
    """How many of these documents fulfil a condition."""
    is_true = compiled(condition)
    return sum(is_true(read(record), record) for record in records)


def groups_of(asked: Grouping, records: Iterable[Set], read: Callable[[Set], Document]) -> list[Group]:
    """The groups of these documents."""
    is_true = compiled(asked.condition)
    keys = keys_at(asked.path)
    counts: Counter[Key] = Counter()
    for record in records:
        document = read(record)
        if is_true(document, record):
            counts.update(keys(document, record))
    return groups(counts)


def groups(counts: Mapping[Key, int]) -> list[Group]:
    """The groups of documents by their keys: the greatest first, equal ones in the order of their values."""
    counts = dict(counts)
    if missing := counts.pop(MISSING, 0):
        counts[None] = counts.get(None, 0) + missing
    ordered = sorted(counts.items(), key=lambda item: (-item[1], rank(item[0])))
    return [Group(value_of(key), count) for key, count in ordered if count]
