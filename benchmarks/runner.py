"""Runs workloads: registers their contenders, lets them take turns, and sums up."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import msgspec


class Scale(msgspec.Struct, frozen=True):
    """How much work a round is: single writes, threads, documents of a store that is read, commits of an opened log,
    documents of a large snapshot."""

    writes: int = 300
    threads: int = 16
    documents: int = 10_000
    log: int = 50_000
    snapshot: int = 500_000


SMALL = Scale(writes=8, threads=4, documents=40, log=200, snapshot=1000)


class Timer:
    """Adds up the seconds inside its ``with`` blocks. :ivar number: of the round, from 0."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.seconds = 0.0
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._start


Round = Callable[[Timer], int]
"""One round of a contender: does its work, the measured part under the timer; returns how many operations that was."""

Start = Callable[[Path, Scale], Iterator[Round]]


@dataclass(frozen=True)
class Contender:
    """:ivar durability: what is safe when an operation returns."""

    name: str
    durability: str
    start: Callable[[Path, Scale], AbstractContextManager[Round]]


WORKLOADS: dict[str, list[Contender]] = {}


def contender(workload: str, name: str, durability: str) -> Callable[[Start], Start]:
    """Register a function that prepares in an empty directory and yields its `Round`. opslog comes first."""

    def register(start: Start) -> Start:
        WORKLOADS.setdefault(workload, []).append(Contender(name, durability, contextmanager(start)))
        return start

    return register


class Result(msgspec.Struct, frozen=True):
    """Microseconds per operation, over the rounds. `ratio`: how many times as long opslog takes."""

    workload: str
    contender: str
    durability: str
    rounds: int
    median_us: float
    least_us: float
    most_us: float
    ratio: float


def measure(workload: str, scale: Scale, rounds: int) -> list[Result]:
    """All contenders of a workload, after one round each that does not count."""
    contenders = WORKLOADS[workload]
    times: list[list[float]] = [[] for _ in contenders]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opslog-bench-")))
        running = []
        for place, entry in enumerate(contenders):
            folder = root / str(place)
            folder.mkdir()
            running.append(stack.enter_context(entry.start(folder, scale)))
        for number in range(rounds + 1):
            for turn in range(len(running)):
                place = (turn + number) % len(running)  # nobody always comes first
                timer = Timer(number)
                operations = running[place](timer)
                if number:
                    times[place].append(timer.seconds / operations * 1e6)
    return [_result(workload, entry, own, times[0]) for entry, own in zip(contenders, times, strict=True)]


def _result(workload: str, entry: Contender, own: list[float], opslog: list[float]) -> Result:
    return Result(
        workload=workload,
        contender=entry.name,
        durability=entry.durability,
        rounds=len(own),
        median_us=statistics.median(own),
        least_us=min(own),
        most_us=max(own),
        ratio=statistics.median(ours / theirs for ours, theirs in zip(opslog, own, strict=True)),
    )
