"""The filter language as Python mappings, from paths to the values they must have. Pure.

{"status": "active"}                        status = "active"
{"hours": {">": 3, "<=": 8}}                hours > 3 and hours <= 8
{"status": {"in": ["active", "blocked"]}}   status in ["active", "blocked"]
{"due": {"exists": False}}                  not exists due
{"a": 1, "b": 2}                            a = 1 and b = 2
{"or": [{"a": 1}, {"b": 2}]}                a = 1 or b = 2
{"not": {"a": 1}}                           not a = 1
{"by": {"=": {"team": 7}}}                  by = {"team": 7}
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from opslog.format.documents import with_lists
from opslog.query.conditions import EVERYTHING, RANGES, And, Condition, Exists, Not, OneOf, Or, Range
from opslog.query.faults import Fault
from opslog.query.paths import Path, read_path
from opslog.query.text import DEPTH_MAX
from opslog.query.values import json_fault, key_of

_OPERATORS = "=, !=, <, <=, >, >=, in, exists"


def parse_mapping(where: Mapping[str, Any]) -> Condition:
    """Parse a condition given as a mapping.

    :raises QueryError: it is not a condition; the error names the place.
    """
    return _all(where, "where", DEPTH_MAX)


def _all(where: object, place: str, depth: int) -> Condition:
    """:param depth: how many more levels it may have."""
    if not isinstance(where, Mapping):
        raise Fault(f"a mapping from paths to values is expected here, not {type(where).__name__}").in_values(place)
    if depth <= 0:
        raise Fault(f"this is nested more than {DEPTH_MAX} levels deep").in_values(place)
    return _joined([_entry(name, value, f"{place}[{name!r}]", depth) for name, value in where.items()])


def _joined(parts: list[Condition]) -> Condition:
    if not parts:
        return EVERYTHING
    return parts[0] if len(parts) == 1 else And(tuple(parts))


def _entry(name: object, value: object, place: str, depth: int) -> Condition:
    if not isinstance(name, str):
        raise Fault("a path is a text such as due.year").in_values(place)
    if name in ("and", "or"):
        return _joining(name, value, place, depth)
    if name == "not":
        return Not(_all(value, place, depth - 1))
    path = _path(name, place)
    if not isinstance(value, Mapping):
        return OneOf(path, frozenset((key_of(_json(value, place)),)))
    if not value:
        raise Fault('for an empty object write {"=": {}}').in_values(place)
    return _joined([_comparison(path, operator, operand, place) for operator, operand in value.items()])


def _joining(name: str, value: object, place: str, depth: int) -> Condition:
    if isinstance(value, Mapping | str) or not isinstance(value, list | tuple):
        raise Fault(f"a list of mappings is expected here; a field of this name is written '\"{name}\"'").in_values(
            place
        )
    parts = [_all(part, f"{place}[{number}]", depth - 1) for number, part in enumerate(value)]
    return _joined(parts) if name == "and" else Or(tuple(parts))


def _path(name: str, place: str) -> Path:
    try:
        return read_path(name)
    except Fault as fault:
        raise fault.in_text(name, place) from None


def _comparison(path: Path, operator: object, operand: object, place: str) -> Condition:
    inner = f"{place}[{operator!r}]"
    if operator in ("=", "!="):
        equal = OneOf(path, frozenset((key_of(_json(operand, inner)),)))
        return equal if operator == "=" else Not(equal)
    if operator in RANGES:
        return Range(path, str(operator), _json(operand, inner))
    if operator == "in":
        values = _json(operand, inner)
        if not isinstance(values, list):
            raise Fault("a list of values is expected here").in_values(inner)
        return OneOf(path, frozenset(map(key_of, values)))
    if operator == "exists":
        if not isinstance(operand, bool):
            raise Fault("True or False is expected here").in_values(inner)
        return Exists(path) if operand else Not(Exists(path))
    raise Fault(
        f"the operators are {_OPERATORS}; to name a nested field, write a path ('{path}.{operator}'), and to compare a "
        'whole object, write {"=": {…}}'
    ).in_values(inner)


def _json(value: object, place: str) -> Any:
    """A value as it would stand in a document. Members of an Enum, dates and so on are as msgspec writes them."""
    try:
        plain = msgspec.to_builtins(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise Fault(str(error)).in_values(place) from None
    plain = with_lists(plain, DEPTH_MAX)
    if fault := json_fault(plain, place, DEPTH_MAX):
        reason, where = fault
        raise Fault(reason).in_values(where)
    return plain
