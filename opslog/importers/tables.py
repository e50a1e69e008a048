"""Parquet and CSV: a document per row. Needs the extra ``query``.

The column ``id`` names the document (`id_field` names another one), and the other columns are its fields. A missing
value is no field; in CSV that is an empty cell without quotes, and ``""`` is an empty text.

A column of CSV holds numbers, or true and false, if each of its values is written as JSON writes it. Otherwise, as
with ``007`` and ``1.10``, it is text. Ids are always text.

From Parquet, types that JSON lacks become text: dates, times, durations, UUIDs. A decimal becomes an integer, if it is
one, or the float that equals it. Whatever JSON cannot hold exactly is refused: bytes, floats that are no numbers,
decimals without such a float.
"""

from __future__ import annotations

import codecs
import csv
import io
import math
import mmap
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import UUID

from opslog.errors import CorruptError, OpslogError, UsageError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.lines import corrupt, open_file

if TYPE_CHECKING:
    import pyarrow as pa

# The suffixes of files that `read_table` reads.
PARQUET, CSV = (".parquet",), (".csv", ".tsv")
_ROWS = 10_000
# CSV is read in blocks of so many bytes. A row may not be longer.
_BLOCK_BYTES = 16 * 1024 * 1024
_DELIMITERS = (",", ";", "\t", "|")
# CSV is checked so many bytes, or cells, at once.
_CHECKED_BYTES, _CHECKED_CELLS = 1024 * 1024, 100_000
_UTF8_MARK = b"\xef\xbb\xbf"
_INTEGERS = range(-(2**63), 2**64)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NANOSECONDS = {"s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


class _Column(NamedTuple):
    """A column of a file.

    :ivar value: returns a cell that is not empty in JSON's types; its second argument says where that is, for errors.
        Raises ValueError if JSON has no such value.
    """

    name: str
    value: Callable[[Any, str], Any]


class _Table(NamedTuple):
    """The columns and rows of a file. None is an empty cell."""

    columns: Sequence[_Column]
    rows: Iterable[Sequence[Any]]


def is_table(path: str | os.PathLike[str]) -> bool:
    """Whether this is the name of a file that `read_table` reads."""
    return Path(path).suffix.lower() in PARQUET + CSV


def read_table(path: str | os.PathLike[str], *, id_field: str = "id") -> Iterator[ImportedCommit]:
    """The rows of a file as commits, in the order of the file; memory is bounded by what pyarrow reads ahead.

    :param path: its name ends as in `PARQUET` or `CSV`.
    :param id_field: the column that names the documents.
    :raises CorruptError: the file is invalid, or a value is refused; names the file, and the row from 1 or the byte.
    :raises UsageError: there is no such column, or no such file.
    """
    try:
        import pyarrow as pa
    except ImportError as error:
        raise UsageError(f"to read Parquet and CSV is an extra: pip install 'opslog[query]' ({error})") from error
    path = os.fspath(path)
    if not os.path.isfile(path):
        raise UsageError(f"there is no file {path}")
    # An open file, because a path could be taken for a URL or a pattern.
    with open_file(path) as file:
        try:
            columns, rows = _parquet(file) if _is_parquet(path) else _csv(file, path, id_field)
            names = [column.name for column in columns]
            if id_field not in names:
                raise UsageError(
                    f"{path} has no column {id_field!r} to name the documents: name one with --id-field, "
                    f"of {', '.join(names)}"
                )
            if twins := [name for name in names if names.count(name) > 1]:
                raise CorruptError(f"{path}: two columns have the name {twins[0]!r}; rename one", path)
            for number, row in enumerate(rows, 1):
                yield _commit(columns, row, names.index(id_field), path, number)
        except (pa.ArrowException, OSError) as error:
            raise CorruptError(f"{path} cannot be read: {' '.join(str(error).split())}", path) from error


def count_rows(path: str | os.PathLike[str]) -> int:
    """How many rows a file has, to show the progress of an import; 0 if that cannot be found out, which the import then
    reports. For Parquet the file says it; CSV is read once."""
    import pyarrow as pa

    path = os.fspath(path)
    try:
        with open_file(path) as file:
            if not _is_parquet(path):
                names, delimiter = _header(file, path, "id")
                return sum(int(batch.num_rows) for batch in _batches(file, path, len(names), delimiter)) - 1
            from pyarrow import parquet

            return int(parquet.ParquetFile(file).metadata.num_rows)
    except (pa.ArrowException, OSError, OpslogError):
        return 0


def _is_parquet(path: str) -> bool:
    return Path(path).suffix.lower() in PARQUET


def _commit(columns: Sequence[_Column], row: Sequence[Any], id_column: int, path: str, number: int) -> ImportedCommit:
    where = f"{path}, row {number}"
    try:
        id = _id(columns[id_column], row[id_column])
        where += f", document {id!r}"
        document = {
            column.name: column.value(cell, column.name)
            for at, (column, cell) in enumerate(zip(columns, row, strict=True))
            if cell is not None and at != id_column
        }
    except ValueError as error:
        raise CorruptError(f"{where}: {error}", path) from error
    return ImportedCommit(None, None, (ImportedOp("set", id, document),), f"{path}:{number}")


def _id(column: _Column, cell: Any) -> str:
    """:raises ValueError: this is not the name of a document."""
    value = None if cell is None else column.value(cell, column.name)
    if isinstance(value, str):
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"column {column.name!r} must name the document, and is {value!r}")


