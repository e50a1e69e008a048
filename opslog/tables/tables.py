"""A store's documents, commits and archives as tables: the implementation of `Store.to_arrow` and `Store.sql`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Generic, TypeVar

import duckdb
import msgspec
import orjson
import pyarrow as pa

from opslog import archive, history
from opslog.errors import UsageError
from opslog.format.commits import Commit, Record, Set, Undo, decode_records, encode_commit
from opslog.replica.feed import Feed
from opslog.replica.live import Layers
from opslog.replica.replica import Replica
from opslog.replica.state import State
from opslog.tables.arrow import DATA, lines_column, packed_lines, texts, times
from opslog.tables.asked import Asked, asked, everything, leave_data_out, words
from opslog.tables.documents import Documents
from opslog.tables.interruptible import interruptible
from opslog.tables.reading import RECORD_COLUMNS, record_columns, sets_among

T = TypeVar("T")
R = TypeVar("R")

# Values for the parameters of a query, by position or by name.
Parameters = Sequence[object] | Mapping[str, object]


class Tables(Generic[T]):
    """The tables of one open store. Safe to use from many threads, one after the other.

    The table of documents is kept, and updated with the changes whenever it is needed; the others are
    read from storage each time.
    """

    def __init__(self, replica: Replica[T]) -> None:
        self._replica = replica
        # A name in a query is a table, and never a Python variable of ours.
        self._connection = duckdb.connect(":memory:", config={"python_enable_replacements": False})
        # A feed of its own. A shared one would have to load again whenever another caller asks for changes.
        self._feed = Feed(replica.loader, replica.schema.decode)
        self._documents: Documents | None = None
        self._token: str | None = None
        # The words of all statements other than SELECT: such a statement may have made a view or macro, which needs
        # columns that the queries with it do not name.
        self._statements: set[str] = set()
        self._lock = threading.RLock()
        self._is_busy = False

    def to_arrow(self, schema: pa.Schema | Iterable[str] | None) -> pa.Table:
        """As `Store.to_arrow`."""
        if schema is None:
            return self._one_at_a_time("to_arrow", lambda: self._table(None, sort=True))
        names = list(schema.names if isinstance(schema, pa.Schema) else schema)
        wanted = {name.casefold() for name in names}
        table = self._one_at_a_time("to_arrow", lambda: self._table(wanted | {"id"}, sort=True))
        columns = {name.casefold(): column for name, column in zip(table.column_names, table.columns, strict=True)}
        nothing = pa.nulls(len(table))
        found = pa.table({name: columns.get(name.casefold(), nothing) for name in names})
        return found if not isinstance(schema, pa.Schema) else _cast(found, schema)

    def sql(self, query: str, parameters: Parameters | None) -> pa.Table:
        """As `Store.sql`."""
        makers: dict[str, Callable[[Asked], pa.Table]] = {
            "documents": lambda found: self._table(
                None if found.takes_all else found.names, data=found.takes_all and DATA in found.names
            ),
            "commits": lambda found: self._commits(),
            "archive": lambda found: self._archive(),
        }
        cursor = self._connection.cursor()
        try:
            parsed = orjson.loads(_value(cursor, "SELECT json_serialize_sql(?::VARCHAR)", query))
            found = self._asked(cursor, parsed, query, frozenset(makers))
            for name, make in makers.items():
                if name in found.tables:
                    cursor.register(name, self._one_at_a_time("sql", partial(make, found)))
            run = query
            if found.takes_all and DATA in found.names and leave_data_out(parsed):
                run = _value(cursor, "SELECT json_deserialize_sql(?::JSON)", orjson.dumps(parsed).decode())
            if parsed["error"]:
                self._statements.update(words(query))
            return interruptible(cursor, partial(_answer, cursor, run, parameters))
        except duckdb.Error as error:
            raise UsageError(f"the query cannot be answered: {' '.join(str(error).split())}") from error
        finally:
            cursor.close()

    def _asked(
        self, cursor: duckdb.DuckDBPyConnection, parsed: dict[str, Any], query: str, tables: frozenset[str]
    ) -> Asked:
        """The tables and columns that a query needs, also by the views and macros in it."""
        found = asked(parsed, query, tables)
        has_views = False
        if found.others:
            views = cursor.execute("SELECT view_name FROM duckdb_views()").fetchall()
            has_views = not found.others.isdisjoint(name.casefold() for (name,) in views)
        if has_views or not self._statements.isdisjoint(("macro", "function")):
            found = everything(query, tables)
        if found.takes_all and DATA in self._statements:
            found = found._replace(names=found.names | {DATA})
        return found

    def _one_at_a_time(self, call: str, work: Callable[[], R]) -> R:
        self._replica.check_open()
        self._replica.batches.check_none(call)
        with self._lock:
            if self._is_busy:
                raise UsageError(
                    f"{call} was called by the handler of a signal that came into {call}: let the handler set a flag, "
                    "and make the call after it has returned"
                )
            self._is_busy = True
            try:
                return work()
            finally:
                self._is_busy = False

    def _table(self, names: AbstractSet[str] | None, *, data: bool = False, sort: bool = False) -> pa.Table:
        try:
            return self._current().table(names, data=data, sort=sort)
        except (duckdb.Error, pa.ArrowInvalid):
            for _ in self._replica.records():
                pass  # raises an error with file and offset if the stored data is damaged
            raise

    def _current(self) -> Documents:
        """The table of the current documents."""
        replica = self._replica
        if replica.included is not None:
            if self._documents is None:  # the past does not change
                self._documents = self._made(replica.read(State.layers))
            return self._documents
        changes = replica.changes(self._token, None, self._feed)
        if changes.reset or self._documents is None:
            self._documents = None
            self._token = None
            self._documents = self._made(self._feed.layers())
        else:
            self._update(self._documents, dict(changes.records()))
        self._token = changes.token
        return self._documents

    def _made(self, layers: Layers) -> Documents:
        if self._replica.schema.migrates:
            stored = (record for text in layers.lines for record in decode_records(bytes(text), "", 0))
            merged = {record.id: record for record in stored} | layers.above
            return Documents(self._connection, self._lines(merged[id] for id in sorted(merged)))
        lines, ids = lines_column(layers.lines)
        if not len(lines):
            return Documents(self._connection, self._lines(layers.above[id] for id in sorted(layers.above)))
        if layers.has_tombstones:
            lines, ids = sets_among(self._connection, lines), None
        documents = Documents(self._connection, lines, ids)
        self._update(documents, layers.above)
        return documents

    def _update(self, documents: Documents, records: Mapping[str, Record | None]) -> None:
        documents.update(records.keys(), self._lines(records.values()))

    def _lines(self, records: Iterable[Record | None]) -> pa.ChunkedArray:
        text = self._replica.schema.text
        return packed_lines(_line(text, record) for record in records if isinstance(record, Set))

    def _commits(self) -> pa.Table:
        """A row for each document that a commit wrote, and one for each undo; as far as they are retained."""
        self._replica.flush()
        commits = self._replica.freshness.showing(history.commits_since(self._replica.backend, None))
        if self._replica.included is not None:
            commits = filter(self._replica.included, commits)
        rows = [(commit, record) for commit in commits for record in _rows(commit)]
        records = [record for _, record in rows]
        return pa.table(
            {
                "clock": pa.array([commit.clock for commit, _ in rows], pa.int64()),
                "agent": pa.array([commit.agent for commit, _ in rows], pa.string()),
                "author": pa.array([commit.author for commit, _ in rows], pa.string()),
                "ts": times([commit.ts for commit, _ in rows]),
                "op": pa.array([(record or commit).op for commit, record in rows], pa.string()),
                "id": pa.array([record.id if record else None for record in records], pa.string()),
                DATA: texts([record.data if isinstance(record, Set) else None for record in records]),
                "target": pa.array([c.target if isinstance(c, Undo) else None for c, _ in rows], pa.int64()),
            }
        )

    def _archive(self) -> pa.Table:
        """A row for each document of each archive."""
        backend = self._replica.backend
        rows = [
            (period, record)
            for period in archive.list_periods(backend)
            for record in archive.read_archive(backend, period).values()
        ]
        self._replica.freshness.note_shown()
        records = [record for _, record in rows]
        columns = record_columns(self._connection, packed_lines(map(encode_commit, records)), RECORD_COLUMNS)
        periods = pa.array([period for period, _ in rows], pa.string())
        return pa.table({"period": periods, **columns, DATA: texts([record.data for record in records])})


def table_of(text: Callable[[Set], bytes | msgspec.Raw], records: Iterable[Set]) -> pa.Table:
    """Documents as a table, in this order.

    :param text: returns the JSON text of a record.
    """
    with duckdb.connect(":memory:") as connection:
        lines = packed_lines(_line(text, record) for record in records)
        return Documents(connection, lines, is_sorted=False).table(None)


def _answer(cursor: duckdb.DuckDBPyConnection, query: str, parameters: Parameters | None) -> pa.Table:
    relation: Any = cursor.sql(query, params=parameters)  # None for a statement without a result, such as SET
    return pa.table({}) if relation is None else relation.to_arrow_table()


def _value(cursor: duckdb.DuckDBPyConnection, query: str, parameter: str) -> Any:
    """The one value that a query answers."""
    [(value,)] = cursor.execute(query, [parameter]).fetchall()
    return value


def _line(text: Callable[[Set], bytes | msgspec.Raw], record: Set) -> bytes:
    data = text(record)
    return encode_commit(record if data is record.data else msgspec.structs.replace(record, data=msgspec.Raw(data)))


def _rows(commit: Commit) -> Sequence[Record | None]:
    return [None] if isinstance(commit, Undo) else commit.records


def _cast(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """The table with the types of the schema.

    :raises UsageError: a value does not fit the type; the error names the column.
    """
    columns = []
    for field, column in zip(schema, table.columns, strict=True):
        try:
            columns.append(column.cast(field.type))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"column {field.name!r} is {column.type}, which is not {field.type}: {error}") from error
    return pa.table(columns, schema)
