"""Tables at the shell: questions in SQL, and documents as Parquet and CSV."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import orjson
import pytest
from pyarrow import parquet

import opslog
from opslog.tables import reading, tables
from opslog.tables.interruptible import interruptible
from tests.cli.calling import INTERRUPTED_PROGRAM, at_terminal, call

# A question that takes hours to answer.
ENDLESS = "SELECT count(*) FROM range(1_000_000_000_000) AS t(i) WHERE i % 7 = 3"

DOCUMENTS = {
    "a": {"n": 1, "f": 1.5, "day": "2026-01-01", "zip": "007", "flag": True, "big": 2**64 - 1},
    "b": {"n": -2, "tags": ["x"], "owner": {"name": "Ann"}},
}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "store", agent="one") as store:
        store.update(DOCUMENTS)
    return tmp_path / "store"


def documents(root: Path) -> dict[str, object]:
    with opslog.open(root, read_only=True) as store:
        return dict(store)


def test_a_question_is_answered_in_lines_and_in_json(store: Path) -> None:
    question = "SELECT id, n, tags, owner FROM documents ORDER BY n"
    assert call(store, "query", question).out == 'b\t-2\t["x"]\t{"name":"Ann"}\na\t1\t\t\n'
    assert call(store, "query", question, "--json").values == [
        {"id": "b", "n": -2, "tags": ["x"], "owner": {"name": "Ann"}},
        {"id": "a", "n": 1, "tags": None, "owner": None},
    ]
    assert call(store, "query", "SELECT 'x' || chr(10) || 'y'").out == '"x\\ny"\n'
    for number in (-(10**19), 2**64, -(2**63), 2**64 - 1):  # JSON here has integers of 64 bits
        [row] = call(store, "query", f"SELECT {number}::HUGEINT AS n", "--json").values
        assert row == {"n": number if -(2**63) <= number < 2**64 else str(number)}


def test_columns_of_one_name_are_all_shown_and_refused_as_json(store: Path) -> None:
    question = "SELECT id, n AS x, n + 1 AS x, id FROM documents ORDER BY id"
    assert call(store, "query", question).out == "a\t1\t2\ta\nb\t-2\t-1\tb\n"
    assert at_terminal(store, "query", question).split("\n")[:2] == ["id  x   x   id", "a   1   2   a"]
    result = call(store, "query", question, "--json")
    assert (result.code, result.out, result.error["error"]) == (2, "", "UsageError")
    assert "'id', which no JSON object has: name one with AS" in result.error["message"]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("map {'a': 1, 'b': NULL}", {"a": 1, "b": None}),
        ("[{'m': map {1: map {'x': DATE '2026-01-01'}}}]", [{"m": {"1": {"x": "2026-01-01"}}}]),
        ("union_value(l := [1])", [1]),
        ("INTERVAL 14 MONTH", "1 year 2 months"),
        ("INTERVAL '1 day 3 hours'", "1 day 03:00:00"),
        ("'10000-01-01'::TIMESTAMP", "10000-01-01 00:00:00"),
        ("'infinity'::DATE", "infinity"),
        ("'0044-03-15 (BC)'::DATE", "0044-03-15 (BC)"),
        ("['-infinity'::TIMESTAMP, NULL]", "[-infinity, NULL]"),
        ("TIMESTAMP_NS '2026-01-01 00:00:00.123456789'", "2026-01-01 00:00:00.123456789"),
    ],
)
def test_a_value_that_python_does_not_have_is_shown_as_text(store: Path, value: str, shown: object) -> None:
    question = f"SELECT {value} AS v"
    assert call(store, "query", question, "--json").values == [{"v": shown}]
    assert (
        call(store, "query", question).out == f"{shown if isinstance(shown, str) else orjson.dumps(shown).decode()}\n"
    )


def interrupted(connection: duckdb.DuckDBPyConnection, work: Callable[[], object]) -> object:
    """Work that Ctrl-C interrupts, which comes just before DuckDB begins."""

    def run() -> object:
        signal.pthread_kill(main, signal.SIGINT)
        return work()

    main = threading.get_ident()
    return interruptible(connection, run)


@pytest.mark.parametrize("arguments", [["query", ENDLESS], ["export", "out.csv"], ["export", "out.parquet"]])
def test_ctrl_c_ends_a_question(
    store: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tables if arguments[0] == "query" else reading, "interruptible", interrupted)
    result = call(store, *arguments)
    assert (result.code, result.out, result.err) == (130, "", "")
    assert list(tmp_path.iterdir()) == [store]


def test_ctrl_c_ends_a_question_in_a_process(store: Path, tmp_path: Path) -> None:
    """While DuckDB is at work, which the rows that it writes show."""
    rows = tmp_path / "rows"
    rows.mkdir()
    question = f"COPY (SELECT i FROM range(1_000_000_000_000) AS t(i)) TO '{rows / 'x.csv'}'"
    with subprocess.Popen(
        [*INTERRUPTED_PROGRAM, "--store", str(store), "query", question], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            while not any(file.stat().st_size for file in rows.iterdir()):
                assert process.poll() is None
                time.sleep(0.01)
            process.send_signal(signal.SIGINT)
            assert process.communicate(timeout=60) == (b"", b"")
        finally:
            process.kill()
    assert process.returncode == 130


def test_a_question_about_the_past(store: Path) -> None:
    with opslog.open(store, agent="one") as writer:
        writer["a"] = {"n": 5}
    assert call(store, "query", "SELECT n FROM documents WHERE id = 'a'").out == "5\n"
    assert call(store, "query", "--as-of", "1", "SELECT n FROM documents WHERE id = 'a'").out == "1\n"


def test_a_question_that_cannot_be_answered_is_wrong_usage(store: Path) -> None:
    result = call(store, "query", "SELECT nope FROM documents")
    assert (result.code, result.out) == (2, "")
    assert "nope" in result.err
    assert result.err.count("\n") == 1


def test_parquet_comes_back_as_it_was(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.parquet"
    result = call(store, "export", str(file))
    assert (result.code, result.err) == (0, "")
    assert parquet.read_table(file).column_names[0] == "id"
    assert call(tmp_path / "again", "import", str(file)).code == 0
    assert documents(tmp_path / "again") == DOCUMENTS


def test_csv_comes_back_but_for_lists_and_objects_which_are_named(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.csv"
    result = call(store, "export", str(file))
    assert result.err == "opslog: JSON text, which an import takes for text, is in: tags, owner\n"
    assert call(tmp_path / "again", "import", str(file)).code == 0
    assert documents(tmp_path / "again") == DOCUMENTS | {
        "b": {"n": -2, "tags": '["x"]', "owner": '{"name":"Ann"}'},
    }


@pytest.mark.parametrize("name", ["out.xlsx", "out.json", "out.parq", "out.xlsx.gz"])
def test_a_name_that_ends_in_no_format_is_refused(store: Path, tmp_path: Path, name: str) -> None:
    result = call(store, "export", str(tmp_path / name))
    assert (result.code, result.out) == (2, "")
    assert "end the name in .jsonl, .ndjson, .parquet or .csv" in result.err
    assert not (tmp_path / name).exists()
    assert call(store, "export", str(tmp_path / name), "--format", "jsonl").code == 0


@pytest.mark.parametrize(
    "arguments", [["out.parquet.gz"], ["out.csv.gz"], ["--format", "csv", "out.gz"], ["--format", "parquet", "x.y.gz"]]
)
def test_a_table_that_no_import_could_read_is_not_written(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(store, "export", *arguments)
    assert (result.code, list(tmp_path.iterdir())) == (2, [store])
    assert "leave out .gz" in result.err


@pytest.mark.parametrize("name", ["out", "out.jsonl", "out.NDJSON", "out.jsonl.gz", "out.gz"])
def test_a_name_without_an_end_is_of_json_lines(store: Path, tmp_path: Path, name: str) -> None:
    assert call(store, "export", str(tmp_path / name)).code == 0
    assert call(tmp_path / "again", "import", str(tmp_path / name)).code == 0
    assert documents(tmp_path / "again") == DOCUMENTS


def test_what_parquet_has_as_json_text_is_named(store: Path, tmp_path: Path) -> None:
    with opslog.open(store, agent="one") as writer:
        writer["c"] = {"n": "many"}
    file = tmp_path / "x.parquet"
    assert call(store, "export", str(file)).err == "opslog: JSON text, which an import takes for text, is in: n\n"
    assert call(store, "export", str(file), "--json").err == ""


@pytest.mark.parametrize("form", ["parquet", "csv"])
def test_a_file_that_cannot_be_written_leaves_nothing(store: Path, tmp_path: Path, form: str) -> None:
    before = sorted(tmp_path.iterdir())
    assert call(store, "export", str(tmp_path / "none" / f"x.{form}")).code == 3
    assert call(store, "export", "--plain", str(tmp_path / f"x.{form}")).code == 2
    assert sorted(tmp_path.iterdir()) == before


def test_id_field_names_documents_of_json_lines_too(tmp_path: Path) -> None:
    result = call(tmp_path / "store", "import", "-", "--id-field", "key", stdin=b'{"key":"k","n":1}\n')
    assert (result.code, result.err) == (0, "")
    assert documents(tmp_path / "store") == {"k": {"n": 1}}
    assert call(tmp_path / "store", "import", str(tmp_path), "--id-field", "key").code == 2
