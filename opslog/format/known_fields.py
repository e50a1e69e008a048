"""Which fields of a stored document a program's type knows. Pure.

A typed value has the fields of its type alone. Whoever reads a document, changes the value and sets it deletes every
field that another version of the program has added. docs/decisions/unknown-fields.md says why that is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from msgspec import inspect


@cache
def _description(kind: type) -> inspect.Type:
    return inspect.type_info(kind)


def lost_field(kind: type, old: object, new: object) -> str | None:
    """The place of the first field that `old` has, `kind` does not know and `new` lacks, in the form ``$.a[3].b``;
    None where nothing is lost.

    What was taken out as a whole is not lost: an object of which `new` has nothing at its place, or the end of a list.

    :param old, new: documents as JSON has them, both of type `kind`.
    """
    return next(_lost(_description(kind), old, new, "$"), None)


def _lost(info: inspect.Type, old: object, new: object, place: str) -> Iterator[str]:
    match info:
        case inspect.Metadata():
            yield from _lost(info.type, old, new, place)
        case inspect.UnionType():
            # Whatever one of its types knows is known.
            losses = [list(_lost(one, old, new, place)) for one in info.types if _fits(one, old)]
            if losses and all(losses):
                yield losses[0][0]
        case inspect.StructType() | inspect.DataclassType() | inspect.TypedDictType() | inspect.NamedTupleType():
            yield from _lost_of_object(info, old, new, place)
        case inspect.DictType():
            if isinstance(old, dict) and isinstance(new, dict):
                for key in old.keys() & new.keys():
                    yield from _lost(info.value_type, old[key], new[key], f"{place}.{key}")
        case inspect.TupleType():
            yield from _lost_of_items(info.item_types, old, new, place)
        case inspect.CollectionType():
            items = len(old) if isinstance(old, list) else 0
            yield from _lost_of_items((info.item_type,) * items, old, new, place)


_Object = inspect.StructType | inspect.DataclassType | inspect.TypedDictType | inspect.NamedTupleType


def _lost_of_object(info: _Object, old: object, new: object, place: str) -> Iterator[str]:
    if isinstance(old, list):  # so are named tuples written, and structs with array_like
        types = tuple(field.type for field in info.fields)
        tag = isinstance(info, inspect.StructType) and info.tag is not None
        yield from _lost_of_items((inspect.AnyType(),) * tag + types, old, new, place)
    if not isinstance(old, dict) or not isinstance(new, dict):
        return
    known = {field.encode_name: field.type for field in info.fields}
    tag_field = info.tag_field if isinstance(info, inspect.StructType) else None
    for key, value in old.items():
        if key in known:
            if key in new:
                yield from _lost(known[key], value, new[key], f"{place}.{key}")
        elif key not in new and key != tag_field:
            yield f"{place}.{key}"


def _lost_of_items(types: tuple[inspect.Type, ...], old: object, new: object, place: str) -> Iterator[str]:
    if isinstance(old, list) and isinstance(new, list):
        if len(old) > len(types) == len(new):
            yield f"{place}[{len(types)}]"
        for number, (one, before, after) in enumerate(zip(types, old, new, strict=False)):
            yield from _lost(one, before, after, f"{place}[{number}]")


def _fits(info: inspect.Type, value: object) -> bool:
    """Whether a value of a union can be of this one of its types, as far as that is seen from outside."""
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
