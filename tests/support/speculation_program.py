"""A program that compacts a store, or appends to it, while Spark runs tasks twice at once. Both attempts do all their
work.

python speculation_program.py MASTER URL compact|append: the attempts meet in the folder URL-attempts, and report there
that they did.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StructType

import opslog.spark
from opslog.spark.compaction import compacting, executing
from opslog.spark.compaction.executing import Batches, StoreAddress
from opslog.spark.source import DefaultSource
from opslog.spark.write.writing import OpslogWriter, Staged


def meet(url: str, step: str) -> None:
    """Wait until another attempt of this task has come as far. In each step one task does that, the first to come."""
    context = TaskContext.get()
    assert context is not None
    folder, partition = Path(f"{url}-attempts"), str(context.partitionId())
    try:
        (folder / step).symlink_to(partition)
    except FileExistsError:
        if os.readlink(folder / step) != partition:
            return
    (folder / f"{step}-{context.attemptNumber()}").touch()
    waiting = threading.Event()
    while len(list(folder.glob(f"{step}-*"))) < 2:
        waiting.wait(0.01)


def written(step: str, batches: Batches, *, address: StoreAddress, **arguments: object) -> Batches:
    """A step of a compaction that writes parts. In the chosen task it ends after two attempts have written theirs."""
    # The installed module where the task runs, in which this program has replaced nothing.
    from opslog.spark.compaction import executing as installed

    done = list(getattr(installed, step)(batches, address=address, **arguments))
    if any(part is not None for batch in done for part in batch.column("part").to_pylist()):
        meet(address.url, step)
    yield from done


class Writer(OpslogWriter):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        meet(self._url, "append")
        return staged


class Source(DefaultSource):
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = super().writer(schema, overwrite)
        writer.__class__ = Writer
        return writer


def compact(spark: SparkSession, url: str) -> None:
    compacting.RANGE_BYTES = 12 * 1024 * 1024  # three parts
    for step in ("write_parts", "write_rest"):
        setattr(executing, step, partial(written, step))
    assert opslog.spark.compact(spark, url).number == 2


def append(spark: SparkSession, url: str) -> None:
    spark.dataSource.register(Source)
    rows = spark.range(0, 100, 1, 4).selectExpr("concat('new-', id) id", "id n")
    rows.write.format("opslog").option("agent", "etl").mode("append").save(url)


def main(master: str, url: str, job: str) -> None:
    config: dict[str, str | bool | int] = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
        "spark.speculation": True,
        "spark.speculation.interval": "50ms",
        "spark.speculation.quantile": "0.1",
        "spark.speculation.multiplier": "1.01",
        "spark.speculation.task.duration.threshold": "1s",  # for steps with a single task
    }
    spark = opslog.spark.session("speculation", master=master, config=config)
    {"compact": compact, "append": append}[job](spark, url)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
