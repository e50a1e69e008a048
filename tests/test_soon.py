"""Requests to an event loop: one call for many, and another one if that was lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from opslog.concurrency.soon import Soon


def test_a_request_to_the_event_loop_that_was_lost_is_made_again() -> None:
    """The handler of a signal may raise right before the call begins; asyncio only logs that."""
    now, scheduled, calls = [0.0], list[Callable[[], None]](), list[str]()
    soon = Soon(scheduled.append, lambda: now[0], lambda: calls.append("call"))
    soon()
    soon()
    assert len(scheduled) == 1
    scheduled.pop()  # lost
    now[0] = 0.9
    soon()
    assert scheduled == []
    now[0] = 1.1
    soon()
    (again,) = scheduled
    again()
    assert calls == ["call"]
    soon()
    assert len(scheduled) == 2


def test_a_request_that_the_event_loop_refuses_is_made_again() -> None:
    calls: list[str] = []

    def refuse(call: Callable[[], None]) -> None:
        calls.append("refused")
        raise MemoryError

    soon = Soon(refuse, lambda: 0.0, lambda: None)
    for _ in range(2):
        with pytest.raises(MemoryError):
            soon()
    assert calls == ["refused", "refused"]
