"""Replays the whole state of a store, whatever the length of its logs: one pass over them, and one shuffle."""

from __future__ import annotations

import math
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opslog.environment import machine_memory
from opslog.history import Point
from opslog.merge import stamps
from opslog.spark.errors import brief
from opslog.spark.read.columns import ddl
from opslog.spark.read.planning import SPLIT_BYTES, JobSurvey, survey_state
from opslog.spark.read.tasks import read_task
from opslog.spark.read.views import TAIL_BYTES, CandidatesView, StateView, Task, View
from opslog.spark.stores import open_store, url_of

# The most bytes that one task reads. If the task fails, the work on them is lost. If no document was written twice, the
# task holds as much in memory.
_TASK_BYTES_MAX = 768 * 1024 * 1024

# The bytes of the shuffle that one task sorts.
_SHUFFLE_BYTES = 32 * 1024 * 1024

# This many bytes of a store make about one byte in the shuffle.
_COMPRESSED = 4


def replay(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    as_of: Point | None = None,
    partitions: int | None = None,
    **storage_options: Any,
) -> DataFrame:
    """The documents of a store, with columns ``id, data, clock, agent, ts, v, by, tx``: the rows of `Store.records`, in
    no particular order.

    Every task reads a share of the logs and of the snapshot, and passes on the best record that it read of each
    document. One shuffle by id finds the best of all. A task's memory does not depend on the length of the logs, and
    Spark spills to disk what a shuffle cannot keep in memory. If the logs after the snapshot are short, there is no
    shuffle: their winners are sent to the tasks that read the snapshot.

    In every action the DataFrame has the state at this call, whatever is written later. Its files may be collected once
    they have been superseded by compactions for longer than the store's grace period. An action then raises
    `RetryError`; call `replay` again.

    :param url: any URL that `opslog.open` takes, except ``memory://``; workers must reach it, too.
    :param as_of: the state at a clock, or at a time with a zone.
    :param partitions: the number of tasks of the shuffle; if given, there is always a shuffle. None: by the size of the
        store, at least two for each core.
    :param storage_options: the options of the backend.
    :raises NotFoundError: there is no store.
    :raises HistoryGoneError: the state at `as_of` was compacted away.
    """
    path = url_of({"path": os.fspath(url)})
    with closing(open_store(path, storage_options)) as backend:
        found = survey_state(backend, as_of)
        if partitions is None and found.log_bytes <= TAIL_BYTES:
            state = StateView(as_of)
            return _rows_of(spark, path, storage_options, state, state.tasks(backend, found))
        candidates = CandidatesView(as_of, _task_bytes(spark, found))
        tasks = candidates.tasks(found)
    # The hash comes first, because comparing hashes is cheaper than comparing ids with a common beginning. Agents are
    # compared by their UTF-8 bytes. That is the order of code points, as in the library.
    best = F.max_by(F.struct("data", "clock", "agent", "ts", "v", "by", "tx"), F.struct(*stamps.FIELDS))
    return (
        _rows_of(spark, path, storage_options, candidates, tasks)
        .repartition(partitions or _partitions(spark, found), "id")
        .groupBy(F.xxhash64("id"), "id")
        .agg(best.alias("best"))
        .where("best.data IS NOT NULL")
        .select("id", "best.*")
    )


def _rows_of(spark: SparkSession, url: str, options: dict[str, Any], view: View, tasks: list[Task]) -> DataFrame:
    """The rows of a view's tasks. The plan is made here, because Spark's data source would start three Python processes
    for it."""
    # Each task is serialised by itself, so that a worker need not decode all others. Lists of segments compress well.
    packed = [zlib.compress(pickle.dumps(task), 1) for task in tasks]
    work = partial(_read_tasks, url=url, options=options, view=view, tasks=packed)
    return spark.range(0, len(tasks), 1, max(1, len(tasks))).mapInArrow(work, ddl(view.schema))


@brief
def _read_tasks(
    batches: Iterator[pa.RecordBatch], url: str, options: dict[str, Any], view: View, tasks: list[bytes]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from read_task(url, options, view, pickle.loads(zlib.decompress(tasks[number])))


def _task_bytes(spark: SparkSession, found: JobSurvey) -> int:
    """The bytes that one task reads. On one machine each core gets an equal share, as far as the memory suffices for
    all. Elsewhere it is the default, since a worker's memory is not known."""
    if not _is_local(spark):
        return SPLIT_BYTES
    cores = _cores(spark)
    most = max(SPLIT_BYTES, min(_TASK_BYTES_MAX, machine_memory() // 8 // cores))
    total = found.log_cost + found.snapshot_bytes
    return max(SPLIT_BYTES, math.ceil(total / (cores * math.ceil(total / (cores * most)))))


def _partitions(spark: SparkSession, found: JobSurvey) -> int:
    shuffled = (found.log_bytes + found.snapshot_bytes) // _COMPRESSED
    return max(2 * _cores(spark), shuffled // _SHUFFLE_BYTES)


def _is_local(spark: SparkSession) -> bool:
    return hasattr(spark, "_jsparkSession") and (spark.sparkContext.master or "").startswith("local[")


def _cores(spark: SparkSession) -> int:
    """The number of tasks that run at once; a guess, if Spark runs elsewhere and does not report it."""
    if hasattr(spark, "_jsparkSession"):
        return spark.sparkContext.defaultParallelism
    return int(spark.conf.get("spark.default.parallelism", None) or os.cpu_count() or 1)
