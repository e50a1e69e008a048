"""The kernel reads columns and ids out of lines as DuckDB does, or leaves a column to it."""

from __future__ import annotations

import mmap
import threading
import tracemalloc
from typing import Any

import duckdb
import msgspec
import orjson
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import opslog
from opslog.format.commits import Delete, Set, encode_commit
from opslog.query.values import MISSING
from opslog.tables import arrow
from opslog.tables.plain import plain_columns
from opslog.tables.reading import Values, record_columns
from opslog.tables.structure import NULL
from tests.kernel.test_fields import NAMES, ODD

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

TS = "2026-11-24T12:00:00.123456Z"
TEXT = st.text(st.sampled_from('a"\\/\b\f\n\r\t\x00\x1f\x7fü\u2028\ud7ff🚀') | st.characters(codec="utf-8"), max_size=6)
STRINGS = TEXT.map(orjson.dumps) | st.sampled_from(
    [b'"\\u00e9"', b'"\\u0000x"', b'"\\/"', b'"\\u2028\\u0041"', b'"\\ud83d\\ude80"']
)
INTEGERS = (st.integers(-(10**18), 10**18) | st.sampled_from([10**15, 10**15 - 1, -(10**15), 2**63, 2**64 - 1])).map(
    orjson.dumps
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False).map(orjson.dumps) | st.sampled_from(
    [b"1E5", b"1.0e+05", b"-0.0", b"-0", b"1e22", b"0.1e-7", b"123456789012345678.5", b"1e99", b"5e-324"]
)
KINDS = [STRINGS, INTEGERS, FLOATS, st.sampled_from([b"true", b"false"]), st.sampled_from([b"[]", b"[1]", b"{}"])]
# Mostly of one type, and some null or missing.
VALUES = st.sampled_from([*KINDS, INTEGERS | FLOATS, st.one_of(KINDS)]).flatmap(
    lambda kind: st.lists(kind | st.sampled_from([b"null", b""]), min_size=1, max_size=12)
)


def line_of(data: bytes, number: int = 0, id: str = "x") -> bytes:
    by, tx = ("worker", "5f0c") if number % 3 == 2 else ("", "")
    return encode_commit(Set(TS, number + 1, "planner", id, msgspec.Raw(data), by=by, tx=tx))


def document(values: dict[bytes, bytes]) -> bytes:
    return b"{%b}" % b",".join(b'"%b":%b' % item for item in values.items() if item[1])


def exactly(values: pa.ChunkedArray) -> tuple[str, list[str]]:
    return str(values.type), [repr(value) for value in values.to_pylist()]


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(":memory:")


@settings(deadline=None)  # its first inputs load much
@given(first=VALUES, second=VALUES, chunk=st.integers(1, 13))
@example(first=[b"1", b"0.5"], second=[b"1234567890123456", b"0.5"], chunk=1)
@example(first=[b"1", b'"1"'], second=[b"true", b"null"], chunk=1)
@example(first=[b'"a"', b"", b"null"], second=[b"", b"", b"[]"], chunk=2)
@example(first=[b"-5", b"18446744073709551615"], second=[b"1"], chunk=13)
def test_columns(connection: duckdb.DuckDBPyConnection, first: list[bytes], second: list[bytes], chunk: int) -> None:
    count = max(len(first), len(second))
    rows = zip(first + [b""] * (count - len(first)), second + [b""] * (count - len(second)), strict=True)
    lines = [
        line_of(document({b"a": a, b"n": b"1.5", b"b": b}), number, f"{number:02}")
        for number, (a, b) in enumerate(rows)
    ]
    column, ids = arrow.lines_column(b"".join(lines[at : at + chunk]) for at in range(0, count, chunk))
    assert ids is not None
    assert exactly(ids) == exactly(record_columns(connection, column, ["id"])["id"])
    found = plain_columns(column, ["a", "b", "c"])
    values = Values(connection, column, ["a", "b", "c"])
    expected = values.read(values.structures())
    for name, (structure, read) in found.items():
        assert exactly(read) == exactly(expected[name][1])
        assert (structure == NULL) == (expected[name][0] == NULL)


@given(
    st.lists(TEXT | st.none(), min_size=1)
    | st.lists(st.integers(1 - 10**17, 10**18 - 1) | st.none(), min_size=1)
    | st.lists(st.floats(-1e99, 1e99).filter(lambda value: value == 0 or abs(value) > 1e-99), min_size=1)
    | st.lists(st.booleans() | st.none(), min_size=1)
)
def test_values_of_the_usual_form_are_taken(values: list[Any]) -> None:
    column, _ = arrow.lines_column([b"".join(line_of(orjson.dumps({"a": value})) for value in values)])
    _, found = plain_columns(column, ["a"])["a"]
    assert [repr(value) for value in found.to_pylist()] == [repr(value) for value in values]


