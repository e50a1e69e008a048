"""Workloads of questions in SQL, beside DuckDB over the exported JSON Lines and SQLite over a column of JSON.

The store is open, the file written and the database filled before; only the query is measured.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import orjson

import opslog
from benchmarks.material import prepared, sqlite, text
from benchmarks.reading import READS, compacted
from benchmarks.runner import Round, Scale, Timer, contender, workload

FIRST = workload("first question in SQL, 1,000,000 documents", rounds=5)
LATER = workload("later question in SQL, 1,000,000 documents", rounds=5)
NEW = workload("question in SQL after 1 new document of 1,000,000", rounds=5)

LINES, ROWS = "DuckDB, JSON Lines", "SQLite, JSON column"
QUESTION = "SELECT assignee, count(*), sum(priority) FROM {table} GROUP BY 1 ORDER BY 1"
_FIELDS = "(SELECT data->>'assignee' AS assignee, data->>'priority' AS priority FROM documents)"


def _lines(count: int) -> Path:
    def fill(folder: Path) -> None:
        with (folder / "documents.jsonl").open("wb") as file:
            for number in range(count):
                file.write(orjson.dumps({"id": f"task-{number}", "data": orjson.Fragment(text(number))}) + b"\n")

    return prepared(f"{count} JSON Lines", fill) / "documents.jsonl"


def _filled(count: int) -> Path:
    def fill(folder: Path) -> None:
        with sqlite(folder) as connection:
            connection.execute("BEGIN")
            rows = ((f"task-{number}", text(number).decode()) for number in range(count))
            connection.executemany("INSERT INTO documents VALUES (?, ?)", rows)
            connection.execute("COMMIT")

    return prepared(f"SQLite, {count} rows of JSON", fill)


@contender(FIRST, "opslog", READS)
def first_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        with opslog.open(compacted(scale.snapshot), read_only=True) as store:
            store["task-1"]
            with timer:
                store.sql(QUESTION.format(table="documents"))
        return 1

    yield run


@contender(LATER, "opslog", READS)
def later_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(compacted(scale.snapshot), read_only=True) as store:
        store.sql(QUESTION.format(table="documents"))

        def run(timer: Timer) -> int:
            with timer:
                store.sql(QUESTION.format(table="documents"))
            return 1

        yield run


@contender(NEW, "opslog", READS)
def new_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(compacted(scale.snapshot), agent="asker", compact_after=None) as store:
        store.sql(QUESTION.format(table="documents"))

        def run(timer: Timer) -> int:
            store.set("new", {"assignee": "agent-7", "priority": timer.number})
            with timer:
                store.sql(QUESTION.format(table="documents"))
            return 1

        yield run


@contender(FIRST, LINES, READS)
@contender(LATER, LINES, READS)
def ask_duckdb(folder: Path, scale: Scale) -> Iterator[Round]:
    lines = _lines(scale.snapshot)
    fields = f"(SELECT data.assignee AS assignee, data.priority AS priority FROM read_json('{lines}'))"
    with duckdb.connect(":memory:") as connection:

        def run(timer: Timer) -> int:
            with timer:
                connection.execute(QUESTION.format(table=fields)).fetchall()
            return 1

        yield run


@contender(FIRST, ROWS, READS)
@contender(LATER, ROWS, READS)
@contender(NEW, ROWS, READS)
def ask_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(_filled(scale.snapshot)) as connection:

        def run(timer: Timer) -> int:
            with timer:
                connection.execute(QUESTION.format(table=_FIELDS)).fetchall()
            return 1

        yield run
