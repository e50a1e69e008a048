"""The questions that an open store is asked: which documents, how many, how many of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from opslog.format.commits import Set
from opslog.format.documents import Schema
from opslog.query.conditions import Condition, compiled
from opslog.query.question import Question, Where, parse

T = TypeVar("T")

SCAN = "read every document"


class Found(list[tuple[str, T]], Generic[T]):
    """What `find` returns: a list of (id, document) pairs.

    :ivar explain: what the question used: an index, or every document.
    """

    explain: str = SCAN


def scan(schema: Schema[T], records: Iterable[Set], asked: Question) -> Found[T]:
    """The answer to a question, of these records, in order of id."""
    return Found(
        (record.id, schema.decode(record) if document is None else schema.typed(document, record))
        for record, document in asked.matches(records, schema.current)
    )


def chooser(schema: Schema[T], where: Where | Condition | Callable[[T], object]) -> Callable[[Set], object]:
    """What says whether a condition, or a predicate, is true of a record's document."""
    if callable(where):
        return lambda record: where(schema.decode(record))
    return matcher(schema, parse(where))


def matcher(schema: Schema[T], condition: Condition) -> Callable[[Set], bool]:
    """What says whether a condition is true of a record's document."""
    is_true = compiled(condition)
    return lambda record: is_true(schema.current(record), record)
