"""Tables hold what the documents hold: every value exactly, whatever the documents are."""

from __future__ import annotations

import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import opslog
from opslog.tables.documents import NOTE

RECORD = {"id", "clock", "agent", "author", "ts"}


@pytest.fixture
def store(tmp_path: Path) -> opslog.Store[dict[str, Any]]:
    return opslog.open(tmp_path, agent="a")


def types(table: pa.Table) -> dict[str, str]:
    return {field.name: str(field.type) for field in table.schema if field.name not in RECORD}


def column(store: opslog.Store[dict[str, Any]], *values: object) -> tuple[str, list[object]]:
    """The type and the values of the column for documents whose one field has these values."""
    for number, value in enumerate(values):
        store[f"{number:03}"] = {"v": value}
    found = store.to_arrow(["v"]).column("v")
    return str(found.type), found.to_pylist()


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        ([1, -1], "int64", [1, -1]),
        ([2**63 - 1, -(2**63)], "int64", [2**63 - 1, -(2**63)]),
        ([2**64 - 1, 0], "uint64", [2**64 - 1, 0]),
        ([2**64 - 1, -1], "decimal128(20, 0)", [Decimal(2**64 - 1), Decimal(-1)]),
        ([1, 1.5], "double", [1.0, 1.5]),
        ([0.1, 5e-324, 1.7976931348623157e308], "double", [0.1, 5e-324, 1.7976931348623157e308]),
        ([2**53 + 1, 0.5], "string", ["9007199254740993", "0.5"]),  # no float equals the first
        (["2026-01-01", "x"], "string", ["2026-01-01", "x"]),
        (["a\x00b", "\U0001f600", '"\\/'], "string", ["a\x00b", "\U0001f600", '"\\/']),
        ([True, False, None], "bool", [True, False, None]),
        ([True, 1], "string", ["true", "1"]),
        (["1", 1], "string", ['"1"', "1"]),
        ([None, None], "string", [None, None]),
        ([[], [1]], "list<l: int64>", [[], [1]]),
        ([[1, "x"]], "list<l: string>", [["1", '"x"']]),
        ([{}, {}], "string", ["{}", "{}"]),
        ([{"a": 1}, {"b": 2**63}], "struct<a: int64, b: uint64>", [{"a": 1, "b": None}, {"a": None, "b": 2**63}]),
        ([{"a": 1}, [1]], "string", ['{"a":1}', "[1]"]),
        ([{"A": 1, "a": 2}], "string", ['{"A":1,"a":2}']),
    ],
    ids=lambda value: str(value)[:40] if isinstance(value, list) else "",
)
def test_each_value_is_exact(
    store: opslog.Store[dict[str, Any]], values: list[object], kind: str, expected: list[object]
) -> None:
    found, shown = column(store, *values)
    assert found.startswith(kind.split("<", maxsplit=1)[0])
    assert shown == expected


def test_an_object_with_very_many_fields_is_text(store: opslog.Store[dict[str, Any]]) -> None:
    kind, _ = column(store, {f"id-{number}": number for number in range(300)})
    assert kind == "string"


@pytest.mark.parametrize("levels", [32, 33, 63, 253])
def test_a_deep_value_is_text(store: opslog.Store[dict[str, Any]], tmp_path: Path, levels: int) -> None:
    value: object = 1
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    store["good"], store["deep"] = {"n": 1}, {"x": value}
    table = store.to_arrow()
    [found, nothing] = table.column("x").to_pylist()
    assert nothing is None
    assert value == (orjson.loads(found) if levels > 32 else found)
    assert (table.schema.field("x").metadata is not None) == (levels > 32)
    assert store.sql("SELECT [documents] AS rows FROM documents WHERE id = 'good'").num_rows == 1
    assert store.find().to_arrow().num_rows == 2
    parquet.write_table(table, tmp_path / "x.parquet")


def test_a_column_of_different_types_has_a_note(store: opslog.Store[dict[str, Any]]) -> None:
    store["a"], store["b"] = {"v": 1, "w": 1}, {"v": "x", "w": None}
    schema = store.to_arrow().schema
    assert schema.field("v").metadata[NOTE].startswith(b"JSON text")
    assert schema.field("w").metadata is None


