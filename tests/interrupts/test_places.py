"""The places are those at which real signals come."""

from __future__ import annotations

import dis
import random
import signal
import threading
from collections import Counter
from types import FrameType

import pytest

import opslog
from tests.interrupts import places
from tests.interrupts.places import Place, at_places


def test_real_signals_come_after_the_instructions_that_make_places_alone() -> None:
    """Timers go off at any time in calls of a store. Where each came is of a kind that is foreseen: above all none came
    between taking a lock of ``with`` and its block, nor where a function in Python returned."""
    foreseen = {*places._CALLS, "PRECALL", "RESUME", "BINARY_OP"}  # the last one makes text of values, with %
    came: Counter[str] = Counter()
    is_armed = False

    def handler(number: int, frame: FrameType | None) -> None:
        if is_armed and frame is not None and "/tests/" not in frame.f_code.co_filename:
            came[_instruction(frame)] += 1

    store = opslog.open("memory://", agent="a", compact_after=None)
    chances = random.Random(7)
    before = signal.signal(signal.SIGALRM, handler)
    try:
        while came.total() < 100:
            signal.setitimer(signal.ITIMER_REAL, chances.uniform(1e-6, 5e-4))
            is_armed = True
            store["x"] = {"v": 1}
            with store.batch():
                store["y"] = {"v": 1}
                del store["x"]
            store.undo()
            list(store.items())
            store.refresh()
            is_armed = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        store.close()
    assert not [name for name in came if name not in foreseen and "JUMP_BACKWARD" not in name], came


def _instruction(frame: FrameType) -> str:
    """The name of the instruction that a frame is at."""
    instructions = dis.get_instructions(frame.f_code)
    return str(next(found.opname for found in reversed(list(instructions)) if found.offset <= frame.f_lasti))


LOCK = threading.Lock()


def leaf() -> int:
    return len("leaf")


def branch(numbers: list[int]) -> int:
    with LOCK:
        total = leaf()
    for number in numbers:
        total += number
    return total


def test_each_place_comes_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_is_ours", lambda name: name == __file__)
    found: list[Place] = []
    assert at_places(lambda: branch([1, 2]), found.append) == 7
    names = [place.where.rpartition(":")[0].rpartition(".")[2] for place in found]
    # Not where a lock is taken, nor where leaf returns; but where the lock was given back, and where the loop goes on.
    assert names == ["<lambda>", "branch", "leaf", "leaf", "branch", "branch", "branch"]
    assert [place.number for place in found] == list(range(1, len(found) + 1))
