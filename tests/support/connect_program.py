"""A program that uses a store through Spark Connect, as a notebook does.

SPARK_REMOTE=… python connect_program.py URL: what it found is in the file URL-found, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import opslog.spark
from opslog.spark.source import DefaultSource
from tests.spark.conftest import SMALL


def work(url: str) -> dict[str, object]:
    spark = opslog.spark.session(config=SMALL)
    assert type(spark).__module__ == "pyspark.sql.connect.session"
    for name in ("SPARK_REMOTE", "SPARK_LOCAL_REMOTE"):
        del os.environ[name]  # as in a notebook that began with a session
    assert opslog.spark.session() is spark
    spark.dataSource.register(DefaultSource)
    found: dict[str, object] = {"before": documents(spark, url)}
    for view in ("ops", "archive"):
        spark.sql(f"CREATE TEMPORARY VIEW {view} USING opslog OPTIONS (path '{url}', view '{view}')")
        found[view] = spark.table(view).count()
    typed = spark.read.format("opslog").options(schema="n LONG", asOf="10").load(url)
    found["typed"] = sorted((row.id, row.data.n) for row in typed.collect())
    found["replayed"] = [sorted(map(list, replayed(spark, url, partitions))) for partitions in (None, 3)]
    found["compacted"] = opslog.spark.compact(spark, url).number
    rows = spark.range(0, 20, 1, 4).selectExpr("concat('new-', id) id", "id n")
    rows.write.format("opslog").option("agent", "etl").mode("append").save(url)
    found["after"] = documents(spark, url)
    stream = spark.readStream.format("opslog").option("view", "changes").load(url)
    taken = Path(f"{url}-taken")
    # Another process holds it: the server's.
    writing = stream.writeStream.foreachBatch(partial(take, path=taken)).option("checkpointLocation", f"{url}-stream")
    writing.trigger(availableNow=True).start().awaitTermination()
    found["streamed"] = json.loads(taken.read_text())
    spark.stop()
    return found


def documents(spark: SparkSession, url: str) -> list[tuple[str, str]]:
    return sorted((row.id, row.data) for row in spark.read.format("opslog").load(url).collect())


def replayed(spark: SparkSession, url: str, partitions: int | None) -> list[tuple[str, str]]:
    return [(row.id, row.data) for row in opslog.spark.replay(spark, url, partitions=partitions).collect()]


def take(batch: DataFrame, number: int, path: Path) -> None:
    path.write_text(json.dumps(sorted({row.id for row in batch.where("op = 'set'").collect()})))


if __name__ == "__main__":
    Path(f"{sys.argv[1]}-found").write_text(json.dumps(work(sys.argv[1])))
