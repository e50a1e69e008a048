"""The line codec: the exact bytes of each form, the result of reading them, and the byte at which bad lines are
refused."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opslog.environment import format_ts
from opslog.errors import CorruptError
from opslog.format.commits import (
    CLOCK_MAX,
    Batch,
    Commit,
    Delete,
    DeleteOp,
    Seal,
    Set,
    SetOp,
    Undo,
    decode_commits,
    decode_record,
    decode_records,
    encode_commit,
)

TS = "2026-11-20T12:00:00.123456Z"


def raw(document: Any) -> msgspec.Raw:
    return msgspec.Raw(orjson.dumps(document))


LINES: list[tuple[Commit, str]] = [
    (
        Set(TS, 42, "planner", "task-1", raw({"title": "Build API"})),
        '{"ts":"%s","clock":42,"agent":"planner","op":"set","id":"task-1","data":{"title":"Build API"}}',
    ),
    (Set(TS, 1, "a", "x", raw({}), 3), '{"ts":"%s","clock":1,"agent":"a","op":"set","id":"x","data":{},"v":3}'),
    (Delete(TS, 43, "planner", "task-1"), '{"ts":"%s","clock":43,"agent":"planner","op":"delete","id":"task-1"}'),
    (
        Delete(TS, 43, "a", "x", "2026-Q4"),
        '{"ts":"%s","clock":43,"agent":"a","op":"delete","id":"x","archived":"2026-Q4"}',
    ),
    (
        Batch(TS, 44, "planner", [SetOp("a", raw({})), SetOp("b", raw({}), 2), DeleteOp("c"), DeleteOp("d", "p")]),
        '{"ts":"%s","clock":44,"agent":"planner","op":"batch","ops":[{"op":"set","id":"a","data":{}},'
        '{"op":"set","id":"b","data":{},"v":2},{"op":"delete","id":"c"},{"op":"delete","id":"d","archived":"p"}]}',
    ),
    (Undo(TS, 45, "planner", 44), '{"ts":"%s","clock":45,"agent":"planner","op":"undo","target":44}'),
    (Seal(TS, CLOCK_MAX, "a"), '{"ts":"%s","clock":9223372036854775807,"agent":"a","op":"seal"}'),
]


@pytest.mark.parametrize(("commit", "line"), LINES, ids=lambda value: getattr(value, "op", ""))
def test_each_form_is_exactly_this(commit: Commit, line: str) -> None:
    data = (line % TS).encode() + b"\n"
    assert encode_commit(commit) == data
    (decoded,) = decode_commits(data, "ops/a/1", 0)
    assert decoded == commit
    assert decoded.op == orjson.loads(data)["op"]
    assert decoded.stamp == (commit.clock, commit.agent)


def test_many_lines_at_once() -> None:
    data = b"".join(encode_commit(commit) for commit, _ in LINES)
    assert decode_commits(data, "p", 0) == [commit for commit, _ in LINES]
    assert decode_commits(b"", "p", 0) == []


ids = st.text(max_size=20)
json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
documents = st.dictionaries(st.text(max_size=8), json_values, max_size=5).map(raw)
versions = st.integers(1, CLOCK_MAX)
ops = st.builds(SetOp, ids, documents, versions) | st.builds(DeleteOp, ids, st.none() | st.text(max_size=9))
commits = st.one_of(
    st.builds(Set, st.just(TS), versions, st.just("agent"), ids, documents, versions),
    st.builds(Delete, st.just(TS), versions, st.just("agent"), ids, st.none() | st.text(max_size=9)),
    st.builds(Batch, st.just(TS), versions, st.just("agent"), st.lists(ops, max_size=4)),
    st.builds(Undo, st.just(TS), versions, st.just("agent"), versions),
    st.builds(Seal, st.just(TS), versions, st.just("agent")),
)


@given(st.lists(commits, max_size=5))
def test_written_commits_are_read_back(written: list[Commit]) -> None:
    lines = [encode_commit(commit) for commit in written]
    assert all(line.count(b"\n") == 1 and line.endswith(b"\n") for line in lines)
    assert decode_commits(b"".join(lines), "p", 0) == written


def test_a_document_stays_as_its_text() -> None:
    text = b'{"b":1, "a":1.50 ,"b\\u0041":18446744073709551615}'
    line = b'{"ts":"%b","clock":1,"agent":"a","op":"set","id":"x","data":%b}\n' % (TS.encode(), text)
    (commit,) = decode_commits(line, "p", 0)
    assert isinstance(commit, Set)
    assert bytes(commit.data) == text
    assert encode_commit(commit) == line
    assert commit.document is not commit.document


def test_unknown_fields_break_nothing_and_order_does_not_matter() -> None:
    line = b'{"op":"set","future":[1],"data":{},"id":"x","agent":"a","clock":7,"ts":"%b"}\n' % TS.encode()
    assert decode_commits(line, "p", 0) == [Set(TS, 7, "a", "x", raw({}))]


GOOD = encode_commit(LINES[0][0])
BAD = {
    "unknown op": b'{"ts":"t","clock":1,"agent":"a","op":"merge","id":"x"}\n',
    "no op": b'{"ts":"t","clock":1,"agent":"a","id":"x","data":{}}\n',
    "no id": b'{"ts":"t","clock":1,"agent":"a","op":"set","data":{}}\n',
    "no data": b'{"ts":"t","clock":1,"agent":"a","op":"set","id":"x"}\n',
    "clock zero": b'{"ts":"t","clock":0,"agent":"a","op":"seal"}\n',
    "clock too large": b'{"ts":"t","clock":9223372036854775808,"agent":"a","op":"seal"}\n',
    "clock a string": b'{"ts":"t","clock":"1","agent":"a","op":"seal"}\n',
    "version zero": b'{"ts":"t","clock":1,"agent":"a","op":"set","id":"x","data":{},"v":0}\n',
    "blank": b"\n",
    "carriage return": GOOD[:-1] + b"\r" + GOOD,
    "two on a line": GOOD[:-1] + GOOD,
    "cut": GOOD[:-2] + b"\n",
    "zeros": b"\0" * 30 + b"\n",
    "no JSON": b"hello\n",
    "no object": b"[]\n",
    "id no UTF-8": GOOD.replace(b"task-1", b"t\xffsk-1"),
    "nested too deeply": GOOD.replace(b'{"title":"Build API"}', b'{"a":' * 100_000 + b"0" + b"}" * 100_000),
    "unknown field nested too deeply": GOOD[:-2] + b',"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
    "ts with a quote": GOOD.replace(TS.encode(), b'2026-11-20T12:00:00.12345\\"Z'),
    "ts with a newline": GOOD.replace(TS.encode(), b"2026-11-20T12:00:00.12345\\n"),
    "ts of another form": GOOD.replace(TS.encode(), b"2026-11-20T12:00:00Z"),
    "ts in other digits": GOOD.replace(TS.encode(), "٢026-11-20T12:00:00.123456Z".encode()),
    "ts empty": GOOD.replace(TS.encode(), b""),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(("before", "after"), [*itertools.product((0, 1, 3), (0, 2))])
def test_a_bad_line_is_named_with_its_byte(bad: str, before: int, after: int) -> None:
    data = GOOD * before + BAD[bad] + GOOD * after
    with pytest.raises(CorruptError, match="this line cannot be read") as caught:
        decode_commits(data, "ops/a/1.jsonl", 1000)
    assert (caught.value.path, caught.value.offset) == ("ops/a/1.jsonl", 1000 + before * len(GOOD))
    assert f"byte {caught.value.offset}" in str(caught.value)


def test_a_snapshot_holds_records_alone() -> None:
    for commit, _ in LINES:
        line = encode_commit(commit)
        if isinstance(commit, Set | Delete):
            assert decode_records(line, "p", 0) == [commit]
            assert decode_record(line) == commit
            assert commit.records == (commit,)
        else:
            with pytest.raises(CorruptError):
                decode_records(line, "p", 0)


def test_the_later_of_two_ops_on_one_document_in_a_batch_counts() -> None:
    batch = Batch(
        TS, 9, "a", [SetOp("x", raw({"n": 1})), DeleteOp("y"), SetOp("x", raw({"n": 2}), 4), DeleteOp("x", "p")]
    )
    assert batch.records == (Delete(TS, 9, "a", "x", "p"), Delete(TS, 9, "a", "y"))
    assert (Undo(TS, 9, "a", 1).records, Seal(TS, 9, "a").records) == ((), ())


INEXACT = {
    "beyond 64 bits": b'{"a":18446744073709551616}',
    "below 64 bits": b'{"a":-9223372036854775809}',
    "beyond a double": b'{"a":1e400}',
    "thousands of digits": b'{"a":%b}' % (b"9" * 5000),
    "a name twice": b'{"a":1,"a":2}',
    "a name twice, once escaped": b'{"a":1,"\\u0061":2}',
    "a name twice, inside": b'{"a":[{"b":1,"c":[],"b":1}]}',
    "255 levels": b'{"a":' * 254 + b"{}" + b"}" * 254,
    "bytes that are not UTF-8": b'{"a":"\xff"}',
    "a surrogate in UTF-8": b'{"a":"\xed\xa0\x80"}',
    "no object": b"[]",
}


@pytest.mark.parametrize("text", INEXACT.values(), ids=INEXACT)
def test_a_document_that_decoders_could_read_differently_is_not_handed_out(text: bytes) -> None:
    record = Set(TS, 1, "a", "x", msgspec.Raw(text))
    assert decode_commits(encode_commit(record), "p", 0) == [record], "most lines are only ordered"
    with pytest.raises(CorruptError, match=r"document 'x', written by a at clock 1, cannot be read: .*opslog verify"):
        _ = record.document


@pytest.mark.parametrize(
    ("text", "document"),
    [
        (b' { "b" : 1 ,"a":1E2}\r', {"b": 1, "a": 100.0}),
        (b'{"a":18446744073709551615,"b":-9223372036854775808}', {"a": 2**64 - 1, "b": -(2**63)}),
        (b'{"a":-0,"b":-0.0,"c":0.1000000000000000055}', {"a": 0, "b": -0.0, "c": 0.1}),
        (b'{"a":"\\ud83d\\ude80\\u0000"}', {"a": "🚀\0"}),
        (b'{"a":' * 253 + b"{}" + b"}" * 253, None),
    ],
    ids=["spaces", "limits", "zeros", "escapes", "254 levels"],
)
def test_lines_of_other_programs_are_read_as_they_are_meant(text: bytes, document: dict[str, object] | None) -> None:
    found = Set(TS, 1, "a", "x", msgspec.Raw(text)).document
    assert repr(found) == repr(document) if document is not None else str(found).count("{") == 254


@given(st.floats(-1e10, 1e11))
@example(0.9999996)
@example(1764000000.9999996)
@example(-0.25)
@example(-0.0000001)
def test_a_time_is_written_as_datetime_writes_it(seconds: float) -> None:
    written = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    assert format_ts(seconds) == written.replace("+00:00", "Z")
