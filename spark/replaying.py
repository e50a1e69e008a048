"""The whole state of a store, however long its logs are: one pass over them and one shuffle."""

from __future__ import annotations

import os
from contextlib import closing
from datetime import datetime
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opslog.environment import format_ts
from opslog.history import Point
from opslog.spark.planning import Survey, survey
from opslog.spark.source import DefaultSource, open_store, url_of
from opslog.spark.views import TAIL_BYTES

_SHUFFLE_BYTES = 32 * 1024 * 1024
"""How much of the shuffle one task sorts."""

_COMPRESSED = 4
"""So many bytes of a store are about one byte in the shuffle."""


def replay(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    as_of: Point | None = None,
    partitions: int | None = None,
    **storage_options: Any,
) -> DataFrame:
    """The documents of a store, with columns ``id, data, clock, agent, ts, v``: the rows of `Store.records`, in no
    particular order.

    Every task reads a share of the logs and of the snapshot and passes on the best record that it saw of each document;
    one shuffle by id finds the best of all. What a task holds does not depend on the length of the logs, and Spark
    spills what a shuffle does not keep in memory. Where the logs behind the snapshot are short there is no shuffle:
    their winners go to the tasks that read the snapshot.

    Like a table, the DataFrame reads the store anew in each action; `as_of`, or ``.cache()``, makes all of them see
    the same.

    :param url: any URL that `opslog.open` takes, but for ``memory://``; workers must reach it, too.
    :param as_of: the state at a clock, or at a time with a zone.
    :param partitions: how many tasks the shuffle has, and that there is one. None: as the size of the store asks for,
        at least two for each core.
    :param storage_options: what the backend takes.
    :raises NotFoundError: there is no store. :raises HistoryGoneError: the state at `as_of` was compacted away.
    """
    path = url_of({"path": os.fspath(url)})
    with closing(open_store(path, storage_options)) as backend:
        found = survey(backend, as_of)
    spark.dataSource.register(DefaultSource)
    read = spark.read.format("opslog").options(path=path, **_texts(storage_options))
    if as_of is not None:
        read = read.option("asOf", _text(as_of))
    if partitions is None and found.log_bytes <= TAIL_BYTES:
        return read.load()
    candidates = read.option("view", "candidates").load()
    # The hash first: comparing it is cheaper than comparing ids that begin alike. Agents are compared by their UTF-8
    # bytes, which is by code point, as the library does.
    best = F.max_by(F.struct("data", "clock", "agent", "ts", "v"), F.struct("clock", "agent"))
    return (
        candidates.repartition(partitions or _partitions(spark, found), "id")
        .groupBy(F.xxhash64("id"), "id")
        .agg(best.alias("best"))
        .where("best.data IS NOT NULL")
        .select("id", "best.*")
    )


def _partitions(spark: SparkSession, found: Survey) -> int:
    shuffled = (found.log_bytes + found.snapshot_bytes) // _COMPRESSED
    return max(2 * _cores(spark), shuffled // _SHUFFLE_BYTES)


def _cores(spark: SparkSession) -> int:
    """How many tasks run at once; a guess, where Spark is elsewhere and does not say."""
    if hasattr(spark, "_jsparkSession"):
        return spark.sparkContext.defaultParallelism
    return int(spark.conf.get("spark.default.parallelism", None) or os.cpu_count() or 1)


def _texts(options: dict[str, Any]) -> dict[str, str]:
    """Options as text, as the data source reads them."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in options.items()
    }


def _text(point: Point) -> str:
    return format_ts(point.timestamp()) if isinstance(point, datetime) else str(point)
