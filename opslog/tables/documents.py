"""The documents of a store as a table, made column by column, and kept up to date."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from contextlib import suppress
from typing import NamedTuple

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from opslog.format.commits import Set, decode_records
from opslog.tables.arrow import DATA, appended, data_column, rows_of, text_of, without
from opslog.tables.plain import plain_columns
from opslog.tables.reading import RECORD_COLUMNS, Values, fields_of, record_columns
from opslog.tables.structure import JSON, Structure, column_names, holds

# The names of fields are first learned from this many documents at the beginning and at the end.
_SAMPLE = 5_000
NOTE = b"opslog.note"
_MIXED = "JSON text: its values have different types"


class Column(NamedTuple):
    """The structure and values of one field in all documents.

    :ivar structure: as DuckDB reports it, or JSON if that would not be exact.
    """

    structure: Structure
    values: pa.ChunkedArray


class Documents:
    """A table with a row for each document. Used by one thread at a time. An exception leaves it as it was.

    It keeps the lines of the documents' records, and each column that was ever needed. A new column costs a pass over
    the lines. An update of the table costs a pass over the ids, and making the new values.

    :param connection: of DuckDB; runs the queries over JSON texts.
    :param lines: of sets, one for each document.
    :param ids: of the documents; None: they are not known yet.
    :param is_sorted: whether they are in order of id.
    """

    def __init__(
        self,
        connection: duckdb.DuckDBPyConnection,
        lines: pa.ChunkedArray,
        ids: pa.ChunkedArray | None = None,
        *,
        is_sorted: bool = True,
    ) -> None:
        self._connection = connection
        self._lines = lines
        self._is_sorted = is_sorted
        # The known fields, in the order in which they are shown.
        self._fields: tuple[str, ...] = tuple(fields_of(connection, self._sample()))
        self._knows_all_fields = len(lines) <= 2 * _SAMPLE
        self._columns: dict[str, Column] = {}
        self._record_columns: dict[str, pa.ChunkedArray] = {} if ids is None else {"id": ids}

    def update(self, changed: AbstractSet[str], new: pa.ChunkedArray) -> None:
        """Apply changes.

        :param changed: the ids of documents that are new, are different or are gone.
        :param new: the lines of those that exist.
        """
        if not changed:
            return
        gone = rows_of(self._of_records({"id"})["id"], changed)
        lines = appended(without(self._lines, gone), new)
        fields = dict.fromkeys((*self._fields, *fields_of(self._connection, new)))
        more = record_columns(self._connection, new, self._record_columns)
        kept = {name: appended(without(values, gone), more[name]) for name, values in self._record_columns.items()}
        read = Values(self._connection, new, list(self._columns))
        found = read.structures()
        # A column that the new values do not fit is made again when it is needed. So is a column of JSON text if a
        # value is gone: only that value may have had another type.
        fitting = {
            name: column.structure
            for name, column in self._columns.items()
            if holds(column.structure, found[name]) and not (gone and column.structure == JSON)
        }
        columns = {}
        for name, (_, values) in read.read(fitting).items():
            with suppress(pa.ArrowInvalid):
                columns[name] = Column(fitting[name], appended(without(self._columns[name].values, gone), values))
        self._lines, self._fields, self._record_columns = lines, tuple(fields), kept
        self._columns, self._is_sorted = columns, False

    def table(self, names: AbstractSet[str] | None, *, data: bool = False, sort: bool = False) -> pa.Table:
        """Columns of the table: those of the record, and fields of documents.

        :param names: of columns, in lower case; others are left out, and names of no column are ignored. None: all
            but `data`.
        :param data: `data`, too.
        :param sort: in order of id; otherwise in any order.
        """
        columns = self._named()
        if not self._knows_all_fields and (names is None or not names <= {*map(str.casefold, columns)} | {DATA}):
            self._fields = tuple(dict.fromkeys((*self._fields, *fields_of(self._connection, self._lines))))
            self._knows_all_fields = True
            columns = self._named()
        wanted = [name for name in columns if names is None or name.casefold() in names]
        self._read([columns[name] for name in wanted if columns[name] not in self._columns])
        shown: dict[str, tuple[pa.ChunkedArray, str | None]] = {
            name: (values, None) for name, values in self._of_records(names).items()
        }
        for name in wanted:
            structure, values = self._columns[columns[name]]
            shown[name] = values, _MIXED if structure == JSON else None
        if data or (names is not None and DATA in names) or not shown:
            shown[DATA] = self._data(), None
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
        return pc.sort_indices(self._of_records({"id"})["id"])

    def _named(self) -> dict[str, str]:
        """The field of each column."""
        names = column_names(self._fields, (*RECORD_COLUMNS, DATA))
        return {names[field]: field for field in self._fields}

    def _sample(self) -> pa.ChunkedArray:
        if len(self._lines) <= 2 * _SAMPLE:
            return self._lines
        return pa.chunked_array([*self._lines[:_SAMPLE].chunks, *self._lines[-_SAMPLE:].chunks])

    def _read(self, fields: list[str]) -> None:
        found = plain_columns(self._lines, fields)
        if left := [name for name in fields if name not in found]:
            values = Values(self._connection, self._lines, left)
            found |= values.read(values.structures())
        self._columns |= {name: Column(*read) for name, read in found.items()}

    def _of_records(self, names: AbstractSet[str] | None) -> Mapping[str, pa.ChunkedArray]:
        wanted = [name for name in RECORD_COLUMNS if names is None or name in names]
        missing = [name for name in wanted if name not in self._record_columns]
        self._record_columns |= record_columns(self._connection, self._lines, missing)
        return {name: self._record_columns[name] for name in wanted}

    def _data(self) -> pa.ChunkedArray:
        """The documents' text exactly as it is stored; DuckDB would format it differently."""
        return data_column(
            record.data
            for chunk in self._lines.chunks
            for record in decode_records(bytes(text_of(chunk)), "", 0)
            if isinstance(record, Set)
        )
