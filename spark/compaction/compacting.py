"""Compaction at scale: executors merge the logs and write the parts, the driver publishes the manifest.

The driver reads the ends of the logs, which determine the new cut, and makes the decisions. It holds no documents. The
rest is five steps of Spark:

1. Merge logs: each task reads some slices of logs, and returns the best record of each document
   (`opslog.spark.read.splits`).
2. Win: the records are grouped by ranges of ids. The record with the greatest stamp of each id wins, unless the
   snapshot has a greater one.
3. Merge runs: if older runs are merged into the new one, their rows and the new rows are grouped by ranges of ids, too.
4. Measure: the end of a part follows from the lengths of all lines before it. So the driver reads these lengths, four
   bytes for each record, range by range, and determines the rows of each part.
5. Write: each task writes the parts that lie within its range of ids. The rows of all other parts are grouped by part
   once more.

The code of `opslog.compaction.compact` chooses the runs to merge, takes the lock, publishes the manifest, cleans up,
and collects garbage. The result is the same, too: it has the same bytes as that of a compaction by the library at the
same cut.
"""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import msgspec
from pyspark import StorageLevel
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, lit

from opslog.chunks import packed
from opslog.compaction.compact import (
    LOCK,
    Compaction,
    CompactionInput,
    KeepHistory,
    passed_by_undo,
    publish,
    tail_ends,
)
from opslog.environment import REAL, Environment
from opslog.errors import MissingFileError
from opslog.format.manifest import Cut, Manifest, Part, Run
from opslog.format.snapshot import Ages, PartEnds
from opslog.log.reader import Cursor
from opslog.log.survey import unread_authors
from opslog.merge import stamps
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.compaction import executing
from opslog.spark.compaction.executing import Batches, PartSlice, StoreAddress
from opslog.spark.errors import unwrap
from opslog.spark.read.planning import SPLIT_BYTES, split_before
from opslog.spark.stores import url_of
from opslog.spark.write.ends import Ends, read_ends

# The bytes of rows that one task sorts and writes.
RANGE_BYTES = 32 * 1024 * 1024


def compact(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    full: bool = False,
    keep_history: KeepHistory | None = None,
    environment: Environment = REAL,
    **storage_options: Any,
) -> Compaction:
    """Compact the settled commits into the snapshot and collect garbage, as `opslog.Store.compact` does, with the
    machines of a Spark cluster. Safe beside writers and beside other compactions.

    Costs one read of the logs after the cut and of the runs that are merged; these rows go through two shuffles. The
    driver holds the undo windows of all logs, but no documents.

    :param url: the URL of the store; every executor must be able to open it.
    :param full: merge the whole snapshot into one run, and remove expired tombstones.
    :param keep_history: how long to keep superseded files from now on: seconds, a timedelta or "forever".
    :param storage_options: the options of the backend.
    :raises LockedError: another compaction is running.
    :raises NotFoundError: there is no store.
    :raises OpslogError: a task raised it, such as a CorruptError; the store is unchanged.
    :raises PySparkException: a task failed as often as Spark tries it; the store is unchanged.
    """
    address = StoreAddress(url_of({"path": os.fspath(url)}), storage_options)
    with address.open() as backend, backend.lock(LOCK), _Frames() as frames:
        tails = read_ends(backend, environment)
        sealed = tails.seal_idle(backend)
        if sealed:
            tails = read_ends(backend, environment)
        read = _Merging(spark, address, tails, sealed, frames).read
        try:
            return publish(backend, environment, tails.manifest, read, full=full, keep_history=keep_history)
        except PySparkException as error:
            raise unwrap(error) from None


class _Frames:
    """The DataFrames that Spark keeps on the executors' disks until the end, since each is used more than once."""

    def __init__(self) -> None:
        self._kept: list[DataFrame] = []

    def keep(self, frame: DataFrame) -> DataFrame:
        self._kept.append(frame.persist(StorageLevel.DISK_ONLY))
        return self._kept[-1]

    def __enter__(self) -> _Frames:
        return self

    def __exit__(self, *_: object) -> None:
        for frame in self._kept:
            frame.unpersist()


