"""Writes a store's state into files, from the table that `opslog.spark.replay` made. `opslog.bulk.replay` writes the
same files from memory.

Each task writes its share, so all machines of Spark must see the directory under the same name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyarrow import parquet
from pyspark import TaskContext
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from opslog.backends import open_backend
from opslog.bulk.replay import Format, create_store, new_directory, new_run
from opslog.environment import Environment
from opslog.errors import AlreadyExistsError, UsageError
from opslog.format.commits import Set, encode_commit
from opslog.format.layout import TRANSACTIONS, index_path, part_path
from opslog.format.manifest import Part, Settings
from opslog.format.snapshot import Row, build_parts
from opslog.spark.errors import brief

# The row that a task returns for each file that it has written.
_WRITTEN = pa.schema(
    [
        ("records", pa.int64()),
        ("guarded", pa.int64()),
        ("clock", pa.int64()),
        ("ts", pa.string()),
        ("part", pa.binary()),
    ]
)
_WRITTEN_DDL = "records long, guarded long, clock long, ts string, part binary"

# The number of names for the parts of a run.
_PARTS_MAX = 100_000

# The bytes of a store that one task sorts and writes.
_RANGE_BYTES = 32 * 1024 * 1024


def write_state(
    state: DataFrame,
    directory: Path,
    form: Format,
    environment: Environment,
    *,
    settings: Settings,
    clock: int,
    bytes: int,
    variant: bool = False,
) -> int:
    """Write all documents into a directory that is empty or does not exist, as `opslog.bulk.replay.write_state` does,
    but into several files. Except in a store, they are in no particular order.

    :param settings, clock: of the store that is written.
    :param bytes: about how many there are.
    :param variant: in Parquet, write `data` as VARIANT. It can be queried, but is not exactly the stored text.
    :returns: the number of documents.
    :raises UsageError: the directory is not empty.
    """
    with new_directory(directory, environment.nonce()) as place:
        if form == "parquet":
            return _write_parquet(state, place, variant)
        if form == "jsonl":
            done = state.mapInArrow(partial(_write_lines, directory=str(place)), _WRITTEN_DDL).collect()
            for path in place.glob("*.jsonl.*"):
                path.unlink()  # left by an attempt that failed
            return sum(row.records for row in done)
        ranges = max(1, bytes // _RANGE_BYTES)
        run = new_run(environment)
        write = partial(_write_parts, directory=str(place), run=run.name, numbers=_PARTS_MAX // ranges)
        ordered = state.repartitionByRange(ranges, "id").sortWithinPartitions("id")
        done = ordered.mapInArrow(write, _WRITTEN_DDL).collect()
        found = sorted((msgspec.json.decode(row.part, type=Part) for row in done), key=lambda part: part.path)
        run.parts.extend(_renumbered(place, run.name, part, number) for number, part in enumerate(found))
        clock = max([clock, *(row.clock for row in done)])
        ts = max((row.ts for row in done), default="")
        with closing(open_backend(place)) as target:
            guarded = sum(row.guarded for row in done)
            create_store(target, run, environment, settings=settings, clock=clock, ts=ts, guarded=guarded)
        return run.records


def _renumbered(directory: Path, run: str, part: Part, number: int) -> Part:
    """Rename a part to its number among all parts, because the tasks left gaps between their numbers."""
    path = part_path(run, number)
    for old, new in ((part.path, path), (index_path(part.path), index_path(path))):
        (directory / old).rename(directory / new)
    return msgspec.structs.replace(part, path=path)


def _write_parquet(state: DataFrame, directory: Path, variant: bool) -> int:
    if variant:
        state = state.withColumn("data", F.parse_json("data"))
    state.write.mode("append").option("compression", "zstd").parquet(directory.as_uri())
    for path in directory.glob(".*.crc"):
        path.unlink()  # only Hadoop uses it, and only while nobody else touches the files
    return sum(parquet.read_metadata(path).num_rows for path in directory.glob("*.parquet"))


def _records(batches: Iterator[pa.RecordBatch]) -> Iterator[Set]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("ts", "clock", "agent", "id", "data", "v", "by", "tx"))
        for ts, clock, agent, id, data, v, by, tx in zip(*columns, strict=True):
            yield Set(ts, clock, agent, id, msgspec.Raw(data.encode()), v, by=by or "", tx=tx or "")


@brief
def _write_lines(batches: Iterator[pa.RecordBatch], directory: str) -> Iterator[pa.RecordBatch]:
    """One file with the rows of this task, if it has any."""
    context, records = _context(), _records(batches)
    first = next(records, None)
    if first is None:
        return
    path = os.path.join(directory, f"part-{context.partitionId():05}.jsonl")
    # If two attempts run at once, each writes a file of its own, and that of the last one stays.
    temporary = f"{path}.{context.taskAttemptId()}"
    count = 0
    with open(temporary, "xb") as out:
        for record in chain([first], records):
            out.write(encode_commit(record))
            count += 1
        out.flush()
        os.fsync(out.fileno())
    os.replace(temporary, path)
    yield _written(count)


@brief
def _write_parts(batches: Iterator[pa.RecordBatch], directory: str, run: str, numbers: int) -> Iterator[pa.RecordBatch]:
    """Write the parts of a run that have the rows of this task, which come in order of id.

    :param numbers: the number of names for parts that each task has.
    """
    first, clock, ts, guarded = _context().partitionId() * numbers, 0, "", 0

    def rows() -> Iterator[Row]:
        nonlocal clock, ts, guarded
        for record in _records(batches):
            clock, ts = max(clock, record.clock), max(ts, record.ts)
            guarded += record.agent == TRANSACTIONS
            yield Row.of(record, encode_commit(record))

    with closing(open_backend(directory)) as target:
        for number, file in enumerate(build_parts(run, rows())):
            if number == numbers:
                raise UsageError(f"a range of ids has more than {numbers} parts: replay with fewer partitions")
            part = msgspec.structs.replace(file.part, path=part_path(run, first + number))
            for path, data in ((part.path, file.data), (index_path(part.path), file.index)):
                try:
                    target.create(path, data)
                except AlreadyExistsError:  # another attempt, with the same rows, has created it
                    if target.read(path) != data:
                        raise
            yield _written(part.records, guarded, clock, ts, msgspec.json.encode(part))
            guarded = 0  # each is counted once


def _written(records: int, guarded: int = 0, clock: int = 0, ts: str = "", part: bytes | None = None) -> pa.RecordBatch:
    row: dict[str, Any] = {"records": records, "guarded": guarded, "clock": clock, "ts": ts, "part": part}
    return pa.RecordBatch.from_pylist([row], schema=_WRITTEN)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "this runs in a task"
    return context
