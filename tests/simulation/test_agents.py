"""Simulated agents of a user's own may write with a buffer, and die with it."""

from __future__ import annotations

import threading

import pytest

from opslog.testing import Fault, Process, Simulation, all_commits, make_storage, open_store
from opslog.testing.faults import Faults


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
