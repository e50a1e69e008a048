"""Threads lose their turn between statements, where the seed says so, and only during a simulation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest

from opslog.testing import Process, Simulation
from opslog.testing.threads import Threading
from tests.simulation import preemption
from tests.simulation.breakages import caught
from tests.simulation.concurrent_breakages import CONCURRENT
from tests.simulation.preemption import preempting
from tests.simulation.scenario import random_scenario, run


class Counter:
    """Loses counts if another thread runs between reading and writing."""

    def __init__(self) -> None:
        self.value = 0

    def count(self) -> None:
        """A docstring stays a docstring."""
        value = int(self.value)
        self.value = value + 1

    def counting(self, times: int) -> Iterator[int]:
        for _ in range(times):
            self.count()
            yield self.value


def counted(statements: int, seed: int = 0) -> tuple[int, str]:
    """The result of two threads that count to a hundred each, and the digest of the run."""
    simulation, counter = Simulation(seed), Counter()

    def target(process: Process) -> None:
        threads = [Threading(simulation).Thread(target=lambda: list(counter.counting(100))) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    simulation.start("a", target)
    with preempting(simulation, statements):
        simulation.run()
    return counter.value, simulation.digest


@pytest.fixture(autouse=True)
def _of_this_module() -> Iterator[None]:
    with patch.object(preemption, "MODULES", [*preemption.MODULES, __name__]):
        yield


def test_a_thread_goes_on_between_reading_and_writing() -> None:
    assert counted(0)[0] == 200
    assert counted(5)[0] < 200


def test_the_seed_decides_where() -> None:
    assert counted(5, 1) == counted(5, 1)
    assert len({counted(5, seed)[0] for seed in range(10)}) > 1
    scenario = replace(random_scenario(7, concurrent=True), statements=20)
    assert run(scenario).digest == run(scenario).digest != run(replace(scenario, statements=0)).digest


def test_functions_have_their_own_code_afterwards() -> None:
    own = Counter.count.__code__
    simulation = Simulation(0)
    with preempting(simulation, 5):
        assert Counter.count.__code__ is not own
        assert Counter.count.__code__.co_consts[0] == "A docstring stays a docstring."
        Counter().count()  # outside of all simulated threads nothing happens
    assert Counter.count.__code__ is own
    with preempting(simulation, 0):
        assert Counter.count.__code__ is own


@pytest.mark.long
def test_only_that_shows_a_state_that_is_read_while_it_changes() -> None:
    (breakage,) = (breakage for breakage in CONCURRENT if breakage.name == "read while commits are applied")
    calmer = replace(breakage, scenario=lambda seed: replace(breakage.scenario(seed), statements=0))
    shown = [seed for seed in range(12) if caught(breakage, seed)]
    assert shown
    assert not any(caught(calmer, seed) for seed in shown)