@pytest.mark.parametrize("data", ODD, ids=lambda data: repr(data[:30]))
def test_documents_of_any_form(data: bytes) -> None:
    """A line that `fields` leaves to Python is left to DuckDB."""
    line = line_of(data)
    if line.count(b"\n") != 1:
        return
    _, _, left = _kernel.fields(line, (), 0, MISSING)
    assert (_kernel.columns(line, NAMES, 1) is None) == bool(left)


def test_what_is_no_line_of_a_set() -> None:
    line, delete = line_of(b'{"a":1}'), encode_commit(Delete(TS, 1, "planner", "y", folded=TS))
    assert _kernel.columns(line + delete, ("a",), 2) is None
    assert _kernel.split(line + delete)[2] == b"xy"
    for text in (b"", line[:-1], b"\n", line + b"\n", b"{}\n", line.replace(b'{"ts', b'{ "ts')):
        assert _kernel.columns(text, ("a",), text.count(b"\n")) is None
        assert _kernel.split(text) is None
    assert _kernel.split(line_of(b"{}", id='"')) is None
    assert _kernel.columns(line, (), 1) is None
    assert _kernel.columns(line, ("\ud800",), 1) is None
    assert _kernel.columns(line, tuple(map(str, range(17))), 1) is None
    assert _kernel.columns(memoryview(line), ("a",), 1) == [("integer", None, b"\1" + bytes(7), None)]
    for rows in (0, 2, -1, len(line) + 1, 2**62):
        assert _kernel.columns(line, ("a",), rows) is None
    assert _kernel.columns(line * 3, ("a",), 2) is None


@pytest.mark.parametrize("arguments", [("", ("a",), 1), (b"{}\n", ["a"], 1), (b"{}\n",), (b"{}\n", ("a",), "1")])
def test_wrong_arguments(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError):
        _kernel.columns(*arguments)
    with pytest.raises(TypeError):
        _kernel.split(*arguments[1:])


def test_a_file_that_is_overwritten_meanwhile() -> None:
    """What is read then may be wrong, and the process goes on."""
    long = line_of(b'{"a":"%b"}' % (b"x" * 3000)) * 2000
    short = line_of(b'{"a":""}')
    shorts = short * (len(long) // len(short))
    rows = (long.count(b"\n"), shorts.count(b"\n") + 1)
    ended = threading.Event()

    def overwrite() -> None:
        while not ended.is_set():
            mapped[: len(shorts)] = shorts
            mapped[:] = long

    with mmap.mmap(-1, len(long)) as mapped:
        mapped[:] = long
        thread = threading.Thread(target=overwrite)
        thread.start()
        try:
            for number in range(100):
                _kernel.columns(mapped, ("a", "b"), rows[number % 2])
                _kernel.split(mapped)
        finally:
            ended.set()
            thread.join()


def test_no_memory_is_kept() -> None:
    text = b"".join(
        line_of(document({b"a": b'"%d"' % number, b"b": b"%d" % number}), number, str(number)) for number in range(1000)
    )

    def read() -> None:
        for _ in range(20):
            _kernel.columns(text, ("a", "b", "c"), 1000)
            _kernel.split(text)

    read()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        read()
        assert tracemalloc.get_traced_memory()[0] - before < 1000
    finally:
        tracemalloc.stop()


def test_a_store_with_and_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A table is the same, and stays that while documents change."""

    def tables(kernel: str) -> list[list[dict[str, Any]]]:
        found = []
        with opslog.open(f"memory://columns-{kernel}-kernel", agent="a", compact_after=None) as store:
            with store.batch():
                for number in range(500):
                    store[f"{number:03}"] = {"s": f"ü{number}", "n": number, "f": number / 3, "b": number % 2 == 0}
            store.compact()
            found.append(store.to_arrow(["id", "s", "n", "f", "b"]).to_pylist())
            del store["007"]
            store["008"] = {"s": "eight", "n": -8, "f": 8}
            found.append(store.to_arrow(["id", "s", "n", "f", "b"]).to_pylist())
            store["009"] = {"s": 9, "n": 9.5}
            found.append(store.to_arrow(["id", "s", "n", "f", "b"]).to_pylist())
            store.undo()
            found.append(store.sql("SELECT id, s, n, f, b FROM documents ORDER BY id").to_pylist())
        return found

    with_kernel = tables("with")
    monkeypatch.setattr("opslog.tables.plain.columns", None)
    monkeypatch.setattr("opslog.tables.arrow.split", None)
    assert tables("without") == with_kernel
    assert [row["id"] for row in with_kernel[3]] == [f"{number:03}" for number in range(500) if number != 7]
