"""The command that queries tables: query."""

from __future__ import annotations

from datetime import date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import click
import orjson

from opslog.cli.options import READS, StoreCommand
from opslog.cli.output import id_text, is_terminal, rows, short_time, write_json
from opslog.cli.session import Session
from opslog.cli.values import as_of_option
from opslog.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

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
    names = table.column_names
    kinds = [field.type for field in table.schema]
    # By position, because columns may share a name.
    found = (row for batch in table.to_batches() for row in zip(*map(_values, batch.columns), strict=True))
    if session.json:
        if twins := [name for name in names if names.count(name) > 1]:
            raise UsageError(f"two columns have the name {twins[0]!r}, which no JSON object has: name one with AS")
        for row in found:
            write_json(dict(zip(names, map(_json, row, kinds), strict=True)))
    else:
        rows(list(map(id_text, names)), (list(map(_text, names, row, kinds)) for row in found))


def _values(column: pa.Array) -> list[Any]:
    """The values of a column in Python's types. If it has none for one of them, such as infinity as a date, all of
    them are text."""
    if not _is_inexact(column.type):
        try:
            return list(column.to_pylist())
        except OverflowError:
            pass
    import duckdb
    import pyarrow as pa

    with duckdb.connect(":memory:") as connection:
        connection.register("shown", pa.table({"value": column}))
        return [value for (value,) in connection.execute("SELECT value::VARCHAR FROM shown").fetchall()]


def _is_inexact(kind: pa.DataType) -> bool:
    """Whether Python has no type for all such values: nanoseconds, and intervals of months."""
    import pyarrow as pa

    return (
        pa.types.is_interval(kind)
        or getattr(kind, "unit", None) == "ns"
        or any(_is_inexact(kind.field(number).type) for number in range(kind.num_fields))
    )


def _json(value: Any, kind: pa.DataType) -> Any:
    """A value of a type, as a JSON value. A map becomes an object."""
    import pyarrow as pa

    if isinstance(value, list) and pa.types.is_map(kind):
        return {str(_json(key, kind.key_type)): _json(item, kind.item_type) for key, item in value}
    if isinstance(value, dict) and pa.types.is_struct(kind):
        return {field.name: _json(value[field.name], field.type) for field in kind}
    if isinstance(value, list) and not pa.types.is_union(kind):
        return [_json(item, kind.value_type) for item in value]
    return plain(value)


def plain(value: Any) -> Any:
    """A value of a table, as a JSON value."""
    match value:
        case Decimal():
            is_integer = value == value.to_integral_value() and -(2**63) <= value < 2**64
            return int(value) if is_integer else str(value)
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


def _text(column: str, value: Any, kind: pa.DataType) -> str:
    """A value on one line. Text is shown unchanged; but text that would control a terminal, or break the line, is shown
    as a JSON string. A person gets the time of a write as other commands show it. Times that a query computes stay
    exact."""
    if column == "ts" and isinstance(value, datetime) and value.tzinfo is not None and is_terminal():
        return short_time(value.isoformat())
    value = _json(value, kind)
    if value is None:
        return ""
    return id_text(value) if isinstance(value, str) else orjson.dumps(value).decode()
