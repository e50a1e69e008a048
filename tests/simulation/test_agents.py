"""Simulations of a user's own: agents may write with a buffer and die with it, and mistakes are named."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

import opslog
from opslog.testing import (
    Fault,
    Process,
    Simulation,
    all_commits,
    make_storage,
    open_async_store,
    open_store,
    random_faults,
)
from opslog.testing.faults import KINDS, Faults


@pytest.mark.parametrize(("storage", "fault"), [("posix", "crash"), ("posix", "power"), ("s3", "crash")])
def test_unflushed_commits_die_with_their_process(storage: str, fault: str) -> None:
    simulation = Simulation(seed=2)
    place = make_storage(storage, simulation)
    seen = []

    def agent(process: Process) -> None:
        with open_store(place, process, agent="a", durability="buffered", buffer_seconds=1e6) as store:
            seen.append(set(store))
            if len(seen) == 1:
                store["flushed"] = {}
                store.flush()
                store["lost"] = {}
                simulation.faults = Faults([Fault(0, fault, 1.0)])
                store.refresh()

    threads = threading.active_count()
    with place.installed():
        simulation.start("a", agent)
        simulation.run()
    assert seen == [set(), {"flushed"}]
    assert [len(log) for log in all_commits(place).values()] == [1]
    assert threading.active_count() == threads


@pytest.mark.parametrize("open_it", [open_store, open_async_store])
@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_a_store_is_opened_only_while_its_storage_is_installed(storage: str, open_it: Any) -> None:
    """Its system calls would go to the real system."""
    simulation = Simulation(seed=1)
    place = make_storage(storage, simulation)
    with place.installed():
        pass
    simulation.start("a", lambda process: open_it(place, process, agent="a"))
    with pytest.raises(opslog.UsageError, match=r"with storage\.installed\(\):"):
        simulation.run()


def test_an_unknown_storage_is_refused() -> None:
    with pytest.raises(opslog.UsageError, match='"posix" or "s3"'):
        make_storage("S3", Simulation(seed=1))


def test_a_fault_that_never_happens_is_refused() -> None:
    with pytest.raises(opslog.UsageError, match=r"'crsh'; the kinds are: crash, crash after, down"):
        Simulation(1, [Fault(3, "crsh")])
    with pytest.raises(opslog.UsageError, match="'pwer'"):
        random_faults(random.Random(1), {"power": 1.0, "pwer": 1.0}, 3, 100, 0.0)
    simulation = Simulation(1, [Fault(3, "crash"), Fault(4, "moved", 0.7)])
    place = make_storage("s3", simulation)
    with place.installed(), pytest.raises(opslog.UsageError, match=r"moved@4\(0.7\) never happens"):
        simulation.run()
    make_storage("posix", simulation)
    simulation.run()


def test_every_kind_of_fault_is_described() -> None:
    assert Fault.__doc__ is not None
    assert [kind for kind in KINDS if f"`{kind.removesuffix(' after')}`" not in Fault.__doc__] == []


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_not_simulated_fails_the_run() -> None:
    simulation = Simulation(seed=1)
    place = make_storage("s3", simulation)

    def agent(process: Process) -> None:
        with open_store(place, process, agent="a") as store:
            thread = threading.Thread(target=store.set, args=("x", {}))
            thread.start()
            thread.join()

    with place.installed():
        simulation.start("a", agent)
        with pytest.raises(opslog.UsageError, match=r"opslog\.testing\.Threading"):
            simulation.run()
