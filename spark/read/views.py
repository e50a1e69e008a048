"""The views of a store. For each, the driver makes a plan, and each task reads its share. Does not use Spark.

| view | a row is | split by |
| --- | --- | --- |
| state | a document | range of ids |
| candidates | the best record of a document in one task, tombstones included | bytes of logs, parts of the snapshot |
| ops | an op of a commit | bytes of logs |
| archive | a document in an archive | range of ids |

`opslog.spark.replay` makes the state from the candidates, with one shuffle. The state view has no shuffle. The driver
merges a short tail once, and gives each task the winners of its range; every task reads all of a long tail.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import ClassVar, Protocol

import msgspec
import pyarrow as pa

from opslog.archive import archive_files, list_periods, newest_archived, read_archive_index
from opslog.backends import Backend
from opslog.chunks import packed
from opslog.format.commits import Record, Set, decode_records, encode_commit
from opslog.format.manifest import Run
from opslog.history import Point
from opslog.replica.live import live_records
from opslog.spark.read import columns
from opslog.spark.read.columns import Op, ops_of
from opslog.spark.read.planning import (
    SPLIT_BYTES,
    JobSurvey,
    LogSplit,
    share,
    split_logs,
    survey_retained,
    survey_state,
)
from opslog.spark.read.ranges import ALL, IdRange, RunRange, cut_ranges, log_weights, part_weights
from opslog.spark.read.splits import LogReader, Wanted, cancelled, winners

# The driver merges logs of up to this size itself. This takes a fraction of a second, and less data is sent.
TAIL_BYTES = 32 * 1024 * 1024

# A log of up to this many bytes is one split.
_WHOLE = 2**62


@dataclass(frozen=True)
class Asked:
    """The requested rows; a view may return more.

    :ivar ids: the range of their ids.
    :ivar one_of: the ids, if they are listed.
    :ivar agents: the agents, if they are listed.
    """

    ids: IdRange = ALL
    one_of: frozenset[str] | None = None
    agents: frozenset[str] | None = None

    def wants(self, id: str) -> bool:
        return id in self.ids and (self.one_of is None or id in self.one_of)

    @property
    def filter(self) -> Wanted | None:
        """`wants`; None: it is true for every id."""
        return None if self == EVERYTHING else self.wants


EVERYTHING = Asked()


class Task(msgspec.Struct, frozen=True):
    """One task's share.

    :ivar manifest: the number of the manifest that the plan rests on.
    :ivar window: the store's undo window.
    :ivar logs: the splits of logs to read.
    :ivar runs: the runs of the snapshot to read.
    :ivar range: the ids to read from the runs.
    :ivar winners: the winners in the tail, as lines, if the driver has merged it.
    :ivar period: the period of the archives to read.
    :ivar files: the paths of their files.
    """

    manifest: int
    window: int = 0
    logs: tuple[LogSplit, ...] = ()
    runs: tuple[Run, ...] = ()
    range: IdRange = ALL
    winners: bytes = b""
    period: str = ""
    files: tuple[str, ...] = ()


class View(Protocol):
    """One way to read a store. Picklable."""

    schema: ClassVar[pa.Schema]

    def plan(self, backend: Backend, asked: Asked) -> list[Task]:
        """All tasks.

        :raises NotFoundError: as of `survey_state`.
        :raises HistoryGoneError: likewise.
        :raises CorruptError: likewise.
        """

    def read(self, backend: Backend, task: Task, asked: Asked) -> Iterator[pa.RecordBatch]:
        """The rows of one task.

        :raises CorruptError: names the file and the offset.
        :raises MissingFileError: a file does not exist.
        """


@dataclass(frozen=True)
class StateView:
    """The documents as they are, or were at a point in the past."""

    as_of: Point | None = None
    split_bytes: int = SPLIT_BYTES
    schema: ClassVar[pa.Schema] = columns.STATE

    def plan(self, backend: Backend, asked: Asked) -> list[Task]:
        return self.tasks(backend, survey_state(backend, self.as_of), asked)

    def tasks(self, backend: Backend, found: JobSurvey, asked: Asked = EVERYTHING) -> list[Task]:
        """All tasks, given the survey."""
        logs = tuple(split_logs(found.logs, _WHOLE))
        weights, limit = part_weights(found.manifest.runs), self.split_bytes
        if short := found.log_bytes <= TAIL_BYTES:
            tail = sorted(self._winners(backend, found, logs, asked), key=attrgetter("id"))
        else:
            tail = []
            weights += log_weights(backend, found.logs)
            limit *= 4  # each of these tasks reads all logs
        ranges = [range.common(asked.ids) for range in cut_ranges(weights, limit)]
        return [
            msgspec.structs.replace(
                self._task(found, range), **({"winners": _lines(tail, range)} if short else {"logs": logs})
            )
            for range in ranges
            if range is not None
        ]

    def _winners(
        self, backend: Backend, found: JobSurvey, logs: tuple[LogSplit, ...], asked: Asked
    ) -> Iterator[Record]:
        reader = LogReader(backend, logs, found.manifest.settings.undo_window, self.as_of)
        return winners(reader, logs, asked.filter)

    def _task(self, found: JobSurvey, range: IdRange) -> Task:
        runs = [part for run in found.manifest.runs if (part := range.run(run)).parts]
        return Task(found.manifest.number, found.manifest.settings.undo_window, runs=tuple(runs), range=range)

    def read(self, backend: Backend, task: Task, asked: Asked) -> Iterator[pa.RecordBatch]:
        if task.logs:
            reader = LogReader(backend, task.logs, task.window, self.as_of)
            found = winners(reader, task.logs, task.range.__contains__)
        else:
            found = iter(decode_records(task.winners, "the plan", 0))
        tail = {record.id: record for record in found}
        stored = [RunRange(backend, run, task.range) for run in task.runs]
        records = (record for record in live_records(stored, tail) if asked.wants(record.id))
        for some in columns.chunks(records, columns.record_bytes):
            yield pa.RecordBatch.from_arrays(columns.state_columns(some), schema=self.schema)


def _lines(tail: list[Record], range: IdRange) -> bytes:
    """The records in a range, in order of id, as the tail is."""
    begin = bisect_left(tail, range.first, key=attrgetter("id"))
    end = len(tail) if range.until is None else bisect_left(tail, range.until, key=attrgetter("id"))
    return b"".join(map(encode_commit, tail[begin:end]))


@dataclass(frozen=True)
class CandidatesView:
    """Records among which the winners are: each task reports the record of each document that has the greatest stamp.
    The `data` of a tombstone is null.

    :ivar split_bytes: the bytes that one task reads. It reports one record of each document in its logs, so the more it
        reads, the less is shuffled. It holds these records, which takes up to three times as much memory.
    """

    as_of: Point | None = None
    split_bytes: int = SPLIT_BYTES
    schema: ClassVar[pa.Schema] = columns.STATE

    def plan(self, backend: Backend, asked: Asked) -> list[Task]:
        return self.tasks(survey_state(backend, self.as_of))

    def tasks(self, found: JobSurvey) -> list[Task]:
        """All tasks, given the survey."""
        number, window = found.manifest.number, found.manifest.settings.undo_window
        logs = [Task(number, window, logs=some) for some in share(found.logs, self.split_bytes)]
        parts = [(run.name, part) for run in found.manifest.runs for part in run.parts]
        runs = [
            Task(number, runs=tuple(Run(name, [part]) for name, part in some))
            for some in packed(parts, lambda item: item[1].bytes, self.split_bytes)
        ]
        return logs + runs

    def read(self, backend: Backend, task: Task, asked: Asked) -> Iterator[pa.RecordBatch]:
        for records in self._records(backend, task, asked):
            for some in columns.chunks(records, columns.record_bytes):
                yield pa.RecordBatch.from_arrays(columns.state_columns(some), schema=self.schema)

    def _records(self, backend: Backend, task: Task, asked: Asked) -> Iterator[Iterable[Record]]:
        if task.logs:
            reader = LogReader(backend, task.logs, task.window, self.as_of)
            yield winners(reader, task.logs, asked.filter)
        for run in task.runs:
            yield from RunRange(backend, run, asked.ids).chunks()


@dataclass(frozen=True)
class OpsView:
    """Every op of every commit that is retained, up to a point."""

    as_of: Point | None = None
    split_bytes: int = SPLIT_BYTES
    schema: ClassVar[pa.Schema] = columns.OPS

    def plan(self, backend: Backend, asked: Asked) -> list[Task]:
        found = survey_retained(backend, self.as_of)
        logs = [log for log in found.logs if asked.agents is None or log.agent in asked.agents]
        return [
            Task(found.manifest.number, found.manifest.settings.undo_window, logs=some)
            for some in packed(split_logs(logs, self.split_bytes), lambda split: split.cost, self.split_bytes)
        ]

    def read(self, backend: Backend, task: Task, asked: Asked) -> Iterator[pa.RecordBatch]:
        for some in columns.chunks(self._ops(backend, task, asked), columns.op_bytes):
            yield pa.RecordBatch.from_arrays(columns.ops_columns(some), schema=self.schema)

    def _ops(self, backend: Backend, task: Task, asked: Asked) -> Iterator[Op]:
        reader = LogReader(backend, task.logs, task.window, self.as_of)
        every = asked == EVERYTHING
        for split in task.logs:
            for block in reader.blocks(split):
                undone = cancelled(block, task.window)
                for chunk in block[1:]:
                    for commit, start in zip(chunk.commits, chunk.positions(), strict=True):
                        for op in ops_of(commit, start, commit.clock in undone):
                            if every or op.op is None or asked.wants(op.op.id):
                                yield op


@dataclass(frozen=True)
class ArchiveView:
    """The documents in the archives, or in that of one period."""

    period: str | None = None
    split_bytes: int = SPLIT_BYTES
    schema: ClassVar[pa.Schema] = columns.ARCHIVE

    def plan(self, backend: Backend, asked: Asked) -> list[Task]:
        periods = list_periods(backend) if self.period is None else [self.period]
        return [task for period in periods for task in self._plan(backend, period, asked)]

    def _plan(self, backend: Backend, period: str, asked: Asked) -> Iterator[Task]:
        files = archive_files(backend, period)
        weights = [(block.first, block.length) for path in files for block in read_archive_index(backend, path)]
        for range in cut_ranges(weights, self.split_bytes):
            if (both := range.common(asked.ids)) is not None:
                yield Task(0, range=both, period=period, files=tuple(files))

    def read(self, backend: Backend, task: Task, asked: Asked) -> Iterator[pa.RecordBatch]:
        files = [(path, task.range.blocks(read_archive_index(backend, path))) for path in task.files]
        records: list[Set] = [
            record
            for id, record in sorted(newest_archived(backend, files).items())
            if id in task.range and asked.wants(id)
        ]
        for some in columns.chunks(records, columns.record_bytes):
            periods = pa.array([task.period] * len(some), pa.string())
            yield pa.RecordBatch.from_arrays([periods, *columns.state_columns(some)], schema=self.schema)
