"""Runs workloads: registers their contenders, lets them take turns, and sums up."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Self

import msgspec


class Scale(msgspec.Struct, frozen=True):
    """How much work a round is.

    :ivar writes: single writes; `sets`: of workloads that do nothing else, all threads or tasks together;
        `threads`: how many write at once; `documents`: of a store that is read from memory.
    :ivar log: commits of a long log, over a fifth as many documents; a short log has a tenth as many.
    :ivar snapshot: documents of a large snapshot; `huge`: of a very large one.
    :ivar agents: each with a log of a thousandth of `log`.
    :ivar questions: documents of a store that is queried.
    """

    writes: int = 300
    sets: int = 20_000
    threads: int = 16
    documents: int = 10_000
    log: int = 1_000_000
    snapshot: int = 1_000_000
    huge: int = 10_000_000
    agents: int = 100
    questions: int = 200_000


SMALL = Scale(writes=8, sets=64, threads=4, documents=40, log=2000, snapshot=1000, huge=3000, agents=5, questions=1000)


class Timer:
    """Adds up the seconds inside its ``with`` blocks.

    :ivar number: of the round, from 0. :ivar measured: of a workload that does not measure seconds: the figure.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.seconds = 0.0
        self.measured: float | None = None
        self._start = 0.0

    def __enter__(self) -> Self:
        self._start = time.perf_counter()
        return self

    def __exit__(self, *error: object) -> None:
        self.seconds += time.perf_counter() - self._start


Round = Callable[[Timer], int]
"""One round of a contender: does its work, the measured part under the timer; returns how many operations it was."""

Start = Callable[[Path, Scale], Iterator[Round]]


@dataclass(frozen=True)
class Contender:
    """:ivar durability: the guarantee when an operation returns."""

    name: str
    durability: str
    start: Callable[[Path, Scale], AbstractContextManager[Round]]


class Workload(NamedTuple):
    """The task of some contenders.

    :ivar rounds: at most this many, for slow workloads; then the first one counts, too. :ivar unit: of the figures.
    """

    contenders: list[Contender]
    rounds: int | None = None
    unit: str = "µs"


WORKLOADS: dict[str, Workload] = {}


def workload(name: str, rounds: int | None = None, unit: str = "µs") -> str:
    """Register a workload that is not measured in the usual way. Returns its name."""
    WORKLOADS[name] = Workload([], rounds, unit)
    return name


def contender(workload: str, name: str, durability: str) -> Callable[[Start], Start]:
    """Register a function that prepares in an empty directory and yields its `Round`. opslog comes first."""

    def register(start: Start) -> Start:
        entry = Contender(name, durability, contextmanager(start))
        WORKLOADS.setdefault(workload, Workload([])).contenders.append(entry)
        return start

    return register


class Result(msgspec.Struct, frozen=True):
    """A contender's figure in each round, in `unit`; in microseconds: per operation.

    :ivar ratio: opslog's figure as a multiple of this one, as the median of the ratios within a round.
    """

    workload: str
    contender: str
    durability: str
    unit: str
    values: list[float]
    ratio: float

    @property
    def median(self) -> float:
        return statistics.median(self.values)


def measure(name: str, scale: Scale, rounds: int) -> list[Result]:
    """All contenders of a workload, after one round each that does not count."""
    contenders, at_most, unit = WORKLOADS[name]
    warming = 1 if at_most is None else 0
    values: list[list[float]] = [[] for _ in contenders]
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="opslog-bench-")))
        running = []
        for place, entry in enumerate(contenders):
            folder = root / str(place)
            folder.mkdir()
            running.append(stack.enter_context(entry.start(folder, scale)))
        for number in range(warming + min(rounds, at_most or rounds)):
            for turn in range(len(running)):
                place = (turn + number) % len(running)  # so that no contender always comes first
                timer = Timer(number)
                operations = running[place](timer)
                value = timer.seconds / operations * 1e6 if timer.measured is None else timer.measured
                if number >= warming:
                    values[place].append(value)
    return [
        Result(name, entry.name, entry.durability, unit, own, _ratio(values[0], own))
        for entry, own in zip(contenders, values, strict=True)
    ]


def _ratio(opslog: list[float], theirs: list[float]) -> float:
    """The median of the ratios; equal figures count as 1, also if both are 0, as counts of requests may be."""
    return statistics.median(1.0 if ours == other else ours / other for ours, other in zip(opslog, theirs, strict=True))
