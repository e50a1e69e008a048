"""Offsets sort as the positions that they stand for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol.offsets import format_offset, parse_offset

positions = st.integers(0, 10**16 - 1)


@given(positions, positions)
def test_offsets_sort_as_positions_do(one: int, other: int) -> None:
    assert (format_offset(one) < format_offset(other)) == (one < other)
    assert parse_offset(format_offset(one)) == one
    assert not set(format_offset(one)) & set(",&=?/")
