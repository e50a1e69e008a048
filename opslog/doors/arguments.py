"""Arguments of callers as structs, and errors from which a caller learns what a correct call looks like."""

from __future__ import annotations

import re
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from opslog.errors import UsageError

T = TypeVar("T")

_NO_CHOICE = re.compile(r"Invalid enum value .*? - at `\$(.*)`")
_STEP = re.compile(r"\.(\w+)|\[[^]]*\]")


def converted(given: Any, to: type[T], what: str) -> T:
    """Plain values as a struct.

    :param what: the name of the call, for the message.
    :raises UsageError: they do not fit the struct. The message names the place, and the values that are possible there.
    """
    try:
        return msgspec.convert(given, to)
    except msgspec.ValidationError as error:
        choices = _choices(str(error), to)
        possible = f"; possible are {', '.join(choices)}" if choices else ""
        raise UsageError(f"{what}: {error}{possible}") from error


def _choices(message: str, of: type[Any]) -> list[str]:
    """The texts that are possible at the place that a message names, if only some are. msgspec does not list them."""
    if (found := _NO_CHOICE.fullmatch(message)) is None:
        return []
    place: inspect.Type | None = inspect.type_info(of)
    for step in _STEP.finditer(found[1]):
        place = _inside(place, step[1])
    return [str(value) for value in place.values] if isinstance(place, inspect.LiteralType) else []


def _inside(place: inspect.Type | None, name: str | None) -> inspect.Type | None:
    """The type of a field, or of the items of a list, without its metadata."""
    inner: inspect.Type | None = None
    if isinstance(place, inspect.StructType):
        inner = next((field.type for field in place.fields if field.encode_name == name), None)
    elif isinstance(place, inspect.ListType):
        inner = place.item_type
    while isinstance(inner, inspect.Metadata):
        inner = inner.type
    return inner
