"""Records as columns of Arrow."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from opslog.chunks import packed
from opslog.concurrency.parallel import in_parallel
from opslog.kernel import split

T = TypeVar("T")
R = TypeVar("R")

# The most text in a chunk of a column; Arrow's strings have less than 2 GiB.
_CHUNK_BYTES = 64 * 1024 * 1024
# Less text is worked on without a thread: most updates are small.
_ALONE_BYTES = 1024 * 1024
_NEWLINE = 10

# The document as JSON text.
DATA = "data"


def lines_column(texts: Iterable[bytes | memoryview]) -> tuple[pa.ChunkedArray, pa.ChunkedArray | None]:
    """Lines as a column of strings, each with its newline, and the ids of their records; None if the kernel does not
    read those. The lines are not copied, and several threads read them while the next ones come.

    :param texts: some whole lines each, of less than 2 GiB together.
    :raises pyarrow.ArrowInvalid: one is not UTF-8.
    """
    given: Iterator[bytes | memoryview] = filter(None, texts)
    found = in_threads(_lines, given, len)
    ids = [own for _, own in found if own is not None]
    lines = pa.chunked_array([own for own, _ in found], pa.string())
    return lines, pa.chunked_array(ids, pa.string()) if len(ids) == len(found) else None


def in_threads(work: Callable[[T], R], items: Iterable[T], size: Callable[[T], int]) -> list[R]:
    """The results of `work`, which runs mostly without the GIL, for each item. `size` is in bytes."""
    return in_parallel(work, items, lambda item: size(item) < _ALONE_BYTES)


def packed_lines(lines: Iterable[bytes]) -> pa.ChunkedArray:
    """The lines as a column, for lines that come one by one."""
    return lines_column(b"".join(some) for some in packed(lines, len, _CHUNK_BYTES))[0]


def _lines(text: bytes | memoryview) -> tuple[pa.Array, pa.Array | None]:
    found = None if split is None else split(text)
    ids = None
    if found is None:
        ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _NEWLINE)
        offsets = np.zeros(len(ends) + 1, np.int32)
        np.add(ends, 1, out=offsets[1:], casting="same_kind")
        lines = _strings(offsets, text)
    else:
        starts, id_starts, joined = found
        lines, ids = _strings(starts, text), _strings(id_starts, joined)
    lines.validate(full=True)
    return lines, ids


def _strings(offsets: Any, data: bytes | memoryview) -> pa.Array:
    """
    :param offsets: a buffer of integers of 32 bits, of one more than there are strings.
    """
    starts = pa.py_buffer(offsets)
    return pa.StringArray.from_buffers(starts.size // 4 - 1, starts, pa.py_buffer(data))


def text_of(lines: pa.Array) -> memoryview:
    """Lines as they were before `lines_column`. Nothing is copied."""
    _, offsets, data = lines.buffers()
    ends = np.frombuffer(offsets, np.int32)
    return memoryview(data)[ends[lines.offset] : ends[lines.offset + len(lines)]]


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


def without(column: pa.ChunkedArray, rows: Sequence[int]) -> pa.ChunkedArray:
    """A column without some rows. Chunks that have none of them are not copied.

    :param rows: their numbers, ascending.
    """
    gone = np.asarray(rows, np.int64)
    chunks, start = [], 0
    for chunk in column.chunks:
        first, last = np.searchsorted(gone, (start, start + len(chunk)))
        if first < last:
            mask = np.ones(len(chunk), np.bool_)
            mask[gone[first:last] - start] = False
            chunks.append(chunk.filter(pa.array(mask)))
        else:
            chunks.append(chunk)
        start += len(chunk)
    return pa.chunked_array(chunks, column.type)


def rows_of(column: pa.ChunkedArray, values: Iterable[str]) -> list[int]:
    """The numbers of the rows that have one of these values, ascending."""
    if not column.num_chunks:  # versions of pyarrow before 26 crash on such a column
        return []
    # `pa.array` of a list would import pandas, which takes longer than most queries.
    wanted = texts([value.encode() for value in values])
    found = pc.indices_nonzero(pc.is_in(column, value_set=wanted))
    return list(found.to_pylist())


def appended(column: pa.ChunkedArray, more: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column with more values at its end. Small chunks are joined, so that their number stays small however often
    this is done: each chunk has more values than all chunks behind it.

    :raises pyarrow.ArrowInvalid: the values do not fit the type of the column.
    """
    chunks = [chunk for chunk in (*column.chunks, *more.cast(column.type).chunks) if len(chunk)]
    while len(chunks) > 1 and len(chunks[-2]) <= len(chunks[-1]) and _bytes(chunks[-2:]) <= _CHUNK_BYTES:
        chunks[-2:] = [pa.concat_arrays(chunks[-2:])]
    return pa.chunked_array(chunks, column.type)


def _bytes(chunks: Sequence[pa.Array]) -> int:
    return sum(chunk.nbytes for chunk in chunks)
