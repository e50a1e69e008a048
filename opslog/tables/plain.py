"""Columns of documents that the kernel reads out of the lines of records, in several threads.

The kernel reads a field whose values are all strings, all numbers or all booleans, in the form in which opslog writes
them. DuckDB reads the other fields, and all fields if there is no kernel (`opslog.tables.reading.Values`). Both make
the same columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from opslog.kernel import columns
from opslog.tables.arrow import in_threads, text_of
from opslog.tables.structure import NULL, Structure

# The structure and type of a column, by the types of the kernel that occur in its chunks.
_COLUMNS: dict[frozenset[str], tuple[Structure, pa.DataType]] = {
    frozenset(): (NULL, pa.string()),
    frozenset({"string"}): ("VARCHAR", pa.string()),
    frozenset({"boolean"}): ("BOOLEAN", pa.bool_()),
    frozenset({"integer"}): ("BIGINT", pa.int64()),
    frozenset({"number"}): ("DOUBLE", pa.float64()),
    frozenset({"integer", "number"}): ("DOUBLE", pa.float64()),
}
_TYPES = {"string": pa.string(), "boolean": pa.bool_(), "integer": pa.int64(), "number": pa.string()}
# Of more digits, an integer beside floats is kept as text, since it may not equal any float.
_FLOAT_INTEGER_MAX = 10**15 - 1

# What the kernel says of a field in one chunk of the lines.
_Part = tuple[str | None, bytes | None, bytes | None, bytes | None] | None


def plain_columns(lines: pa.ChunkedArray, fields: Sequence[str]) -> dict[str, tuple[Structure, pa.ChunkedArray]]:
    """The columns of those fields that the kernel can read: the structure that DuckDB would report, and the values."""
    read, names = columns, tuple(fields)
    if read is None or not names:
        return {}
    found = in_threads(lambda chunk: read(text_of(chunk), names, len(chunk)), lines.chunks, lambda chunk: chunk.nbytes)
    chunks = [chunk for chunk in found if chunk is not None]
    if len(chunks) < len(found):
        return {}
    parts = {name: _column(parts, lines) for name, *parts in zip(names, *chunks, strict=True)}
    return {name: column for name, column in parts.items() if column is not None}


def _column(parts: Sequence[_Part], lines: pa.ChunkedArray) -> tuple[Structure, pa.ChunkedArray] | None:
    """The column of a field; None: its values have several types."""
    present = [part for part in parts if part is not None]
    types = frozenset(part[0] for part in present if part[0] is not None)
    if len(present) < len(parts) or types not in _COLUMNS:
        return None
    structure, type = _COLUMNS[types]
    arrays = [_array(part, len(chunk)) for part, chunk in zip(present, lines.chunks, strict=True)]
    if len(types) > 1 and any(map(_has_long, arrays)):
        return None
    return structure, pa.chunked_array([array.cast(type) for array in arrays], type)


def _array(part: tuple[str | None, bytes | None, bytes | None, bytes | None], count: int) -> pa.Array:
    type, *buffers = part
    if type is None:
        return pa.nulls(count)
    offsets, data, valid = (None if buffer is None else pa.py_buffer(buffer) for buffer in buffers)
    own = [valid, data] if offsets is None else [valid, offsets, data]
    return pa.Array.from_buffers(_TYPES[type], count, own)


def _has_long(values: pa.Array) -> bool:
    """Whether they are integers, and one of them is too long to be in a column of floats."""
    if not pa.types.is_integer(values.type):
        return False
    found = pc.min_max(values).as_py()
    return bool(max(-found["min"], found["max"]) > _FLOAT_INTEGER_MAX)
