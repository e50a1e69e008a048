"""Parquet and CSV: an export can be imported again, and values that the format cannot hold exactly are refused."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyarrow import parquet

import opslog
from opslog.importers import tables
from opslog.importers.tables import count_rows, read_table


def documents(path: Path, **options: Any) -> dict[str, Any]:
    return {op.id: op.document for commit in read_table(path, **options) for op in commit.ops}


def csv(tmp_path: Path, text: str, name: str = "x.csv") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8", newline="")
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


def test_an_empty_text_is_a_value(tmp_path: Path) -> None:
    assert documents(csv(tmp_path, 'id,t\na,""\nb,\n')) == {"a": {"t": ""}, "b": {}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # What looks like comments, quotes or a header is data.
        ("id,t,o\nt1,Build,\n#3,Fix,\n#4,Test,Ann\n", {"t1": {"t": "Build"}, "#3": {"t": "Fix"}, "#4": None}),
        ("id,t\na,'x'\nb,it's\n", {"a": {"t": "'x'"}, "b": {"t": "it's"}}),
        ('"id","t"\n"d0",\n"d1","true"\n', {"d0": {}, "d1": {"t": True}}),
        ("id,t\na,\\N\nb,NULL\nc, nan\n", {"a": {"t": "\\N"}, "b": {"t": "NULL"}, "c": {"t": " nan"}}),
        # Lines and quotes in a cell, a quote inside of one, blank lines, and no line at the end.
        ('id,t\r\na,"x\r\n""y"""\r\n\r\nb,5" pipe', {"a": {"t": 'x\r\n"y"'}, "b": {"t": '5" pipe'}}),
        ("\ufeffid,Id,\na,1,2\n", {"a": {"Id": 1, "": 2}}),
        ("id", {}),
        # The delimiter is the one by which there is a column of ids.
        ("id;a,b\nx;1,5\n", {"x": {"a,b": "1,5"}}),
        ("n\tid\n1\tx\n", {"x": {"n": 1}}),
    ],
)
def test_csv_is_read_by_fixed_rules(tmp_path: Path, text: str, expected: dict[str, Any]) -> None:
    found = documents(csv(tmp_path, text))
    assert list(found) == list(expected)
    assert {id: document for id, document in found.items() if expected[id] is not None} == {
        id: document for id, document in expected.items() if document is not None
    }
    assert count_rows(tmp_path / "x.csv") == len(expected)


def test_tsv_has_tabs(tmp_path: Path) -> None:
    assert documents(csv(tmp_path, "id,x\tid\n1,2\ta\n", "x.tsv")) == {"a": {"id,x": "1,2"}}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["1.9", "1.10", "1.1"], None),
        (["1.0", "2.0", "3"], [1.0, 2.0, 3.0]),
        (["0.30000000000000000001"], None),
        (["0.1", "1234567890.1234567"], [0.1, 1234567890.1234567]),
        (["1e400"], None),
        (["7e3", "12e4"], None),
        (["1e-99999999999999999999"], None),
        (["1e+20", "5e-324", "-0", "2"], [1e20, 5e-324, -0.0, 2.0]),
        (["9007199254740993", "0.5"], None),
        (["-9223372036854775808", "18446744073709551615"], [-(2**63), 2**64 - 1]),
        (["18446744073709551616"], None),
        (["+1"], None),
        (["true", "True"], None),
    ],
    ids=str,
)
def test_csv_has_numbers_only_if_they_are_exactly_what_is_written(
    tmp_path: Path, values: list[str], expected: list[object] | None
) -> None:
    rows = "".join(f"{number},{value}\n" for number, value in enumerate(values))
    found = [document["v"] for document in documents(csv(tmp_path, f"id,v\n{rows}")).values()]
    assert [*map(repr, found)] == [*map(repr, values if expected is None else expected)]


