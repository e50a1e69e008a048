"""Real signals come at the same places, on each version of Python."""

from __future__ import annotations

import dis
import functools
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType

import pytest

import opslog
from tests.interrupts import places
from tests.interrupts.places import Place, at_places


@contextmanager
def alarms(handler: Callable[[str, CodeType, int], None]) -> Iterator[Callable[[], None]]:
    """Calls a handler of real signals with the instruction that each signal came after: its name and its place. The
    block gets a function that sets off the next signal after a while."""
    chances = random.Random(7)

    def handle(number: int, frame: FrameType | None) -> None:
        if frame is not None:
            instruction = _instruction(frame)
            handler(instruction.opname, frame.f_code, instruction.offset)

    before = signal.signal(signal.SIGALRM, handle)

    def set_alarm() -> None:
        signal.setitimer(signal.ITIMER_REAL, chances.uniform(1e-6, 2e-4))

    try:
        yield set_alarm
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _instruction(frame: FrameType) -> dis.Instruction:
    """The instruction that a frame is at."""
    code = frame.f_code
    instructions = _instructions(code)
    number = max(number for number, found in enumerate(instructions) if found.offset <= frame.f_lasti)
    while instructions[number].opname == "PRECALL":  # Python 3.11: the first half of a call
        number += 1
    return instructions[number]


@functools.cache
def _instructions(code: CodeType) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


def test_real_signals_come_after_the_instructions_that_make_places_alone() -> None:
    """Timers go off at random times in calls of a store. Each signal must come after an instruction of an expected
    kind. Above all none may come between taking the lock of a ``with`` and its block."""
    foreseen = {*places._CALLS, "RESUME", "BINARY_OP"}  # the last one makes text from values, with %
    came: Counter[str] = Counter()
    is_armed = False

    def handler(name: str, code: CodeType, offset: int) -> None:
        if is_armed and "/tests/" not in code.co_filename:
            if name == "COMPARE_OP":  # CPython 3.11 runs a comparison and the jump back after it as one
                name = next(one.opname for one in _instructions(code) if one.offset > offset and one.opname != "CACHE")
            came[name] += 1

    with opslog.open("memory://", agent="a", compact_after=None) as store, alarms(handler) as set_alarm:
        while came.total() < 100:
            set_alarm()
            is_armed = True
            store["x"] = {"v": 1}
            with store.batch():
                store["y"] = {"v": 1}
                del store["x"]
            store.undo()
            list(store.items())
            store.refresh()
            is_armed = False
    assert not [name for name in came if name not in foreseen and "JUMP_BACKWARD" not in name], came


LOCK = threading.Lock()


class Built:
    def __init__(self, number: int) -> None:
        self.number = number

    def add(self, *numbers: int) -> int:
        return self.number + sum(numbers)

    def __enter__(self) -> Built:
        return self

    def __exit__(self, *about: object) -> None:
        """There is nothing to release."""


class BuiltUpon(Built):
    def __init__(self) -> None:
        super().__init__(1)


def leaf(*numbers: int) -> int:
    return sum(numbers)


@functools.lru_cache
def cached(number: int) -> int:
    return number


def counted() -> Iterator[int]:
    yield leaf()
    yield 1


def begun() -> Iterator[int]:
    return counted()


def starred(numbers: list[int]) -> int:
    return leaf(*numbers)


def everything(number: int) -> dict[str, object]:
    """Makes calls of each kind."""
    with LOCK:
        total = leaf(number)
    with BuiltUpon() as built, Built(2):
        total += built.add(1, 2)
    numbers = [leaf(each) for each in begun()]
    numbers += sorted(numbers, key=lambda each: -each)
    total += built.add(*numbers) + starred(numbers)
    total += functools.partial(leaf, 1)(2)
    total += cached(number)
    for each in numbers:
        total += each
    try:
        total += next(iter(()))
    except StopIteration:
        total += divmod(total, 3)[0]
    return {"total": f"{total}", "built": Built(total)}


UNMET = {begun.__qualname__, starred.__qualname__}
"""No signal comes right after these calls, although there is a place. A generator that has not begun is in no event, so
it looks like a call of C code. And from Python 3.12 on, a function with ``*arguments`` is called from C code if it is
traced alone. By then neither has done anything that it had not done one place earlier."""


@pytest.mark.long
def test_real_signals_come_at_the_places_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_is_ours", lambda name: name == __file__)
    found: list[Place] = []
    everything(0)
    at_places(functools.partial(everything, 1), found.append)
    known = {(place.code.co_qualname, place.offset) for place in found}
    came: set[tuple[str, int]] = set()
    is_armed = False

    def handler(name: str, code: CodeType, offset: int) -> None:
        if is_armed and code.co_filename == __file__:
            came.add((code.co_qualname, offset))

    with alarms(handler) as set_alarm:
        number = 1
        while {place for place in known - came if place[0] not in UNMET}:
            # A new function each time: Python 3.13 stops checking for signals in a function that was called often.
            anew = FunctionType(everything.__code__.replace(), globals())
            number += 1
            set_alarm()
            is_armed = True
            anew(number)
            is_armed = False
    own = test_real_signals_come_at_the_places_and_nowhere_else.__qualname__
    assert {place for place in came - known if place[0] != own} == set()


def branch(numbers: list[int]) -> int:
    with LOCK:
        total = leaf()
    built = Built(total)
    for number in numbers:
        total += number + built.number
    return total


def test_each_place_comes_once_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "_is_ours", lambda name: name == __file__)
    found: list[Place] = []
    assert at_places(lambda: branch([1, 2]), found.append) == 3
    names = [place.where.rpartition(":")[0].rpartition(".")[2] for place in found]
    # Not where a lock is taken, nor where leaf returns; but where the lock was released, where a class has built
    # something, and where the loop continues.
    assert names == ["<lambda>", "branch", "leaf", "leaf", "branch", "__init__", "branch", "branch", "branch"]
    assert [place.number for place in found] == list(range(1, len(found) + 1))