# CSV. pyarrow reads it by fixed rules; DuckDB guesses quotes and comments, and loses rows where it is wrong.


class _Kind(NamedTuple):
    """A type that a column of CSV may have.

    :ivar pattern: a regular expression for the texts of such values.
    :ivar uncertain: one for those among them that `is_exact` has to decide.
    :ivar is_exact: whether the value is exactly what the text says, and the text is as programs write such values.
    """

    pattern: str
    uncertain: str
    is_exact: Callable[[str], bool]
    value: Callable[[str], Any]


def _is_integer(text: str) -> bool:
    return int(text) in _INTEGERS


def _is_float(text: str) -> bool:
    value = float(text)
    # Programs write an exponent only if the number would be long without. Otherwise it is a name, such as 7e3.
    is_number = "e" not in text.casefold() or not 1e-5 < abs(value) < 1e15
    return is_number and math.isfinite(value) and Decimal(text) == Decimal(repr(value))


_POINT = r"-?(0|[1-9][0-9]*)\.([0-9]*[1-9]|0)|-?[1-9](\.[0-9]*[1-9])?[eE][+-]?[0-9]{1,3}"
_INTEGER = _Kind("0|-?[1-9][0-9]{0,19}", ".{19}", _is_integer, int)
# Floats, and integers of so few digits that a float equals them.
_FLOAT = _Kind(f"-?(0|[1-9][0-9]{{0,14}})|{_POINT}", "[eE]|.{16}", _is_float, float)
_KINDS = (_Kind("true|false", "^$", bool, "true".__eq__), _INTEGER, _FLOAT)


def _csv(file: io.BufferedReader, path: str, id_field: str) -> _Table:
    """:raises CorruptError: the file is no valid CSV."""
    names, delimiter = _header(file, path, id_field)
    if not names:
        return _Table([], [])
    _check_csv(file, path, delimiter)
    kinds = _kinds(file, path, len(names), delimiter)
    columns = [
        _Column(name, _as_it_is if kind is None or name == id_field else _reader(kind))
        for name, kind in zip(names, kinds, strict=True)
    ]
    return _Table(columns, _csv_rows(file, path, len(names), delimiter))


def _csv_rows(file: io.BufferedReader, path: str, width: int, delimiter: str) -> Iterator[Sequence[Any]]:
    for batch in _values(file, path, width, delimiter):
        for start in range(0, len(batch), _ROWS):
            some = batch.slice(start, _ROWS)
            yield from zip(*(column.to_pylist() for column in some.columns), strict=True)


def _as_it_is(text: str, at: str) -> str:
    return text


def _reader(kind: _Kind) -> Callable[[str, str], Any]:
    return lambda text, at: kind.value(text)


def _header(file: io.BufferedReader, path: str, id_field: str) -> tuple[list[str], str]:
    """The names of the columns, and the delimiter: the one by which a column is named `id_field`."""
    if Path(path).suffix.lower() == ".tsv":
        return _names(file, "\t"), "\t"
    found = [(_names(file, delimiter), delimiter) for delimiter in _DELIMITERS]
    return next((each for each in found if id_field in each[0]), max(found, key=lambda each: len(each[0])))


