"""The stream in Spark: restarts, crashes and gaps with a checkpoint. The content of batches is tested in
test_offsets.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamReader

import opslog
from opslog.spark.source import DefaultSource
from tests.support.stream_sink import Row, Sink
from tests.support.waiting import until

SETTINGS = opslog.Settings(undo_window=3, grace_seconds=0.0)


class Folder:
    """A consumer on disk: one file for each batch, complete or absent. A repeated batch replaces its file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir()

    def take(self, batch: DataFrame, number: int) -> None:
        rows = [row.asDict() for row in batch.collect()]
        temporary = self.path / f".{number}"
        temporary.write_text(json.dumps(rows))
        temporary.rename(self.path / f"{number:06}.json")

    def sink(self) -> Sink:
        sink = Sink()
        for path in sorted(self.path.glob("*.json")):
            sink.take(json.loads(path.read_text()))
        return sink

    def rows(self) -> list[Row]:
        return self.sink().rows


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path / "batches")


def write(root: Path, agent: str, count: int) -> None:
    with opslog.open(root, agent=agent, settings=SETTINGS, compact_after=None, durability="buffered") as store:
        for number in range(count):
            store[f"task-{number % 5}"] = {"n": number, "1.0": 1.0}


def compact(root: Path) -> None:
    with opslog.open(root, agent="compactor", compact_after=None) as store:
        store.compact()


def state(root: Path) -> dict[str, str]:
    with opslog.open(root, read_only=True) as store:
        return {record.id: bytes(record.data).decode() for record in store.records()}


def reading(spark: SparkSession, **options: Any) -> DataStreamReader:
    spark.dataSource.register(DefaultSource)
    return spark.readStream.format("opslog").option("view", "changes").options(**options)


def run(spark: SparkSession, root: Path, folder: Folder, **options: Any) -> None:
    """Process everything that is there now, from the checkpoint on."""
    start(reading(spark, **options).load(str(root)), root, folder, availableNow=True).awaitTermination()


def start(stream: DataFrame, root: Path, folder: Folder, **trigger: Any) -> StreamingQuery:
    writing = stream.writeStream.foreachBatch(folder.take).option("checkpointLocation", f"{root}-checkpoint")
    return writing.trigger(**trigger).start()


def test_each_run_delivers_what_is_new(spark: SparkSession, root: Path, folder: Folder) -> None:
    write(root, "a", 6)
    run(spark, root, folder, maxBytesPerTrigger=300)
    assert len(list(folder.path.glob("*.json"))) > 1, "a limit makes several batches"
    with opslog.open(root, agent="b", settings=SETTINGS, compact_after=None) as store:
        with store.batch():
            store["é😀"] = {"x": None}
            del store["task-1"]
        store["task-2"] = {"undone": True}
        store.undo()
    run(spark, root, folder)
    rows = folder.rows()
    assert [(row["clock"], row["op"], row["place"]) for row in rows if row["agent"] == "b"] == [
        (7, "set", 0),
        (7, "delete", 1),
        (8, "set", None),
        (9, "undo", None),
    ]
    assert rows[-1]["target"] == 8
    sink = folder.sink()
    assert sink.state() == state(root)
    assert sink.delivered == {("a", clock): 1 for clock in range(1, 7)} | {("b", clock): 1 for clock in range(7, 10)}


def test_a_batch_that_failed_comes_again(spark: SparkSession, root: Path, folder: Folder) -> None:
    """A line that was torn when the batch failed comes later, as soon as it is whole."""
    write(root, "a", 4)
    (segment,) = root.glob("ops/a/*")
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])

    def fail(batch: DataFrame, number: int) -> None:
        folder.take(batch, number)
        raise ValueError("in the middle of a batch")

    stream = reading(spark).load(str(root))
    failing = stream.writeStream.foreachBatch(fail).option("checkpointLocation", f"{root}-checkpoint")
    with pytest.raises(StreamingQueryException, match="in the middle of a batch"):
        failing.trigger(availableNow=True).start().awaitTermination()
    segment.write_bytes(whole)
    write(root, "a", 2)
    run(spark, root, folder)
    assert [row["clock"] for row in folder.rows()] == [1, 2, 3, 4, 5, 6]


@pytest.mark.long
def test_commits_collected_while_it_was_stopped_come_as_a_state(
    spark: SparkSession, root: Path, folder: Folder
) -> None:
    write(root, "a", 6)
    run(spark, root, folder)
    for _ in range(3):
        write(root, "a", 10)
        write(root, "b", 10)
        compact(root)
    with pytest.raises(StreamingQueryException, match=r"HistoryGoneError.*collected before this stream read them"):
        run(spark, root, folder, onGap="fail")
    run(spark, root, folder, onGap="resync")
    sink = folder.sink()
    assert sink.resyncs == 1
    assert sink.state() == state(root)
    assert set(sink.delivered.values()) == {1}
    write(root, "a", 1)
    run(spark, root, folder, onGap="fail")
    assert folder.sink().state() == state(root)


def test_micro_batches_follow_running_writers(spark: SparkSession, root: Path, folder: Folder) -> None:
    write(root, "a", 1)
    query = start(reading(spark).load(str(root)), root, folder, processingTime="0 seconds")
    try:
        with opslog.open(root, agent="b", compact_after=None) as store:
            for number in range(3):
                store[f"b-{number}"] = {"n": number}
                until(lambda: query.exception() is not None or len(folder.rows()) == store.stats().clock)
            store.compact()
        assert query.exception() is None
    finally:
        query.stop()
    assert folder.sink().state() == state(root)


def test_other_views_are_no_streams(spark: SparkSession, root: Path, folder: Folder) -> None:
    write(root, "a", 1)
    with pytest.raises(StreamingQueryException, match=r'a stream has one view.*option\("view", "changes"\)'):
        run(spark, root, folder, view="ops")


CRASHING = """
import os, sys
import opslog.spark
from pathlib import Path
from tests.spark.test_streaming import Folder, reading
from tests.spark.conftest import SMALL

root, batches, crash_at = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
spark = opslog.spark.session(master="local[2]", config=SMALL)
folder = Folder.__new__(Folder)
folder.path = batches

def take(batch, number):
    if number == crash_at:
        batch.collect()
        os._exit(9)
    folder.take(batch, number)
    if number == crash_at - 1:
        os._exit(9)  # taken, and Spark does not know

query = (
    reading(spark, maxBytesPerTrigger=400).load(str(root)).writeStream.foreachBatch(take)
    .option("checkpointLocation", f"{root}-checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
spark.stop()
"""


@pytest.mark.slow
def test_a_driver_that_dies_loses_and_repeats_nothing(root: Path, folder: Folder) -> None:
    def drive(crash_at: int) -> int:
        command = [sys.executable, "-c", CRASHING, str(root), str(folder.path), str(crash_at)]
        return subprocess.run(command, cwd=Path(__file__).parents[2], env={**os.environ}, check=False).returncode

    write(root, "a", 20)
    assert drive(2) == 9  # killed after it has processed batch 1
    assert drive(2) == 9  # killed in the middle of batch 2, after batch 1 was repeated
    for _ in range(2):
        write(root, "b", 10)
        compact(root)
    assert drive(-1) == 0
    sink = folder.sink()
    assert sink.state() == state(root)
    assert set(sink.delivered.values()) == {1}
