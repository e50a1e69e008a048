"""The types of columns: from DuckDB's structure of JSON texts to a type that represents all of them exactly. Pure.

DuckDB's ``json_group_structure`` reads all values of a field, and returns their common structure: the name of a type, a
list of one structure, or a dictionary of them. For values with nothing in common it returns ``JSON``, which stays text.
This module changes structures that would not be exact, or cannot be a column.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

# A structure as DuckDB writes it, decoded.
Structure = str | list["Structure"] | dict[str, "Structure"]

JSON = "JSON"
NULL = "NULL"
# The types of integers that may be negative or take 64 bits, with a sign or without.
_INTEGER = "DECIMAL(20,0)"
_SCALARS = ("VARCHAR", "BOOLEAN", "DOUBLE", "UBIGINT")
_SIGNED = ("BIGINT", "HUGEINT")
# An object with more fields than this is treated as a map by ids, and not as a structure.
_FIELDS_MAX = 200
# A value with more levels of objects and lists is JSON text. Arrow hands over at most 64 levels, and a query may add
# some.
_LEVELS_MAX = 32


def exact(structure: Structure) -> Structure:
    """The structure for reading values. It represents each value as it is in JSON, or else the whole value that
    contains it is JSON text. Integers have room for all 64 bits; see `narrow`."""
    return JSON if _levels(structure) > _LEVELS_MAX else _exact(structure)


def _levels(structure: Structure) -> int:
    """How many objects and lists are in one another."""
    if isinstance(structure, dict):
        return 1 + max(map(_levels, structure.values()), default=0)
    return 1 + max(map(_levels, structure), default=0) if isinstance(structure, list) else 0


def _exact(structure: Structure) -> Structure:
    if isinstance(structure, list):
        return [_exact(item) for item in structure]
    if isinstance(structure, dict):
        if len(structure) > _FIELDS_MAX or "" in structure or len(without_twins(structure)) != 1:
            return JSON
        return {name: _exact(field) for name, field in structure.items()}
    if structure in _SIGNED:
        return _INTEGER
    return structure if structure in _SCALARS else JSON


def without_twins(fields: Iterable[str]) -> list[list[str]]:
    """The fields, in lists that DuckDB accepts as the fields of one object: no two that differ only in case, and
    the field with an empty name by itself."""
    lists: list[dict[str, str]] = []
    for field in fields:
        folded = field.casefold()
        fitting = next((some for some in lists if folded and folded not in some and "" not in some), None)
        if fitting is None:
            lists.append(fitting := {})
        fitting[folded] = field
    return [list(some.values()) for some in lists]


def has_floats(structure: Structure) -> bool:
    """Whether it has numbers that are read as floats. An integer among them may be too long for a float."""
    if isinstance(structure, list):
        return any(map(has_floats, structure))
    if isinstance(structure, dict):
        return any(map(has_floats, structure.values()))
    return structure == "DOUBLE"


def holds(wide: Structure, narrow: Structure) -> bool:
    """Whether the first structure reads values of the second as exactly as the second does. Both are from DuckDB."""
    if wide == JSON or narrow in (NULL, wide):
        return True
    if isinstance(wide, list) and isinstance(narrow, list):
        return all(holds(wide[0], item) for item in narrow)
    if isinstance(wide, dict) and isinstance(narrow, dict):
        return all(name in wide and holds(wide[name], field) for name, field in narrow.items())
    return wide in _SIGNED and narrow in (*_SIGNED, "UBIGINT")


def narrow(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """The column with integers of 64 bits with a sign, if all of them fit; otherwise unchanged."""
    wanted = _narrowed(column.type)
    if wanted == column.type:
        return column
    try:
        return column.cast(wanted)
    except pa.ArrowInvalid:  # one is too large
        return column


def _narrowed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_uint64(kind) or pa.types.is_decimal(kind):
        return pa.int64()
    if pa.types.is_list(kind):
        return pa.list_(pa.field(kind.value_field.name, _narrowed(kind.value_type)))
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _narrowed(field.type)) for field in kind])
    return kind


def column_names(fields: Iterable[str], taken: Iterable[str]) -> dict[str, str]:
    """The column name of each field of documents. SQL does not distinguish names by case, so a field whose name is
    taken gets another one: ``data_id`` for ``id``, ``name_2`` for ``name`` beside ``Name``.

    :param taken: columns that are no fields.
    """
    reserved = set(taken)
    used = set(reserved)
    names = {}
    for field in sorted(fields):
        name = f"data_{field}" if field.casefold() in reserved else field
        count, first = 1, name
        while name.casefold() in used:
            count += 1
            name = f"{first}_{count}"
        used.add(name.casefold())
        names[field] = name
    return names
