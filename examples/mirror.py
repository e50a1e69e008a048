"""A copy of a store in SQLite, for reports and other programs. Each run copies only what has changed.

python mirror.py tasks-board board.sqlite            # once, as from cron
python mirror.py tasks-board board.sqlite --follow   # without end
sqlite3 board.sqlite "SELECT document ->> 'status', count(*) FROM documents GROUP BY 1"

You can kill it at any moment. The token says how far the copy has come. It is written in the same transaction as the
rows, so the next run continues from there and misses nothing.
"""

from __future__ import annotations

import argparse
import json
import sqlite3
from contextlib import closing
from typing import Any

import opslog

TABLES = """
CREATE TABLE IF NOT EXISTS documents (id TEXT PRIMARY KEY, document TEXT NOT NULL, author TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS position (only_one INTEGER PRIMARY KEY CHECK (only_one = 1), token TEXT NOT NULL);
"""


def token_of(database: sqlite3.Connection) -> str | None:
    row = database.execute("SELECT token FROM position").fetchone()
    return row[0] if row else None


def take(database: sqlite3.Connection, changes: opslog.Changes[dict[str, Any]]) -> tuple[int, int]:
    """Apply changes.

    :returns: how many documents were written, and how many deleted.
    """
    written = deleted = 0
    with database:  # a transaction: the rows and the token, or neither
        if changes.reset:  # the first time, or if the history since the token is gone: these are all documents
            database.execute("DELETE FROM documents")
        for change in changes:
            if change.document is None:
                deleted += database.execute("DELETE FROM documents WHERE id = ?", (change.id,)).rowcount
            else:
                author = change.record.author if change.record else ""
                row = (change.id, json.dumps(change.document), author)
                written += database.execute("INSERT OR REPLACE INTO documents VALUES (?, ?, ?)", row).rowcount
        database.execute("INSERT OR REPLACE INTO position VALUES (1, ?)", (changes.token,))
    return written, deleted


def main() -> None:
    parser = argparse.ArgumentParser(description="A copy of a store in SQLite.")
    parser.add_argument("store", help="a directory, or s3://bucket/prefix")
    parser.add_argument("database", help="a file of SQLite; made if it is not there")
    parser.add_argument("--follow", action="store_true", help="go on, without end")
    options = parser.parse_args()
    with (
        opslog.open(options.store, read_only=True) as store,
        closing(sqlite3.connect(options.database)) as database,
    ):
        database.executescript(TABLES)
        token = token_of(database)
        for changes in store.follow(since=token) if options.follow else [store.changes(since=token)]:
            written, deleted = take(database, changes)
            print(f"{written} written, {deleted} deleted", flush=True)


if __name__ == "__main__":
    main()
