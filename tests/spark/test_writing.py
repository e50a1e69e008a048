from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark import TaskContext, cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSourceWriter
from pyspark.sql.types import StringType, StructField, StructType, _parse_datatype_string

import opslog
from opslog.backends import open_backend
from opslog.compaction.garbage import STAGED_SECONDS, find_garbage
from opslog.environment import REAL
from opslog.format.commits import DeleteOp
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.source import DefaultSource
from opslog.spark.write import writing
from opslog.spark.write.rows import Columns
from opslog.spark.write.writing import OpslogWriter, Staged
from opslog.verify.verify import verify

# No tests are installed where tasks run.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


class Unlucky(OpslogWriter):
    """Stores its rows, and then fails: in the first attempt, or in every one."""

    always = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        staged = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() == 0 or self.always:
            raise RuntimeError("unlucky")
        return staged


class Doomed(Unlucky):
    always = True


class UnluckySource(DefaultSource):
    kind: type[OpslogWriter] = Unlucky

    @classmethod
    def name(cls) -> str:
        return "unlucky"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer = writing.writer_of(self.options, schema, overwrite)
        writer.__class__ = self.kind
        return writer


class DoomedSource(UnluckySource):
    kind = Doomed

    @classmethod
    def name(cls) -> str:
        return "doomed"


def fill(url: Path, count: int = 20) -> None:
    with opslog.open(url, agent="app", compact_after=None) as store, store.batch():
        for number in range(count):
            store[f"task-{number:02}"] = {"n": number, "f": 1.0, "text": "ü\n"}


def documents(url: Path) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def commits(url: Path, agent: str) -> int:
    with opslog.open(url, read_only=True) as store:
        return sum(commit.agent == agent for commit in store.ops())


def check_clean(url: Path) -> None:
    """Nothing of the job is left, and nothing is wrong."""
    backend = open_backend(str(url))
    assert backend.list("staging/") == []
    assert verify(backend).problems == []
    backend.close()


def test_state_transformed_and_written_back(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path)
    state = spark.read.format("opslog").load(str(tmp_path))
    n = F.get_json_object("data", "$.n").cast("int")
    changed = state.withColumn("_op", F.when(n % 2 == 1, "delete").otherwise("set")).withColumn(
        "data", F.regexp_replace("data", '"n":', '"number" : ')
    )
    changed.repartition(3).write.format("opslog").option("agent", "etl").mode("append").save(str(tmp_path))
    assert documents(tmp_path) == {
        f"task-{number:02}": {"number": number, "f": 1.0, "text": "ü\n"} for number in range(0, 20, 2)
    }
    assert commits(tmp_path, "etl") == 1, "a small job is there at once"
    with opslog.open(tmp_path, agent="etl") as store:
        assert store.undo()
        assert len(store) == 20
    check_clean(tmp_path)


def test_columns_become_fields_and_the_store_is_made(spark: SparkSession, tmp_path: Path) -> None:
    rows = spark.range(3).selectExpr(
        "concat('t-', id) id", "id n", "id / 2 half", "array(struct(id a, null b)) deep", "id = 1 is_one"
    )
    rows.write.format("opslog").mode("append").save(str(tmp_path / "new"))
    assert documents(tmp_path / "new") == {
        f"t-{n}": {"n": n, "half": n / 2, "deep": [{"a": n, "b": None}], "is_one": n == 1} for n in range(3)
    }
    rows.where("id = 't-2'").write.format("opslog").mode("overwrite").save(str(tmp_path / "new"))
    assert list(documents(tmp_path / "new")) == ["t-2"]
    assert commits(tmp_path / "new", "spark") == 2, "what replaces everything is one commit"
    check_clean(tmp_path / "new")


@pytest.mark.long
def test_each_row_counts_once_when_tasks_fail(spark: SparkSession, tmp_path: Path) -> None:
    fill(tmp_path)
    for source in (UnluckySource, DoomedSource):
        spark.dataSource.register(source)
    rows = spark.range(0, 40, 1, 3).selectExpr("concat('row-', id) id", "id n")
    with pytest.raises(Exception, match="unlucky"):
        # One task: with several, another one may still write after the job has failed and was cleaned up.
        rows.coalesce(1).write.format("doomed").option("agent", "etl").mode("append").save(str(tmp_path))
    assert len(documents(tmp_path)) == 20
    assert commits(tmp_path, "etl") == 0
    check_clean(tmp_path)
    rows.write.format("unlucky").option("agent", "etl").mode("append").save(str(tmp_path))
    assert len(documents(tmp_path)) == 60
    with opslog.open(tmp_path, read_only=True) as store:
        ids = [record.id for commit in store.ops() if commit.agent == "etl" for record in commit.records]
    assert sorted(ids) == sorted(f"row-{n}" for n in range(40))
    check_clean(tmp_path)


