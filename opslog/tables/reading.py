"""Reads columns out of the lines of records: their own fields, and those of their documents. Pure, except for
DuckDB.

A line is parsed once, for the needed fields; their types are then found from the values alone, which are small.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import duckdb
import orjson
import pyarrow as pa

from opslog.tables.interruptible import interruptible
from opslog.tables.structure import JSON, NULL, Structure, exact, has_floats, narrow, without_twins

# The columns that are no fields of documents. A document that is not committed yet has only an id.
RECORD_COLUMNS = {
    "id": "line ->> '/id'",
    "clock": "nullif((line ->> '/clock')::BIGINT, 0)",
    "agent": "nullif(line ->> '/agent', '')",
    "author": "nullif(coalesce(line ->> '/by', line ->> '/agent'), '')",
    "ts": "nullif(line ->> '/ts', '')",
}
_TYPES = {"clock": pa.int64(), "ts": pa.timestamp("us", "UTC")}
# A number of this form, which has no point and no exponent, may not equal any float.
_LONG_INTEGER = r"'(^|[\[:,])-?[0-9]{16,}([,\]}]|$)'"
# Up to this many fields are extracted from a line one by one; for more, the document is extracted first.
_ALONE_MAX = 3


def sets_among(connection: duckdb.DuckDBPyConnection, lines: pa.ChunkedArray) -> pa.ChunkedArray:
    """The lines without those of deletes."""
    return lines.filter(_selected(connection, lines, ["line ->> '/op' = 'set'"]).column(0))


def record_columns(
    connection: duckdb.DuckDBPyConnection, lines: pa.ChunkedArray, names: Iterable[str]
) -> dict[str, pa.ChunkedArray]:
    """Some of `RECORD_COLUMNS`."""
    wanted = list(names)
    if not wanted:
        return {}
    found = _selected(connection, lines, [RECORD_COLUMNS[name] for name in wanted])
    return {
        name: values.cast(_TYPES.get(name, pa.string())) for name, values in zip(wanted, found.columns, strict=True)
    }


def fields_of(connection: duckdb.DuckDBPyConnection, lines: pa.ChunkedArray) -> list[str]:
    """The fields of documents, in an order in which most of them have them."""
    with _over(connection, pa.table({"line": lines})) as cursor:
        found = _fetched(
            cursor,
            "SELECT field FROM (SELECT unnest(names) AS field, generate_subscripts(names, 1) AS number "
            "FROM (SELECT json_keys(line, '/data') AS names FROM rows)) "
            "GROUP BY field ORDER BY min(number), count(*) DESC, field",
        )
    return [name for (name,) in found]


class Values:
    """The values of some fields of all documents as JSON texts. They determine the types, and become the columns."""

    def __init__(self, connection: duckdb.DuckDBPyConnection, lines: pa.ChunkedArray, fields: Sequence[str]) -> None:
        self._connection = connection
        self._fields = list(fields)
        self._has_documents = len(self._fields) > _ALONE_MAX
        if self._has_documents:
            self._texts = _selected(connection, lines, ["json_extract(line, '/data')"])
        else:
            paths = ", ".join(_quoted("/data" + _pointer(field)) for field in self._fields)
            rows = f"(SELECT json_extract(line, [{paths}]) AS found FROM rows)"
            each = [f"found[{number + 1}]" for number in range(len(self._fields))]
            self._texts = _selected(connection, lines, each, rows) if each else pa.table({})

    def structures(self) -> dict[str, Structure]:
        """The common structure of each field's values."""
        if not self._fields:
            return {}
        with _over(self._connection, self._texts) as cursor:
            found = self._common(cursor)
            for field in filter(lambda field: has_floats(found[field]), self._fields):
                [(is_long,)] = _fetched(
                    cursor,
                    f"SELECT bool_or(regexp_matches({self._source(field)}::VARCHAR, {_LONG_INTEGER})) FROM rows",
                )
                if is_long:
                    found[field] = JSON
        return found

    def read(self, structures: Mapping[str, Structure]) -> dict[str, tuple[Structure, pa.ChunkedArray]]:
        """The columns of some of the fields.

        :returns: for each field the structure by which it was read (JSON if another one would not be exact), and its
            values.
        """
        columns = {}
        for some in without_twins(structures) if self._has_documents else [[field] for field in structures]:
            wanted = {field: exact(structures[field]) for field in some}
            for field, values in zip(some, self._parts(wanted), strict=True):
                is_json = wanted[field] == JSON and structures[field] != NULL
                columns[field] = (JSON if is_json else structures[field], narrow(values))
        return columns

    def _common(self, cursor: duckdb.DuckDBPyConnection) -> dict[str, Structure]:
        """DuckDB's structure of each field. If there are many fields, the whole document is read once."""
        if self._has_documents:
            [(text,)] = _fetched(cursor, "SELECT json_group_structure(c0::JSON) FROM rows")
            whole = orjson.loads(text or "{}")
            if isinstance(whole, dict):  # no two fields differ only in case
                return {field: whole.get(field, NULL) for field in self._fields}
        each = ", ".join(f"json_group_structure({self._source(field)}::JSON)" for field in self._fields)
        [texts] = _fetched(cursor, f"SELECT {each} FROM rows")
        return {field: orjson.loads(text) if text else NULL for field, text in zip(self._fields, texts, strict=True)}

    def _parts(self, wanted: Mapping[str, Structure]) -> list[pa.ChunkedArray]:
        """The values of fields that can be in one object."""
        names = list(wanted)
        is_one = len(names) == 1
        source = self._source(names[0]) if is_one else "c0"
        structure = _quoted(orjson.dumps(wanted[names[0]] if is_one else wanted).decode())
        column = _selected(self._connection, self._texts, [f"json_transform({source}, {structure})"]).column(0)
        return [column] if is_one else column.flatten()

    def _source(self, field: str) -> str:
        if self._has_documents:
            return f"json_extract(c0, {_quoted(_pointer(field))})"
        return f"c{self._fields.index(field)}"


def _selected(
    connection: duckdb.DuckDBPyConnection,
    source: pa.ChunkedArray | pa.Table,
    expressions: Iterable[str],
    rows: str = "rows",
) -> pa.Table:
    """Expressions of each row, as columns c0, c1 and so on, in the order of the rows.

    :param source: the table `rows`: a table, or the lines, which are its column `line`.
    """
    table = source if isinstance(source, pa.Table) else pa.table({"line": source})
    each = ", ".join(f"{expression} AS c{number}" for number, expression in enumerate(expressions))
    with _over(connection, table) as cursor:
        return interruptible(cursor, lambda: cursor.sql(f"SELECT {each} FROM {rows}").to_arrow_table())


def _fetched(cursor: duckdb.DuckDBPyConnection, query: str) -> list[tuple[Any, ...]]:
    return interruptible(cursor, lambda: cursor.execute(query).fetchall())


@contextmanager
def _over(connection: duckdb.DuckDBPyConnection, table: pa.Table) -> Iterator[duckdb.DuckDBPyConnection]:
    """A cursor for which a table has the name `rows`."""
    with connection.cursor() as cursor:
        cursor.register("rows", table)
        yield cursor


def _pointer(field: str) -> str:
    return "/" + field.replace("~", "~0").replace("/", "~1")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
