"""The command that queries tables: query."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click
import orjson

from opslog.cli.output import id_text, is_terminal, rows, short_time, write_json
from opslog.cli.session import READS, Session, StoreCommand
from opslog.cli.values import as_of_option

if TYPE_CHECKING:
    from opslog.history import Point


@click.command("query", cls=StoreCommand, options=READS)
@click.argument("sql", metavar="SQL")
@as_of_option
@click.pass_obj
def query_command(session: Session, sql: str, as_of: Point | None) -> None:
    """Answer a question in SQL, by DuckDB, over the tables documents, commits and archive.

    `documents` has a column for each field, and the columns id, clock, agent, author, ts and data (the JSON text).
    Without a terminal, tabs separate the columns. With --json each row is a line of JSON. Needs the extra query.
    """
    with session.reading(as_of) as store:
        table = store.sql(sql)
    found = (row for batch in table.to_batches() for row in batch.to_pylist())
    if session.json:
        for row in found:
            write_json(plain(row))
    else:
        rows(list(map(id_text, table.column_names)), ([_text(*item) for item in row.items()] for row in found))


def plain(value: Any) -> Any:
    """A value of a table, as a JSON value."""
    match value:
        case Decimal():
            return int(value) if value == value.to_integral_value() and abs(value) < 2**64 else str(value)
        case datetime():
            return value.isoformat().replace("+00:00", "Z")
        case bytes():
            return value.hex()
        case list():
            return [plain(item) for item in value]
        case dict():
            return {str(name): plain(item) for name, item in value.items()}
        case None | bool() | int() | float() | str():
            return value
        case _:
            return str(value) if not isinstance(value, date) else value.isoformat()


def _text(column: str, value: Any) -> str:
    """A value on one line. Text is shown unchanged; but text that would control a terminal, or break the line, is shown
    as a JSON string. A person gets the time of a write as other commands show it. Times that a query computes stay
    exact."""
    if column == "ts" and isinstance(value, datetime) and value.tzinfo is not None and is_terminal():
        return short_time(value.isoformat())
    value = plain(value)
    if value is None:
        return ""
    return id_text(value) if isinstance(value, str) else orjson.dumps(value).decode()