def test_ids_of_csv_are_text(tmp_path: Path) -> None:
    assert list(documents(csv(tmp_path, "id,x\n1.9,a\n1.10,b\ntrue,c\n"))) == ["1.9", "1.10", "true"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("id,t,h\na,x,1\nb,y\nc,z,4\n", "row 2: the header names 3 columns, and the row has 2: 'b,y'"),
        ("id\na\nb,1\n", "row 2: the header names 1 columns, and the row has 2"),
        ('id,t\na,"x\nb,y\n', "byte 7: a cell begins with a quote"),
        ('id,t\na,"x"y\n', "byte 7: a cell begins with a quote"),
        ("id,t,t\na,x,y\n", "two columns have the name 't'"),
    ],
)
def test_csv_that_has_no_sure_meaning_is_an_error_with_its_place(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(opslog.CorruptError, match=says):
        documents(csv(tmp_path, text))


def test_csv_in_another_encoding_is_an_error_with_its_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_CHECKED_BYTES", 3)
    path = tmp_path / "x.csv"
    path.write_bytes("id,t\na,\u00e9".encode() + b"\nb,\xe9\n")
    with pytest.raises(opslog.CorruptError, match="byte 12: not UTF-8"):
        documents(path)


def test_csv_is_read_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "_BLOCK_BYTES", 100)
    monkeypatch.setattr(tables, "_CHECKED_CELLS", 2)
    monkeypatch.setattr(tables, "_ROWS", 2)
    expected: dict[str, dict[str, Any]] = {f"#{number}": {"t": f'"\n{number}' * 3, "n": number} for number in range(50)}
    rows = "".join('{},"{}",{}\n'.format(id, d["t"].replace('"', '""'), d["n"]) for id, d in expected.items())
    assert documents(csv(tmp_path, f"id,t,n\n{rows}")) == expected
    with pytest.raises(opslog.CorruptError, match="row 51"):
        documents(csv(tmp_path, f"id,t,n\n{rows}x\n"))
    with pytest.raises(opslog.CorruptError, match="a row has more than 100 bytes"):
        documents(csv(tmp_path, f"id,t,n\n{rows}{'x' * 1000},,\n"))


@pytest.mark.parametrize("folder", [".", "team=7"])
def test_a_name_is_no_pattern_and_adds_no_fields(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(exist_ok=True)
    path = tmp_path / folder / "t[1]*.csv"
    (tmp_path / folder / "t1.csv").write_text("id,v\na,wrong\n")
    path.write_text("id,v\na,right\n")
    assert documents(path) == {"a": {"v": "right"}}
    for name, value in [("t1.parquet", "wrong"), ("t[1]*.parquet", "right")]:
        parquet.write_table(pa.table({"id": ["a"], "v": [value]}), tmp_path / folder / name)
    assert documents(tmp_path / folder / "t[1]*.parquet") == {"a": {"v": "right"}}
    assert count_rows(path) == count_rows(tmp_path / folder / "t[1]*.parquet") == 1


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
        (pa.array([Decimal(10**50 + 1)], pa.decimal256(60, 0)), "no float equals"),
        (pa.array([253402300800], pa.timestamp("s")), "v is outside the years 1 to 9999"),
        (pa.array([1], pa.duration("ns")), "v is 1 nanoseconds"),
        (pa.array([[("k", 1), ("k", 2)]], pa.map_(pa.string(), pa.int8())), "v has a name twice"),
        (pa.array([[(1.5, 1)]], pa.map_(pa.float64(), pa.int8())), "v has the key 1.5"),
        (pa.array([{"x": [b"y"]}]), r"v.x\[0\] is bytes"),
    ],
)
def test_values_that_json_cannot_carry_are_refused(tmp_path: Path, column: pa.Array, says: str) -> None:
    with pytest.raises(opslog.CorruptError, match=f"row 1, document 'a': .*{says}"):
        documents(table(tmp_path, id=pa.array(["a"]), v=column))


def test_parquet_keeps_all_digits(tmp_path: Path) -> None:
    moment = 1234567890123456789
    path = table(
        tmp_path,
        id=pa.array([moment - 1, moment], pa.timestamp("ns")),
        at=pa.array([moment, 1_000], pa.timestamp("ns", "Europe/Berlin")),
        time=pa.array([1, 60_000_000_000], pa.time64("ns")),
        nested=pa.array([[{"t": moment}], None], pa.list_(pa.struct({"t": pa.timestamp("ns")}))),
        took=pa.array([1, None], pa.duration("us")),
        large=pa.array([Decimal(10**50), None], pa.decimal256(60, 0)),
        uuid=pa.array([UUID(int=1), None], pa.uuid()),
        word=pa.array(["x", None]).dictionary_encode(),
        map=pa.array([[(1, "x"), (2, None)], None], pa.map_(pa.int64(), pa.string())),
    )
    assert documents(path) == {
        "2009-02-13T23:31:30.123456788": {
            "at": "2009-02-13T23:31:30.123456789+00:00",
            "time": "00:00:00.000000001",
            "nested": [{"t": "2009-02-13T23:31:30.123456789"}],
            "took": "0:00:00.000001",
            "large": 1e50,
            "uuid": str(UUID(int=1)),
            "word": "x",
            "map": {"1": "x"},
        },
        "2009-02-13T23:31:30.123456789": {"at": "1970-01-01T00:00:00.000001+00:00", "time": "00:01:00"},
    }


@pytest.mark.parametrize("id", [b"x", {"a": 1}, 1.0, True], ids=str)
def test_ids_of_parquet_are_texts_and_integers(tmp_path: Path, id: object) -> None:
    with pytest.raises(opslog.CorruptError, match=r"row 1: (column 'id' must name the document|id is bytes)"):
        documents(table(tmp_path, id=pa.array([id])))


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
