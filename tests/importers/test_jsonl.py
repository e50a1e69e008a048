import gzip
import io
import json
from pathlib import Path
from typing import Any, BinaryIO, cast

import pytest

from opslog.errors import CorruptError, UsageError
from opslog.importers import ImportedCommit, ImportedOp
from opslog.importers.jsonl import read_json_lines


def read(data: bytes) -> list[ImportedCommit]:
    return list(read_json_lines(io.BytesIO(data)))


def only_op(data: bytes) -> ImportedOp:
    [commit] = read(data)
    [op] = commit.ops
    return op


def test_a_plain_line_is_a_document_without_its_id() -> None:
    assert read(b'{"id":"a","title":"x","tags":[1,null]}\n{"title":"y","id":"b"}') == [
        ImportedCommit(None, None, (ImportedOp("set", "a", {"title": "x", "tags": [1, None]}),), "<stream>:1"),
        ImportedCommit(None, None, (ImportedOp("set", "b", {"title": "y"}),), "<stream>:2"),
    ]


def test_opslog_lines_keep_agent_time_and_batches_together() -> None:
    data = (
        b'{"ts":"2026-11-20T12:00:00.123456Z","clock":42,"agent":"planner","op":"set","id":"t","data":{"n":1},"v":3}\n'
        b'{"ts":"2026-11-20T13:00:00+01:00","op":"delete","id":"t","archived":"2026-Q4"}\n'
        b'{"op":"batch","ops":[{"op":"set","id":"a","data":{}},{"op":"delete","id":"b"}]}\n'
    )
    assert read(data) == [
        ImportedCommit(
            "planner", "2026-11-20T12:00:00.123456Z", (ImportedOp("set", "t", {"n": 1}, version=3),), "<stream>:1"
        ),
        ImportedCommit(None, "2026-11-20T12:00:00.000000Z", (ImportedOp("delete", "t", None),), "<stream>:2"),
        ImportedCommit(None, None, (ImportedOp("set", "a", {}), ImportedOp("delete", "b", None)), "<stream>:3"),
    ]


@pytest.mark.parametrize("number", [2**63, 2**64, -(2**63) - 1, 10**40])
def test_integers_of_any_size_stay_integers(number: int) -> None:
    document = only_op(json.dumps({"id": "a", "n": [number]}).encode()).document
    assert document is not None
    assert document == {"n": [number]}
    assert type(document["n"][0]) is int


def test_a_document_may_be_empty_and_text_may_be_escaped_or_not() -> None:
    assert only_op(b'{"id":"a"}').document == {}
    assert only_op('{"id":"é","x":"\\ud83d\\ude00 😀"}'.encode()) == ImportedOp("set", "é", {"x": "😀 😀"})


GOOD = b'{"id":"first"}\n'


@pytest.mark.parametrize(
    ("line", "at", "says"),
    [
        (b'{"id":"a" "x":1}', 10, "not JSON"),
        (b'{"id":"\xc3\xa9" "x":1}', 11, "not JSON"),
        (b'{"id":"a","x":tru', 14, "not JSON"),
        (b'{"id":"a"} {"id":"b"}', 11, "Extra data"),
        (b'{"id":"a\xff"}', 8, "not UTF-8"),
        (b'{"id":"a","x":"\\ud800"}', 0, "surrogate"),
        (b'{"id":"a","x":{"y":1,"y":2}}', 0, "'y' twice"),
        (b'{"id":"a","id":"b"}', 0, "'id' twice"),
        (b'{"id":"a","x":NaN}', 0, "NaN"),
        (b'{"id":"a","x":-Infinity}', 0, "Infinity"),
        (b'{"id":"a","x":1e400}', 0, "range of a double"),
        (b'{"id":"a","x":' + b"9" * 5000 + b"}", 0, "limit"),
        (b'{"id":"a","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 0, "nested too deeply"),
        (b"[1]", 0, "not a JSON object"),
        (b'{"title":"x"}', 0, "no field 'id' to name the document: name one with --id-field, of title"),
        (b'{"n":1}', 0, "no field 'id' to name the document"),
        (b'{"id":7}', 0, "must be a string"),
        (b'{"op":"undo","target":4,"clock":5,"agent":"a"}', 0, "opslog export"),
        (b'{"op":"seal","clock":5}', 0, "opslog export"),
        (b'{"op":"restart","id":"a"}', 0, '"op":"set"'),
        (b'{"op":["set"],"id":"a"}', 0, '"op":"set"'),
        (b'{"op":"set","id":"a"}', 0, "data"),
        (b'{"op":"set","id":"a","data":[1]}', 0, "object"),
        (b'{"op":"set","data":{}}', 0, "id"),
        (b'{"op":"set","id":"a","data":{},"reason":"x"}', 0, "reason"),
        (b'{"op":"delete","id":"a","data":{}}', 0, "data"),
        (b'{"op":"batch","ops":[]}', 0, "ops"),
        (b'{"op":"batch","ops":[{"op":"undo","target":1}]}', 0, "undo"),
        (b'{"op":"delete","id":"a","agent":"../x"}', 0, "agent"),
        (b'{"op":"delete","id":"a","ts":"yesterday"}', 0, "yesterday"),
        (b'{"op":"delete","id":"a","ts":"2026-11-20T12:00:00"}', 0, "time zone"),
        (b'{"op":"delete","id":"a","ts":"0001-01-01T00:00:00+05:00"}', 0, "years"),
        (b'\n{"id":"b"}', 0, "blank line"),
    ],
)
def test_a_bad_line_is_an_error_with_file_and_offset(tmp_path: Path, line: bytes, at: int, says: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(GOOD + line + b"\n")
    commits = read_json_lines(path)
    assert next(commits).ops == (ImportedOp("set", "first", {}),)
    with pytest.raises(CorruptError) as caught:
        list(commits)
    assert (caught.value.path, caught.value.offset) == (str(path), len(GOOD) + at)
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


def test_blank_lines_may_end_the_file() -> None:
    assert len(read(GOOD + b"\n  \n\n")) == 1
    assert read(b"") == []


def test_gzip_is_recognised_by_its_content(tmp_path: Path) -> None:
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    plain.write_bytes(GOOD * 3)
    packed.write_bytes(gzip.compress(GOOD) + gzip.compress(GOOD * 2))
    assert [commit.ops for commit in read_json_lines(plain)] == [commit.ops for commit in read_json_lines(packed)]


def test_a_damaged_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(GOOD * 1000)[:-12])
    with pytest.raises(CorruptError, match=r"cut\.gz.*damaged"):
        list(read_json_lines(path))
    path.write_bytes(gzip.compress(GOOD)[:-8] + b"\0" * 8)
    with pytest.raises(CorruptError, match="damaged"):
        list(read_json_lines(path))


def test_a_stream_is_left_open() -> None:
    stream = io.BytesIO(GOOD)
    assert len(list(read_json_lines(stream))) == 1
    assert not stream.closed


def test_memory_is_bounded_by_a_line() -> None:
    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            lines = GOOD * (len(buffer) // len(GOOD))
            buffer[: len(lines)] = lines
            return len(lines)

    commits = read_json_lines(cast(BinaryIO, Endless()))
    assert next(commits).source == "<stream>:1"
    assert next(commits).source == "<stream>:2"


def test_a_missing_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.jsonl"):
        list(read_json_lines(tmp_path / "none.jsonl"))
