"""Conditions: the tree that both forms of the filter language are parsed into, and its evaluation. Pure.

Each condition is true or false of each document. There is no third value, and no comparison fails.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

from opslog.format.commits import Set
from opslog.query.paths import Path
from opslog.query.rows import Rows
from opslog.query.values import MISSING, OWN_KEYS, Key, key_of

# Evaluates a condition on a decoded document and its record.
Test = Callable[[Any, Set], bool]
_OfValue = Callable[[Any], bool]


class OneOf(NamedTuple):
    """``=`` or ``in``: the value equals one of some values, given by their keys. A missing value counts as null."""

    path: Path
    keys: frozenset[Key]


class Range(NamedTuple):
    """``<``, ``<=``, ``>`` or ``>=``: value and limit are both numbers or both strings, and stand in this order."""

    path: Path
    operator: str
    limit: Any


class Exists(NamedTuple):
    """There is a value, which may be null."""

    path: Path


class And(NamedTuple):
    parts: tuple[Condition, ...]


class Or(NamedTuple):
    parts: tuple[Condition, ...]


class Not(NamedTuple):
    part: Condition


Condition = OneOf | Range | Exists | And | Or | Not

EVERYTHING = And(())

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
RANGES = frozenset(_ORDERS)


def compiled(condition: Condition) -> Test:
    """A function that evaluates a condition on one document."""
    if isinstance(condition, And | Or):
        return _all_or_any(condition)
    if isinstance(condition, Not):
        part = compiled(condition.part)
        return lambda document, record: not part(document, record)
    is_true = _of_value(condition)
    if condition.path.has_many:
        values = condition.path.values()
        return lambda document, record: any(map(is_true, values(document, record)))
    get = condition.path.getter()
    return lambda document, record: is_true(get(document, record))


def _all_or_any(condition: And | Or) -> Test:
    parts = tuple(map(compiled, condition.parts))
    if len(parts) == 1:
        return parts[0]
    if isinstance(condition, And):
        return lambda document, record: all(part(document, record) for part in parts)
    return lambda document, record: any(part(document, record) for part in parts)


def paths_of(condition: Condition) -> Iterator[Path]:
    """The paths whose values a condition depends on."""
    if isinstance(condition, And | Or):
        for part in condition.parts:
            yield from paths_of(part)
    elif isinstance(condition, Not):
        yield from paths_of(condition.part)
    else:
        yield condition.path


def compiled_for_rows(condition: Condition) -> Callable[[Rows], Iterable[object]]:
    """A function that evaluates a condition on each document of some rows, in which the fields of its paths were read.
    Its results have the order of `Rows.ids`."""
    if isinstance(condition, And | Or):
        parts = tuple(map(compiled_for_rows, condition.parts))
        if not parts:
            return lambda rows: repeat(isinstance(condition, And), len(rows.ids))
        decide = all if isinstance(condition, And) else any
        return lambda rows: map(decide, zip(*(part(rows) for part in parts), strict=True))
    if isinstance(condition, Not):
        part = compiled_for_rows(condition.part)
        return lambda rows: map(operator.not_, part(rows))
    is_true, path = _of_value(condition), condition.path
    if path.has_many:
        return lambda rows: (any(map(is_true, values)) for values in path.columns(rows))
    return lambda rows: map(is_true, path.column(rows))


def _of_value(condition: OneOf | Range | Exists) -> _OfValue:
    if isinstance(condition, Exists):
        return lambda value: value is not MISSING
    if isinstance(condition, OneOf):
        return _one_of(condition.keys)
    compare, limit = _ORDERS[condition.operator], condition.limit
    if type(limit) is str:
        return lambda value: type(value) is str and compare(value, limit)
    if type(limit) in (int, float):
        return lambda value: type(value) in (int, float) and compare(value, limit)
    return lambda value: False


def _one_of(keys: frozenset[Key]) -> _OfValue:
    wanted = keys | {MISSING} if None in keys else keys
    if len(wanted) == 1 and type(only := next(iter(wanted))) is str:
        return lambda value: value == only  # nothing but a string equals a string
    return lambda value: (value if type(value) in OWN_KEYS else key_of(value)) in wanted
