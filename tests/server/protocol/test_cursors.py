"""Cursors of live reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.server.protocol.cursors import Cursors


@pytest.mark.parametrize("given_cursor", [None, "", "x", "-5", "9" * 40, "999"])
def test_a_cursor_is_the_interval(given_cursor: str | None) -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    assert cursors.next(given_cursor, 1000.0 + 20 * 1000 + 19.9, lambda below: 0) == "1000"


def test_a_cursor_before_its_epoch_is_still_a_number() -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    assert cursors.next(None, 0.0, lambda below: 0) == "0"
    assert cursors.next("0", 0.0, lambda below: 19) == "1"


@given(st.integers(1000, 10**9), st.integers(0, 3599))
def test_a_cursor_always_goes_on(cursor: int, random: int) -> None:
    cursors = Cursors(interval_seconds=20, epoch=1000.0)
    found = int(cursors.next(str(cursor), 1000.0 + 20 * 1000, lambda below: random))
    assert cursor < found <= cursor + 180
