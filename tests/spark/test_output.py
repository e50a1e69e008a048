"""A replay by Spark from the command line: the same documents as Python's, in several files."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet
from pyspark.sql import SparkSession

import opslog
from opslog.backends import open_backend
from opslog.cli.engines import WITH_KERNEL, WITHOUT_KERNEL, Speed, break_even, choose, cores_of
from opslog.cli.program import run
from opslog.format.commits import encode_commit
from opslog.spark.__main__ import app
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.cli.calling import call

STARTING = "opslog: starting Spark, which takes some seconds\n"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    settings = opslog.Settings(undo_window=2)
    with opslog.open(root, agent="a", settings=settings, durability="buffered") as a, opslog.open(root, agent="b") as b:
        for number in range(60):
            a[f"task-{number:02}"] = {"n": number, "1.0": 1.0, "big": 2**64 - 1}
        a.compact()
        b['é😀\u2028\n"\\'] = {"z": None, "a": [[], {}, '\u0000"\\']}
        b["task-03"] = {"by": "b"}
        b["task-04"] = {"undone": True}
        b.undo()
        a.refresh()
        del a["task-07"]
        b.modify("task-09", lambda document: {"by": "b"})
        b.create("claim", {"by": "b"})
    return root


def records(root: Path) -> list[opslog.Set]:
    with opslog.open(root, read_only=True, version=None) as store:
        return list(store.records())


def test_it_writes_what_python_writes(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    expected = records(store)
    result = call(store, "replay", "--engine", "spark", "--to", str(tmp_path / "lines"))
    assert (result.code, result.out) == (0, f"replayed {len(expected)} documents to {tmp_path / 'lines'}\n")
    assert result.err == STARTING
    files = sorted((tmp_path / "lines").iterdir())
    assert {path.suffix for path in files} == {".jsonl"}
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    assert sorted(lines) == sorted(map(encode_commit, expected))

    arguments = ["replay", str(store), "--format", "store", "--to", str(tmp_path / "copy")]
    assert run(arguments, app, "opslog.spark") == 0
    assert records(tmp_path / "copy") == expected
    backend = open_backend(tmp_path / "copy")
    assert verify(backend).problems == []
    backend.close()
    with opslog.open(tmp_path / "copy", read_only=True) as copy, opslog.open(store, read_only=True) as original:
        assert copy.stats().clock == original.stats().clock
    with opslog.open(tmp_path / "copy", agent="a") as writable:
        assert replica_of(writable).state.manifest.cut["transactions"].commits == 2
        writable["claim"] = {"by": "a"}
        assert [commit.agent for commit in writable.ops()] == ["transactions"], "it is guarded from the start"


def test_parquet_has_text_or_variants(spark: SparkSession, store: Path, tmp_path: Path) -> None:
    result = call(store, "replay", "--engine", "spark", "--format", "parquet", "--to", str(tmp_path / "text"), "--json")
    assert result.values[0]["documents"] == len(records(store))
    table = parquet.read_table(tmp_path / "text")
    assert table.column_names == ["id", "data", "clock", "agent", "ts", "v", "by", "tx"]
    found = {row["id"]: (row["data"].encode(), row["clock"], row["agent"], row["ts"]) for row in table.to_pylist()}
    assert found == {r.id: (bytes(r.data), r.clock, r.agent, r.ts) for r in records(store)}
    result = call(store, "replay", "--format", "parquet", "--variant", "--to", str(tmp_path / "variants"))
    assert result.code == 0
    assert result.err == f"opslog: replaying with Spark: it alone writes VARIANT\n{STARTING}"
    frame = spark.read.parquet(str(tmp_path / "variants"))
    (row,) = frame.where("id = 'task-05'").selectExpr("variant_get(data, '$.n', 'int') AS n").collect()
    assert row.n == 5
    assert frame.count() == len(records(store))


def test_compaction_is_a_job_of_its_own(spark: SparkSession, store: Path, capfd: pytest.CaptureFixture[str]) -> None:
    before = records(store)
    assert run(["--json", "compact", str(store), "--full"], app, "opslog.spark") == 0
    assert '"locked":false' in capfd.readouterr().out
    assert records(store) == before
    assert run(["compact", str(store / "nowhere")], app, "opslog.spark") == 3
    assert "opslog: no store" in capfd.readouterr().err


def test_help_names_the_program_and_only_options_that_its_commands_have() -> None:
    command = [sys.executable, "-m", "opslog.spark", "--help"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert shown.startswith("Usage: python -m opslog.spark ")
    assert "--store" in shown
    assert "--agent" not in shown


@pytest.mark.parametrize("arguments", [["--variant"], ["--engine", "python", "--master", "local"]], ids=str)
def test_options_that_do_not_go_together(store: Path, tmp_path: Path, arguments: list[str]) -> None:
    result = call(store, "replay", "--to", str(tmp_path / "out"), *arguments)
    assert result.code == 2
    assert arguments[0] in result.err or "--master" in result.err


GB = 10**9


def test_spark_is_chosen_where_it_is_faster() -> None:
    speed = Speed(python=15, spark=32)
    assert break_even(4, 64 * GB, speed) == pytest.approx(10 * GB / (15 - 32 / 4))
    assert break_even(2, 64 * GB, speed) == 32 * GB, "never faster; but it does not need the memory"
    assert break_even(4, 1 * GB, speed) == GB / 2
    many, eight, four = (break_even(n, 64 * GB, speed) for n in (cores_of("spark://host:7077"), 8, 4))
    assert many < eight < four
    for cores in (16, 64, math.inf):
        assert break_even(cores, 999 * GB, WITHOUT_KERNEL) < break_even(cores, 999 * GB, WITH_KERNEL)
    assert [cores_of(master) for master in ("local", "local[3]", "local[4,2]")] == [1, 3, 4]
    assert choose(4 * GB, 4, 64 * GB, None, speed) == (
        "spark",
        "4.0 GB to read, where Spark is worth its start from 1.4 GB on",
    )
    few = choose(GB, 4, 64 * GB, None, speed)
    assert few == ("python", "1.0 GB to read, and Spark is worth its start from 1.4 GB on")
    few = choose(4 * GB, 4, 64 * GB, "there is no Java", speed)
    assert few.engine == "python"
    assert few.why.endswith(", but there is no Java")
