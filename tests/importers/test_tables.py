"""Parquet and CSV: an export can be imported again, and values that the format cannot hold exactly are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

import opslog
from opslog.importers.tables import read_table


def documents(path: Path, **options: Any) -> dict[str, Any]:
    return {op.id: op.document for commit in read_table(path, **options) for op in commit.ops}


def csv(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "x.csv"
    path.write_text(text, encoding="utf-8")
    return path


def table(tmp_path: Path, **columns: object) -> Path:
    path = tmp_path / "x.parquet"
    parquet.write_table(pa.table(columns), path)
    return path


def test_csv_keeps_what_does_not_read_as_it_is_written(tmp_path: Path) -> None:
    text = "id,zip,n,f,flag,day,big,long\na,007,1,1.5,true,2026-01-01,18446744073709551615,12345678901234567890123\n"
    text += "b,12345,-2,2,false,2026-02-01,1,1\n"
    assert documents(csv(tmp_path, text)) == {
        "a": {
            "zip": "007",
            "n": 1,
            "f": 1.5,
            "flag": True,
            "day": "2026-01-01",
            "big": 2**64 - 1,
            "long": "12345678901234567890123",
        },
        "b": {"zip": "12345", "n": -2, "f": 2.0, "flag": False, "day": "2026-02-01", "big": 1, "long": "1"},
    }


def test_a_missing_value_is_no_field(tmp_path: Path) -> None:
    assert documents(csv(tmp_path, "id,n,t\na,1,\nb,,x\n")) == {"a": {"n": 1}, "b": {"t": "x"}}


def test_parquet_of_others(tmp_path: Path) -> None:
    path = table(
        tmp_path,
        key=pa.array([1, 2]),
        at=pa.array([datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC), None]),
        price=pa.array([Decimal("1.50"), Decimal("2.00")]),
        tags=pa.array([["a"], []]),
        owner=pa.array([{"name": "n", "x": None}, {"name": None, "x": 1}]),
    )
    assert documents(path, id_field="key") == {
        "1": {"at": "2026-01-02T03:04:05+00:00", "price": 1.5, "tags": ["a"], "owner": {"name": "n"}},
        "2": {"price": 2, "tags": [], "owner": {"x": 1}},
    }


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([b"x"]), "v is bytes"),
        (pa.array([float("nan")]), "v is nan"),
        (pa.array([Decimal("0.1234567890123456789012345")]), "no float equals"),
    ],
)
def test_values_that_json_cannot_carry_are_refused(tmp_path: Path, column: pa.Array, says: str) -> None:
    with pytest.raises(opslog.CorruptError, match=f"row 1, document 'a': .*{says}"):
        documents(table(tmp_path, id=pa.array(["a"]), v=column))


def test_rows_need_an_id(tmp_path: Path) -> None:
    path = csv(tmp_path, "name,n\na,1\n,2\n")
    with pytest.raises(opslog.UsageError, match=r"no column 'id'.*--id-field, of name, n"):
        documents(path)
    with pytest.raises(opslog.CorruptError, match="row 2: column 'name' must name"):
        documents(path, id_field="name")


def test_a_file_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    path.write_bytes(b"no parquet")
    with pytest.raises(opslog.CorruptError, match="cannot be read"):
        documents(path)
    with pytest.raises(opslog.UsageError, match="there is no file"):
        documents(tmp_path / "missing.csv")
