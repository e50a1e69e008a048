"""Errors of opslog that come through Spark: they are short, and keep their type."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from pyspark.errors import AnalysisException, PySparkException, PythonException
from pyspark.sql import DataFrame, SparkSession

import opslog
import opslog.spark
from opslog.spark.errors import brief, unwrap
from opslog.spark.jobs import running
from tests.cli.calling import call
from tests.support.waiting import until


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "store", agent="a", settings=opslog.Settings(undo_window=1)) as store:
        for number in range(20):
            store[f"task-{number:02}"] = {"n": number}
        store.compact()
        store.create("claim", {})
    return tmp_path / "store"


@pytest.fixture
def damaged(store: Path) -> Path:
    return damage(store)


def damage(store: Path) -> Path:
    (part,) = store.glob("snapshots/*/part-*.jsonl")
    part.write_bytes(part.read_bytes().replace(b'"n":', b'"m":', 1))
    return store


def load(spark: SparkSession, store: Path, **options: str) -> DataFrame:
    return spark.read.format("opslog").options(**options).load(str(store))


def written(spark: SparkSession, store: Path, row: tuple[str, ...], columns: str) -> None:
    spark.createDataFrame([row], columns).write.format("opslog").mode("append").save(str(store))


def fault(action: Callable[[], object], kind: type[PySparkException]) -> BaseException:
    """The cause of an action's error. Its text has one line of opslog's, and few others."""
    with pytest.raises(kind) as raised:
        action()
    assert len(str(raised.value).strip().splitlines()) <= 5
    return unwrap(raised.value)


def test_an_error_of_the_driver_is_found_again(spark: SparkSession, store: Path) -> None:
    missing = fault(lambda: load(spark, store.with_name("none")).collect(), AnalysisException)
    assert type(missing) is opslog.MissingStoreError
    assert str(missing) == f"no store at {store.with_name('none')}: check the path, or open it for writing to create it"
    usage = fault(lambda: load(spark, store, view="zz").collect(), AnalysisException)
    assert type(usage) is opslog.UsageError
    assert str(usage) == 'view is "state", "ops" or "archive", and for a stream "changes", not \'zz\''


@pytest.mark.long
def test_an_error_of_a_task_is_found_again(spark: SparkSession, store: Path, damaged: Path) -> None:
    for action in (load(spark, damaged).collect, opslog.spark.replay(spark, damaged, partitions=2).collect):
        corrupt = fault(action, PythonException)
        assert type(corrupt) is opslog.CorruptError
        assert str(corrupt).startswith("snapshots/0")
        assert str(corrupt).endswith("`opslog verify` lists all damage")


@pytest.mark.long
def test_an_error_of_a_write_is_found_again(spark: SparkSession, store: Path) -> None:
    columns = "id string, data string, _if_stamp string"
    conflict = fault(lambda: written(spark, store, ("claim", "{}", "5@transactions"), columns), AnalysisException)
    assert type(conflict) is opslog.ConflictError
    assert "'claim' has not the stamp 5@transactions any more" in str(conflict)
    invalid = fault(lambda: written(spark, store, ("x", "{"), "id string, data string"), PySparkException)
    assert type(invalid) is opslog.InvalidDocumentError


@pytest.mark.long
def test_a_compaction_raises_the_error_itself(spark: SparkSession, store: Path) -> None:
    with opslog.open(store, agent="a", compact_after=None) as opened:
        for number in range(3):
            opened["more"] = {"n": number}
    damaged = damage(store)
    with pytest.raises(opslog.CorruptError, match="do not fit their checksum"):
        opslog.spark.compact(spark, damaged, full=True)


def test_a_command_says_it_in_one_line(spark: SparkSession, damaged: Path, tmp_path: Path) -> None:
    result = call(damaged, "replay", "--engine", "spark", "--to", str(tmp_path / "out"))
    assert result.code == 3
    start, line = result.err.splitlines()
    assert start == "opslog: starting Spark, which takes some seconds"
    assert line.startswith("opslog: snapshots/0")
    assert not (tmp_path / "out").exists()


def test_other_errors_are_left_as_they_are(spark: SparkSession) -> None:
    error = ValueError("no")
    assert unwrap(error) is error
    assert unwrap(opslog.RetryError("again")).args == ("again",)
    with pytest.raises(AnalysisException) as raised:
        spark.sql("SELECT nothing FROM nowhere")
    assert unwrap(raised.value) is raised.value
    assert unwrap(ValueError("opslog.errors.Never: x")).args == ("opslog.errors.Never: x",)
    assert unwrap(ValueError("opslog.errors.Any: x")).args == ("opslog.errors.Any: x",)


def test_a_message_of_several_lines_is_whole() -> None:
    text = "Traceback\n  File x\nopslog.errors.QueryError: a path is expected here\n  a b\n    ^\n SQLSTATE: 38000\n"
    found = unwrap(ValueError(text))
    assert (type(found), str(found)) == (opslog.QueryError, "a path is expected here\n  a b\n    ^")
    again = "opslog.errors.RetryError: first\n\nDuring handling:\n\nopslog.errors.CorruptError: last\n\tat java.x(y)\n"
    assert repr(unwrap(ValueError(again))) == "CorruptError('last')"


def test_frames_are_left_out_and_everything_else_is_left() -> None:
    def fail(kind: type[Exception]) -> None:
        raise kind("here")

    for kind, frames in ((opslog.RetryError, 2), (ValueError, 4)):
        with pytest.raises(kind, match="here") as raised:
            brief(partial(fail, kind))()
        assert len(raised.traceback) <= frames

    def numbers() -> object:
        yield from (1, 2)

    assert list(brief(numbers)()) == [1, 2]  # type: ignore[call-overload]


@pytest.mark.parametrize("as_of", [10**9, "2199-01-01T00:00:00Z"])
def test_a_point_in_the_future_is_refused_as_in_the_core(spark: SparkSession, store: Path, as_of: int | str) -> None:
    with pytest.raises(opslog.UsageError) as core:
        opslog.open(store, as_of=as_of)
    with pytest.raises(opslog.UsageError) as replayed:
        opslog.spark.replay(spark, store, as_of=as_of)
    assert str(replayed.value) == str(core.value)
    for view in ("state", "ops"):
        action = load(spark, store, view=view, asOf=str(as_of)).collect
        assert str(fault(action, AnalysisException)) == str(core.value)


def test_the_newest_point_is_no_future(spark: SparkSession, store: Path) -> None:
    with opslog.open(store, read_only=True) as opened:
        clock, documents = opened.stats().clock, len(opened)
        ts = max(record.ts for record in opened.records())
    for as_of in (clock, ts):
        assert opslog.spark.replay(spark, store, as_of=as_of).count() == documents
        with opslog.open(store, as_of=as_of) as core:
            assert len(core) == documents
    with pytest.raises(opslog.UsageError, match="lies in the future"):
        opslog.spark.replay(spark, store, as_of=clock + 1)


def test_a_watcher_is_shown_each_step(spark: SparkSession, tmp_path: Path) -> None:
    """Each task waits until its step was shown."""
    shown: dict[str, list[tuple[int, int]]] = {}
    lock = threading.Lock()

    def step(label: str) -> Callable[[int, int], None]:
        def advance(done: int, total: int) -> None:
            with lock:
                shown.setdefault(label, []).append((done, total))
            (tmp_path / f"shown-{len(shown)}").touch()

        return advance

    def wait(name: str, rows):  # type: ignore[no-untyped-def]
        import time

        while not (tmp_path / name).exists():
            time.sleep(0.01)
        yield from rows

    with running("test", None, 1000, step) as same:
        assert same is spark
        for number in (1, 2):
            work = partial(wait, f"shown-{number}")
            assert spark.range(0, 4, 1, 2).mapInArrow(work, "id long").count() == 4
    assert list(shown)[:2] == ["replaying, step 1", "replaying, step 2"]
    assert {total for some in shown.values() for _, total in some} == {1000}
    assert {done for some in shown.values() for done, _ in some} <= {0, 500, 1000}
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "opslog-spark-progress"])
