"""The documents of a store as a table, made column by column, and kept up to date."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import NamedTuple

import duckdb
import msgspec
import orjson
import pyarrow as pa

from opslog.format.commits import Set
from opslog.tables.arrow import DATA, RECORD_COLUMNS, appended, data_column, record_column
from opslog.tables.structure import JSON, NULL, Structure, column_names, exact, has_floats, holds, narrow, without_twins

# Of so many documents at the beginning and at the end the names of fields are learned first.
_SAMPLE = 5_000
# A number of this form, which has no point and no exponent, may have no float that equals it.
_LONG_INTEGER = r"(^|[\[:,])-?[0-9]{16,}([,\]}]|$)"
# So many fields are read one by one.
_READ_ALONE = 3
NOTE = b"opslog.note"
_MIXED = "JSON text: its values have different types"


class Column(NamedTuple):
    """What one field of all documents is.

    :ivar structure: as DuckDB says it, or JSON where that would not be exact.
    """

    structure: Structure
    values: pa.ChunkedArray


class Documents:
    """A table with a row for each document. Used by one thread at a time. An exception leaves it as it was.

    It keeps the documents' records, their text, and each column that was ever asked for. To ask for a column costs a
    pass over the texts; to update the table a pass over those columns, and the making of what is new.

    :param connection: runs what is asked of JSON texts here.
    :param text: the JSON text of a document.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        text: Callable[[Set], bytes | msgspec.Raw],
        records: Iterable[Set],
    ) -> None:
        self._connection = connection
        self._text = text
        self._records = list(records)
        self._data = data_column(map(text, self._records))
        self._is_sorted = True
        # The fields that are known, in the order in which they are shown.
        self._fields: tuple[str, ...] = tuple(self._fields_of(self._sample()))
        self._knows_all_fields = len(self._records) <= 2 * _SAMPLE
        self._columns: dict[str, Column] = {}
        self._record_columns: dict[str, pa.ChunkedArray] = {}

    def update(self, changes: Mapping[str, Set | None]) -> None:
        """Take in what changed: documents by id, None for those that are gone."""
        if not changes:
            return
        is_kept = [record.id not in changes for record in self._records]
        added = [record for record in changes.values() if record is not None]
        records = [record for record, kept in zip(self._records, is_kept, strict=True) if kept] + added
        mask = pa.chunked_array([pa.array(is_kept, pa.bool_())])
        new = data_column(map(self._text, added))
        data = appended(self._data.filter(mask), new)
        fields = dict.fromkeys((*self._fields, *self._fields_of(new)))
        record_columns = {
            name: appended(values.filter(mask), record_column(name, added))
            for name, values in self._record_columns.items()
        }
        found = self._structures(list(self._columns), new)
        # What does not fit is made anew when it is asked for; and JSON text where a value is gone: it may have been the
        # one that was different.
        is_gone = not all(is_kept)
        fitting = {
            name: column.structure
            for name, column in self._columns.items()
            if holds(column.structure, found[name]) and not (is_gone and column.structure == JSON)
        }
        columns = {}
        for name, more in self._read(fitting, new).items():
            with suppress(pa.ArrowInvalid):
                values = appended(self._columns[name].values.filter(mask), more.values)
                columns[name] = Column(fitting[name], values)
        self._records, self._data, self._fields = records, data, tuple(fields)
        self._record_columns, self._columns, self._is_sorted = record_columns, columns, False

    def table(self, names: AbstractSet[str] | None, *, sort: bool = False) -> pa.Table:
        """Columns of the table: those of the record, and fields of documents.

        :param names: of columns, in lower case; others are left out, and names of no column are ignored. None: all
            but `data`.
        :param sort: in order of id; otherwise in any order.
        """
        columns = self._named()
        if not self._knows_all_fields and (names is None or not names <= {*map(str.casefold, columns)} | {DATA}):
            self._fields = tuple(dict.fromkeys((*self._fields, *self._fields_of(self._data))))
            self._knows_all_fields = True
            columns = self._named()
        wanted = [name for name in columns if names is None or name.casefold() in names]
        missing = [columns[name] for name in wanted if columns[name] not in self._columns]
        self._columns |= self._read(self._structures(missing, self._data), self._data)
        shown: dict[str, tuple[pa.ChunkedArray, str | None]] = {}
        for name in RECORD_COLUMNS:
            if names is None or name in names:
                if name not in self._record_columns:
                    self._record_columns[name] = record_column(name, self._records)
                shown[name] = self._record_columns[name], None
        for name in wanted:
            structure, values = self._columns[columns[name]]
            shown[name] = values, _MIXED if structure == JSON else None
        if (names is not None and DATA in names) or not shown:
            shown[DATA] = self._data, None
        table = pa.table(
            [values for values, _ in shown.values()],
            pa.schema(
                [
                    pa.field(name, values.type, metadata={NOTE: note} if note else None)
                    for name, (values, note) in shown.items()
                ]
            ),
        )
        return table.take(self._order()) if sort and not self._is_sorted else table

    def _order(self) -> pa.Array:
        ids = [record.id for record in self._records]
        return pa.array(sorted(range(len(ids)), key=ids.__getitem__), pa.int64())

    def _named(self) -> dict[str, str]:
        """Per column its field."""
        names = column_names(self._fields, (*RECORD_COLUMNS, DATA))
        return {names[field]: field for field in self._fields}

    # -- what DuckDB does

    def _sample(self) -> pa.ChunkedArray:
        if len(self._data) <= 2 * _SAMPLE:
            return self._data
        return pa.chunked_array([*self._data[:_SAMPLE].chunks, *self._data[-_SAMPLE:].chunks])

    def _fields_of(self, data: pa.ChunkedArray) -> list[str]:
        """The fields of documents, in an order in which most of them have them."""
        with _over(self._connection, data) as cursor:
            found = cursor.execute(
                "SELECT field FROM (SELECT unnest(json_keys(data)) AS field, "
                "generate_subscripts(json_keys(data), 1) AS number FROM rows) "
                "GROUP BY field ORDER BY min(number), count(*) DESC, field"
            ).fetchall()
        return [name for (name,) in found]

    def _structures(self, fields: Sequence[str], data: pa.ChunkedArray) -> dict[str, Structure]:
        """What these fields have in common in all documents."""
        if not fields:
            return {}
        with _over(self._connection, data) as cursor:
            found = _common(cursor, fields)
            for field in filter(lambda field: has_floats(found[field]), fields):
                [(is_long,)] = cursor.execute(
                    "SELECT bool_or(regexp_matches(json_extract(data, ?)::VARCHAR, ?)) FROM rows",
                    [_pointer(field), _LONG_INTEGER],
                ).fetchall()
                if is_long:
                    found[field] = JSON
        return found

    def _read(self, structures: Mapping[str, Structure], data: pa.ChunkedArray) -> dict[str, Column]:
        """These fields of all documents."""
        columns = {}
        for some in without_twins(structures):
            wanted = {field: exact(structures[field]) for field in some}
            for field, values in zip(some, self._parts(wanted, data), strict=True):
                is_json = wanted[field] == JSON and structures[field] != NULL
                columns[field] = Column(JSON if is_json else structures[field], narrow(values))
        return columns

    def _parts(self, wanted: Mapping[str, Structure], data: pa.ChunkedArray) -> list[pa.ChunkedArray]:
        """The values of fields that can stand in one object."""
        names = list(wanted)
        is_one = len(names) == 1
        source = f"json_extract(data, {_quoted(_pointer(names[0]))})" if is_one else "data"
        structure = _quoted(orjson.dumps(wanted[names[0]] if is_one else wanted).decode())
        with _over(self._connection, data) as cursor:
            read = cursor.sql(f"SELECT json_transform({source}, {structure}) AS value FROM rows").to_arrow_table()
        column = read.column("value")
        return [column] if is_one else column.flatten()