def _names(file: io.BufferedReader, delimiter: str) -> list[str]:
    """The first row that is not blank; none if it is no row by this delimiter."""
    file.seek(0)
    lines = io.TextIOWrapper(file, "utf-8-sig", "replace", newline="")
    try:
        return next(filter(None, csv.reader(lines, delimiter=delimiter, strict=True)), [])
    except csv.Error:
        return []
    finally:
        lines.detach()


def _check_csv(file: io.BufferedReader, path: str, delimiter: str) -> None:
    """Check what pyarrow does not: a quote without its end would make many rows one.

    :raises CorruptError: the quotes are wrong, or the text is not UTF-8.
    """
    ends = re.escape(f"{delimiter}\r\n".encode())
    # A quote begins a text only at the beginning of a cell.
    cell = rb'[^"]++|(?<=[^%b])"|"(?:[^"]++|"")*+"(?=[%b]|\Z)' % (ends, ends)
    cells = re.compile(rb"(?:%b){1,%d}+" % (cell, _CHECKED_CELLS))
    with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        start = len(_UTF8_MARK) if data[: len(_UTF8_MARK)] == _UTF8_MARK else 0
        _check_utf8(data, path)
        with memoryview(data)[start:] as text:
            at = 0
            while at < len(text):
                found = cells.match(text, at)
                if found is None:
                    raise corrupt(
                        "a cell begins with a quote, and its end is missing or is not followed by the end of the cell",
                        path,
                        start + at,
                    )
                at = found.end()


def _check_utf8(data: mmap.mmap, path: str) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")()
    for at in range(0, len(data), _CHECKED_BYTES):
        begun, _ = decoder.getstate()
        try:
            decoder.decode(data[at : at + _CHECKED_BYTES], at + _CHECKED_BYTES >= len(data))
        except UnicodeDecodeError as error:
            raise corrupt("not UTF-8; save the file as UTF-8", path, at - len(begun) + error.start) from error


def _kinds(file: io.BufferedReader, path: str, width: int, delimiter: str) -> list[_Kind | None]:
    """The type of each column; None: text."""
    fitting = [list(_KINDS) for _ in range(width)]
    for batch in _values(file, path, width, delimiter):
        for column, kinds in zip(batch.columns, fitting, strict=True):
            kinds[:] = [kind for kind in kinds if _fits(kind, column)]
    return [kinds[0] if kinds else None for kinds in fitting]


def _fits(kind: _Kind, column: pa.Array) -> bool:
    import pyarrow.compute as pc

    matches = pc.match_substring_regex(column, f"^({kind.pattern})$")
    if pc.any(pc.invert(matches)).as_py():
        return False
    uncertain = pc.unique(column.filter(pc.match_substring_regex(column, kind.uncertain)))
    return all(map(kind.is_exact, uncertain.to_pylist()))


def _values(file: io.BufferedReader, path: str, width: int, delimiter: str) -> Iterator[pa.RecordBatch]:
    """The rows below the header, as columns of text."""
    batches = _batches(file, path, width, delimiter)
    yield next(batches).slice(1)
    yield from batches


