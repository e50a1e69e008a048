"""The contenders of `benchmarks.spark`, each in a process of its own, which prints its figures as a line of JSON.

They all find the newest document of every id, and print how many there are and the sum of their checksums.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

import opslog
from opslog.backends import open_backend
from opslog.bulk.replay import write_state
from opslog.environment import REAL
from opslog.format.commits import Commit
from opslog.replica.loading import Loader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TICK = os.sysconf("SC_CLK_TCK")
_SAMPLE_SECONDS = 0.5
_SHUFFLE_WRITTEN = "internal.metrics.shuffle.write.bytesWritten"
_SHUFFLE_PARTITION_BYTES = 32 * 1024 * 1024
_COMPRESSED = 4
"""How many bytes of lines are one byte of shuffle, about: what the native plans need to know for as many partitions as
opslog would take."""


class Job(msgspec.Struct, frozen=True):
    """One contender's figures, after everything it needs had started.

    :ivar wall: seconds; `jvm`, `python`: seconds of processor time. :ivar shuffle, peak: bytes; `peak`: of all
        processes together. :ivar documents, checksum: its result.
    """

    contender: str
    wall: float
    jvm: float
    python: float
    shuffle: int
    peak: int
    documents: int
    checksum: int

    @property
    def processor(self) -> float:
        return self.jvm + self.python


# -- measuring


class Used(NamedTuple):
    """Seconds of processor time."""

    jvm: float
    python: float


def _stat(pid: int) -> list[str]:
    """The fields of a process from its state on; none, if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _family() -> list[int]:
    """This process and all below it."""
    parents = {int(path.name): _stat(int(path.name)) for path in Path("/proc").iterdir() if path.name.isdigit()}
    family = [os.getpid()]
    for member in family:
        family += [pid for pid, fields in parents.items() if fields and int(fields[1]) == member]
    return family


def _used() -> Used:
    jvm = python = 0.0
    for pid in _family():
        fields = _stat(pid)
        if fields:
            own, ended = (sum(map(int, fields[first : first + 2])) / _TICK for first in (11, 13))
            is_jvm = _name(pid) == "java"
            jvm += own if is_jvm else 0.0
            python += ended + (0.0 if is_jvm else own)
    return Used(jvm, python)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _memory() -> int:
    """Bytes of memory of this process and all below it; shared memory counts once."""
    total = 0
    for pid in _family():
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="utf-8")
        except OSError:
            continue
        total += sum(int(line.split()[1]) * 1024 for line in rollup.splitlines() if line.startswith("Pss:"))
    return total


class _Samples:
    """Samples of the memory. :ivar most: bytes; `cost`: seconds of processor time that sampling took."""

    most = 0
    cost = 0.0


@contextmanager
def _peak() -> Iterator[_Samples]:
    """Samples the memory again and again."""
    samples, ended = _Samples(), threading.Event()
    samples.most = _memory()

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            samples.most = max(samples.most, _memory())
            samples.cost = time.thread_time()

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


# -- one process of Python


def _by_python(store: Path) -> tuple[int, int]:
    documents = checksum = 0
    with opslog.open(store, read_only=True) as opened:
        for record in opened.records():
            documents += 1
            checksum += zlib.crc32(record.id.encode() + b"\0" + bytes(record.data))
    return documents, checksum


def _files_by_python(store: Path) -> tuple[int, int]:
    """As `opslog replay --engine python`."""
    backend = open_backend(store, create=False)
    with tempfile.TemporaryDirectory(prefix="opslog-bench-") as place:
        documents = write_state(Loader(backend).load(), Path(place) / "out", "jsonl", REAL)
    backend.close()
    return documents, 0


def _decode(store: Path) -> tuple[int, int]:
    """The floor: every line decoded, and forgotten with its file."""
    decoder = msgspec.json.Decoder(Commit)
    paths = sorted(store.glob("ops/*/*.jsonl"))
    return sum(len(decoder.decode_lines(path.read_bytes())) for path in paths), 0


# -- Spark


def _by_opslog(spark: SparkSession, store: Path) -> DataFrame:
    from opslog.spark.read.replaying import replay

    return replay(spark, str(store))


def _lines(spark: SparkSession, store: Path) -> DataFrame:
    """The sets and deletes of all logs. The stores of this benchmark have no batches and undos, which would need more
    than one line at a time."""
    return (
        spark.read.schema("ts string, clock long, agent string, op string, id string, data string, _corrupt string")
        .option("lineSep", "\n")
        .option("columnNameOfCorruptRecord", "_corrupt")
        .option("allowNonNumericNumbers", "false")
        .json(str(store / "ops" / "*" / "*.jsonl"))
        .where("op IN ('set', 'delete')")
    )