# -- without Spark: what a driver and its tasks do


class Job:
    """A job whose tasks run when the test says so."""

    def __init__(
        self, url: Path, monkeypatch: pytest.MonkeyPatch, *, overwrite: bool = False, conditional: bool = False
    ) -> None:
        columns = Columns(("n",), has_stamp=conditional, has_op=conditional)
        self.writer = OpslogWriter(str(url), {}, "etl", columns, overwrite)
        self._patch = monkeypatch
        self._attempts = 0

    def task(self, partition: int, ids: list[str], size: int = 1, **columns: list[str | None]) -> Staged:
        self._attempts += 1
        context = SimpleNamespace(partitionId=lambda: partition, taskAttemptId=lambda: self._attempts)
        self._patch.setattr(TaskContext, "get", lambda: context)
        own = {name: pa.array(values, pa.string()) for name, values in columns.items()}
        batch = pa.record_batch({"id": ids, "n": ["x" * size] * len(ids), **own})
        return self.writer.write(iter([batch]))


def test_only_one_of_two_finished_attempts_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    job = Job(tmp_path, monkeypatch)
    first = job.task(0, ["a", "b"])
    job.task(0, ["a", "b", "other"])
    second = job.task(1, ["c"])
    job.writer.commit([second, first])
    assert sorted(documents(tmp_path))[:3] == ["a", "b", "c"]
    assert commits(tmp_path, "etl") == 1
    assert "other" not in documents(tmp_path)
    check_clean(tmp_path)


def test_rows_outrank_all_that_was_written_before_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    job = Job(tmp_path, monkeypatch)
    staged = job.task(0, ["task-00"])
    with opslog.open(tmp_path, agent="busy") as store:
        for number in range(50):
            store["task-00"] = {"live": number}
        job.writer.commit([staged])
        store.refresh()
        assert store["task-00"] == {"n": "x"}
        store["task-00"] = {"live": "again"}
    assert documents(tmp_path)["task-00"] == {"live": "again"}


def test_a_large_job_is_several_commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BATCH_BYTES", 1000)
    job = Job(tmp_path / "new", monkeypatch)
    job.writer.commit([job.task(0, [f"{number:02}" for number in range(50)], 60)])
    assert len(documents(tmp_path / "new")) == 50
    assert 3 <= commits(tmp_path / "new", "etl") <= 10
    check_clean(tmp_path / "new")


def test_a_state_too_large_to_be_replaced_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    for limit in (10, 400):
        monkeypatch.setattr(writing, "OVERWRITE_BYTES", limit)
        job = Job(tmp_path, monkeypatch, overwrite=True)
        staged = job.task(0, ["a"])
        with pytest.raises(opslog.UsageError, match="Append"):
            job.writer.commit([staged])
        job.writer.abort([staged])
        assert len(documents(tmp_path)) == 20
        check_clean(tmp_path)


def test_rows_of_guarded_documents_go_through_the_shared_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BATCH_BYTES", 1)  # each row a commit
    with opslog.open(tmp_path, agent="app") as store:
        store["plain"] = {}
        store.create("claim", {"by": "app"})
        before = store.record("claim")
        job = Job(tmp_path, monkeypatch)
        job.writer.commit([job.task(0, ["plain", "claim", "new", "claim"])])
        assert before is not None
        with pytest.raises(opslog.ConflictError):
            store.set("claim", {}, if_stamp=before.stamp)
        assert [(commit.agent, commit.author, record.id) for commit in store.ops() for record in commit.records] == [
            ("app", "app", "plain"),
            ("transactions", "app", "claim"),
            ("etl", "etl", "plain"),
            ("transactions", "etl", "claim"),
            ("etl", "etl", "new"),
            ("transactions", "etl", "claim"),
        ]
        monkeypatch.undo()
        job = Job(tmp_path, monkeypatch, overwrite=True)
        job.writer.commit([job.task(0, ["only"])])
        store.refresh()
        assert dict(store.items()) == {"only": {"n": "x"}}
        *_, last = store.ops()
        assert (last.agent, last.author, len(last.records)) == ("transactions", "etl", 4)
    check_clean(tmp_path)


