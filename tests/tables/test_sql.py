"""SQL on a store: every column that a query names is there, with the current data."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec
import pytest

import opslog
from opslog import aio
from opslog.tables import arrow, tables
from opslog.tables.interruptible import interruptible

Store = opslog.Store[dict[str, Any]]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return opslog.open(tmp_path, agent="a", compact_after=None)


def answer(store: Store, query: str, parameters: object = None) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in store.sql(query, parameters).to_pylist()]  # type: ignore[arg-type]


def statuses(store: Store) -> dict[object, object]:
    return dict(answer(store, "SELECT id, status FROM documents"))  # type: ignore[arg-type]


def test_a_query_sees_every_write_before_it(store: Store, tmp_path: Path) -> None:
    other = opslog.open(tmp_path, agent="b", compact_after=None)
    store["x"] = {"status": "new"}
    other["y"] = {"status": "new"}
    assert statuses(store) == {"x": "new", "y": "new"}
    other["y"] = {"status": "done"}
    store["x"] = {"status": "lost"}
    store.undo()
    assert statuses(store) == {"x": "new", "y": "done"}
    store.create("z", {"status": "claimed"})
    del other["y"]
    assert statuses(store) == {"x": "new", "z": "claimed"}
    store.compact(full=True)
    store.archive(lambda document: document["status"] == "new", "p")
    assert statuses(store) == {"z": "claimed"}
    assert answer(store, "SELECT period, id, data->>'status' FROM archive") == [("p", "x", "new")]


def test_a_feed_that_has_to_begin_again_gives_the_same(tmp_path: Path) -> None:
    at_once = opslog.Settings(grace_seconds=0)
    store = opslog.open(tmp_path, agent="a", compact_after=None, settings=at_once)
    other = opslog.open(tmp_path, agent="b", compact_after=None)
    for number in range(5):
        store[f"{number}"] = {"status": "new"}
    assert len(statuses(store)) == 5
    other.refresh()
    for number in range(3):
        del other[f"{number}"]
        other["n"] = {"status": number}
        other.compact(full=True)
    assert statuses(store) == {"3": '"new"', "4": '"new"', "n": "2"}


def test_a_column_is_json_text_no_longer_than_its_values_differ(store: Store) -> None:
    store["a"], store["b"] = {"n": "x"}, {"n": "y"}
    answer(store, "SELECT n FROM documents")
    store["c"] = {"n": 1}
    assert answer(store, "SELECT n FROM documents ORDER BY id") == [('"x"',), ('"y"',), ("1",)]
    store["c"] = {"n": "z"}
    assert answer(store, "SELECT n FROM documents ORDER BY id") == [("x",), ("y",), ("z",)]
    del store["b"]
    assert answer(store, "SELECT n FROM documents ORDER BY id") == [("x",), ("z",)]


def test_columns_that_come_later_are_found(store: Store) -> None:
    """Also if a query names them after the table was made, and if they occur only after the documents that are read
    first."""
    with store.batch():
        for number in range(12_000):
            store[f"{number:05}"] = {"n": number} | ({"rare": "x"} if number == 6000 else {})
    assert answer(store, "SELECT id FROM documents WHERE rare IS NOT NULL") == [("06000",)]
    store["z"] = {"newer": 1}
    assert answer(store, "SELECT id FROM documents WHERE newer = 1") == [("z",)]
    assert answer(store, "SELECT count(*), count(n), count(rare) FROM documents") == [(12_001, 12_000, 1)]


@pytest.mark.parametrize(
    "query",
    [
        "FROM documents",
        "SELECT documents FROM documents",
        "SELECT d FROM documents AS d",
        "SELECT d.* FROM documents AS d",
        "SELECT COLUMNS('.*') FROM documents",
        "WITH x AS (FROM documents) SELECT * FROM x",
        "DESCRIBE documents",
        "SUMMARIZE documents",
        "SELECT * FROM (SELECT * FROM documents) WHERE id IN (SELECT id FROM Documents)",
    ],
)
def test_a_query_that_names_no_column_has_all_of_them(store: Store, query: str) -> None:
    store["x"] = {"status": "s-1"}
    assert "status" in str(store.sql(query).to_pylist()) + str(store.sql(query).schema)


def test_names_are_found_in_every_place_of_a_query(store: Store) -> None:
    store["x"] = {"Status": "a", "hours": 3, "owner": {"name": "n"}}
    assert answer(store, "SELECT owner.name FROM documents WHERE hours > 2 ORDER BY status") == [("n",)]
    assert answer(store, 'SELECT d."Status" FROM documents d JOIN commits c USING (id)') == [("a",)]
    assert answer(store, "SELECT max(hours) FILTER (status = 'a') FROM documents GROUP BY owner") == [(3,)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        # Both group by each column that they do not name.
        (
            "SELECT active FROM documents PIVOT (count(*) FOR status IN ('active', 'done')) ORDER BY 1",
            [(0,), (1,), (1,)],
        ),
        ("SELECT sum(hours) FROM (SELECT #8 AS hours FROM documents)", [(15,)]),
        ("SELECT count(*) FROM information_schema.columns WHERE table_name = 'documents'", [(8,)]),
        ("SELECT count(*) FROM duckdb_columns() WHERE table_name = 'documents'", [(8,)]),
        ("SELECT count(*) FROM pragma_table_info('documents')", [(8,)]),
        ("SELECT column_name FROM (DESCRIBE documents) WHERE column_name = 'hours'", [("hours",)]),
        ("SELECT name FROM (SHOW TABLES) ORDER BY name", [("archive",), ("commits",), ("documents",)]),
        ("SELECT hours FROM query_table('documents') ORDER BY hours LIMIT 1", [(3,)]),
    ],
)
def test_a_query_that_sees_columns_without_naming_them_has_all(
    store: Store, query: str, expected: list[tuple[object, ...]]
) -> None:
    for number, status in enumerate(("active", "done", "active")):
        store[f"{number}"] = {"kind": "task", "status": status, "hours": 3 + 2 * number}
    assert answer(store, query) == expected


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM documents WHERE data->>'n' = '1'",
        "SELECT d.*, d.data FROM documents d",
        "SELECT * EXCLUDE (ts), data AS text FROM documents",
        "SELECT * FROM (SELECT *, data AS text FROM documents) x",
        "SELECT * EXCLUDE (data) FROM documents",
        "SELECT COLUMNS(*) FROM documents ORDER BY data",
        "SELECT * FROM documents AS d WHERE EXISTS (SELECT 1 FROM documents AS e WHERE e.data = d.data)",
    ],
)
def test_a_star_does_not_stand_for_data_which_can_be_named_beside_it(store: Store, query: str) -> None:
    store["x"] = {"n": 1}
    table = store.sql(query)
    assert ("data" in table.column_names) == query.startswith("SELECT d.*, d.data")
    assert table.column("n").to_pylist() == [1]


def test_a_star_stands_for_data_of_other_tables(store: Store) -> None:
    store["x"] = {"n": 1}
    joined = store.sql("SELECT * FROM documents AS d JOIN commits AS c USING (id) WHERE d.data = $t", {"t": '{"n":1}'})
    assert joined.column_names.count("data") == 1
    assert answer(store, "SELECT * FROM (SELECT data FROM documents)") == [('{"n":1}',)]
    assert answer(store, "SELECT *, data FROM documents AS d(a, b, c, e, f, g)")[0][-1] == '{"n":1}'
    assert answer(store, "WITH Documents AS (SELECT 1 AS data) SELECT *, data + 1 FROM documents") == [(1, 2)]
    assert answer(store, "SELECT * REPLACE (1 AS n, 2 AS data) FROM documents")[0][-2:] == (1, 2)


def test_views_and_macros_have_the_current_documents(store: Store) -> None:
    store["x"] = {"n": 1, "m": 1}
    for statement in (
        "CREATE VIEW v AS SELECT n FROM documents",
        "CREATE VIEW w AS SELECT data->>'n' AS text, op FROM v, documents JOIN commits USING (id, data)",
        "CREATE TABLE t AS SELECT n FROM documents",
    ):
        store.sql(statement)
    assert answer(store, "SELECT n FROM v") == [(1,)]
    store["x"] = {"n": 2.5}
    assert answer(store, "SELECT * FROM V") == [(2.5,)]
    assert answer(store, "SELECT * FROM w") == [("2.5", "set")]
    assert answer(store, "SELECT * FROM t") == [(1,)]
    assert "data" not in store.sql("SELECT * FROM documents, v").column_names
    store.sql("CREATE MACRO largest() AS (SELECT max(n) FROM documents)")
    store.sql("CREATE MACRO ids() AS TABLE SELECT id FROM documents")
    assert answer(store, "SELECT largest() FROM documents") == [(2.5,)]
    assert answer(store, "FROM ids()") == [("x",)]


def test_commits_are_a_table(store: Store) -> None:
    store["x"] = {"n": 1}
    with store.batch():
        store["y"] = {"n": 2}
        store.delete("x")
    store.undo()
    store.create("z", {})
    query = "SELECT op, id, data->>'n', author, target FROM commits ORDER BY clock, id"
    assert answer(store, query) == [
        ("set", "x", "1", "a", None),
        ("delete", "x", None, "a", None),
        ("set", "y", "2", "a", None),
        ("undo", None, None, "a", 2),
        ("set", "z", None, "a", None),
    ]


def test_parameters(store: Store) -> None:
    store["x"] = {"n": 1}
    assert answer(store, "SELECT id FROM documents WHERE n = ?", [1]) == [("x",)]
    assert answer(store, "SELECT id FROM documents WHERE n = $n", {"n": 2}) == []


def test_a_view_of_the_past_and_a_reader_have_tables(store: Store, tmp_path: Path) -> None:
    store["x"] = {"n": 1}
    store["x"] = {"n": 2}
    with opslog.open(tmp_path, as_of=1) as past:
        assert answer(past, "SELECT n FROM documents") == [(1,)]
        assert answer(past, "SELECT count(*) FROM commits") == [(1,)]
    with opslog.open(tmp_path, read_only=True) as reader:
        assert answer(reader, "SELECT n FROM documents") == [(2,)]
        store["x"] = {"n": 3}
        assert answer(reader, "SELECT n FROM documents") == [(3,)]


def test_documents_of_older_versions_are_migrated(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"name": "n"}

    class Task(msgspec.Struct):
        title: str

    with opslog.open(
        tmp_path, agent="a", type=Task, version=2, migrate=lambda document, version: {"title": document["name"]}
    ) as typed:
        typed["y"] = Task("t")
        assert typed.to_arrow(["title"]).to_pydict() == {"title": ["n", "t"]}


def test_migrations_run_in_the_thread_of_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are code of the user, and may use variables of that thread."""
    monkeypatch.setattr(arrow, "_CHUNK_BYTES", 100)
    monkeypatch.setattr(arrow, "_ALONE_BYTES", 1)
    monkeypatch.setattr(os, "cpu_count", lambda: 4)

    class Task(msgspec.Struct):
        thread: int

    def migrate(document: dict[str, Any], version: int) -> dict[str, Any]:
        return {"thread": threading.get_ident()}

    with opslog.open(tmp_path, agent="a") as old:
        for number in range(200):
            old[f"task-{number}"] = {}
        old.compact()
    with opslog.open(tmp_path, agent="b", type=Task, version=2, migrate=migrate) as store:
        assert answer(store, "SELECT DISTINCT thread FROM documents") == [(threading.get_ident(),)]  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "query", ["SELEC 1", "SELECT nope FROM documents", "SELECT * FROM query", "SELECT 1/0::INT + 'x'"]
)
def test_a_query_that_cannot_be_answered_is_an_error_of_ours(store: Store, query: str) -> None:
    store["x"] = {"n": 1}
    with pytest.raises(opslog.UsageError, match="the query cannot be answered"):
        store.sql(query)
    assert answer(store, "SELECT n FROM documents") == [(1,)]


