"""The material of the contenders: the documents, the lines that opslog writes for them, and the peers' databases."""

from __future__ import annotations

import atexit
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import msgspec
import orjson

from opslog.format.commits import Commit, Set, encode_commit

Documents = list[tuple[str, dict[str, Any]]]

DECODER = msgspec.json.Decoder(Commit)

UPSERT = "INSERT INTO documents VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET data = excluded.data"


_prepared: dict[str, Path] = {}


def prepared(name: str, fill: Callable[[Path], None]) -> Path:
    """A folder that was filled once for all workloads that only read it, or add a little to it."""
    if name not in _prepared:
        place = Path(mkdtemp(prefix="opslog-bench-"))
        atexit.register(shutil.rmtree, place)
        fill(place)
        _prepared[name] = place
    return _prepared[name]


def document(number: int, revision: int = 0) -> dict[str, Any]:
    """About 170 bytes of JSON. Each round writes another revision: SQLite does not write a row that stays the same."""
    return {
        "title": f"Task {number}",
        "revision": f"{revision:06}",
        "status": "active",
        "assignee": f"agent-{number % 7}",
        "priority": number % 5,
        "tags": ["build", "api", "storage"],
        "notes": "what a person would write into one line of a task",
    }


def text(number: int) -> bytes:
    return orjson.dumps(document(number))


def line(number: int) -> bytes:
    """The line that opslog writes for a set of this document."""
    ts = "2026-01-01T00:00:00.000000Z"
    return encode_commit(Set(ts, number + 1, "main", f"task-{number}", msgspec.Raw(text(number))))


def documents(count: int, revision: int = 0) -> Documents:
    return [(f"task-{number}", document(number, revision)) for number in range(count)]


def rows(count: int, revision: int = 0) -> list[tuple[str, bytes]]:
    return [(id, orjson.dumps(value)) for id, value in documents(count, revision)]


@contextmanager
def sqlite(folder: Path, synchronous: str = "FULL") -> Iterator[sqlite3.Connection]:
    """A database in WAL mode with a table of documents. Each statement is a transaction, unless BEGIN is said."""
    connection = sqlite3.connect(folder / "peer.db", isolation_level=None, timeout=60)
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {synchronous}")
        connection.execute("CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, data BLOB) WITHOUT ROWID")
        yield connection
    finally:
        connection.close()