def _common(cursor: duckdb.DuckDBPyConnection, fields: Sequence[str]) -> dict[str, Structure]:
    """The structures of fields. One by itself costs a fraction of the whole; of many, the whole is read once."""
    if len(fields) > _READ_ALONE:
        [(text,)] = cursor.execute("SELECT json_group_structure(data) FROM rows").fetchall()
        whole = orjson.loads(text or "{}")
        if isinstance(whole, dict):  # there are no two fields that differ in case alone
            return {field: whole.get(field, NULL) for field in fields}
    each = ", ".join("json_group_structure(json_extract(data, ?))" for _ in fields)
    [texts] = cursor.execute(f"SELECT {each} FROM rows", list(map(_pointer, fields))).fetchall()
    return {field: orjson.loads(text) if text else NULL for field, text in zip(fields, texts, strict=True)}


@contextmanager
def _over(connection: duckdb.DuckDBPyConnection, data: pa.ChunkedArray) -> Iterator[duckdb.DuckDBPyConnection]:
    """A cursor to which JSON texts are the column `data` of `rows`."""
    with connection.cursor() as cursor:
        cursor.register("rows", pa.table({DATA: data}))
        yield cursor


def _pointer(field: str) -> str:
    return "/" + field.replace("~", "~0").replace("/", "~1")


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
