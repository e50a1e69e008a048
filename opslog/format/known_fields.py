"""The fields of a stored document that a program's type knows. Pure.

A typed value has only the fields of its type. So if a program reads a document, changes the value and sets it, this
would delete every field that another version of the program has added. docs/decisions/unknown-fields.md says why that
is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Final

from msgspec import NODEFAULT, inspect, json


class _KnownFields(Enum):
    """Marks a value that has exactly the fields that its type knows."""

    ALL = "all"


_KNOWN: Final = _KnownFields.ALL


@cache
def _description(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def lost_field(kind: type, old: object, new: object) -> str | None:
    """The place of the first field that `old` has, `kind` does not know and `new` lacks, in the form ``$.a[3].b``;
    None if nothing is lost.

    A field is not lost if the whole value around it was removed: an object that has nothing in its place in `new`, or
    all items of a list.

    :param old, new: documents as JSON, both of type `kind`.
    """
    return next(_lost(_description(kind), old, new, "$"), None)


def _lost(info: inspect.Type, old: object, new: object, place: str) -> Iterator[str]:
    match info:
        case inspect.Metadata():
            yield from _lost(info.type, old, new, place)
        case inspect.UnionType():
            # A field counts as known if one of the types knows it.
            losses = [list(_lost(one, old, new, place)) for one in info.types if _fits(one, old)]
            if losses and all(losses):
                yield losses[0][0]
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            yield from _lost_of_object(info, old, new, place)
        case inspect.DictType():
            if isinstance(old, dict) and (isinstance(new, dict) or new is _KNOWN):
                for key, value in old.items():
                    if new is _KNOWN or key in new:
                        yield from _lost(info.value_type, value, _at(new, key), f"{place}.{key}")
        case inspect.TupleType():
            yield from _lost_of_items(info.item_types, old, new, place)
        case inspect.CollectionType():
            if isinstance(old, list):
                yield from _lost_of_list(info.item_type, old, new, place)


_Object = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType


def _lost_of_object(info: _Object, old: object, new: object, place: str) -> Iterator[str]:
    if isinstance(old, list):  # named tuples, and structs with array_like, are written as lists
        types = tuple(field.type for field in info.fields)
        tag = isinstance(info, inspect.StructType) and info.tag is not None
        yield from _lost_of_items((inspect.AnyType(),) * tag + types, old, new, place)
    if not isinstance(old, dict) or not (isinstance(new, dict) or new is _KNOWN):
        return
    known = {field.encode_name: field for field in info.fields}
    tag_field = info.tag_field if isinstance(info, inspect.StructType) else None
    for key, value in old.items():
        if key in known:
            after = _at(new, key) if new is _KNOWN or key in new else _default(known[key])
            yield from _lost(known[key].type, value, after, f"{place}.{key}")
        elif (new is _KNOWN or key not in new) and key != tag_field:
            yield f"{place}.{key}"


def _default(field: inspect.Field) -> object:
    """The value, as JSON, that a field has if it was left out on encoding; None if it has no value then,
    or one that JSON does not have."""
    default = field.default if field.default_factory is NODEFAULT else field.default_factory()
    return None if default is NODEFAULT else json.decode(json.encode(default, enc_hook=lambda value: None))


def _lost_of_items(types: tuple[inspect.Type, ...], old: object, new: object, place: str) -> Iterator[str]:
    """The lost fields of a list in which each index has a meaning, as in a tuple."""
    if isinstance(old, list) and (isinstance(new, list) or new is _KNOWN):
        there = len(types) if new is _KNOWN else len(new)
        if len(old) > len(types) == there:
            yield f"{place}[{len(types)}]"
        for number, (one, before) in enumerate(zip(types, old[:there], strict=False)):
            yield from _lost(one, before, _at(new, number), f"{place}[{number}]")


def _lost_of_list(item: inspect.Type, old: list[object], new: object, place: str) -> Iterator[str]:
    """The lost fields of a set, or of a list whose items may be added, removed and reordered. Each item of the new list
    may be any item of the old one, changed so that it even equals a third one. So an item with unknown fields counts as
    removed only if the new list is empty."""
    unknown = {
        number: fields
        for number, before in enumerate(old)
        if (fields := list(_lost(item, before, _KNOWN, f"{place}[{number}]")))
    }
    if new is _KNOWN:
        for fields in unknown.values():
            yield from fields
    elif unknown and isinstance(new, list) and new:
        left = [after for after in new if any(_lost(item, after, _KNOWN, ""))]
        for number, fields in unknown.items():
            kept = next((after for after in left if not any(_lost(item, old[number], after, ""))), None)
            if kept is None:
                yield from fields
            else:
                left.remove(kept)


def _at(new: object, key: str | int) -> object:
    return _KNOWN if new is _KNOWN else new[key]  # type: ignore[index]


def _fits(info: inspect.Type, value: object) -> bool:
    """Whether a value of a union can be of this type of the union, judged by its outer form."""
    match info:
        case inspect.Metadata():
            return _fits(info.type, value)
        case inspect.StructType() if info.tag_field is not None and isinstance(value, dict):
            return bool(value.get(info.tag_field) == info.tag)
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            return isinstance(value, dict | list)
        case inspect.DictType():
            return isinstance(value, dict)
        case inspect.CollectionType() | inspect.TupleType():
            return isinstance(value, list)
        case inspect.AnyType():
            return True
    return not isinstance(value, dict | list)