class _Merging:
    """Steps 1 and 2."""

    def __init__(
        self, spark: SparkSession, address: StoreAddress, tails: Ends, sealed: tuple[str, ...], frames: _Frames
    ) -> None:
        self.spark = spark
        self.address = address
        self.tails = tails
        self.sealed = sealed
        self.frames = frames

    def read(self) -> CompactionInput:
        found, recent = self.tails.found, self.tails.recent
        splits = [split for log in found.logs for split in split_before(log, recent[log.agent].position)]
        with _others_first(self.address, found.manifest):
            rows, read = self._merge(list(packed(splits, lambda split: split.cost, SPLIT_BYTES)))
        counts: dict[str, int] = {}
        ts = max([found.manifest.ts, *(each.ts for each in recent.values())])
        authors = dict(found.manifest.settled_by)
        for agent, commits, newest_ts, newest_by in read:
            counts[agent] = counts.get(agent, 0) + commits
            ts = max(ts, newest_ts)
            for author, clock in newest_by.items():
                authors[author] = max(clock, authors.get(author, 0))
        oldest: dict[str, int] = {}
        for each in recent.values():
            for author, clock in each.oldest.items():
                oldest[author] = min(clock, oldest.get(author, clock))
        cuts = {
            log.agent: recent[log.agent].cut(log.start.commits + counts.get(log.agent, 0) + recent[log.agent].commits)
            for log in found.logs
        }
        ends = tail_ends({log.agent: list(log.segments) for log in found.logs}, found.manifest.cut)
        cut = {agent: cut for agent, cut in cuts.items() if cut.commits}
        logs = {agent: recent[agent].log_end(cuts[agent]) for agent in cuts if recent[agent].commits}
        authors = passed_by_undo(authors, oldest, self._unread_authors(cuts))
        return CompactionInput(cut, logs, self.tails.clock, ts, rows, ends, self.sealed, authors)

    def _unread_authors(self, cuts: dict[str, Cut]) -> dict[str, int]:
        """As of `opslog.log.survey.unread_authors`, for the ends of the logs as they were read."""
        ends = {agent: Cursor.at(agent, self.tails.recent[agent].log_end(cut)) for agent, cut in cuts.items()}
        with self.address.open() as backend:
            return unread_authors(backend, ends)

    def _merge(self, tasks: list[Any]) -> tuple[_Rows, list[tuple[str, int, str, dict[str, int]]]]:
        """The new rows. And, for each task and log, the log's agent, the number of commits read, their greatest ts, and
        the authors."""
        manifest = self.tails.manifest
        work = partial(executing.merge_logs, address=self.address, window=manifest.settings.undo_window, tasks=tasks)
        merged = self.frames.keep(_each(self.spark, len(tasks), work, executing.MERGED))
        read = [
            (row.agent, row.commits, row.ts, msgspec.json.decode(row.authors, type=dict[str, int]))
            for row in merged.where("id is null").collect()
        ]
        slices = (slice_ for task in tasks for split in task for slice_ in split.slices)
        ranges = _ranges(sum(slice_.stop - slice_.start for slice_ in slices))
        rows = (
            merged.where("id is not null")
            .repartitionByRange(ranges, "id")
            .sortWithinPartitions("id", *(col(field).desc() for field in stamps.FIELDS))
            .mapInArrow(partial(executing.win, address=self.address, runs=manifest.runs), executing.ROWS)
        )
        uncompacted = frozenset[str]().union(*(recent.ids for recent in self.tails.recent.values()))
        kept = self.frames.keep(rows)
        return _Rows(self.spark, self.address, manifest, self.frames, rows=kept, uncompacted=uncompacted), read