def test_a_job_with_stamps_is_one_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "BATCH_BYTES", 1)
    with opslog.open(tmp_path, agent="app") as store:
        for id in ("a", "b", "gone"):
            store[id] = {}
        stamps = {id: str(record.stamp) for id in store if (record := store.record(id)) is not None}

        def run(*ids: str, **changed: str | None) -> None:
            job = Job(tmp_path, monkeypatch, conditional=True)
            ops: list[str | None] = ["delete" if id == "gone" else "set" for id in ids]
            conditions = [changed.get(id, stamps.get(id)) for id in ids]
            halves = [
                job.task(number, [*ids][number::2], _op=ops[number::2], _if_stamp=conditions[number::2])
                for number in range(2)
            ]
            try:
                job.writer.commit([*halves])
            except BaseException:
                job.writer.abort([*halves])
                raise

        run("a", "b", "gone", "new")
        store.refresh()
        assert dict(store.items()) == {"a": {"n": "x"}, "b": {"n": "x"}, "new": {"n": "x"}}
        *_, last = store.ops()
        assert (last.agent, last.author, last.op) == ("transactions", "etl", "batch")
        before = store.stats().clock
        for ids, changed in (
            (("a", "more"), {}),  # it has another stamp by now
            (("more", "new"), {}),  # it exists by now
            (("more", "even more"), {"even more": "7@nobody"}),  # it never existed
        ):
            with pytest.raises(opslog.ConflictError, match="Nothing was written"):
                run(*ids, **changed)
            check_clean(tmp_path)
        with pytest.raises(opslog.UsageError, match="two rows have the id 'twice'"):
            run("twice", "twice")
        with pytest.raises(opslog.UsageError, match="row 'x': a stamp is"):
            run("x", x="no stamp")
        with pytest.raises(opslog.UsageError, match="row 'gone': _if_stamp is null"):
            run("gone", gone=None)
        monkeypatch.setattr(writing, "LINE_BYTES_MAX", 200)
        with pytest.raises(opslog.UsageError, match="one transaction, and so one line of a log: at most 200 bytes"):
            run("more", "even more")
        store.refresh()
        assert store.stats().clock == before, "nothing of any of them was written"
        run("empty")
        assert store.undo() is True


def test_overwriting_takes_no_stamps() -> None:
    schema = StructType([StructField(name, StringType()) for name in ("id", "data", "_if_stamp")])
    with pytest.raises(opslog.UsageError, match="use mode append"):
        writing.writer_of({"path": "/tmp/x"}, schema, True)


def test_a_driver_that_dies_before_the_commit_leaves_what_is_collected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path)
    Job(tmp_path, monkeypatch).task(0, ["a"])
    assert len(documents(tmp_path)) == 20
    backend = open_backend(str(tmp_path))
    report = verify(backend)
    assert report.ok
    assert ["put aside" in str(problem) for problem in report.problems] == [True]
    now = backend.now()
    assert find_garbage(backend, now + STAGED_SECONDS - 60, 1, 1).temporary == []
    (entry,) = find_garbage(backend, now + STAGED_SECONDS + 60, 1, 1).temporary
    backend.delete([entry.path])
    backend.close()
    check_clean(tmp_path)


def test_another_run_of_the_same_job_is_noticed_before_it_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opslog.open(tmp_path, agent="etl"), pytest.raises(opslog.AgentBusyError):
        Job(tmp_path, monkeypatch)


