"""Records as columns of Arrow. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

import msgspec
import pyarrow as pa

from opslog.chunks import packed
from opslog.format.commits import Set

# How much text a chunk of a column has; Arrow's strings have less than 2 GiB.
_CHUNK_BYTES = 64 * 1024 * 1024

# The columns that are no fields of documents, each with what it says of a record.
RECORD_COLUMNS: dict[str, tuple[pa.DataType, Callable[[Set], object]]] = {
    "id": (pa.string(), lambda record: record.id),
    # What is not committed yet has none of these.
    "clock": (pa.int64(), lambda record: record.clock or None),
    "agent": (pa.string(), lambda record: record.agent or None),
    "author": (pa.string(), lambda record: record.author or None),
    "ts": (pa.timestamp("us", "UTC"), lambda record: record.ts or None),
}
# The document as JSON text.
DATA = "data"


def record_column(name: str, records: Iterable[Set]) -> pa.ChunkedArray:
    """One of `RECORD_COLUMNS`."""
    kind, value = RECORD_COLUMNS[name]
    values = list(map(value, records))
    return pa.chunked_array([times(values) if pa.types.is_timestamp(kind) else pa.array(values, kind)])


def times(values: Sequence[object]) -> pa.Array:
    """Times from their text in a log, in UTC."""
    return pa.array(values, pa.string()).cast(pa.timestamp("us", "UTC"))


def data_column(data: Iterable[bytes | msgspec.Raw]) -> pa.ChunkedArray:
    """JSON texts as a column of strings, in chunks."""
    return pa.chunked_array([texts(some) for some in packed(data, len, _CHUNK_BYTES)], pa.string())


def texts(values: Sequence[bytes | msgspec.Raw | None]) -> pa.Array:
    """JSON texts, which are UTF-8 already, as a column of strings."""
    present = [value for value in values if value is not None]
    lengths = (0 if value is None else len(value) for value in values)
    offsets = pa.py_buffer(array("i", accumulate(lengths, initial=0)))
    valid = None
    if len(present) < len(values):
        valid = pa.array([value is not None for value in values], pa.bool_()).buffers()[1]
    return pa.StringArray.from_buffers(len(values), offsets, pa.py_buffer(b"".join(present)), valid)


def appended(column: pa.ChunkedArray, more: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with more values at its end. Small chunks are joined, so that their number stays small however often
    this is done: each has more values than all behind it.

    :raises pyarrow.ArrowInvalid: the values do not fit the type of the column.
    """
    chunks = [chunk for chunk in (*column.chunks, *more.cast(column.type).chunks) if len(chunk)]
    while len(chunks) > 1 and len(chunks[-2]) <= len(chunks[-1]) and _bytes(chunks[-2:]) <= _CHUNK_BYTES:
        chunks[-2:] = [pa.concat_arrays(chunks[-2:])]
    return pa.chunked_array(chunks, column.type)


def _bytes(chunks: Sequence[pa.Array]) -> int:
    return sum(chunk.nbytes for chunk in chunks)
