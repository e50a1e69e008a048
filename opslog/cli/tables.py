"""Documents as files of tables: Parquet and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import click

import opslog

FORMATS = ("jsonl", "parquet", "csv")
# The format that the end of a file's name says. JSON lines are no JSON text, so `.json` says none of them.
_SUFFIXES = {"": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".csv": "csv"}


def format_of(file: str) -> str:
    """The format that the end of a file's name says; of a name without one, JSON lines.

    :raises click.UsageError: it says another one.
    """
    suffix = Path(file.removesuffix(".gz")).suffix.lower()
    if suffix not in _SUFFIXES:
        raise click.UsageError(
            f"{file} ends in {suffix}, which is no format of export: end the name in .jsonl, .ndjson, .parquet or .csv "
            "(JSON lines also in .gz), or choose with --format"
        )
    return _SUFFIXES[suffix]


def write_table(form: str, store: opslog.Store[Any], out: IO[bytes]) -> list[str]:
    """Write ids and documents, a row each, in order of id.

    :returns: the columns that are JSON text, which an import takes for text.
    """
    table = store.to_arrow()  # first, since it says what is missing where Arrow is not installed
    import pyarrow as pa

    table = table.drop_columns(["clock", "agent", "author", "ts"])
    as_text = [field.name for field in table.schema if field.metadata]
    if form == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
        return as_text
    from pyarrow import csv

    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            table = table.set_column(number, field.name, _json(table.column(number)))
            as_text.append(field.name)
    csv.write_csv(table, out)
    return as_text


def _json(column: Any) -> Any:
    import orjson
    import pyarrow as pa

    from opslog.cli.query import plain

    return pa.array(
        [None if value is None else orjson.dumps(plain(value)).decode() for value in column.to_pylist()], pa.string()
    )
