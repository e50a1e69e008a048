"""Documents as files of tables: Parquet and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import IO, Any

import opslog

FORMATS = ("jsonl", "parquet", "csv")


def format_of(file: str) -> str:
    """The format that the end of a file's name says."""
    suffix = Path(file.removesuffix(".gz")).suffix.lower().removeprefix(".")
    return suffix if suffix in FORMATS else FORMATS[0]


def write_table(form: str, store: opslog.Store[Any], out: IO[bytes]) -> None:
    """Write ids and documents, a row each, in order of id.

    In CSV, lists and objects are JSON text.
    """
    table = store.to_arrow()
    import pyarrow as pa

    table = table.drop_columns(["clock", "agent", "author", "ts"])
    if form == "parquet":
        from pyarrow import parquet

        parquet.write_table(table, out)
        return
    from pyarrow import csv

    for number, field in enumerate(table.schema):
        if pa.types.is_nested(field.type):
            table = table.set_column(number, field.name, _json(table.column(number)))
    csv.write_csv(table, out)


def _json(column: Any) -> Any:
    import orjson
    import pyarrow as pa

    from opslog.cli.query import plain

    return pa.array(
        [None if value is None else orjson.dumps(plain(value)).decode() for value in column.to_pylist()], pa.string()
    )
