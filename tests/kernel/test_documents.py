"""The kernel encodes and copies documents as Python does, or leaves them to Python."""

from __future__ import annotations

import copy
import math
import os
import subprocess
import sys
from collections import OrderedDict
from enum import IntEnum
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opslog import environment
from opslog.errors import InvalidDocumentError
from opslog.format import commits, documents
from opslog.format.commits import CLOCK_MAX, Set, encode_commit
from tests.support.leaks import growth_of

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


class Number(IntEnum):
    ONE = 1


class Name(str):
    __slots__ = ()


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63) - 2, 2**64 + 1)
    | st.floats()
    | st.text(st.characters(codec=None), max_size=8)
)
ODD = st.sampled_from([(1,), Number.ONE, Name("x"), OrderedDict(a=1), b"x", {1}, 1j, msgspec.Raw(b"1")])
VALUES: st.SearchStrategy[Any] = st.recursive(
    SCALARS | ODD,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4) | st.just(1) | st.just(Name("k")), inner)
    ),
    max_leaves=12,
)


def nested(depth: int, inner: Any = None) -> Any:
    """Dicts and lists nested in turn, with so many levels. The outermost one is a dict."""
    value: Any = {} if depth % 2 else [inner]
    for level in range(depth - 1, 0, -1):
        value = {"a": value} if level % 2 else [value]
    return value


def by_python(document: Any, monkeypatch: pytest.MonkeyPatch) -> bytes | None:
    with monkeypatch.context() as patch:
        patch.setattr(documents, "encode_plain", None)
        try:
            return documents.encode(document)
        except InvalidDocumentError:
            return None


class TestEncode:
    @settings(suppress_health_check=[HealthCheck.too_slow])  # the first inputs are slow on a busy machine
    @given(document=VALUES | st.dictionaries(st.text(max_size=4), VALUES))
    def test_the_kernel_writes_what_python_writes(self, document: Any) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            text = _kernel.encode(document, orjson.dumps)
            expected = by_python(document, monkeypatch)
        assert text is None or text == expected
        if expected is not None and text is None:
            pytest.fail(f"the kernel declines {document!r}, which is a document")

    @pytest.mark.parametrize("value", [math.nan, math.inf, (1,), Number.ONE, Name("x"), 2**64, "\ud800", b"x", {1: 2}])
    def test_values_that_would_not_come_back_are_declined(self, value: Any) -> None:
        for document in ({"a": value}, {"a": [value]}, {"a": {"b": [{"c": value}]}}):
            assert _kernel.encode(document, orjson.dumps) is None
            with pytest.raises(InvalidDocumentError):
                documents.encode(document)

    def test_levels_are_limited_as_the_format_says(self) -> None:
        assert _kernel.encode(nested(254), orjson.dumps) == orjson.dumps(nested(254))
        assert _kernel.encode(nested(255), orjson.dumps) is None
        assert _kernel.encode(nested(100_000), orjson.dumps) is None
        cyclic: dict[str, Any] = {}
        cyclic["a"] = [cyclic]
        assert _kernel.encode(cyclic, orjson.dumps) is None

    def test_values_that_are_no_dicts_are_declined(self) -> None:
        others: list[object] = [[], "x", None, 1, OrderedDict()]
        assert [_kernel.encode(value, orjson.dumps) for value in others] == [None] * 5

    def test_an_error_that_is_not_the_documents_gets_out(self) -> None:
        def interrupt(document: Any) -> bytes:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _kernel.encode({}, interrupt)


class TestCopy:
    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(
        document=st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        )
    )
    def test_a_copy_is_equal_in_types_and_order_and_shares_nothing_that_can_change(self, document: Any) -> None:
        copied = _kernel.copy(document)
        assert repr(copied) == repr(copy.deepcopy(document))
        ours, theirs = containers(copied), containers(document)
        assert len(ours) == len(theirs)
        assert not {id(value) for value in ours} & {id(value) for value in theirs}

    def test_text_that_is_no_json_is_refused(self) -> None:
        for value in ((), {1: 2}, {"a": [object()]}, Name("x"), [b"x"], OrderedDict()):
            with pytest.raises(TypeError):
                _kernel.copy(value)

    def test_levels_are_limited(self) -> None:
        assert _kernel.copy(nested(254)) == nested(254)
        with pytest.raises(RecursionError):
            _kernel.copy(nested(255))


def containers(value: Any) -> list[Any]:
    if type(value) is dict:
        return [value, *(inner for item in value.values() for inner in containers(item))]
    if type(value) is list:
        return [value, *(inner for item in value for inner in containers(item))]
    return []


TS = "2026-11-24T12:00:00.123456Z"


