"""Everything that Spark does with a store, on real S3 servers: reading, writing, compaction and streams."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import opslog
from opslog.backends import open_backend
from opslog.spark import compact, replay
from opslog.spark.source import DefaultSource
from opslog.verify.verify import verify
from tests.support.random_stores import state
from tests.support.stream_sink import Sink

SETTINGS = opslog.Settings(undo_window=3, grace_seconds=0)


@pytest.fixture
def options(s3_server: Any) -> dict[str, Any]:
    """The server's address for Spark's workers, which started before the server and do not have it in their
    environment."""
    return {
        "endpoint_url": s3_server.environment["AWS_ENDPOINT_URL"],
        "key": "testing",
        "secret": "testing",
        "client_kwargs": '{"region_name": "us-east-1"}',
    }


def write(url: str, agent: str, first: int) -> None:
    with opslog.open(url, agent=agent, compact_after=None, settings=SETTINGS) as store:
        for number in range(first, first + 10):
            store[f"task-{number:02}"] = {"n": number}
        store.undo()
        del store[f"task-{first:02}"]


@pytest.mark.long
@pytest.mark.parametrize("s3_server", [pytest.param("moto", marks=pytest.mark.slow), "ceph"], indirect=True)
def test_read_write_compact_and_follow(
    spark: SparkSession, s3_server: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    url = f"{s3_server.url}/spark-{tmp_path.name}"
    of_library = {**options, "client_kwargs": {"region_name": "us-east-1"}}
    backend = open_backend(url)

    def read(**more: Any) -> DataFrame:
        return spark.read.format("opslog").options(**options, **more).load(url)

    def check() -> None:
        expected = state(url)
        assert sorted(map(tuple, read().collect())) == expected
        assert sorted(map(tuple, replay(spark, url, partitions=2, **of_library).collect())) == expected
        assert verify(backend).problems == []
        assert backend.list("staging/") == []

    write(url, "a", 0)
    write(url, "b", 5)
    before = state(url)
    with opslog.open(url, read_only=True) as store:
        clock = store.stats().clock
    compact(spark, url, keep_history="forever", **of_library)
    check()

    changed = read().withColumn("_op", F.when(F.get_json_object("data", "$.n") == "3", "delete").otherwise("set"))
    writer = changed.write.format("opslog").options(**options).option("agent", "etl")
    writer.mode("append").save(url)
    check()
    assert {id for id, *_ in before} - {id for id, *_ in state(url)} == {"task-03"}
    assert sorted(map(tuple, read(asOf=clock).collect())) == before

    write(url, "a", 20)
    assert compact(spark, url, full=True, **of_library).runs_merged == 1
    check()

    sink = Sink()
    spark.dataSource.register(DefaultSource)
    stream = spark.readStream.format("opslog").options(**options, view="changes").load(url)
    query = (
        stream.writeStream.foreachBatch(lambda batch, _: sink.take([row.asDict() for row in batch.collect()]))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sink.state() == {id: data for id, data, *_ in state(url)}
