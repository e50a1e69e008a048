"""Parquet and CSV: a document per row. Needs the extra ``query``.

The column ``id`` names the document (`id_field` names another one), and the other columns are its fields. A missing
value (NULL) is no field. A column of CSV holds numbers, or true and false, if each of its values is written as
JSON writes it; otherwise, as with ``007``, it is text.

From Parquet, types that JSON lacks become text: dates, times, intervals, UUIDs. A decimal becomes an integer, if it
is one, or the float that equals it. Bytes, floats that are no numbers, and decimals without such a float are refused.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from opslog.chunks import batched
from opslog.errors import CorruptError, UsageError
from opslog.importers import ImportedCommit, ImportedOp

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

# The suffixes of files that `read_table` reads.
PARQUET, CSV = (".parquet",), (".csv", ".tsv")
_ROWS = 10_000
# The types that a CSV column may have, and the texts that each accepts. All other texts would not come back unchanged,
# as with 007.
_UNSIGNED = "0|[1-9][0-9]{0,19}"
_TYPES = {
    "BOOLEAN": "true|false",
    "BIGINT": "0|-?[1-9][0-9]*",
    "DOUBLE": r"-?(0|[1-9][0-9]{0,14})|-?(0|[1-9][0-9]*)(\.[0-9]+([eE][+-]?[0-9]+)?|[eE][+-]?[0-9]+)",
}


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a file that `read_table` reads."""
    return Path(path).suffix.lower() in PARQUET + CSV


def read_table(path: str | os.PathLike[str], *, id_field: str = "id") -> Iterator[ImportedCommit]:
    """The rows of a file as commits, in the order of the file; memory is bounded by what DuckDB reads ahead.

    :param path: its name ends as in `PARQUET` or `CSV`.
    :param id_field: the column that names the documents.
    :raises CorruptError: the file is invalid, or a value is refused; names the file, and the row from 1.
    :raises UsageError: there is no such column, or no such file.
    """
    try:
        import duckdb
    except ImportError as error:
        raise UsageError(f"to read Parquet and CSV is an extra: pip install 'opslog[query]' ({error})") from error
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    try:
        with duckdb.connect(":memory:") as connection:
            source, columns = _source(connection, path)
            if id_field not in columns:
                raise UsageError(
                    f"{path} has no column {id_field!r} to name the documents: name one with --id-field, "
                    f"of {', '.join(columns)}"
                )
            rows = connection.execute(f"SELECT * FROM {source}", [path])
            number = 0
            while some := rows.fetchmany(_ROWS):
                for row in some:
                    number += 1
                    yield _commit(dict(zip(columns, row, strict=True)), id_field, path, number)
    except duckdb.Error as error:
        raise CorruptError(f"{path} cannot be read: {' '.join(str(error).split())}", path) from error


def count_rows(path: str | os.PathLike[str]) -> int:
    """How many rows a file has, to show the progress of an import; 0 if that cannot be found out, which the import then
    reports. For Parquet the file says it; CSV is read once."""
    import duckdb

    reader = "read_parquet(?)" if Path(path).suffix.lower() in PARQUET else "read_csv(?, all_varchar=true)"
    try:
        with duckdb.connect(":memory:") as connection:
            [(count,)] = connection.execute(f"SELECT count(*) FROM {reader}", [os.fspath(path)]).fetchall()
    except duckdb.Error:
        return 0
    return int(count)


def _source(connection: DuckDBPyConnection, path: str) -> tuple[str, list[str]]:
    """The source to select from, with the path as its parameter, and its columns."""
    if Path(path).suffix.lower() in PARQUET:
        source = "read_parquet(?)"
        return source, _columns(connection, source, path)
    candidates = ", ".join(map(_quoted, [*_TYPES, "VARCHAR"]))
    source = f"read_csv(?, sample_size=-1, auto_type_candidates=[{candidates}])"
    found = connection.execute(f"DESCRIBE SELECT * FROM {source}", [path]).fetchall()
    kinds = {str(name): str(kind) for name, kind, *_ in found if kind in _TYPES}
    if not kinds:
        return source, [str(row[0]) for row in found]
    asked = ", ".join(
        f"bool_and(regexp_full_match({_name(name)}, {_quoted(_TYPES[kind])})), "
        # DuckDB reads integers above 2^63 as floats.
        f"bool_and(regexp_full_match({_name(name)}, '{_UNSIGNED}') AND TRY_CAST({_name(name)} AS UBIGINT) IS NOT NULL)"
        f" FILTER ({_name(name)} IS NOT NULL)"
        for name, kind in kinds.items()
    )
    [answers] = connection.execute(f"SELECT {asked} FROM read_csv(?, all_varchar=true)", [path]).fetchall()
    others = {
        name: "UBIGINT" if is_unsigned else "VARCHAR"
        for name, (is_exact, is_unsigned) in zip(kinds, batched(answers, 2), strict=True)
        if is_exact is False
    }
    types = ", ".join(f"{_quoted(name)}: '{kind}'" for name, kind in others.items())
    return source.removesuffix(")") + f", types={{{types}}})" if types else source, [str(row[0]) for row in found]


def _columns(connection: DuckDBPyConnection, source: str, path: str) -> list[str]:
    return [str(row[0]) for row in connection.execute(f"DESCRIBE SELECT * FROM {source}", [path]).fetchall()]


def _name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _commit(row: dict[str, Any], id_field: str, path: str, number: int) -> ImportedCommit:
    id = row.pop(id_field)
    if id is None or isinstance(id, (float, bool)):
        raise CorruptError(f"{path}, row {number}: column {id_field!r} must name the document, and is {id!r}", path)
    try:
        document = {name: _plain(value, name) for name, value in row.items() if value is not None}
    except ValueError as error:
        raise CorruptError(f"{path}, row {number}, document {str(id)!r}: {error}", path) from error
    return ImportedCommit(None, None, (ImportedOp("set", str(id), document),), f"{path}:{number}")


def _plain(value: Any, at: str) -> Any:
    """A value in JSON's types.

    :raises ValueError: JSON has no such value.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            if not math.isfinite(value):
                raise ValueError(f"{at} is {value}, which is no JSON number")
            return value
        case Decimal():
            if value == value.to_integral_value():
                return int(value)
            if Decimal(repr(float(value))) != value:
                raise ValueError(f"{at} is {value}, which no float equals; cast it to text or to a float before")
            return float(value)
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta() | UUID():
            return str(value)
        case list() | tuple():
            return [_plain(item, f"{at}[{number}]") for number, item in enumerate(value)]
        case dict():
            return {str(name): _plain(item, f"{at}.{name}") for name, item in value.items() if item is not None}
        case _:
            raise ValueError(f"{at} is {type(value).__name__}, for which JSON has no type")
