"""Workloads of queries: 100 documents by equality and the top 10 by a field, beside a plain filter, and beside
SQLite with indexes on the results of `json_extract`."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson

import opslog
from benchmarks.material import document, prepared
from benchmarks.runner import Round, Scale, Timer, contender, workload

EQUAL = workload("find 100 of 200,000 documents by equality", rounds=5)
TOP = workload("find the top 10 of 200,000 documents by a field", rounds=5)
READS = "reads only"
FIND, FILTER, SQLITE = "opslog, find", "opslog, filter", "SQLite, index on json_extract"
FOUND, TOP_COUNT, SEED = 100, 10, 7
# Queries that take seconds run once a round, and the others this often.
REPEATS = 20

Store = opslog.Store[dict[str, Any]]
Parameters = Callable[[random.Random, int], tuple[Any, ...]]


def documents(count: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each owner has `FOUND` documents, and no two have the same hours."""
    numbers = random.Random(SEED)
    for number in range(count):
        more = {"owner": f"owner-{number % (count // FOUND)}", "hours": numbers.random() * 1000}
        yield f"task-{number:07}", document(number) | more


def store_of(count: int) -> Path:
    def fill(folder: Path) -> None:
        with opslog.open(folder, durability="buffered", compact_after=None) as store:
            with store.batch():
                for id, value in documents(count):
                    store[id] = value
            for _ in range(32):  # an undo window, so that all of it can be compacted
                store["task-0000000"] = store["task-0000000"]
            store.compact()

    return prepared(f"opslog, {count} documents with owners", fill)


def database_of(count: int) -> Path:
    def fill(folder: Path) -> None:
        with closing(sqlite3.connect(folder / "peer.db")) as database, database:
            database.execute("CREATE TABLE documents (id TEXT PRIMARY KEY, data TEXT) WITHOUT ROWID")
            rows = ((id, orjson.dumps(value).decode()) for id, value in documents(count))
            database.executemany("INSERT INTO documents VALUES (?, ?)", rows)
            for field in ("owner", "hours"):
                database.execute(f"CREATE INDEX {field} ON documents (json_extract(data, '$.{field}'))")

    return prepared(f"SQLite, {count} documents with owners", fill) / "peer.db"


def owner(numbers: random.Random, count: int) -> str:
    return f"owner-{numbers.randrange(count // FOUND)}"


def on_store(ask: Callable[[Store, random.Random, int], list[Any]], repeats: int) -> Callable[..., Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        numbers = random.Random(SEED)
        with opslog.open(store_of(scale.questions), read_only=True) as store:
            if repeats > 1:
                store.index("owner", "hours")

            def run(timer: Timer) -> int:
                with timer:
                    found = [ask(store, numbers, scale.questions) for _ in range(repeats)]
                assert {*map(len, found)} <= {FOUND, TOP_COUNT}
                return repeats

            yield run

    return start


def on_database(
    query: str, parameters: Callable[[random.Random, int], tuple[Any, ...]]
) -> Callable[..., Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        numbers = random.Random(SEED)
        with closing(sqlite3.connect(database_of(scale.questions))) as database:

            def ask(given: tuple[Any, ...]) -> list[Any]:
                return [(id, orjson.loads(data)) for id, data in database.execute(query, given)]

            def run(timer: Timer) -> int:
                with timer:
                    found = [ask(parameters(numbers, scale.questions)) for _ in range(REPEATS)]
                assert {*map(len, found)} <= {FOUND, TOP_COUNT}
                return REPEATS

            yield run

    return start


def first_question(**question: Any) -> Callable[..., Iterator[Round]]:
    """The first query of a store that was just opened: it makes the index."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        def run(timer: Timer) -> int:
            with opslog.open(store_of(scale.questions), read_only=True) as store, timer:
                assert len(store.find(**question)) in (FOUND, TOP_COUNT)
            return 1

        yield run

    return start


def by_owner(store: Store, numbers: random.Random, count: int) -> list[Any]:
    return list(store.find({"owner": owner(numbers, count)}))


def filtered(store: Store, numbers: random.Random, count: int) -> list[Any]:
    wanted = owner(numbers, count)
    return store.filter(lambda document: document["owner"] == wanted)


def top(store: Store, numbers: random.Random, count: int) -> list[Any]:
    return list(store.find(order_by="-hours", limit=TOP_COUNT))


def sorted_in_python(store: Store, numbers: random.Random, count: int) -> list[Any]:
    return sorted(store.items(), key=lambda item: -item[1]["hours"])[:TOP_COUNT]


contender(EQUAL, FIND, READS)(on_store(by_owner, REPEATS))
contender(EQUAL, "opslog, the first question", READS)(first_question(where={"owner": "owner-0"}))
contender(EQUAL, FILTER, READS)(on_store(filtered, 1))
contender(EQUAL, SQLITE, READS)(
    on_database(
        "SELECT id, data FROM documents WHERE json_extract(data, '$.owner') = ? ORDER BY id",
        lambda numbers, count: (owner(numbers, count),),
    )
)
contender(TOP, FIND, READS)(on_store(top, REPEATS))
contender(TOP, "opslog, the first question", READS)(first_question(order_by="-hours", limit=TOP_COUNT))
contender(TOP, "opslog, sorted in Python", READS)(on_store(sorted_in_python, 1))
contender(TOP, SQLITE, READS)(
    on_database(
        f"SELECT id, data FROM documents ORDER BY json_extract(data, '$.hours') DESC LIMIT {TOP_COUNT}",
        lambda numbers, count: (),
    )
)
