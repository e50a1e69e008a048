"""Runs many seeds in many processes, and adds up the results."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass, field

from opslog.testing import invariants
from tests.simulation.scenario import Outcome, random_scenario, run

_AT_ONCE = 10
"""How many seeds a worker gets at a time."""


@dataclass
class Totals:
    """The results of some runs, added up."""

    seeds: int = 0
    steps: int = 0
    commits: int = 0
    acknowledged: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    checked: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)

    def count(self, outcome: Outcome) -> None:
        self.seeds += 1
        self.steps += outcome.steps
        self.commits += outcome.commits
        self.acknowledged += outcome.acknowledged
        self.calls += outcome.calls
        self.injected += outcome.injected
        if outcome.violation is not None:
            self.failed.append(outcome.scenario.seed)

    def add(self, other: Totals) -> None:
        self.seeds += other.seeds
        self.steps += other.steps
        self.commits += other.commits
        self.acknowledged += other.acknowledged
        self.calls += other.calls
        self.injected += other.injected
        self.checked += other.checked
        self.failed += other.failed


def run_seeds(first: int, count: int) -> Totals:
    """Some runs, in a worker process."""
    totals = Totals()
    before = Counter(invariants.CHECKED)
    for seed in range(first, first + count):
        totals.count(run(random_scenario(seed)))
    totals.checked = invariants.CHECKED - before
    return totals


def simulate(first: int, seconds: float, workers: int) -> Totals:
    """Run seeds from `first` on for some time, or until one fails."""
    totals, deadline = Totals(), time.monotonic() + seconds
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        pending: set[Future[Totals]] = set()
        following = first
        while not totals.failed and time.monotonic() < deadline:
            while len(pending) < 2 * workers:
                pending.add(pool.submit(run_seeds, following, _AT_ONCE))
                following += _AT_ONCE
            done, pending = wait(pending, timeout=5, return_when=FIRST_COMPLETED)
            for future in done:
                totals.add(future.result())
        for future in pending:
            if not future.cancel():
                totals.add(future.result())
    return totals


def report(totals: Totals, seconds: float) -> Iterator[str]:
    yield f"{totals.seeds} seeds in {seconds:.0f} s: {60 * totals.seeds / seconds:.0f} a minute"
    yield f"{totals.steps} steps (calls to the storage), {totals.commits} commits, {totals.acknowledged} acknowledged"
    for title, counter in (
        ("calls", totals.calls),
        ("faults injected", totals.injected),
        ("invariants checked", totals.checked),
    ):
        yield f"{title}: {sum(counter.values())}"
        yield from (f"  {name:<40} {number:>10}" for name, number in sorted(counter.items()))