def test_tables_are_no_part_of_a_batch(store: Store) -> None:
    with store.batch(), pytest.raises(opslog.UsageError, match="sql"):
        store.sql("SELECT * FROM documents")
    with store.batch(), pytest.raises(opslog.UsageError, match="to_arrow"):
        store.to_arrow()


def test_a_closed_store_has_no_tables(store: Store) -> None:
    store["x"] = {"n": 1}
    store.to_arrow()
    store.close()
    with pytest.raises(opslog.ClosedError):
        store.to_arrow()


def test_many_updates_leave_few_chunks(store: Store) -> None:
    for number in range(100):
        store[f"{number % 70}"] = {"n": number}
        store.to_arrow(["id", "n"])
    table = store.to_arrow(["id", "n"])
    assert table.num_rows == 70
    assert table.column("n").num_chunks < 12
    assert table.column("id").to_pylist() == sorted(store)


@pytest.mark.parametrize("error", [KeyboardInterrupt, TimeoutError])
def test_a_signal_ends_a_query_and_leaves_the_store_usable(
    store: Store, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """Whatever its handler raises. A second signal changes nothing."""
    store["x"] = {"n": 1}

    def interrupted(connection: duckdb.DuckDBPyConnection, work: Callable[[], object]) -> object:
        def run() -> object:
            signal.pthread_kill(main, signal.SIGINT)
            try:
                return work()
            finally:
                signal.pthread_kill(main, signal.SIGINT)
                ended.append(True)

        return interruptible(connection, run)

    def handler(number: int, frame: object) -> None:
        raise error("of the handler")

    main, ended = threading.get_ident(), list[bool]()
    before = signal.signal(signal.SIGINT, handler)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(tables, "interruptible", interrupted)
            with pytest.raises(error, match="of the handler"):
                store.sql("SELECT count(*) FROM range(1_000_000_000_000) AS t(i) WHERE i % 7 = 3")
    finally:
        signal.signal(signal.SIGINT, before)
    assert ended
    assert answer(store, "SELECT n FROM documents") == [(1,)]


AT_EXIT = """
import atexit, opslog
store = opslog.open("memory://at-exit", agent="a", compact_after=None)
with store.batch():
    store["large"] = {"n": 1, "text": "x" * 2_000_000}
    store["small"] = {"n": 2}
atexit.register(lambda: print(store.to_arrow(["id", "n"]).to_pylist()))
"""


def test_at_exit() -> None:
    """Also when a pool of threads takes no work any more: as the interpreter ends, or only its main thread."""
    done = subprocess.run([sys.executable, "-c", AT_EXIT], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[{'id': 'large', 'n': 1}, {'id': 'small', 'n': 2}]\n", done.stderr


async def _asynchronous(path: Path) -> tuple[object, object]:
    async with aio.open(path, agent="a") as store:
        await store.set("x", {"n": 1})
        return (await store.to_arrow(["n"])).to_pylist(), (await store.sql("SELECT n FROM documents")).to_pylist()


def test_asyncio_has_the_same(tmp_path: Path) -> None:
    import asyncio

    assert asyncio.run(_asynchronous(tmp_path)) == ([{"n": 1}], [{"n": 1}])
