"""A store that grew by sustained writing: how many bytes were written for each byte that was set."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

import opslog
from benchmarks.material import document, prepared, text
from benchmarks.reading import SEED, settle

SIZES = (10_000, 100_000, 1_000_000, 10_000_000)


class Grown(NamedTuple):
    """:ivar written: bytes written per byte of ids and documents, when the store had this many documents."""

    path: Path
    written: dict[int, float]


@cache
def grown(count: int) -> Grown:
    """A store that got this many documents in random order, a thousand with each commit, and compacted itself."""
    written: dict[int, float] = {}

    def fill(folder: Path) -> None:
        numbers = list(range(count))
        random.Random(SEED).shuffle(numbers)
        before, data = _written(), 0.0
        with opslog.open(folder, durability="buffered") as store:
            for first in range(0, count, 1000):
                some = numbers[first : first + 1000]
                with store.batch():
                    for number in some:
                        store.set(f"task-{number}", document(number))
                sampled = some[::10]
                data += len(some) / len(sampled) * sum(len(f"task-{number}") + len(text(number)) for number in sampled)
                if first + 1000 in SIZES or first + 1000 >= count:
                    store.flush()
                    written[min(first + 1000, count)] = (_written() - before) / data
        with opslog.open(folder, compact_after=None) as store:
            settle(store)
            store.compact()  # so that later opens find a short tail, as in a smaller store

    return Grown(prepared(f"grown to {count}", fill), written)


def _written() -> int:
    """How many bytes this process has passed to write calls so far."""
    fields = dict(field.split(": ") for field in Path("/proc/self/io").read_text().splitlines())
    return int(fields["wchar"])