def test_names_that_are_taken_get_others(store: opslog.Store[dict[str, Any]]) -> None:
    """SQL ignores the case of names, and the names id, clock and ts belong to the record."""
    store["x"] = {"id": 1, "ts": 2, "Name": 3, "name": 4, "data": 5, "a b": 6, "": 7, "a.b": 8, "a/b~c": 9, 'q"': 10}
    row = store.to_arrow().to_pylist()[0]
    assert row["id"] == "x"
    found = {name: value for name, value in row.items() if name not in RECORD}
    assert found == {
        "data_id": 1,
        "data_ts": 2,
        "Name": 3,
        "name_2": 4,
        "data_data": 5,
        "a b": 6,
        "": 7,
        "a.b": 8,
        "a/b~c": 9,
        'q"': 10,
    }
    assert store.sql('SELECT "a b" + "a.b" AS x FROM documents').to_pylist() == [{"x": 14}]


def test_a_schema_says_which_columns_and_types(store: opslog.Store[dict[str, Any]]) -> None:
    store["x"] = {"n": 1, "t": "5"}
    wanted = pa.schema([("n", pa.float64()), ("id", pa.string()), ("missing", pa.int8())])
    table = store.to_arrow(wanted)
    assert table.schema == wanted
    assert table.to_pylist() == [{"n": 1.0, "id": "x", "missing": None}]
    with pytest.raises(opslog.UsageError, match="column 't' is string"):
        store.to_arrow(pa.schema([("t", pa.list_(pa.int8()))]))


def test_a_store_is_a_table_for_whatever_takes_arrow(store: opslog.Store[dict[str, Any]]) -> None:
    store["x"] = {"n": 1}
    assert pa.table(store).column("n").to_pylist() == [1]
    with duckdb.connect() as connection:
        assert connection.execute("SELECT sum(n) FROM store").fetchall() == [(1,)]


def test_an_empty_store_is_a_table(store: opslog.Store[dict[str, Any]]) -> None:
    assert store.to_arrow().num_rows == 0
    assert store.sql("SELECT count(*) AS n FROM documents").to_pylist() == [{"n": 0}]


FIELDS = st.sampled_from(["a", "b", "B", "c d"])
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "B", "c d"]), inner, max_size=3)
    ),
    max_leaves=6,
)
DOCUMENTS = st.lists(
    st.dictionaries(st.sampled_from(["x", "y", "X", "id", ""]), JSON, max_size=3), min_size=1, max_size=6
)


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=pytest.mark.long)])
def test_a_table_of_any_documents_says_the_same(examples: int) -> None:
    """However they came into the table: when it was made, or later."""
    settings(max_examples=examples, deadline=None)(given(documents=DOCUMENTS, split=st.integers(0, 6))(check_table))()


def check_table(documents: list[dict[str, Any]], split: int) -> None:
    with opslog.open("memory://", agent="a", compact_after=None) as store:
        for number, document in enumerate(documents[:split]):
            store[f"{number:03}"] = document
        store.to_arrow()
        for number, document in enumerate(documents[split:], start=split):
            store[f"{number:03}"] = document
        table = store.to_arrow()
        names = names_of({field for document in documents for field in document})
        assert table.column("id").to_pylist() == [f"{number:03}" for number in range(len(documents))]
        for name in set(table.column_names) - RECORD:
            for document, value in zip(documents, table.column(name).to_pylist(), strict=True):
                assert is_same(document.get(names[name]), value), (
                    name,
                    document,
                    value,
                )
        assert set(table.column_names) - RECORD == set(names)


def names_of(fields: set[str]) -> dict[str, str]:
    names = {"data_id" if field == "id" else field: field for field in fields if field != "x"}
    if "x" in fields:
        names["x_2" if "X" in fields else "x"] = "x"
    return names


def is_same(value: Any, shown: Any) -> bool:
    """Whether a table shows this value, or its JSON text. It does not distinguish a missing field from null."""
    if isinstance(value, dict) and isinstance(shown, dict):
        return all(is_same(value.get(name), shown.get(name)) for name in {*value, *shown})
    if isinstance(value, list) and isinstance(shown, list):
        return len(value) == len(shown) and all(is_same(a, b) for a, b in zip(value, shown, strict=True))
    if isinstance(shown, str) and (not isinstance(value, str) or shown != value):
        try:
            return bool(orjson.loads(shown) == value)
        except orjson.JSONDecodeError:
            return False
    if isinstance(value, float) and isinstance(shown, float):
        return math.copysign(1, value) == math.copysign(1, shown) and value == shown
    return bool(value == shown)
