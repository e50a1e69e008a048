"""Agents of several threads: the records of each call and each thread, and the faults that they reveal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from opslog.format.commits import Set
from opslog.testing import Process, Simulation, ViolationError, make_storage, open_store
from opslog.testing.threads import Threading
from tests.simulation import ledger_invariants
from tests.simulation.ledger import Ledger
from tests.simulation.scenario import Scenario, random_scenario, run

CALM = Scenario(
    seed=0,
    think_seconds=0.01,
    threaded=3,
    threads=4,
    leaving=0.0,
    weights={"set": 4, "delete": 1, "batch": 2, "undo": 1},
)


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_threads_of_one_agent_write_at_once(storage: str) -> None:
    outcome = run(replace(CALM, storage=storage), keep_timeline=True)
    assert outcome.violation is None
    names = {event.who for event in outcome.timeline}
    assert {"agent-0:t1", "agent-1:t2", "agent-2:t3"} <= names
    assert any("waits for the lock of" in event.call for event in outcome.timeline)
    assert outcome.acknowledged > 30


@pytest.mark.parametrize("first", [0, pytest.param(4, marks=pytest.mark.long)])
def test_threads_take_the_same_turns_each_time(first: int) -> None:
    seeds = range(first, first + 4)
    digests = {run(random_scenario(seed, concurrent=True)).digest for seed in seeds for _ in range(2)}
    assert len(digests) == len(seeds)


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_it_is_known_which_call_wrote_which_commit(durability: Any) -> None:
    simulation, ledger = Simulation(5), Ledger()
    place = make_storage("posix", simulation)

    def agent(process: Process) -> None:
        store = open_store(place, process, agent="a", durability=durability)

        def write(name: str) -> None:
            for number in range(20):
                text = b'{"by":"%b","n":%d}' % (name.encode(), number)
                with ledger.attempt(store, "a", ("set", (name, text))):
                    store[name] = {"by": name, "n": number}

        threads = [Threading(process.simulation).Thread(target=write, args=(name,)) for name in "xyz"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.close()
        with open_store(place, process, read_only=True) as reader:
            written = [commit for commit in reader.ops() if isinstance(commit, Set)]
        by_clock = {attempt.clock: attempt for attempt in ledger.attempts}
        assert [commit.clock for commit in written] == sorted(by_clock)
        assert all(by_clock[commit.clock].matches(commit) for commit in written)
        assert [commit.id for commit in written] != sorted(commit.id for commit in written), "they took turns"

    with place.installed(), ledger.listening():
        simulation.start("a", agent)
        simulation.run()
    assert len(ledger.attempts) == 60


def test_a_commit_that_was_never_handed_out_is_found() -> None:
    simulation, ledger = Simulation(5), Ledger()
    place = make_storage("posix", simulation)

    def agent(process: Process) -> None:
        with open_store(place, process, agent="a") as writer, open_store(place, process, agent="b") as store:
            handout = ledger.opened(store, "b")
            writer["x"] = {}
            writer["y"] = {}
            handout.take("t", store.refresh())
            ledger.catch_up(store)
            logs = {"a": list(writer.ops())}
            ledger_invariants.every_commit_is_handed_out(handout, logs)
            ledger_invariants.commits_are_handed_out_once(handout)
            del handout.handed["t"][0]
            with pytest.raises(ViolationError, match="never handed"):
                ledger_invariants.every_commit_is_handed_out(handout, logs)
            handout.take("u", handout.handed["t"])
            with pytest.raises(ViolationError, match="by 't' and 'u'"):
                ledger_invariants.commits_are_handed_out_once(handout)

    with place.installed(), ledger.listening():
        simulation.start("a", agent)
        simulation.run()
