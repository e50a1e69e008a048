"""replay: the same documents in another form, and nothing half done."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

import opslog as library
from opslog.backends import open_backend
from opslog.format.commits import encode_commit
from opslog.verify.verify import verify
from tests.cli.calling import PROGRAM
from tests.cli.conftest import Opslog
from tests.support.waiting import until

Row = tuple[str, bytes, int, str, str, int, str | None, str | None]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A store with documents of every kind, in a snapshot of several runs and in the tails of two agents. Some are
    deleted or undone."""
    root = tmp_path / "source"
    settings = library.Settings(undo_window=2)
    with library.open(root, agent="a", settings=settings) as a, library.open(root, agent="b", version=7) as b:
        for number in range(50):
            a[f"task-{number:02}"] = {"n": number, "1.0": 1.0, "1": 1, "big": 2**64 - 1, "low": -(2**63)}
        a.compact(keep_history="forever")
        b["é😀\u2028"] = {"z": None, "a": [[], {}, '\u0000"\\']}
        b["task-03"] = {"by": "b"}
        for number in range(5):
            a[f"task-1{number}"] = {"again": number}
        a.compact()
        a.refresh()
        del a["task-07"]
        a["task-08"] = {"undone": True}
        a.undo()
    return root


def records(root: Path, **options: Any) -> list[library.Set]:
    with library.open(root, read_only=True, version=None, **options) as store:
        return list(store.records())


def rows(found: list[library.Set]) -> list[Row]:
    return [
        (r.id, bytes(r.data), r.clock, r.agent, r.ts, r.v, r.by or None, r.tx or None)  # of transactions
        for r in found
    ]


def middle(root: Path) -> int:
    """A clock at which the past differs from the present."""
    with library.open(root, read_only=True) as store:
        return store.stats().clock - 3


@pytest.mark.parametrize("past", [False, True])
def test_lines_are_those_of_an_export(opslog: Opslog, source: Path, tmp_path: Path, past: bool) -> None:
    as_of = middle(source) if past else None
    arguments = () if as_of is None else ("--as-of", str(as_of))
    out = tmp_path / "out"
    result = opslog("replay", str(source), "--to", str(out), *arguments)
    expected = records(source, as_of=as_of)
    assert (result.code, result.out) == (0, f"replayed {len(expected)} documents to {out}\n")
    assert result.err.startswith(
        "opslog: replaying with one process of Python: 1 MB to read, and Spark is worth its start"
    )
    assert [path.name for path in out.iterdir()] == ["part-00000.jsonl"]
    assert (out / "part-00000.jsonl").read_bytes() == b"".join(map(encode_commit, expected))
    assert (out / "part-00000.jsonl").read_text() == opslog("export", "-s", str(source), *arguments).out


def test_parquet_has_the_same_rows(opslog: Opslog, source: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert opslog("replay", "-s", str(source), "--to", str(out), "--format", "parquet").code == 0
    table = parquet.read_table(out / "part-00000.parquet")
    assert table.column_names == ["id", "data", "clock", "agent", "ts", "v", "by", "tx"]
    found = [
        (id, data.encode(), *stamp) for id, data, *stamp in zip(*(c.to_pylist() for c in table.columns), strict=True)
    ]
    assert found == rows(records(source))


@pytest.mark.parametrize("past", [False, True])
def test_a_store_has_the_same_records_and_goes_on(opslog: Opslog, source: Path, tmp_path: Path, past: bool) -> None:
    as_of = middle(source) if past else None
    arguments = () if as_of is None else ("--as-of", str(as_of))
    out = tmp_path / "out"
    assert opslog("replay", str(source), "--to", str(out), "--format", "store", *arguments).code == 0
    expected = records(source, as_of=as_of)
    assert records(out) == expected
    backend = open_backend(out)
    assert verify(backend).problems == []
    backend.close()
    with library.open(out, agent="a") as store:
        assert store.stats().clock == (as_of or middle(source) + 3), "clocks never go back"
        assert store.stats().snapshot_records == len(expected)
        store["task-00"] = {"later": 1}
        assert store.undo()
        assert not store.undo(), "what others' logs hold is not to be undone here"
        store["task-00"] = {"later": 2}
        store.compact()
        assert store["task-00"] == {"later": 2}
    with pytest.raises(library.HistoryGoneError):
        library.open(out, as_of=1)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "store"])
def test_an_empty_store_is_replayed(opslog: Opslog, root: Path, tmp_path: Path, form: str) -> None:
    library.open(root).close()
    out = tmp_path / "out"
    out.mkdir()
    assert opslog("replay", "--to", str(out), "--format", form, "--engine", "python", "--json").values == [
        {"documents": 0, "to": str(out), "format": form, "engine": "python", "why": "as --engine python says"}
    ]
    if form == "store":
        assert records(out) == []


def test_a_directory_that_is_not_empty_is_left_alone(opslog: Opslog, source: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("precious")
    for name in ("mine", "mine/file"):
        result = opslog("replay", str(source), "--to", str(tmp_path / name))
        assert (result.code, result.out) == (2, "")
        assert "is not empty" in result.err
    assert (tmp_path / "mine" / "file").read_text() == "precious"


def test_nothing_is_left_of_a_failure(opslog: Opslog, source: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    part = next(source.glob("snapshots/*/part-00000.jsonl"))
    part.write_bytes(part.read_bytes().replace(b'"n":', b'"m":', 1))
    result = opslog("replay", str(source), "--to", str(tmp_path / "out"))
    assert result.code == 3
    assert "part-00000.jsonl" in result.err
    assert opslog("replay", str(tmp_path / "nowhere"), "--to", str(tmp_path / "out")).code == 3
    assert sorted(tmp_path.iterdir()) == before


def test_a_killed_replay_leaves_nothing_under_the_name(source: Path, tmp_path: Path) -> None:
    """The command writes to a pipe in the place of its first part, and is killed while it waits for a reader."""
    code = (
        "import os, sys; from pathlib import Path; import opslog.bulk.replay as replay; write = replay._write_lines\n"
        "def stuck(rows, path, progress):\n    os.mkfifo(path.with_name('pipe')); write(rows, path, progress)\n"
        "    open(path.with_name('pipe'), 'wb')\n"
        "replay._write_lines = stuck\n"
        "from opslog.cli import main; main()"
    )
    out = tmp_path / "there" / "out"
    arguments = ["replay", str(source), "--to", str(out)]
    with subprocess.Popen([PROGRAM[0], "-c", code, *arguments]) as process:
        until(lambda: any(out.parent.glob(".out.*/pipe")))
        os.kill(process.pid, signal.SIGKILL)
    assert [path.name.startswith(".out.") for path in out.parent.iterdir()] == [True]
    assert subprocess.run([*PROGRAM, *arguments], capture_output=True, check=False).returncode == 0
    assert (out / "part-00000.jsonl").is_file()


def test_it_says_that_spark_is_starting(
    opslog: Opslog, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = pytest.importorskip("opslog.spark.jobs")
    monkeypatch.setattr("opslog.cli.replay.spark_missing", lambda master: None)
    monkeypatch.setattr(jobs, "replay_into", lambda *_, **__: 3)
    command = ["replay", str(source), "--to", str(tmp_path / "out"), "--engine", "spark"]
    answer = opslog(*command)
    assert "opslog: starting Spark" in answer.err
    assert opslog("--json", *command).err == ""
