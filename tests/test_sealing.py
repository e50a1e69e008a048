"""Names that are in use for a moment because a compaction seals the logs of idle agents; and names of live agents."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Backend, open_backend
from opslog.bulk.ingest import ingest
from opslog.compaction import compact as compaction
from opslog.compaction.compact import compact, compact_unlocked
from opslog.environment import REAL, Environment
from opslog.format.layout import segment_path
from opslog.importers import ImportedCommit, ImportedOp
from opslog.log import sealing, session
from opslog.testing import Process, Simulation, make_storage, open_store
from opslog.verify.verify import verify
from tests.support import bucket

_numbers = itertools.count()

assert bucket.BUCKETS is not None  # which registers bucket://


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    place = str(tmp_path) if request.param == "directory" else f"{request.param}://sealing-{next(_numbers)}"
    with opslog.open(place, agent="planner", settings=opslog.Settings(undo_ttl_seconds=0)) as store:
        store["first"] = {}
    return place


def waiting(sleep: Callable[[float], object]) -> Environment:
    """A world in which time passes only while somebody sleeps. `sleep` says what happens meanwhile."""
    now = [0.0]

    def slept(seconds: float) -> None:
        now[0] += seconds
        sleep(seconds)

    return replace(REAL, sleep=slept, monotonic=lambda: now[0])


def refuse_to_wait(seconds: float) -> None:
    raise AssertionError("waited, although nobody seals anything")


def test_a_name_is_waited_for_while_its_log_is_sealed(url: str) -> None:
    backend = open_backend(url)
    compaction = ExitStack()
    compaction.enter_context(backend.lock(session.SEALING_LOCK))
    compaction.callback(backend.appender("planner").close)
    slept: list[float] = []

    def end_third(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 3:
            compaction.close()

    with opslog.open(url, agent="planner", environment=waiting(end_third)) as store:
        store["second"] = {}
    assert slept == sorted(slept)
    assert len(slept) == 3


def test_a_name_is_free_as_soon_as_its_own_log_is_sealed(url: str) -> None:
    """The name does not stay taken until the logs of thousands of other agents are sealed."""
    backend = open_backend(url)
    with backend.lock(session.SEALING_LOCK):
        held = backend.appender("planner")
        opslog.open(url, agent="planner", environment=waiting(lambda _: held.close())).close()


def test_a_name_is_not_waited_for_without_end(url: str) -> None:
    backend = open_backend(url)
    slept: list[float] = []
    held = backend.appender("planner")
    with backend.lock(session.SEALING_LOCK), pytest.raises(opslog.AgentBusyError, match="planner"):
        opslog.open(url, agent="planner", environment=waiting(slept.append))
    held.close()
    assert session.WAIT_SECONDS <= sum(slept) < session.WAIT_SECONDS + 1


def test_the_name_of_a_live_agent_is_refused_at_once(url: str) -> None:
    with opslog.open(url, agent="planner"), pytest.raises(opslog.AgentBusyError, match="planner"):
        opslog.open(url, agent="planner", environment=waiting(refuse_to_wait))


def test_a_name_that_was_given_back_while_its_opener_checked_is_taken(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sealing ends between the two checks: of the name, and whether anybody seals."""
    backend = open_backend(url)
    held = backend.appender("planner")
    lock = type(backend).lock

    def over(self: Any, name: str) -> Any:
        held.close()
        return lock(self, name)

    monkeypatch.setattr(type(backend), "lock", over)
    opslog.open(url, agent="planner", environment=waiting(refuse_to_wait)).close()


def test_an_import_waits_for_a_name_too(url: str) -> None:
    backend = open_backend(url)
    with backend.lock(session.SEALING_LOCK):
        held = backend.appender("planner")
        commit = ImportedCommit("planner", None, (ImportedOp("set", "second", {}),), "file:1")
        ingest(backend, [commit], environment=waiting(lambda _: held.close()))
    with opslog.open(url, read_only=True) as store:
        assert set(store) == {"first", "second"}


def test_only_one_of_two_compactions_seals(url: str) -> None:
    backend = open_backend(url)
    with backend.lock(session.SEALING_LOCK):
        assert compact(backend, REAL).sealed == ()
    assert compact(backend, REAL).sealed == ("planner",)


def test_where_nobody_is_idle_no_lock_is_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[str] = []
    backend = open_backend(url)
    assert compact(backend, REAL).sealed == ("planner",)
    lock = type(backend).lock

    def noted(self: Any, name: str) -> Any:
        taken.append(name)
        return lock(self, name)

    monkeypatch.setattr(type(backend), "lock", noted)
    compact(backend, REAL)
    assert taken == ["compaction"]


def test_a_log_to_be_sealed_was_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other compactions collected it while this one was paused before it took the name. That is no error."""
    settings = opslog.Settings(undo_ttl_seconds=0, grace_seconds=0)

    def work() -> None:
        with opslog.open(tmp_path, agent="planner", settings=settings, compact_after=None) as store:
            store[str(len(store))] = {}

    work()
    os.utime(tmp_path / segment_path("planner", 1), (1e9, 1e9))  # long ago, compared with any tick of the clock
    backend = open_backend(tmp_path)
    seal = sealing.seal_all

    def late(backend: Backend, agents: list[str], *arguments: Any) -> tuple[str, ...]:
        monkeypatch.setattr(compaction, "seal_all", seal)
        assert agents == ["planner"]
        while (tmp_path / segment_path("planner", 1)).exists():
            work()
            compact_unlocked(backend, REAL)
        return seal(backend, agents, *arguments)

    monkeypatch.setattr(compaction, "seal_all", late)
    assert compact_unlocked(backend, REAL) == compaction.Compaction()
    assert verify(backend).problems == []


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_an_agent_that_comes_and_goes_is_never_refused_its_name(storage: str) -> None:
    """Simulated: it is idle for long enough to be sealed each time, and comes back at any moment of that."""
    simulation = Simulation(seed=1)
    place = make_storage(storage, simulation)
    settings = opslog.Settings(undo_ttl_seconds=1.0, undo_window=2, grace_seconds=2.0)
    sealed, waits = 0, 0

    def agent(process: Process) -> None:
        def wait(seconds: float) -> None:
            nonlocal waits
            waits += 1
            process.sleep(seconds)

        process.environment = replace(process.environment, sleep=wait)
        for number in range(100):
            with open_store(place, process, agent=process.name, settings=settings) as store:
                store[f"{process.name}-{number}"] = {}
            process.sleep(1.0 + process.random.random())

    def compactor(process: Process) -> None:
        nonlocal sealed
        backend = place.backend(process)
        process.sleep(1.0)
        for _ in range(600):
            sealed += len(compact_unlocked(backend, process.environment).sealed)
            process.sleep(0.1 * process.random.random())

    with place.installed():
        simulation.start("planner", agent)
        simulation.start("worker", agent)
        simulation.start("compactor", compactor)
        simulation.run()
    assert sealed > 100
    assert (waits > 0) == (storage == "posix"), "in a bucket names are not held against other processes"
