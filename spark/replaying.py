"""The whole state of a store, however long its logs: one pass over them, one shuffle."""

from __future__ import annotations

import os
from contextlib import closing
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opslog.history import Point
from opslog.spark.planning import survey
from opslog.spark.source import DefaultSource, open_store, url_of
from opslog.spark.views import TAIL_BYTES

_SHUFFLE_BYTES = 32 * 1024 * 1024
"""How much of the shuffle one task sorts."""

_COMPRESSED = 4
"""How many bytes of a store are one byte of the shuffle, about."""


def replay(
    spark: SparkSession,
    url: str | os.PathLike[str],
    *,
    as_of: Point | None = None,
    partitions: int | None = None,
    **storage_options: Any,
) -> DataFrame:
    """The documents of a store: ``id, data, clock, agent, ts, v``, the same rows as ``Store.records``, in no order."""
    options = {"path": os.fspath(url), **{name: str(value) for name, value in storage_options.items()}}
    with closing(open_store(url_of(options), storage_options)) as backend:
        found = survey(backend, as_of)
    spark.dataSource.register(DefaultSource)
    read = spark.read.format("opslog").options(**options)
    if as_of is not None:
        read = read.option("asOf", str(as_of))
    if found.log_bytes <= TAIL_BYTES and partitions is None:
        return read.load()
    size = (found.log_bytes + found.snapshot_bytes) // _COMPRESSED
    count = partitions or max(2 * spark.sparkContext.defaultParallelism, size // _SHUFFLE_BYTES)
    best = F.max_by(F.struct("data", "clock", "agent", "ts", "v"), F.struct("clock", "agent"))
    return (
        read.option("view", "candidates")
        .load()
        .repartition(count, "id")
        .groupBy(F.xxhash64("id"), "id")
        .agg(best.alias("best"))
        .where("best.data IS NOT NULL")
        .select("id", "best.*")
    )
