"""The work of a compaction's tasks: merging logs and runs, measuring lines, writing parts. Each function takes and
returns Arrow batches, and gets all else as plain values.

A task that is tried again, or runs twice, writes the same bytes under the same names, because the rows of each part
were decided before the first attempt began. The second attempt finds the file, and compares its bytes.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, closing
from itertools import chain, groupby, islice
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa

from opslog.backends import Backend
from opslog.chunks import packed
from opslog.compaction.compact import first_found
from opslog.errors import AlreadyExistsError
from opslog.format.commits import Delete, Record
from opslog.format.layout import TRANSACTIONS, index_path, part_path
from opslog.format.manifest import Part, Run
from opslog.format.snapshot import Ages, Row, build_archive, decode_rows
from opslog.merge.stamps import is_greater
from opslog.snapshot.runs import BlockRun, read_part
from opslog.spark.errors import brief
from opslog.spark.read.planning import LogSplit
from opslog.spark.read.splits import LogReader, winners
from opslog.spark.stores import open_store

Batches = Iterator[pa.RecordBatch]

_ROWS = 5000
# A batch of rows has at most this many rows, and about this many bytes of lines.
_BYTES = 8 * 1024 * 1024

# A row is a record of a log. A row without an id has the number of commits read of an agent's log, their greatest ts,
# and, for the shared log, the clock of each author's newest transaction, as JSON.
MERGED = "id string, clock long, agent string, deleted string, line binary, commits long, ts string, authors binary"

# Rows of a snapshot in order of id, within ranges of ids: the range's number, a `Row`, and by how much the row changes
# the number of documents.
ROWS = "range int, id string, deleted string, line binary, shared boolean, documents int"

# Rows of runs. Of all rows with the same id, the one with the least age counts.
STORED = "id string, deleted string, line binary, shared boolean, age int"

# The lengths of the lines of a range, as 32-bit numbers, from the given row on.
LENGTHS = "range int, row int, lengths binary"

# A written part, as JSON; or a row for the part of this number, whose rows lie in several ranges.
WRITTEN = "number int, id string, deleted string, line binary, shared boolean, part binary"


class StoreAddress(msgspec.Struct, frozen=True):
    """A store, as each task opens it: ``with address.open() as backend``."""

    url: str
    options: dict[str, Any]

    def open(self) -> AbstractContextManager[Backend]:
        return closing(open_store(self.url, self.options))


class PartSlice(NamedTuple):
    """Consecutive rows of a range that go into one part.

    :ivar whole: whether they are the whole part.
    """

    number: int
    rows: int
    whole: bool


@brief
def merge_logs(batches: Batches, address: StoreAddress, window: int, tasks: list[tuple[LogSplit, ...]]) -> Batches:
    """The winners of some splits of logs, and how much was read of each log. The input has the numbers of the tasks.

    :returns: as `MERGED`.
    """
    schema = _schema(MERGED)
    with address.open() as backend:
        for task in _numbers(batches):
            reader, commits = LogReader(backend, tasks[task], window), 0
            for split in tasks[task]:
                new = ((record, Row.new(record)) for record in winners(reader, [split]))
                rows = ((r.id, r.clock, r.agent, row.deleted, row.line, None, None, None) for r, row in new)
                yield from _batched(rows, schema, 4)
                authors = msgspec.json.encode(reader.authors)
                counted = (None, None, split.agent, None, None, reader.commits - commits, reader.ts, authors)
                yield from _batched([counted], schema, None)
                commits = reader.commits


@brief
def win(batches: Batches, address: StoreAddress, runs: list[Run]) -> Batches:
    """The first record of each id, if it wins against the snapshot. The input is sorted by id; for each id the greatest
    stamp comes first.

    :param batches: as `MERGED`.
    :returns: as `ROWS`.
    """
    range_number = _range_number()
    with address.open() as backend:
        lookups = [BlockRun(backend, run).get for run in runs]

        def winners() -> Iterator[tuple[Any, ...]]:
            previous = None
            for id, clock, agent, deleted, line in _rows(batches, "id", "clock", "agent", "deleted", "line"):
                if id == previous:
                    continue
                previous = id
                stored = first_found(lookups, id)
                if stored is None or is_greater((clock, agent), stored.stamp):
                    yield range_number, id, deleted, line, agent == TRANSACTIONS, (deleted is None) - _is_live(stored)

        yield from _batched(winners(), _schema(ROWS), 3)


@brief
def read_parts(batches: Batches, address: StoreAddress, parts: list[tuple[int, Part]]) -> Batches:
    """The rows of stored parts, each given with the age of its run.

    :returns: as `STORED`.
    """
    schema = _schema(STORED)
    with address.open() as backend:
        for number in _numbers(batches):
            age, part = parts[number]
            for data, offset in read_part(backend, part):
                found = decode_rows(data, part.path, offset)
                rows = ((row.id, row.deleted, row.line, row.shared, age) for row in found)
                yield from _batched(rows, schema, 2)


@brief
def newest(batches: Batches, ages: Ages, uncompacted: frozenset[str]) -> Batches:
    """The first row of each id, without tombstones that are to be left out. The input is sorted by id and age.

    :param batches: as `STORED`.
    :param ages, uncompacted: as of `Ages.of`.
    :returns: as `ROWS`.
    """
    range_number = _range_number()

    def firsts() -> Iterator[Row]:
        previous = None
        for id, deleted, line, shared in _rows(batches, "id", "deleted", "line", "shared"):
            if id != previous:
                yield Row(id, line, deleted, shared)
            previous = id

    rows = ((range_number, row.id, row.deleted, row.line, row.shared, 0) for row in ages.of(firsts(), uncompacted))
    return _batched(rows, _schema(ROWS), 3)


@brief
def measure(batches: Batches) -> Batches:
    """The lengths of the lines of one range.

    :param batches: as `ROWS`.
    :returns: as `LENGTHS`.
    """
    row = 0
    for batch in batches:
        lengths = array("I", map(len, batch.column("line").to_pylist()))
        if lengths:
            rows = [(batch.column("range")[0].as_py(), row, lengths.tobytes())]
            yield from _batched(rows, _schema(LENGTHS), None)
            row += len(lengths)


@brief
def write_parts(batches: Batches, address: StoreAddress, run: str, slices: dict[int, list[PartSlice]]) -> Batches:
    """Write the parts that lie within one range, and return the rows of all other parts.

    :param batches: as `ROWS`.
    :param slices: for each range, the division of its rows into parts.
    :returns: as `WRITTEN`.
    """

    def written() -> Iterator[tuple[Any, ...]]:
        rows = _rows(batches, "range", "id", "deleted", "line", "shared")
        first = next(rows, None)
        if first is None:
            return
        rows = chain([first], rows)
        for slice_ in slices[first[0]]:
            own = (Row(id, line, deleted, shared) for _, id, deleted, line, shared in islice(rows, slice_.rows))
            if slice_.whole:
                yield _written(write_part(backend, run, slice_.number, own))
            else:
                yield from ((slice_.number, row.id, row.deleted, row.line, row.shared, None) for row in own)

    with address.open() as backend:
        yield from _batched(written(), _schema(WRITTEN), 3)


@brief
def write_rest(batches: Batches, address: StoreAddress, run: str) -> Batches:
    """Write the parts whose rows `write_parts` returned, sorted by part and id.

    :param batches: as `WRITTEN`, as is the result.
    """

    def written() -> Iterator[tuple[Any, ...]]:
        rows = _rows(batches, "number", "id", "deleted", "line", "shared", "part")
        for number, group in groupby(rows, itemgetter(0)):
            first = next(group)
            if first[5] is not None:
                yield first
            else:
                own = (Row(id, line, deleted, shared) for _, id, deleted, line, shared, _ in chain([first], group))
                yield _written(write_part(backend, run, number, own))

    with address.open() as backend:
        yield from _batched(written(), _schema(WRITTEN), 3)


def write_part(backend: Backend, run: str, number: int, rows: Iterable[Row]) -> tuple[int, Part]:
    """Create one part and its index, or confirm that another attempt has created them.

    :raises AlreadyExistsError: there is a file of that name with other content.
    """
    file = build_archive(part_path(run, number), rows)
    _create(backend, file.part.path, file.data)
    _create(backend, index_path(file.part.path), file.index)
    return number, file.part


def _create(backend: Backend, path: str, data: bytes) -> None:
    try:
        backend.create(path, data)
    except AlreadyExistsError:
        if backend.read(path) != data:
            raise


def _written(written: tuple[int, Part]) -> tuple[Any, ...]:
    number, part = written
    return number, None, None, None, None, msgspec.json.encode(part)


def _is_live(record: Record | None) -> bool:
    return record is not None and not isinstance(record, Delete)


def _range_number() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None
    return context.partitionId()


def _schema(ddl: str) -> pa.Schema:
    types = {"string": pa.string(), "long": pa.int64(), "int": pa.int32(), "binary": pa.binary(), "boolean": pa.bool_()}
    return pa.schema([(name, types[kind]) for name, kind in (column.split() for column in ddl.split(", "))])


def _numbers(batches: Batches) -> Iterator[int]:
    for batch in batches:
        yield from batch.column(0).to_pylist()


def _rows(batches: Batches, *columns: str) -> Iterator[tuple[Any, ...]]:
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def _batched(rows: Iterable[tuple[Any, ...]], schema: pa.Schema, line: int | None) -> Batches:
    """Rows as batches.

    :param line: the index of the column with long values.
    """
    for some in packed(rows, lambda row: 0 if line is None else len(row[line] or b""), _BYTES, _ROWS):
        yield _batch(some, schema)


def _batch(rows: tuple[tuple[Any, ...], ...], schema: pa.Schema) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    return pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
