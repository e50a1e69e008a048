"""Asyncio in simulated processes: tasks take turns as the seed says, and end with their process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from opslog.testing import Fault, Process, Simulation, all_commits, make_storage
from opslog.testing.simulation import EndlessError
from opslog.testing.storages import open_async_store
from opslog.testing.tasks import run_tasks
from tests.simulation.scenario import Scenario, random_scenario, run

CALM = Scenario(seed=0, think_seconds=0.01, threaded=3, threads=4, asynchronous=2, weights={"set": 4, "batch": 2})


@pytest.mark.parametrize("leaving", [0.0, 0.3])
@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_tasks_of_one_agent_write_at_once(storage: str, leaving: float) -> None:
    outcome = run(replace(CALM, storage=storage, leaving=leaving), keep_timeline=True)
    assert outcome.violation is None
    assert {"agent-0:pool", "agent-1:opslog-aio"} <= {event.who for event in outcome.timeline}
    assert any(event.call == "cancels" for event in outcome.timeline) == (leaving > 0)
    assert outcome.acknowledged > 30


@pytest.mark.parametrize("first", [0, pytest.param(3, marks=pytest.mark.long)])
def test_tasks_take_the_same_turns_each_time(first: int) -> None:
    seeds = range(first, first + 3)
    scenarios = [replace(random_scenario(seed, concurrent=True), asynchronous=2) for seed in seeds]
    digests = {run(scenario).digest for scenario in scenarios for _ in range(2)}
    assert len(digests) == len(seeds)


@pytest.mark.parametrize("step", range(20, 80, 12))
@pytest.mark.parametrize("fault", ["crash", "crash after", "power"])
@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_a_store_of_tasks_survives_the_death_of_its_process(storage: str, fault: str, step: int) -> None:
    simulation = Simulation(4, [Fault(step, fault, 1.0)])
    place = make_storage(storage, simulation)
    acknowledged: set[str] = set()
    ended: list[int] = []

    async def write(process: Process) -> None:
        async with open_async_store(place, process, agent="a") as store:

            async def one(id: str) -> None:
                for number in range(3):
                    await store.set(f"{id}-{number}", {})
                    acknowledged.add(f"{id}-{number}")

            await asyncio.gather(*map(one, "xyz"))
            assert acknowledged <= {id async for id in store}
            ended.append(process.run)

    with place.installed():
        simulation.start("a", lambda process: run_tasks(process, write(process)))
        simulation.run()
    # The first run may reach its end before it dies: while it closes the store, or right after its last call.
    assert ended in ([1], [2], [1, 2])
    assert len(all_commits(place)["a"]) >= 9


def test_sleeps_and_threads_take_simulated_time_and_tasks_overlap() -> None:
    def target(process: Process) -> None:
        async def main() -> float:
            began = asyncio.get_running_loop().time()
            await asyncio.gather(*(asyncio.sleep(100.0) for _ in range(10)))
            await asyncio.gather(*(asyncio.to_thread(process.sleep, 50.0) for _ in range(5)))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(asyncio.Event().wait(), 25.0)
            return asyncio.get_running_loop().time() - began

        assert 175.0 <= run_tasks(process, main()) < 177.0

    simulation = Simulation(1)
    simulation.start("a", target)
    simulation.run()


def test_two_processes_run_event_loops_at_once() -> None:
    turns: list[str] = []

    async def ticks(process: Process) -> AsyncIterator[int]:
        for number in range(5):
            await asyncio.sleep(process.random.random())
            yield number

    def target(process: Process) -> None:
        async def main() -> None:
            async for _ in ticks(process):
                turns.append(process.name)
            async for _ in ticks(process):
                break  # the loop that owns the generator closes it

        run_tasks(process, main())

    simulation = Simulation(3)
    for name in "ab":
        simulation.start(name, target)
    simulation.run()
    assert sorted(turns) == ["a"] * 5 + ["b"] * 5
    assert turns not in (sorted(turns), sorted(turns, reverse=True))


def test_a_task_that_waits_for_ever_is_a_deadlock() -> None:
    def target(process: Process) -> None:
        run_tasks(process, asyncio.Event().wait())

    simulation = Simulation(0)
    simulation.start("a", target)
    with pytest.raises(EndlessError, match="a waits for the event loop"):
        simulation.run()


def test_an_error_that_no_task_got_ends_the_run() -> None:
    def target(process: Process) -> None:
        async def main() -> None:
            asyncio.get_running_loop().call_soon(int, "no number")
            await asyncio.sleep(1.0)

        run_tasks(process, main())

    simulation = Simulation(0)
    simulation.start("a", target)
    with pytest.raises(ValueError, match="no number"):
        simulation.run()


def test_tasks_that_are_left_are_cancelled_as_asyncio_run_does() -> None:
    ended: list[str] = []

    def target(process: Process) -> None:
        async def left() -> None:
            try:
                await asyncio.sleep(1000.0)
            except asyncio.CancelledError:
                ended.append("cancelled")
                raise

        async def main() -> None:
            asyncio.get_running_loop().task = asyncio.create_task(left())  # type: ignore[attr-defined]
            await asyncio.sleep(0.0)

        run_tasks(process, main())

    simulation = Simulation(0)
    simulation.start("a", target)
    simulation.run()
    assert ended == ["cancelled"]
