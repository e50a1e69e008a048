"""A store that grew by sustained writing: how many bytes were written for each byte that was set."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import opslog
from benchmarks.material import document, line, prepared
from benchmarks.reading import SEED
from benchmarks.runner import Round, Scale, Start, Timer, contender, workload

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


class Grown(NamedTuple):
    """:ivar written: bytes written per byte set, when the store had so many documents."""

    path: Path
    written: dict[int, float]


@cache
def grown(count: int) -> Grown:
    """A store that got so many documents in random order, a thousand with each commit, and compacted itself."""
    written: dict[int, float] = {}

    def fill(folder: Path) -> None:
        numbers = list(range(count))
        random.Random(SEED).shuffle(numbers)
        before, lines = _written(), 0.0
        with opslog.open(folder, durability="buffered") as store:
            for first in range(0, count, 1000):
                some = numbers[first : first + 1000]
                with store.batch():
                    for number in some:
                        store.set(f"task-{number}", document(number))
                lines += sum(len(line(number)) for number in some[::20]) / len(some[::20]) * len(some)
                if first + 1000 in SIZES or first + 1000 >= count:
                    store.flush()
                    written[min(first + 1000, count)] = (_written() - before) / lines

    return Grown(prepared(f"grown to {count}", fill), written)


def _at(size: int) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        written = grown(scale.huge).written

        def run(timer: Timer) -> int:
            timer.measured = written.get(size) or written[max(written)]
            return 1

        yield run

    return start


AMPLIFICATION = workload("bytes written per byte set, while growing to 10,000,000", rounds=1, unit="x")
for _size in reversed(SIZES):
    contender(AMPLIFICATION, f"opslog, at {_size:,} documents", "within 100 ms")(_at(_size))


def _written() -> int:
    """What this process has passed to write calls so far, in bytes."""
    fields = dict(field.split(": ") for field in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])