def _by_max_by(spark: SparkSession, store: Path) -> DataFrame:
    from pyspark.sql import functions as F

    size = sum(path.stat().st_size for path in store.glob("ops/*/*.jsonl"))
    count = max(2 * spark.sparkContext.defaultParallelism, size // _COMPRESSED // _SHUFFLE_PARTITION_BYTES)
    best = F.max_by(F.struct("op", "data", "clock", "agent", "ts"), F.struct("clock", "agent"))
    return (
        _lines(spark, store)
        .repartition(count, "id")
        .groupBy(F.xxhash64("id"), "id")
        .agg(best.alias("best"))
        .where("best.op = 'set'")
        .select("id", "best.*")
    )


def _by_window(spark: SparkSession, store: Path) -> DataFrame:
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    newest_first = Window.partitionBy("id").orderBy(F.desc("clock"), F.desc("agent"))
    ranked = _lines(spark, store).withColumn("rank", F.row_number().over(newest_first))
    return ranked.where("rank = 1 AND op = 'set'")


SPARK = {
    "opslog replay": _by_opslog,
    "native: read.json, max_by": _by_max_by,
    "native: read.json, window": _by_window,
}
PYTHON = {
    "one process of Python": _by_python,
    "opslog replay --engine python": _files_by_python,
    "floor: msgspec alone": _decode,
}


def _session(cores: int, events: Path) -> SparkSession:
    from opslog.spark.sessions import session

    config: dict[str, str | bool | int] = {
        "spark.driver.memory": "2g",
        "spark.ui.enabled": False,
        "spark.log.level": "ERROR",
        "spark.ui.showConsoleProgress": False,
        "spark.eventLog.enabled": True,
        "spark.eventLog.dir": events.as_uri(),
        "spark.eventLog.compress": False,
        "spark.eventLog.rolling.enabled": False,
    }
    return session("benchmark", master=f"local[{cores}]", config=config)


def _found(spark: SparkSession, store: Path, contender: str) -> tuple[int, int]:
    from pyspark.sql import functions as F

    checksum = F.crc32(F.concat_ws("\0", "id", "data"))
    (row,) = SPARK[contender](spark, store).agg(F.count("*"), F.sum(checksum)).collect()
    return int(row[0]), int(row[1] or 0)


def _shuffled(events: Path) -> dict[str, int]:
    """How many bytes the stages of each contender wrote for a shuffle."""
    written: dict[str, int] = {}
    groups: dict[int, str] = {}
    for path in events.iterdir():
        for event in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            if event["Event"] == "SparkListenerStageSubmitted":
                groups[event["Stage Info"]["Stage ID"]] = event["Properties"].get("spark.jobGroup.id", "")
            elif event["Event"] == "SparkListenerStageCompleted":
                stage = event["Stage Info"]
                sizes = (int(value["Value"]) for value in stage["Accumulables"] if value["Name"] == _SHUFFLE_WRITTEN)
                group = groups.get(stage["Stage ID"], "")
                written[group] = written.get(group, 0) + sum(sizes)
    return written


def _run_spark(works: list[tuple[str, Path]], cores: int) -> list[Job]:
    """Several contenders, one after the other, in one Spark that has warmed up."""
    with tempfile.TemporaryDirectory(prefix="opslog-events-") as folder:
        events = Path(folder)
        spark = _session(cores, events)
        # Starting workers and other work of the first use is not measured.
        spark.range(10).mapInArrow(lambda batches: batches, "id long").count()
        jobs = []
        for place, (name, store) in enumerate(works):
            spark.sparkContext.setJobGroup(str(place), name)
            jobs.append(_measured(partial(_found, spark, store, name), name))
        spark.stop()  # which writes its log to the end
        shuffled = _shuffled(events)
        return [msgspec.structs.replace(job, shuffle=shuffled.get(str(place), 0)) for place, job in enumerate(jobs)]


def _measured(work: Callable[[], tuple[int, int]], contender: str) -> Job:
    gc.collect()
    before, begun = _used(), time.perf_counter()
    with _peak() as samples:
        documents, checksum = work()
        wall = time.perf_counter() - begun
        after = _used()
    python = max(0.0, after.python - before.python - samples.cost)
    return Job(contender, wall, after.jvm - before.jvm, python, 0, samples.most, documents, checksum)


def main(works: list[tuple[str, Path]], cores: int) -> None:
    """Run contenders on stores, and print a line of JSON for each."""
    if works[0][0] in PYTHON:
        gc.disable()  # it only samples for what is not there
        jobs = [_measured(partial(PYTHON[name], store), name) for name, store in works]
    else:
        jobs = _run_spark(works, cores)
    for job in jobs:
        sys.stdout.write(msgspec.json.encode(job).decode() + "\n")


if __name__ == "__main__":
    main([(name, Path(store)) for name, store in json.loads(sys.argv[1])], int(sys.argv[2]))
