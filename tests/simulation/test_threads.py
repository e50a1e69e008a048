"""Threads of a simulated process take turns as the seed says, wait in simulated time, and die with the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise

import pytest

from opslog.testing import Fault, Process, Simulation, make_storage, open_store
from opslog.testing.simulation import EndlessError
from opslog.testing.threads import Event, Threading


def simulated(target: Callable[[Process], None], seed: int = 0, faults: tuple[Fault, ...] = ()) -> Simulation:
    """A finished simulation of this one program."""
    simulation = Simulation(seed, faults, keep_timeline=True)
    simulation.start("a", target)
    simulation.run()
    simulation.end()
    return simulation


def started(process: Process, *targets: Callable[[], object]) -> None:
    """Run these in threads of their own, and return when all have ended."""
    threads = [
        Threading(process.simulation).Thread(target=target, name=f"t{number}") for number, target in enumerate(targets)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        assert not thread.is_alive()


def in_and_out(process: Process, lock: object, seen: list[str], name: str) -> None:
    for _ in range(5):
        with lock:  # type: ignore[attr-defined]
            seen.append(f"{name} in")
            process.sleep(process.random.random())
            seen.append(f"{name} out")


@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition"])
@pytest.mark.parametrize("seed", range(5))
def test_a_lock_lets_one_thread_in_at_a_time(kind: str, seed: int) -> None:
    seen: list[str] = []

    def target(process: Process) -> None:
        lock = getattr(Threading(process.simulation), kind)()
        started(process, *(lambda name=name: in_and_out(process, lock, seen, name) for name in "xyz"))

    simulated(target, seed)
    assert len(seen) == 30
    for entered, left in zip(seen[::2], seen[1::2], strict=True):
        assert (entered, left) == (f"{entered[0]} in", f"{entered[0]} out")


def test_the_seed_decides_in_which_order_threads_run() -> None:
    def order(seed: int) -> str:
        seen: list[str] = []

        def target(process: Process) -> None:
            lock = Threading(process.simulation).Lock()
            started(process, *(lambda name=name: in_and_out(process, lock, seen, name) for name in "xyz"))

        digest = simulated(target, seed).digest
        return "".join(entry[0] for entry in seen) + digest

    assert len({order(seed) for seed in range(10)}) == 10
    assert order(3) == order(3)


def test_a_lock_that_is_taken_is_not_waited_for_beyond_the_timeout() -> None:
    def target(process: Process) -> None:
        lock, began = Threading(process.simulation).Lock(), process.environment.monotonic()
        lock.acquire()

        def try_it() -> None:
            assert not lock.acquire(blocking=False)
            assert not lock.acquire(timeout=30.0)
            assert 30.0 <= process.environment.monotonic() - began < 31.0
            assert lock.acquire(timeout=100.0)
            assert 40.0 <= process.environment.monotonic() - began < 41.0

        thread = Threading(process.simulation).Thread(target=try_it)
        thread.start()
        process.sleep(40.0)
        lock.release()
        thread.join()
        assert lock.locked()

    simulated(target)


def test_the_holder_of_a_reentrant_lock_may_take_it_again() -> None:
    def target(process: Process) -> None:
        lock = Threading(process.simulation).RLock()
        with lock, lock:
            started(process, lambda: lock.acquire(blocking=False) and pytest.fail("two have it"))
        started(process, lock.acquire)
        with pytest.raises(RuntimeError, match="un-acquired"):
            lock.release()

    simulated(target)


@pytest.mark.parametrize("seed", range(5))
def test_a_condition_wakes_its_waiters_and_times_out_for_others(seed: int) -> None:
    taken: list[int] = []

    def target(process: Process) -> None:
        condition, queue = Threading(process.simulation).Condition(), list[int]()

        def take() -> None:
            with condition:
                while condition.wait_for(lambda: queue, 5.0):
                    taken.append(queue.pop())

        def put() -> None:
            for number in range(10):
                process.sleep(process.random.random())
                with condition:
                    queue.append(number)
                    condition.notify()

        started(process, take, take, put)

    simulated(target, seed)
    assert sorted(taken) == list(range(10))


@pytest.mark.parametrize("seed", range(20))
def test_no_wake_up_is_lost(seed: int) -> None:
    def target(process: Process) -> None:
        condition, event, ready = (
            Threading(process.simulation).Condition(),
            Threading(process.simulation).Event(),
            list[int](),
        )

        def wait() -> None:
            with condition:
                condition.wait_for(lambda: ready)
            event.wait()

        def go() -> None:
            with condition:
                ready.append(1)
                condition.notify()
            event.set()

        started(process, wait, go)

    simulated(target, seed)


def test_an_event_wakes_all_its_waiters() -> None:
    def target(process: Process) -> None:
        event, passed = Threading(process.simulation).Event(), []

        def wait() -> None:
            assert not event.wait(1.0)
            assert event.wait()
            passed.append(process.environment.monotonic())

        threads = [Threading(process.simulation).Thread(target=wait) for _ in range(3)]
        for thread in threads:
            thread.start()
        process.sleep(10.0)
        assert not passed
        event.set()
        for thread in threads:
            thread.join()
        assert event.is_set()
        assert len(passed) == 3
        assert event.wait(0.0)

    simulated(target)


def test_thread_locals_belong_to_one_thread() -> None:
    def target(process: Process) -> None:
        local = Threading(process.simulation).local()
        local.name = "main"

        def check(name: str) -> None:
            assert not hasattr(local, "name")
            local.name = name
            process.sleep(1.0)
            assert local.name == name
            del local.name
            with pytest.raises(AttributeError):
                del local.name

        started(process, lambda: check("x"), lambda: check("y"))
        assert local.name == "main"

    simulated(target)


def test_a_thread_knows_itself() -> None:
    def target(process: Process) -> None:
        simulated_threading, found = Threading(process.simulation), []
        thread = simulated_threading.Thread(target=lambda: found.append(simulated_threading.current_thread()), name="t")
        assert thread.ident is None
        thread.start()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        thread.join()
        assert found == [thread]
        assert simulated_threading.current_thread() is simulated_threading.main_thread() is not thread
        assert simulated_threading.get_ident() != thread.ident
        with pytest.raises(RuntimeError, match="current"):
            simulated_threading.current_thread().join()

    simulated(target)


def test_threads_that_wait_for_each_other_are_named_with_what_they_hold() -> None:
    def target(process: Process) -> None:
        one, other = Threading(process.simulation).Lock(), Threading(process.simulation).Lock()

        def take(first: object, second: object) -> None:
            with first:  # type: ignore[attr-defined]
                process.sleep(1.0)
                with second:  # type: ignore[attr-defined]
                    pytest.fail("somebody came so far")

        started(process, lambda: take(one, other), lambda: take(other, one))

    with pytest.raises(EndlessError) as raised:
        simulated(target)
    text = str(raised.value)
    assert "a waits for thread t0" in text
    for waiting, holding in (("t0", "t1"), ("t1", "t0")):
        assert f"a:{waiting} waits for the lock of test_threads.py:" in text
        assert f"which a:{holding} took" in text


def test_a_daemon_that_waits_for_work_delays_no_run_and_continues_with_the_next() -> None:
    simulation = Simulation(0)
    served: list[object] = []
    programs: list[Process] = []
    events: list[Event] = []

    def target(process: Process) -> None:
        event = Threading(process.simulation).Event()

        def serve() -> None:
            event.wait()
            served.append(event)

        Threading(process.simulation).Thread(target=serve, daemon=True).start()
        programs.append(process)
        events.append(event)

    simulation.start("a", target)
    simulation.run()
    assert not served
    assert programs[0].finished
    simulation.start("b", lambda process: events[0].set())
    simulation.run()
    assert served


def test_an_error_in_a_thread_ends_the_run() -> None:
    def target(process: Process) -> None:
        def fail() -> None:
            raise LookupError("of a thread")

        started(process, fail)

    with pytest.raises(LookupError, match="of a thread"):
        simulated(target)


def test_a_thread_that_cannot_be_started() -> None:
    def target(process: Process) -> None:
        thread = Threading(process.simulation).Thread(target=lambda: pytest.fail("it runs"))
        with pytest.raises(RuntimeError, match="can't start new thread"):
            thread.start()
        assert not thread.is_alive()

    assert simulated(target, faults=(Fault(0, "no threads"),)).injected == {"no threads": 1}


@pytest.mark.parametrize("fault", ["crash", "crash after", "power"])
def test_all_threads_die_with_their_process_and_what_they_held_is_gone(fault: str) -> None:
    simulation = Simulation(1, [Fault(0, fault, 1.0, "lock-me")])
    seen: list[str] = []

    def target(process: Process) -> None:
        lock = Threading(process.simulation).Lock()

        def hold() -> None:
            with lock:
                seen.append(f"{process.run} holds")
                process.sleep(1000.0 if process.run == 1 else 1.0)
                seen.append(f"{process.run} let go")

        thread = Threading(process.simulation).Thread(target=hold)
        thread.start()
        process.sleep(10.0)
        simulation.step("lock-me", lambda fault: None)
        with lock:
            seen.append(f"{process.run} went on")

    simulation.start("a", target)
    simulation.run()
    assert seen == ["1 holds", "2 holds", "2 let go", "2 went on"]


@pytest.mark.parametrize(("fault", "others_go_on"), [("pause", False), ("stall", True)])
def test_a_pause_stops_all_threads_and_a_stall_stops_one(fault: str, others_go_on: bool) -> None:
    simulation = Simulation(1, [Fault(0, fault, 500.0, "call")])
    ticks: list[float] = []

    def target(process: Process) -> None:
        def tick() -> None:
            for _ in range(50):
                process.sleep(1.0)
                ticks.append(process.environment.monotonic())

        thread = Threading(process.simulation).Thread(target=tick)
        thread.start()
        process.sleep(10.5)
        simulation.step("call", lambda fault: None)
        thread.join()

    simulation.start("a", target)
    simulation.run()
    assert len(ticks) == 50
    longest = max(after - before for before, after in pairwise(ticks))
    assert (longest < 2.0) == others_go_on
    assert others_go_on or 490.0 < longest < 510.0


def test_missing_functions_of_the_simulation_are_named() -> None:
    with pytest.raises(AttributeError, match="add it to"):
        _ = Threading(Simulation(0)).stack_size


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_a_store_runs_its_own_threads_in_the_simulation(storage: str) -> None:
    """In a buffered store that compacts, no real thread is started, and everything is written without a flush."""
    simulation = Simulation(3, keep_timeline=True)
    place = make_storage(storage, simulation)
    real = threading.active_count()

    def agent(process: Process) -> None:
        with open_store(place, process, agent="a", durability="buffered", compact_after=10) as store:
            for number in range(100):
                store[f"d{number % 5}"] = {"n": number}
            process.sleep(10.0)
            with open_store(place, process, read_only=True) as reader:
                assert {id: document["n"] for id, document in reader.items()} == {f"d{n}": 95 + n for n in range(5)}
            assert store.stats().tail_commits < 100
        assert threading.active_count() == real

    with place.installed():
        simulation.start("a", agent)
        simulation.run()
    calls = {event.call for event in simulation.timeline}
    assert {"start-thread opslog-flush", "start-thread opslog-compact"} <= calls
    assert ("start-thread opslog-lease" in calls) == (storage == "s3")
