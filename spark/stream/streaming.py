"""The writes of agents as a stream: `spark.readStream.format("opslog").option("view", "changes")`.

`opslog.spark.stream.offsets` determines the contents of a batch. This module passes them to Spark, whose tasks read the
rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from opslog.backends import Backend
from opslog.chunks import packed
from opslog.errors import MissingFileError, UsageError
from opslog.format.commits import Commit, Seal
from opslog.format.layout import segment_path
from opslog.log.reader import Cursor, LogSource, Segment, log_source
from opslog.snapshot.runs import newest_records
from opslog.spark.errors import brief
from opslog.spark.read.columns import OPS, Op, chunks, op_bytes, ops_columns, ops_of
from opslog.spark.read.planning import SPLIT_BYTES
from opslog.spark.read.ranges import RunRange
from opslog.spark.stores import open_store
from opslog.spark.stream.offsets import RESYNC, Follower, Offset, Resync, Slice, Stored, Work

try:
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, SupportsTriggerAvailableNow
except ImportError as error:
    raise UsageError("streaming from opslog needs Spark 4.2 or later: pip install -U pyspark") from error

# The columns of a stream. There is no column `cancelled`: when a commit is delivered, it is not known yet whether an
# undo will cancel it. The undo is a row of its own.
COLUMNS = pa.schema([*(field for field in OPS if field.name != "cancelled"), ("delivery", pa.string())])


class Task(InputPartition):
    """The input of one task: some slices of logs, or records of the snapshot, or the head of a resync."""

    def __init__(self, work: Resync | Stored | tuple[Slice, ...]) -> None:
        super().__init__(0)
        self.work = work


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows a store.

    :param storage: the options of its storage.
    :param options: the options of the stream, with names in lower case: ``startingat`` (``earliest``, ``latest``),
        ``ongap`` (``resync``, ``fail``), ``maxbytespertrigger``.
    :raises UsageError: an option has another value.
    """

    def __init__(self, url: str, storage: Mapping[str, Any], options: Mapping[str, str]) -> None:
        self._url = url
        self._storage = storage
        self._latest = _choice(options, "startingAt", "earliest", "latest") == "latest"
        self._resyncs = _choice(options, "onGap", "resync", "fail") == "resync"
        limit = options.get("maxbytespertrigger")
        if limit is not None and (not limit.isdecimal() or int(limit) < 1):
            raise UsageError(f"maxBytesPerTrigger is a number of bytes from 1 on, not {limit!r}")
        self._limit = None if limit is None else int(limit)
        self._ends: dict[str, tuple[int, int]] | None = None

    @brief
    def initialOffset(self) -> dict[str, Any]:
        if not self._latest:
            return Offset().plain()
        with closing(self._open()) as backend:
            return self._follower(backend).newest().plain()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable() if self._limit is None else ReadMaxBytes(self._limit)

    def prepareForTriggerAvailableNow(self) -> None:
        with closing(self._open()) as backend:
            self._ends = self._follower(backend).ends()

    @brief
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        most = limit.max_bytes if isinstance(limit, ReadMaxBytes) else None
        with closing(self._open()) as backend:
            return self._follower(backend).advance(Offset.parse(start), most, self._ends).plain()

    @brief
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        with closing(self._open()) as backend:
            work = self._follower(backend).between(Offset.parse(start), Offset.parse(end))
        return list(_tasks(work))

    @brief
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Task)
        with closing(self._open()) as backend:
            work = partition.work
            if isinstance(work, Resync):
                yield _head(work)
            elif isinstance(work, Stored):
                yield from _stored(backend, work)
            else:
                yield from _logged(backend, work)

    def _open(self) -> Backend:
        return open_store(self._url, self._storage)

    def _follower(self, backend: Backend) -> Follower:
        return Follower(backend, resyncs=self._resyncs)


def _choice(options: Mapping[str, str], name: str, *choices: str) -> str:
    """The value of an option; if it was not given, the first choice."""
    value = options.get(name.lower(), choices[0])
    if value not in choices:
        raise UsageError(f"{name} is {' or '.join(choices)}, not {value!r}")
    return value


def _tasks(work: Work) -> Iterator[Task]:
    if work.resync is not None:
        yield Task(work.resync)
    yield from map(Task, work.stored)
    yield from map(Task, packed(work.slices, lambda slice_: slice_.cost, SPLIT_BYTES))


def _head(resync: Resync) -> pa.RecordBatch:
    known = {"op": "resync", "clock": resync.clock, "ts": resync.ts, "delivery": RESYNC}
    return pa.RecordBatch.from_pylist([{name: known.get(name) for name in COLUMNS.names}], schema=COLUMNS)


def _stored(backend: Backend, stored: Stored) -> Iterator[pa.RecordBatch]:
    """The newest record of each document in a range of the snapshot, tombstones included."""
    runs = [RunRange(backend, run, stored.range) for run in stored.runs]
    ops = (Op(record, record, None, 0, 0, False) for record in newest_records(runs))
    for some in chunks(ops, op_bytes):
        columns = ops_columns(some)[:-1]
        for name in ("segment", "offset"):
            columns[COLUMNS.get_field_index(name)] = pa.nulls(len(some), pa.int64())
        yield _batch(columns, len(some), RESYNC)


def _logged(backend: Backend, slices: Iterable[Slice]) -> Iterator[pa.RecordBatch]:
    for (agent, delivery), some in groupby(slices, lambda slice_: (slice_.agent, slice_.delivery)):
        ops = (
            op
            for start, commit in _commits(backend, agent, list(some))
            if not isinstance(commit, Seal)
            for op in ops_of(commit, start, False)
        )
        for chunk in chunks(ops, op_bytes):
            yield _batch(ops_columns(chunk)[:-1], len(chunk), delivery)


def _batch(columns: list[pa.Array], rows: int, delivery: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([*columns, pa.array([delivery] * rows, pa.string())], schema=COLUMNS)


def _commits(backend: Backend, agent: str, slices: list[Slice]) -> Iterator[tuple[tuple[int, int], Commit]]:
    """The commits in neighbouring slices of a log, each with its position."""
    cursor = Cursor(agent, slices[0].number, slices[0].start)
    ends = {slice_.number: slice_.stop for slice_ in slices}
    segments = [Segment(number, stop, 0.0) for number, stop in ends.items()]
    source = _Bounded(
        log_source(backend, {agent: cursor}, {agent: segments}),
        {segment_path(agent, number): stop for number, stop in ends.items()},
    )
    for start, commit in cursor.read(source, segments):
        yield start.position, commit


class _Bounded:
    """Segments, up to the end of a batch or of its compacted part. The segments may have grown since then."""

    def __init__(self, source: LogSource, ends: Mapping[str, int]) -> None:
        self.segments_grow = source.segments_grow
        self._source = source
        self._ends = ends

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        end = self._ends[path] if stop is None else min(stop, self._ends[path])
        data = self._source.read(path, start, end) if end > start else b""
        if len(data) < end - start:
            raise MissingFileError(f"{path} ends at byte {start + len(data)}, and had {end} bytes before", path)
        return data
