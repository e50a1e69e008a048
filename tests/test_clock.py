"""The Lamport clock never gives a clock twice, whatever comes between."""

from __future__ import annotations

import sys
from types import FrameType

from opslog.merge.clock import LamportClock


def test_a_clock_is_greater_than_everything_seen() -> None:
    clock = LamportClock(3)
    assert clock.tick() == 4
    clock.observe(10)
    clock.observe(7)
    assert clock.tick() == 11


def test_clocks_that_a_signal_handler_takes_are_not_forgotten() -> None:
    """CPython runs handlers of signals where a call returns."""
    clock = LamportClock(5)
    taken: list[int] = []

    def handler(frame: FrameType, event: str, _: object) -> None:
        if event == "c_return" and frame.f_code is LamportClock.observe.__code__:
            taken.extend(clock.tick() for _ in range(3))

    sys.setprofile(handler)
    try:
        clock.observe(6)
    finally:
        sys.setprofile(None)
    taken.append(clock.tick())
    assert taken == sorted(set(taken))
