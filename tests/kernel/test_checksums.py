"""The kernel computes the CRC-32 that zlib computes, or leaves it to zlib."""

from __future__ import annotations

import mmap
import random
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.format import checksum

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

needs_crc32 = pytest.mark.skipif(
    _kernel.crc32(b"") is None, reason="this processor, or the kernel's compiler, does not multiply without carries"
)


@needs_crc32
def test_every_length_from_every_address() -> None:
    data = random.Random(20_26).randbytes(1000)
    view = memoryview(data)
    for start in range(17):
        for length in range(600):
            some = view[start : start + length]
            assert _kernel.crc32(some) == zlib.crc32(some)


@needs_crc32
@given(st.binary(max_size=400), st.integers(0, 400), st.sampled_from([b"\0", b"\xff", b"\x80", b"ab"]))
def test_any_bytes(data: bytes, count: int, filling: bytes) -> None:
    for some in (data + filling * count, filling * count + data):
        assert _kernel.crc32(some) == zlib.crc32(some)


@needs_crc32
@pytest.mark.parametrize("length", [64 * 1024, 64 * 1024 + 1, 3_000_017])
def test_blocks_and_whole_files(length: int) -> None:
    data = random.Random(length).randbytes(length)
    with mmap.mmap(-1, length) as mapped:
        mapped[:] = data
        assert _kernel.crc32(data) == _kernel.crc32(bytearray(data)) == _kernel.crc32(mapped) == zlib.crc32(data)


def test_what_is_no_bytes() -> None:
    for wrong in ("text", None, 5):
        with pytest.raises(TypeError):
            _kernel.crc32(wrong)
    with pytest.raises(BufferError):
        _kernel.crc32(memoryview(b"abcd")[::2])


@pytest.mark.parametrize("length", [0, 1, 4096, 4097, 64 * 1024])
def test_the_digits_are_the_same_with_and_without(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(length).randbytes(length)
    wanted = f"{zlib.crc32(data):08x}"
    assert checksum.crc32(data) == wanted
    monkeypatch.setattr(checksum, "kernel_crc32", lambda data: None)
    assert checksum.crc32(data) == wanted
    monkeypatch.setattr(checksum, "kernel_crc32", None)
    assert checksum.crc32(memoryview(data)) == wanted