class _Rows:
    """Steps 3 to 5: the new rows, stored by Spark. See `opslog.compaction.compact.NewRows`."""

    def __init__(
        self,
        spark: SparkSession,
        address: StoreAddress,
        manifest: Manifest,
        frames: _Frames,
        *,
        rows: DataFrame,
        uncompacted: frozenset[str],
    ) -> None:
        self.spark = spark
        self.address = address
        self.manifest = manifest
        self.frames = frames
        self.rows = rows
        self.uncompacted = uncompacted
        (totals,) = rows.selectExpr("count(*)", "sum(length(line))", "sum(documents)", "count(deleted)").collect()
        self.count, self.bytes, self.documents, self._tombstones = (int(total or 0) for total in totals)

    def write(self, run: str, merged: Sequence[Run], ages: Ages) -> Iterator[Part]:
        with _others_first(self.address, self.manifest):
            rows = self.frames.keep(self._merged(merged, ages))
            slices = _slices(self._lengths(rows))
            yield from self._written(rows, run, slices)

    def _merged(self, merged: Sequence[Run], ages: Ages) -> DataFrame:
        if not merged and not self._tombstones:
            return self.rows
        rows = self.rows.select("id", "deleted", "line", "shared", lit(0).alias("age"))
        if merged:
            parts = [(age, part) for age, run in enumerate(merged, start=1) for part in run.parts]
            stored = partial(executing.read_parts, address=self.address, parts=parts)
            rows = (
                rows.union(_each(self.spark, len(parts), stored, executing.STORED))
                .repartitionByRange(_ranges(self.bytes + sum(run.bytes for run in merged)), "id")
                .sortWithinPartitions("id", "age")
            )
        return rows.mapInArrow(partial(executing.newest, ages=ages, uncompacted=self.uncompacted), executing.ROWS)

    def _lengths(self, rows: DataFrame) -> Iterator[tuple[int, array[int]]]:
        """The lengths of the lines of each range, in order, some at a time."""
        lengths = self.frames.keep(rows.mapInArrow(executing.measure, executing.LENGTHS))
        lengths.count()  # computes all of them at once, on all executors; the loop fetches them one by one
        for row in lengths.toLocalIterator():
            yield row.range, array("I", bytes(row.lengths))

    def _written(self, rows: DataFrame, run: str, slices: dict[int, list[PartSlice]]) -> list[Part]:
        write = partial(executing.write_parts, address=self.address, run=run, slices=slices)
        written = rows.mapInArrow(write, executing.WRITTEN)
        divided = {each.number for some in slices.values() for each in some if not each.whole}
        if divided:
            rest = partial(executing.write_rest, address=self.address, run=run)
            written = (
                written.repartition(len(divided), "number")
                .sortWithinPartitions("number", "id")
                .mapInArrow(rest, executing.WRITTEN)
            )
        found = {row.number: bytes(row.part) for row in written.select("number", "part").collect()}
        return [msgspec.json.decode(found[number], type=Part) for number in sorted(found)]


def _slices(lengths: Iterator[tuple[int, array[int]]]) -> dict[int, list[PartSlice]]:
    """The division of the rows of each range into parts. A part may extend over several ranges."""
    ends, number = PartEnds(), 0
    slices: dict[int, list[PartSlice]] = {}
    # The number of slices of each part.
    ranges_of: dict[int, int] = {}

    def note(range_number: int, rows: int) -> None:
        slices.setdefault(range_number, []).append(PartSlice(number, rows, True))
        ranges_of[number] = ranges_of.get(number, 0) + 1

    current, rows = -1, 0
    for range_number, some in lengths:
        if range_number != current:
            if rows:
                note(current, rows)
            current, rows = range_number, 0
        for length in some:
            rows += 1
            if ends.add(length):
                note(current, rows)
                number, rows = number + 1, 0
    if rows:
        note(current, rows)
    return {
        range_number: [slice_._replace(whole=ranges_of[slice_.number] == 1) for slice_ in some]
        for range_number, some in slices.items()
    }


def _each(spark: SparkSession, tasks: int, work: Callable[[Batches], Batches], schema: str) -> DataFrame:
    """Run the work in tasks of Spark, one for each number from 0 to `tasks` - 1."""
    return spark.range(0, tasks, 1, max(1, tasks)).mapInArrow(work, schema)


def _ranges(size: int) -> int:
    return max(1, math.ceil(size / RANGE_BYTES))


@contextmanager
def _others_first(address: StoreAddress, manifest: Manifest) -> Iterator[None]:
    """Explain the failure of a job inside the block: if another compaction has published a manifest meanwhile, the job
    missed a file of the old one.

    :raises MissingFileError: the job failed, and there is a newer manifest.
    """
    try:
        yield
    except PySparkException as error:
        with address.open() as backend:
            number = ManifestStore(backend).newest_number()
        if number != manifest.number:
            raise MissingFileError(f"manifest {number} came first: {error}") from error
        raise
