"""What a caller gave, as the struct that a call takes: or what is wrong with it, so that the next try can be right."""

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

    :param what: what they were given to, for the message.
    :raises UsageError: they are not what it describes; names the place, and the values that are possible there.
    """
    try:
        return msgspec.convert(given, to)
    except msgspec.ValidationError as error:
        choices = _choices(str(error), to)
        possible = f"; possible are {', '.join(choices)}" if choices else ""
        raise UsageError(f"{what}: {error}{possible}") from error


def _choices(message: str, of: type[Any]) -> list[str]:
    """What may stand at the place that a message names, where these are some texts. msgspec does not say."""
    if (found := _NO_CHOICE.fullmatch(message)) is None:
        return []
    place: inspect.Type | None = inspect.type_info(of)
    for step in _STEP.finditer(found[1]):
        place = _inside(place, step[1])
    return [str(value) for value in place.values] if isinstance(place, inspect.LiteralType) else []


def _inside(place: inspect.Type | None, name: str | None) -> inspect.Type | None:
    """The type of a field, or of the items of a list; with what is said of it left out."""
    inner: inspect.Type | None = None
    if isinstance(place, inspect.StructType):
        inner = next((field.type for field in place.fields if field.encode_name == name), None)
    elif isinstance(place, inspect.ListType):
        inner = place.item_type
    while isinstance(inner, inspect.Metadata):
        inner = inner.type
    return inner
