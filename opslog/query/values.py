"""Comparing JSON values: which are equal, and their order. Pure.

Each value has a *key*. Two values are equal if and only if their keys are. Keys are hashable.

    null, a missing value       None, MISSING
    a number, a string          itself: 1 and 1.0 are equal, and integers are compared exactly
    true, false                 ("b", True): in Python True == 1
    an array                    ("a", keys of its items)
    an object                   ("o", pairs of a name and a key, in order of the names)
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable
from enum import Enum
from typing import Any, Final

Key = Hashable


class Missing(Enum):
    """Stands for the value of a field that a document does not have."""

    MISSING = "missing"


MISSING: Final = Missing.MISSING


def key_of(value: Any) -> Key:
    """The key of a JSON value, or of MISSING."""
    kind = type(value)
    if kind is bool:
        return "b", value
    if kind is list:
        return "a", tuple(map(key_of, value))
    if kind is dict:
        return "o", tuple((name, key_of(value[name])) for name in sorted(value))
    key: Key = value
    return key


# A value of one of these types is its own key.
OWN_KEYS = frozenset({str, int, float, type(None), Missing})


def keys_of(values: Iterable[Any]) -> list[Key]:
    """The keys of many values."""
    return [value if type(value) in OWN_KEYS else key_of(value) for value in values]


def value_of(key: Key) -> Any:
    """A value that has this key; None for MISSING. Equal numbers give the same value: an integer if one of them is
    an integer. A document holds integers from -2**63 to 2**64 - 1."""
    if isinstance(key, tuple):
        kind, content = key
        if kind == "b":
            return content
        if kind == "a":
            return [value_of(item) for item in content]
        return {name: value_of(item) for name, item in content}
    if isinstance(key, float) and key.is_integer() and -(2**63) <= key < 2**64:
        return int(key)
    return None if key is MISSING else key


# Sorts keys: first by the kind of value, then by the value.
Rank = tuple[Any, ...]

NO_RANK, NULL_RANK, BOOL_RANK, NUMBER_RANK, TEXT_RANK, ARRAY_RANK, OBJECT_RANK = range(7)


def rank(key: Key) -> Rank:
    """The order of all values: missing, null, false, true, numbers, strings by code point, arrays item by item,
    objects by their pairs of name and value in order of the names."""
    if isinstance(key, str):
        return TEXT_RANK, key
    if isinstance(key, tuple):
        kind, content = key
        if kind == "b":
            return BOOL_RANK, content
        if kind == "a":
            return ARRAY_RANK, tuple(map(rank, content))
        return OBJECT_RANK, tuple((name, rank(item)) for name, item in content)
    if key is None:
        return (NULL_RANK,)
    if key is MISSING:
        return (NO_RANK,)
    return NUMBER_RANK, key


def json_fault(value: Any, place: str, depth: int) -> tuple[str, str] | None:
    """Find the first part of a value that no document could hold. Returns (what is wrong, where), or None.

    :param depth: how many more levels it may have.
    """
    kind = type(value)
    if kind in (list, dict) and depth <= 0:
        return "it is nested too deeply", place
    if kind is list:
        faults = (json_fault(item, f"{place}[{number}]", depth - 1) for number, item in enumerate(value))
        return next((fault for fault in faults if fault), None)
    if kind is dict:
        for name, item in value.items():
            if type(name) is not str:
                return f"the key {name!r:.80} is not a string", place
            if fault := json_fault(item, f"{place}[{name!r}]", depth - 1):
                return fault
        return None
    if kind is float and not math.isfinite(value):
        return f"{value} is not a JSON number", place
    if value is None or kind in (bool, int, float, str):
        return None
    return f"{kind.__name__} is not a JSON type: {value!r:.80}", place