def _batches(file: io.BufferedReader, path: str, width: int, delimiter: str) -> Iterator[pa.RecordBatch]:
    """The rows of a file, of which the header is the first."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    bad: list[Any] = []

    def is_bad(row: Any) -> str:
        bad.append(row)
        return "error"

    file.seek(0)
    names = list(map(str, range(width)))
    try:
        yield from arrow_csv.open_csv(
            file,
            # With threads, pyarrow does not know the number of a row.
            arrow_csv.ReadOptions(use_threads=False, column_names=names, block_size=_BLOCK_BYTES),
            arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True, invalid_row_handler=is_bad),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                null_values=[""],
                strings_can_be_null=True,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid as error:
        for row in bad:
            raise CorruptError(
                f"{path}, row {row.number - 1}: the header names {row.expected_columns} columns, and the row has "
                f"{row.actual_columns}: {row.text[:100]!r}",
                path,
            ) from error
        if "straddl" in str(error):
            raise CorruptError(f"{path}: a row has more than {_BLOCK_BYTES} bytes; split it", path) from error
        raise


# Parquet


def _parquet(file: io.BufferedReader) -> _Table:
    from pyarrow import parquet

    # Times of 96 bits would not all fit into nanoseconds.
    opened = parquet.ParquetFile(file, coerce_int96_timestamp_unit="us")
    return _Table([_Column(name, _plain) for name in opened.schema_arrow.names], _parquet_rows(opened))


def _parquet_rows(file: Any) -> Iterator[Sequence[Any]]:
    for batch in file.iter_batches(_ROWS):
        yield from zip(*([cell if cell.is_valid else None for cell in column] for column in batch.columns), strict=True)


def _plain(value: Any, at: str) -> Any:
    """A value of Arrow in JSON's types.

    :raises ValueError: JSON has no such value.
    """
    if not value.is_valid:
        return None
    try:
        return _converters().get(type(value), _scalar)(value, at)
    except OverflowError as error:
        raise ValueError(f"{at} is outside the years 1 to 9999") from error


@cache
def _converters() -> dict[type, Callable[[Any, str], Any]]:
    """The functions for what Python has no exact type for, or what contains other values."""
    import pyarrow as pa

    lists = (
        pa.ListScalar,
        pa.LargeListScalar,
        pa.FixedSizeListScalar,
        pa.ListViewScalar,
        pa.LargeListViewScalar,
    )
    return {
        pa.DictionaryScalar: lambda value, at: _plain(value.value, at),
        pa.StructScalar: lambda value, at: _object(list(value.items()), at),
        pa.MapScalar: lambda value, at: _object(
            [(_key(key, at), item) for key, item in zip(*value.values.flatten(), strict=True)], at
        ),
        pa.TimestampScalar: lambda value, at: _moment(value) + ("+00:00" if value.type.tz else ""),
        pa.Time32Scalar: lambda value, at: _moment(value).partition("T")[2],
        pa.Time64Scalar: lambda value, at: _moment(value).partition("T")[2],
        pa.DurationScalar: _duration,
        **dict.fromkeys(lists, _list),
    }


def _list(value: Any, at: str) -> list[Any]:
    return [_plain(item, f"{at}[{number}]") for number, item in enumerate(value.values)]


def _object(items: Sequence[tuple[str, Any]], at: str) -> dict[str, Any]:
    found = {name: _plain(item, f"{at}.{name}") for name, item in items if item.is_valid}
    if len({name for name, _ in items}) < len(items):
        raise ValueError(f"{at} has a name twice, which no JSON object has")
    return found


def _key(value: Any, at: str) -> str:
    key = _plain(value, at)
    if isinstance(key, str) or (isinstance(key, int) and not isinstance(key, bool)):
        return str(key)
    raise ValueError(f"{at} has the key {key!r}, which cannot be the name of a field")


def _moment(value: Any) -> str:
    """A date and time without an offset, with nine digits of the second if they are needed."""
    microseconds, rest = divmod(value.value * _NANOSECONDS[value.type.unit], 1000)
    moment = _EPOCH + timedelta(microseconds=microseconds)
    text = moment.isoformat(timespec="microseconds" if rest else "auto").removesuffix("+00:00")
    return f"{text}{rest:03}" if rest else text


def _duration(value: Any, at: str) -> str:
    microseconds, rest = divmod(value.value * _NANOSECONDS[value.type.unit], 1000)
    if rest:
        raise ValueError(f"{at} is {value.value} nanoseconds, and durations have microseconds; cast it before")
    return str(timedelta(microseconds=microseconds))


def _scalar(value: Any, at: str) -> Any:
    plain = value.as_py()
    match plain:
        case bool() | int() | str():
            return plain
        case float():
            if not math.isfinite(plain):
                raise ValueError(f"{at} is {plain}, which is no JSON number")
            return plain
        case Decimal():
            if plain == plain.to_integral_value() and int(plain) in _INTEGERS:
                return int(plain)
            if Decimal(repr(float(plain))) != plain:
                raise ValueError(f"{at} is {plain}, which no float equals; cast it to text or to a float before")
            return float(plain)
        case date():
            return plain.isoformat()
        case UUID():
            return str(plain)
        case _:
            raise ValueError(f"{at} is {type(plain).__name__}, for which JSON has no type")
