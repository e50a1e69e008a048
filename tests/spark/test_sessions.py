from __future__ import annotations

import sys
from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql import SparkSession

import opslog.spark


def pythons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch([pa.array([sys.executable])], names=["python"])


def test_workers_run_on_the_python_of_this_process(spark: SparkSession) -> None:
    found = spark.range(4).mapInArrow(pythons, "python string").distinct().collect()
    assert [row.python for row in found] == [sys.executable]


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    again = opslog.spark.session("another", config={"spark.sql.shuffle.partitions": 3})
    assert again.sparkContext is spark.sparkContext
    assert again.sparkContext.appName == "tests"
    assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"
    again.conf.set("spark.sql.shuffle.partitions", "2")
