"""Signals and a lack of memory reach simulated processes that are ready for them, at the places where CPython delivers
signals."""

from __future__ import annotations

import pytest

from opslog.testing import Fault, Process, Simulation, make_storage, open_store
from opslog.testing.signals import Interrupt
from opslog.testing.threads import Threading
from tests.simulation.sessions import Direct, over


def simulated(target: object, *faults: Fault) -> Simulation:
    simulation = Simulation(0, faults)
    simulation.start("a", target)  # type: ignore[arg-type]
    simulation.run()
    return simulation


def call(process: Process) -> None:
    process.simulation.step("call", lambda fault: None)


def test_an_interrupt_comes_where_it_is_handled_and_before_the_call_has_its_effect() -> None:
    done: list[int] = []

    def target(process: Process) -> None:
        process.simulation.step("call", lambda fault: done.append(1))
        with process.signals.handled(), pytest.raises(Interrupt):
            process.simulation.step("call", lambda fault: done.append(2))
        process.simulation.step("call", lambda fault: done.append(3))

    assert simulated(target, Fault(1, "interrupt")).injected == {"interrupt": 1}
    assert done == [1, 3]


@pytest.mark.parametrize(("amount", "others"), [(0.5, 0), (0.6, 2), (0.99, 9)])
def test_a_signal_may_come_some_operations_on_locks_later(amount: float, others: int) -> None:
    def target(process: Process) -> None:
        lock, taken = Threading(process.simulation).Lock(), []

        def take_again_and_again() -> None:
            while True:  # two operations each time
                with lock:
                    taken.append(lock)

        with process.signals.handled():
            call(process)
            with pytest.raises(Interrupt):
                take_again_and_again()
        assert len(taken) == (others + 1) // 2
        assert not lock.locked()

    simulated(target, Fault(1, "interrupt", amount))


def test_a_signal_comes_to_a_program_that_only_works_in_memory() -> None:
    def target(process: Process) -> None:
        lock = Threading(process.simulation).Lock()
        with process.signals.handled(), pytest.raises(Interrupt), lock:
            pytest.fail("it comes before the lock is taken")

    simulated(target, Fault(0, "interrupt", 0.2))


def test_a_handler_runs_in_the_main_thread_alone_and_not_in_itself() -> None:
    handled: list[object] = []

    def target(process: Process) -> None:
        def handler() -> None:
            handled.append(Threading(process.simulation).current_thread())
            call(process)

        with process.signals.handled(handler):
            thread = Threading(process.simulation).Thread(target=lambda: call(process))
            thread.start()
            thread.join()
            assert handled == []
            call(process)
            assert handled == [Threading(process.simulation).main_thread()]
            call(process)
        assert len(handled) == 2
        call(process)

    assert simulated(target, *[Fault(0, "signal")] * 2, Fault(100, "signal")).injected == {"signal": 2}


def test_only_a_program_that_is_ready_for_it_is_short_of_memory() -> None:
    def target(process: Process) -> None:
        call(process)
        process.is_tough = True
        with pytest.raises(MemoryError):
            call(process)
        call(process)

    assert simulated(target, Fault(0, "no memory")).injected == {"no memory": 1}


def test_an_interrupt_that_nobody_catches_is_the_end_of_the_run() -> None:
    def target(process: Process) -> None:
        with process.signals.handled():
            call(process)

    with pytest.raises(Interrupt):
        simulated(target, Fault(0, "interrupt"))


def test_awaited_calls_of_an_agent_are_over() -> None:
    """So each call is written once, for threads and for tasks."""
    simulation = Simulation(0)
    place = make_storage("posix", simulation)

    def target(process: Process) -> None:
        with open_store(place, process, agent="a") as store:
            direct = Direct(store)

            async def main() -> list[str]:
                async with direct.batch() as batch:
                    await batch.set("x", {})
                    await batch.set("y", {})
                    assert len(list(store.ops())) == 0
                await direct.delete("x")
                assert await direct.undo()
                return [id async for id, _ in direct.items()]

            assert over(main()) == ["x", "y"]

    with place.installed():
        simulation.start("a", target)
        simulation.run()
