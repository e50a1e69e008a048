"""The kernel finds the line of an id in a block as Python does, or leaves the search to it."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import msgspec
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from opslog.errors import CorruptError
from opslog.format.commits import Delete, Record, Set, encode_commit
from opslog.snapshot import runs
from opslog.snapshot.runs import _OpenBlock

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

TS = "2026-11-24T12:00:00.123456Z"
IDS = st.text(st.sampled_from("abz-ü🚀\ud7ff") | st.characters(codec="utf-8"), max_size=4)


def record(id: str, number: int, *, is_odd: bool = False) -> bytes:
    """A line; an odd one is of a form that only another program writes."""
    if number % 5 == 4:
        line = encode_commit(Delete(TS, number + 1, "planner", id, folded=TS))
    else:
        by, tx = ("worker", "5f0c") if number % 3 == 2 else ("", "")
        line = encode_commit(Set(TS, number + 1, "planner", id, msgspec.Raw(b'{"n":%d}' % number), by=by, tx=tx))
    return line.replace(b'{"ts"', b'{ "ts"') if is_odd else line


def answer(monkeypatch: pytest.MonkeyPatch, find_line: Any, block: bytes, id: str) -> Record | str | None:
    """What a lookup returns, or the error that it raises."""
    with monkeypatch.context() as patch:
        patch.setattr(runs, "find_line", find_line)
        try:
            return _OpenBlock(b"before\n" + block, 7, 7 + len(block), path="part", offset=70, size=0).find(id)
        except CorruptError as error:
            return str(error)


@given(ids=st.sets(IDS, min_size=1, max_size=40), asked=st.lists(IDS, max_size=5), odd=st.sets(st.integers(0, 39)))
@example(ids={"a"}, asked=["", "a", "b"], odd=set())
@example(ids={"a", "b", "c"}, asked=['"', "\\", "bb"], odd={1})
def test_lookups(ids: set[str], asked: list[str], odd: set[int]) -> None:
    block = b"".join(record(id, number, is_odd=number in odd) for number, id in enumerate(sorted(ids)))
    with pytest.MonkeyPatch.context() as patch:
        for id in (*ids, *asked):
            expected = answer(patch, None, block, id)
            assert answer(patch, _kernel.find_line, block, id) == expected
            assert (expected is not None) == (id in ids)
            found = _kernel.find_line(block, 0, len(block), id)
            if not odd and all(orjson.dumps(other).decode() == f'"{other}"' for other in ids):
                assert found is not None, "the kernel leaves lines of the usual form"
            if found:
                assert found + b"\n" in block


LINES = [record(f"id-{number}", number) for number in range(8)]


@pytest.mark.parametrize("damaged", [b"", b"{}", LINES[3][:-20], LINES[3][:-2], b"\xff" + LINES[3][1:-1]])
def test_damaged_lines(monkeypatch: pytest.MonkeyPatch, damaged: bytes) -> None:
    """A block whose checksum is right, and that is none: whatever is found in spite of that is a line of it."""
    block = b"".join([*LINES[:3], damaged + b"\n", *LINES[4:]])
    for number in range(8):
        for find_line in (_kernel.find_line, None):
            found = answer(monkeypatch, find_line, block, f"id-{number}")
            if isinstance(found, str):
                assert "part" in found
            elif found is not None:
                assert encode_commit(found) == LINES[number]


def test_bounds() -> None:
    block = b"".join(LINES)
    ends = [0]
    for line in LINES:
        ends.append(ends[-1] + len(line))
    with mmap.mmap(-1, len(block)) as mapped:
        mapped[:] = block
        for buffer in (block, mapped):
            for first in range(9):
                for last in range(first, 9):
                    found = [_kernel.find_line(buffer, ends[first], ends[last], f"id-{n}") for n in range(8)]
                    assert found == [LINES[n][:-1] if first <= n < last else b"" for n in range(8)]
    for start, stop in ((-1, 5), (3, 2), (0, len(block) + 1)):
        assert _kernel.find_line(block, start, stop, "id-1") is None
    assert _kernel.find_line(block, 0, len(block) - 1, "id-7") is None, "its end is not in the lines"
    assert _kernel.find_line(block, 0, len(block), "\ud800") is None
    assert _kernel.find_line(b"", 0, 0, "id-1") == b""


def test_short_lines_before_a_long_one() -> None:
    """The search does not go over the short lines one by one: it never comes to one of another form among the first."""
    short = [record(f"{number:03}", 0, is_odd=number == 1) for number in range(400)]
    long = encode_commit(Set(TS, 1, "planner", "9", msgspec.Raw(b'"%b"' % (b"x" * 100_000))))
    for block in (b"".join([*short, long]), b"".join([*short, long, record("99", 0)])):
        assert _kernel.find_line(block, 0, len(block), "300") == short[300][:-1]
        assert _kernel.find_line(block, 0, len(block), "399") == short[399][:-1]
        assert _kernel.find_line(block, 0, len(block), "9") == long[:-1]
        assert _kernel.find_line(block, 0, len(block), "8") == b""


@pytest.mark.parametrize("arguments", [(), (b"", 0, 0), (b"", 0, 0, b"id"), ("", 0, 0, "id"), (b"", "0", 0, "id")])
def test_wrong_arguments(arguments: Sequence[object]) -> None:
    with pytest.raises(TypeError):
        _kernel.find_line(*arguments)
