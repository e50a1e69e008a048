"""The kernel keeps ids by their hashes as Python does."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.format.hashes import _HashedIds, encode_hashes, id_hash

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

# Hashes that are equal but for a few bits, and any others. The empty text has the hash 0.
hashes = st.lists(
    st.integers(0, 2**32 - 1) | st.integers(0, 40) | st.integers(0, 40).map(lambda number: number << 26) | st.just(0)
)
ids = st.text(max_size=12)


@given(st.lists(st.tuples(hashes, st.lists(ids))), st.lists(ids))
def test_what_is_in_and_what_is_not(steps: list[tuple[list[int], list[str]]], others: list[str]) -> None:
    kernel, python = _kernel.HashedIds(), _HashedIds()
    asked = ["", *others, *(id for _, added in steps for id in added)]
    for some, added in steps:
        for each in (kernel, python):
            each.update(encode_hashes(some + [id_hash(id) for id in others[::3]]))
            for id in added:
                each.add(id)
        assert [id in kernel for id in asked] == [id in python for id in asked]
        assert all(id in kernel for id in added)


@pytest.mark.parametrize("count", [7, 8, 9, 1000, 200_000])
def test_many_are_found_and_hardly_any_others(count: int) -> None:
    kernel = _kernel.HashedIds()
    for number in range(0, count, 2):
        kernel.add(f"task-{number}")
    kernel.update(encode_hashes(id_hash(f"task-{number}") for number in range(1, count, 2)))
    assert all(f"task-{number}" in kernel for number in range(count))
    draw = random.Random(count)
    assert sum(f"other-{draw.random()}" in kernel for _ in range(10_000)) < 10


def test_hashes_are_added_from_any_bytes() -> None:
    data = encode_hashes([id_hash("a"), id_hash("b")])
    for some in (data, bytearray(data), memoryview(data)):
        kernel = _kernel.HashedIds()
        assert "a" not in kernel
        kernel.update(some)
        assert "a" in kernel
        assert "b" in kernel
        assert "c" not in kernel


def test_what_is_no_id_and_what_are_no_hashes() -> None:
    kernel = _kernel.HashedIds()
    for ask in (kernel.add, kernel.__contains__):
        with pytest.raises(UnicodeEncodeError):
            ask("\ud800")
        for wrong in (b"id", None, 5):
            with pytest.raises(TypeError):
                ask(wrong)
    with pytest.raises(ValueError, match="a hash is cut short"):
        kernel.update(b"\0\0\0\0\0")
    for other in ("text", None, 5):
        with pytest.raises(TypeError):
            kernel.update(other)
    with pytest.raises(BufferError):
        kernel.update(memoryview(bytes(16))[::2])
    with pytest.raises(TypeError):
        _kernel.HashedIds("id")
    assert "" not in kernel