# -- which rows can be written


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ("n int", "column id"),
        ("id long, n int", "column id"),
        ("id string, data string, more int", "more"),
        ("id string, data int", "JSON text or a struct"),
        ("id string, at timestamp", "timestamp"),
        ("id string, data struct<a: array<decimal(3,1)>>", r"data.a\[\]"),
        ("id string, _op int, n int", "_op"),
        ("id string, _if_stamp long, n int", "_if_stamp"),
        ("id string, data string, v string", "v is the schema version .* not string"),
        ("id string, data struct<a: int>, v double", "v is the schema version .* not double"),
        ("id string, n int, n int", "the table has the name n twice"),
        ("id string, data struct<a: array<struct<n: int, n: int>>>", r"data.a\[\] has the name n twice"),
    ],
)
def test_columns_that_are_no_documents_are_refused(spark: SparkSession, columns: str, message: str) -> None:
    schema = _parse_datatype_string(columns)
    assert isinstance(schema, StructType)
    with pytest.raises(opslog.UsageError, match=message):
        Columns.of(schema)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"id": None, "data": "{}"}, "string"),
        ({"id": "a", "data": None}, "null"),
        ({"id": "a", "data": "[]"}, "object"),
        ({"id": "a", "data": "{"}, "JSON"),
        ({"id": "a", "data": '{"a":"\\ud800"}'}, "JSON"),
        ({"id": "a", "data": '{"n":18446744073709551616}'}, "64-bit"),
        ({"id": "a", "data": '{"n":-9223372036854775809}'}, "64-bit"),
        ({"id": "a", "data": '{"n":1e999}'}, "range of a double"),
        ({"id": "a", "data": '{"n":1,"n":1}'}, "the name 'n' twice"),
        ({"id": "a", "data": '{"a":' * 255 + "1" + "}" * 255}, "Recursion"),
        ({"id": "a", "data": "[" * 100_000}, "recursion"),
        ({"id": "a", "data": "{}", "_op": "upsert"}, "upsert"),
    ],
)
def test_rows_that_cannot_be_written_are_named(row: dict[str, Any], message: str) -> None:
    batch = pa.RecordBatch.from_pylist([row], pa.schema([(name, pa.string()) for name in row]))
    with pytest.raises(opslog.UsageError, match=message) as caught:
        list(Columns(is_text=True, has_op="_op" in row).ops(batch))
    assert repr(row["id"]) in str(caught.value)


@pytest.mark.parametrize("version", [0, -1])
def test_versions_that_no_document_can_have_are_refused(version: int) -> None:
    batch = pa.record_batch({"id": ["a"], "data": ["{}"], "v": pa.array([version], pa.int64())})
    with pytest.raises(opslog.UsageError, match=f"row 'a': a schema version is an integer from 1 .*, not {version}"):
        list(Columns(is_text=True, has_version=True).ops(batch))


def test_texts_that_are_not_utf8_are_refused() -> None:
    """Spark makes them, for example by a cast of bytes."""
    bad = pa.array([b'{"a":"\xff"}'], pa.binary()).view(pa.string())
    with pytest.raises(opslog.InvalidDocumentError, match="row 'a': data is no JSON"):
        list(Columns(is_text=True).ops(pa.record_batch({"id": ["a"], "data": bad})))
    for columns, batch in (
        (Columns(is_text=True), pa.record_batch({"id": bad, "data": ["{}"]})),
        (Columns(("n",)), pa.record_batch({"id": ["a"], "n": bad})),
    ):
        with pytest.raises(opslog.UsageError, match=r"the column (?:id|n) has a text that is not UTF-8: .*xff"):
            list(columns.ops(batch))


@pytest.mark.parametrize(
    "text",
    ['{"n":18446744073709551615,"m":-9223372036854775808}', '{"a":' * 254 + "1" + "}" * 254],
    ids=["wide", "deep"],
)
def test_the_largest_documents_can_be_read(tmp_path: Path, text: str) -> None:
    backend = open_backend(str(tmp_path))
    ManifestStore(backend).create_first(opslog.Settings(), REAL)
    with closing(writing.Log(backend, "etl")) as log:
        log.append(list(Columns(is_text=True).ops(pa.record_batch({"id": ["a"], "data": [text]}))))
    backend.close()
    assert documents(tmp_path) == {"a": json.loads(text)}
    check_clean(tmp_path)


def test_text_comes_back_as_it_is() -> None:
    text = '{ "z":1.0, "a":1, "big":18446744073709551615,\n "e":1e2, "s":"\\u00fc ü", "digits":0.10000000000000000001 }'
    batch = pa.record_batch({"id": ["a"], "data": [text], "v": pa.array([7], pa.int64())})
    (op,) = Columns(is_text=True, has_version=True).ops(batch)
    assert not isinstance(op, DeleteOp)
    stored = '{"z":1.0,"a":1,"big":18446744073709551615,"e":1e2,"s":"\\u00fc ü","digits":0.10000000000000000001}'
    assert bytes(op.data).decode() == stored
    assert op.v == 7
    assert json.loads(bytes(op.data)) == json.loads(text)