class TestLine:
    @settings(suppress_health_check=[HealthCheck.too_slow])
    @given(
        commit=st.builds(
            Set,
            st.just(TS),
            st.integers(1, CLOCK_MAX),
            st.just("planner"),
            st.text(st.characters(codec="utf-8")),
            st.binary().map(msgspec.Raw),
            st.just(1) | st.integers(1, CLOCK_MAX),
            by=st.just("") | st.text("ab"),
            tx=st.just("") | st.text("ab"),
        ),
        key=st.just("") | st.text("ab"),
    )
    def test_a_line_is_the_one_that_python_writes(self, commit: Set, key: str) -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(commits, "set_line", None)
            expected = encode_commit(commit, key)
            monkeypatch.setattr(commits, "set_line", _kernel.set_line)
            assert encode_commit(commit, key) == expected

    def test_an_id_that_has_to_be_escaped_is_declined(self) -> None:
        for id in ("\n", '"', "\\", "\x1f", "a\x00"):
            assert _kernel.set_line(TS, 1, "a", id, b"{}", 1) is None
        assert _kernel.set_line(TS, 1, "a", "ü🚀\x7f", b"{}", 1) is not None

    def test_an_argument_that_is_no_text_is_an_error(self) -> None:
        with pytest.raises(UnicodeEncodeError):
            _kernel.set_line(TS, 1, "a", "\ud800", b"{}", 1)
        with pytest.raises(TypeError):
            _kernel.set_line(TS, 1, "a", "id", "{}", 1)


class TestTimeText:
    @given(seconds=st.floats() | st.floats(0, 253402300801) | st.floats(1.7e9, 1.9e9))
    def test_it_is_what_python_writes(self, seconds: float) -> None:
        text = _kernel.time_text(seconds)
        if text is None:
            assert not 0 <= seconds < 253402300799
        else:
            assert text == time_by_python(seconds)

    def test_seconds_are_rounded_up_and_days_are_those_of_the_calendar(self) -> None:
        for days in [*range(0, 11323, 7), 11016, 47540, 47541, 2932896]:  # 2000-02-29, 2100-02-28, 9999-12-31
            for second in (0, 86399.9999994, 86399.9999996, 3661.0000005, 3661.0000015, 0.4999995):
                seconds = days * 86400 + second
                text = _kernel.time_text(seconds)
                assert text is None or text == time_by_python(seconds)
                assert text is not None or days == 2932896
        assert _kernel.time_text(-0.0) == _kernel.time_text(0) == "1970-01-01T00:00:00.000000Z"
        assert [_kernel.time_text(seconds) for seconds in (-1e-9, math.nan, math.inf, -1, 253402300800)] == [None] * 5
        with pytest.raises(TypeError):
            _kernel.time_text("1")


def time_by_python(seconds: float) -> str:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(environment, "time_text", None)
        return environment.format_ts(seconds)


def table_of(*sets: Set) -> Any:
    found = _kernel.scan(b"".join(map(encode_commit, sets)), "planner")
    assert found is not None
    table = _kernel.Table()
    assert table.add(found[0])
    return table


def put(clock: int, id: str, text: bytes, v: int = 1) -> Set:
    return Set(TS, clock, "planner", id, msgspec.Raw(text), v)


class TestFindDocument:
    def find(self, id: Any, table: Any = None, **given: Any) -> Any:
        known = {"winners": {}, "kept": OrderedDict(), "read": set(), "most": 0, "after": 0, "v": 1} | given
        winners, kept, read, most, after, v = (
            known[name] for name in ("winners", "kept", "read", "most", "after", "v")
        )
        return _kernel.find_document(id, winners, kept, read, most, table, after, v, orjson.loads, orjson.dumps)

    @pytest.mark.parametrize(
        "text",
        [
            b"{}",
            b'{"a":[1,{"b":null}],"c":"\xc3\xa9"}',
            b'{"a":18446744073709551615}',
            orjson.dumps(nested(254)),
        ],
    )
    def test_a_document_of_a_table_is_what_python_reads(self, text: bytes) -> None:
        record = put(5, "x", text)
        document = self.find("x", table_of(record))
        assert document == record.document
        assert repr(document) == repr(record.document)

    @pytest.mark.parametrize(
        "value", [b'1,"a":2', b"1.50", b"36893488147419103232", b"1e999", b"-0", b'"\\u0041"', b"1E5", b"100000000e-3"]
    )
    def test_what_comes_out_as_another_text_is_left_to_python(self, value: bytes) -> None:
        assert self.find("x", table_of(put(5, "x", b'{"a":' + value + b"}"))) is None

    def test_what_needs_more_is_left_to_python(self) -> None:
        table = table_of(put(5, "x", b"{}"), put(6, "y", b"{}", 3))
        assert self.find("x", table) == {}
        assert self.find("x", table, after=4) == {}
        assert self.find("x", table, after=5) is None
        assert self.find("y", table) is None
        assert self.find("y", table, v=3) == self.find("y", table, v=0) == {}
        assert self.find("x", table, v=None) is None
        assert self.find("x", table, read=None) is None
        assert self.find("x", table, winners={"x": put(7, "x", b"{}")}) is None
        assert self.find("z", table) is None
        assert self.find("x", None) is None
        assert self.find("\ud800", table) is None
        others: list[Any] = [1, None, Name("x"), []]
        for id in others:
            assert self.find(id, table) is None

    def test_what_is_kept_is_copied_while_its_winner_wins(self) -> None:
        winner, document = put(7, "x", b"{}"), {"a": [1]}
        kept = OrderedDict(x=(winner, document, (), 0), y=(None, document, (), 0))
        found = self.find("x", winners={"x": winner}, kept=kept)
        assert found == document
        assert found["a"] is not document["a"]
        assert self.find("x", winners={"x": put(7, "x", b"{}")}, kept=kept) is None
        assert self.find("x", kept=kept) is None
        assert self.find("y", kept=kept) == document
        assert self.find("y", table_of(put(1, "y", b"{}")), winners={"y": winner}, kept=kept) is None

    def test_what_was_read_lately_is_left_to_python_so_that_it_is_kept(self) -> None:
        table = table_of(*(put(number + 1, f"{number}", b"{}") for number in range(9)))
        read: set[str] = set()
        assert [self.find(f"{number}", table, read=read, most=3) for number in (0, 1, 0, 2)] == [{}, {}, None, {}]
        assert read == {"0", "1", "2"}
        assert self.find("3", table, read=read, most=3) == {}
        assert read == {"3"}

    @pytest.mark.parametrize("id", ["none", "old", "of version 3", "escaped"])
    def test_what_it_does_not_find_is_not_remembered(self, id: str) -> None:
        """Python remembers those documents itself. A document that is there already is kept at its first read."""
        sets = put(1, "old", b"{}"), put(5, "of version 3", b"{}", 3), put(6, "escaped", b'{"a":"\\u0041"}')
        read = {"x"}
        assert self.find(id, table_of(*sets), read=read, most=1, after=4) is None
        assert read == {"x"}

    def test_errors_get_out(self) -> None:
        table = table_of(put(1, "x", b"{}"))

        def interrupt(text: bytes) -> Any:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            _kernel.find_document("x", {}, {}, set(), 0, table, 0, 1, interrupt, orjson.dumps)
        with pytest.raises(KeyboardInterrupt):
            _kernel.find_document("x", {}, {}, set(), 0, table, 0, 1, orjson.loads, interrupt)
        assert _kernel.find_document("x", {}, {}, set(), 0, table, 0, 1, lambda text: [], orjson.dumps) is None
        with pytest.raises(TypeError):
            _kernel.find_document("x", {}, {}, set(), 0, table, 0, 1, orjson.loads, lambda document: "{}")
        with pytest.raises(TypeError):
            _kernel.find_document("x")
        with pytest.raises((TypeError, SystemError)):
            _kernel.find_document("x", {}, {"x": 1}, set(), 0, table, 0, 1, orjson.loads, orjson.dumps)
        with pytest.raises((TypeError, OverflowError)):
            _kernel.find_document("x", {}, {}, set(), 0, table, -1, 1, orjson.loads, orjson.dumps)


def test_nothing_is_leaked() -> None:
    document = {"a": [1, "two", {"three": [None, 4.5]}], "b": {"c": {}}}
    table = table_of(put(1, "x", b'{"a":[1,{}]}'), put(2, "y", b'{"a":1,"a":2}'))
    kept, read = {"z": (None, document, (), 0)}, {"w"}

    def work() -> None:
        _kernel.encode(document, orjson.dumps)
        _kernel.encode({"a": math.nan}, orjson.dumps)
        _kernel.encode({"a": 2**70}, orjson.dumps)
        _kernel.copy(document)
        _kernel.set_line(TS, 1, "a", "id", b"{}", 2)
        _kernel.set_line(TS, 1, "a", "\n", b"{}", 2)
        _kernel.time_text(1.5)
        for id in ("w", "x", "y", "z", "none"):
            _kernel.find_document(id, {}, kept, read, 3, table, 0, 1, orjson.loads, orjson.dumps)
        bads: list[dict[str, Any]] = [{"a": [[], {}, ()]}, {"a": {"b": [{1: 2}]}}]
        for bad in bads:
            with pytest.raises(TypeError):
                _kernel.copy(bad)

    work()
    inside = [document["a"], document["b"], orjson.dumps, orjson.loads, table, kept["z"]]
    before = [sys.getrefcount(value) for value in inside]
    assert growth_of(work) < 20_000
    assert [sys.getrefcount(value) for value in inside] == before


@pytest.mark.parametrize(("value", "name"), [("0", "Python"), ("1", "C"), ("", "C")])
def test_the_environment_switches_it_off(value: str, name: str) -> None:
    code = "import opslog.kernel as k; print(k.NAME, k.IS_USED, k.copy is None)"
    environment = {**os.environ, "OPSLOG_KERNEL": value}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == [name, str(name == "C"), str(name == "Python")]
