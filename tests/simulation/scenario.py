"""Whole runs from one seed: the storage, the processes and what they do, the faults, and the final check."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

from opslog.format import snapshot
from opslog.format.manifest import Settings
from opslog.snapshot import runs
from opslog.testing import invariants
from opslog.testing.faults import PAUSE_SECONDS_MAX, Fault, random_faults
from opslog.testing.invariants import ViolationError
from opslog.testing.signals import Interrupt
from opslog.testing.simulation import EndlessError, Event, Simulation
from opslog.testing.storages import make_storage
from tests.simulation import transactions
from tests.simulation.agents import Agent, Reader
from tests.simulation.asynchronous import AsyncAgent
from tests.simulation.audit import Audit
from tests.simulation.consumers import Consumer
from tests.simulation.jobs import Compactor, Importer, Inspector
from tests.simulation.leasing import Worker
from tests.simulation.names import random_ids, random_names
from tests.simulation.preemption import preempting
from tests.simulation.shared import Shared
from tests.simulation.threaded import ThreadedAgent

WEIGHTS: Mapping[str, float] = {
    "set": 8,
    "delete": 2,
    "batch": 3,
    "undo": 3,
    "refresh": 4,
    "compact": 0.7,
    "archive": 0.4,
}

POSIX_FAULTS: Mapping[str, float] = {
    "crash": 3,
    "crash after": 3,
    "power": 1.5,
    "power after": 1.5,
    "pause": 2,
    "pause after": 1,
    "skew": 0.5,
    "fail": 3,
    "lost": 1,
    "short": 1,
    "full": 1,
}

S3_FAULTS: Mapping[str, float] = {
    "crash": 3,
    "crash after": 3,
    "pause": 3,
    "pause after": 2,
    "skew": 0.5,
    "fail": 3,
    "lost": 3,
    "late": 3,
    "full": 0.3,
    "down": 1,
}


# What happens inside one program, whatever the storage.
PROGRAM_FAULTS: Mapping[str, float] = {
    "stall": 2,
    "stall after": 1,
    "interrupt": 3,
    "signal": 3,
    "no memory": 2,
    "no threads": 2,
}

DIRECTORY_FAULTS: Mapping[str, float] = {**PROGRAM_FAULTS, "moved": 2, "unlocked": 2}


@dataclass(frozen=True)
class Scenario:
    """Everything that decides a run. Equal scenarios run in the same way.

    :ivar storage: "posix" or "s3".
    :ivar calls: the number of calls of each agent.
    :ivar rivals: how many second processes run under agents' names.
    :ivar think_seconds: the average pause of a process between two calls.
    :ivar nap_seconds: now and then a pause is longer by this time.
    :ivar large: snapshots count as large. They stay on storage, in many blocks, and few blocks stay in memory.
    :ivar buffered: how many agents write with a buffer, which is lost when they die.
    :ivar sessions: how many agents without a buffer have no log of their own.
    :ivar imports, inspectors: processes that import commits, and that verify and repair.
    :ivar consumers: processes that follow the store by its feed.
    :ivar workers: processes that share out jobs by leases.
    :ivar odd: agents, periods and documents have names from the whole allowed alphabet that look like other things.
    :ivar ignores_case: the disk keeps the case of names, but ignores it in comparisons. Then agents have no odd names,
        and every second one has the name of the one before it in capitals.
    :ivar threaded: how many agents have several threads; `threads` says how many each has.
    :ivar transactions: the share of transactions in what agents do; 0: none, 1: about half.
    :ivar leaving: the probability at each commit that a watching thread leaves its loop, and starts another one.
    :ivar asynchronous: which agents with several threads have tasks of asyncio instead. 1: every other one; 2: all.
    :ivar switching: the probability at an operation on a lock that another thread continues.
    :ivar statements: after how many statements without lock and storage another thread continues, on average; 0: never.
    :ivar compact_after: the number of commits in the tail from which stores compact by themselves, in a thread of their
        own.
    """

    seed: int
    storage: str = "posix"
    agents: int = 3
    rivals: int = 0
    readers: int = 1
    compactors: int = 1
    calls: int = 20
    documents: int = 6
    think_seconds: float = 1.0
    nap_seconds: float = 0.0
    skew_seconds: float = 0.0
    large: bool = False
    buffered: int = 0
    sessions: int = 0
    imports: int = 0
    inspectors: int = 0
    consumers: int = 0
    workers: int = 0
    odd: bool = False
    ignores_case: bool = False
    compact_after: int | None = None
    threaded: int = 0
    threads: int = 3
    asynchronous: int = 0
    switching: float = 0.2
    statements: int = 0
    leaving: float = 0.2
    transactions: float = 0.0
    settings: Settings = field(default_factory=Settings)
    weights: Mapping[str, float] = field(default_factory=lambda: WEIGHTS)
    faults: tuple[Fault, ...] = ()


@dataclass
class Outcome:
    """The result of a run.

    :ivar violation: the invariant that did not hold, if one did not.
    """

    scenario: Scenario
    violation: ViolationError | None = None
    digest: str = ""
    steps: int = 0
    commits: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    calls: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    timeline: list[Event] = field(default_factory=list)


def random_scenario(seed: int, storage: str | None = None, *, concurrent: bool = False) -> Scenario:
    """A random scenario of any kind.

    :param concurrent: whether some agents certainly have several threads or tasks. Otherwise they do in half of all
        seeds.
    """
    choices = random.Random(f"scenario {seed}")
    # Drawn from a generator of its own, so that later additions leave the rest of a seed's scenario as it was.
    world = random.Random(f"world {seed}")
    threads = random.Random(f"threads {seed}")
    programs = random.Random(f"programs {seed}")
    feed = random.Random(f"feed {seed}")
    storage = storage or choices.choice(["posix", "s3"])
    agents = choices.randint(1, 4)
    calls = choices.choice([5, 15, 30])
    count = choices.choice([0, 2, 5, 10, 20])
    # A tombstone may be removed when it was compacted as long ago as its TTL. So nobody may be paused between reading
    # and writing for half of that. Wall clocks may be off by any time.
    tombstone_ttl_seconds, skew_seconds = choices.choice([(3 * PAUSE_SECONDS_MAX, 1e6), (1e9, 1e6)])
    return Scenario(
        seed=seed,
        storage=storage,
        agents=agents,
        rivals=choices.choice([0, 0, 1]),
        readers=choices.choice([0, 1, 2]),
        compactors=choices.choice([0, 1, 2, 3]),
        calls=calls,
        documents=choices.choice([2, 5, 20]),
        think_seconds=choices.choice([0.01, 0.3, 3.0]),
        nap_seconds=choices.choice([0.0, 0.0, tombstone_ttl_seconds / 4, 2 * tombstone_ttl_seconds])
        if tombstone_ttl_seconds < 1e5
        else 0.0,
        skew_seconds=skew_seconds,
        settings=Settings(
            undo_window=choices.choice([0, 1, 2, 4, 8]),
            grace_seconds=choices.choice([2.0, 30.0, 60.0]),
            tombstone_ttl_seconds=tombstone_ttl_seconds,
            undo_ttl_seconds=choices.choice([3.0, 60.0, 86400.0]),
            keep_history_seconds=choices.choice([0.0, 0.0, 60.0, None]),
        ),
        faults=tuple(
            sorted(
                random_faults(
                    choices, S3_FAULTS if storage == "s3" else POSIX_FAULTS, count, 40 * agents * calls, skew_seconds
                )
                + random_faults(
                    programs,
                    PROGRAM_FAULTS if storage == "s3" else DIRECTORY_FAULTS,
                    programs.choice([0, 0, 3, 10]),
                    40 * agents * calls,
                    skew_seconds,
                )
            )
        ),
        large=choices.random() < 0.4,
        buffered=choices.choice([0, 0, 1, agents]),
        imports=world.choice([0, 0, 0, 1, 2]),
        inspectors=world.choice([0, 0, 1]),
        consumers=feed.choice([0, 0, 1, 2]),
        workers=random.Random(f"leases {seed}").choice([0, 0, 2, 3]),
        odd=world.random() < 0.4,
        compact_after=threads.choice([None, None, None, 20, 60]),
        threaded=threads.choice([1, agents] if concurrent else [0, 0, 1, agents]),
        threads=threads.choice([2, 3, 5]),
        asynchronous=threads.choice([0, 1, 2]),
        statements=threads.choice([0, 0, 0, 30, 300]),
        transactions=random.Random(f"transactions {seed}").choice([0.0, 0.0, 0.3, 1.0, 5.0]),
    )


def run(scenario: Scenario, *, keep_timeline: bool = False) -> Outcome:
    """Run a scenario and check everything."""
    outcome = Outcome(scenario)
    simulation = Simulation(
        scenario.seed,
        scenario.faults,
        skew_seconds=scenario.skew_seconds,
        switching=scenario.switching,
        keep_timeline=keep_timeline,
        # While a process that is stopped holds the shared log, each waiting worker tries again 500 times a second.
        steps_max=300_000,
    )
    storage = make_storage(scenario.storage, simulation, ignores_case=scenario.ignores_case)
    names, ids, periods = _names(scenario)
    shared = Shared(
        storage,
        scenario.settings,
        ids,
        think_seconds=scenario.think_seconds,
        nap_seconds=scenario.nap_seconds,
        periods=periods,
        compact_after=scenario.compact_after,
        is_calm=not (scenario.faults or scenario.rivals or scenario.imports),
        names_are_kept=scenario.storage == "posix" or not (scenario.rivals or scenario.imports),
    )
    simulation.storages.append(shared)
    audit = Audit(simulation, storage, shared, names[: min(2, scenario.agents)])
    with (
        preempting(simulation, scenario.statements),
        storage.installed(),
        _sizes(scenario.large),
        _unlogged(),
        shared.ledger.listening(),
    ):
        audit.consumers, audit.workers = _start_all(simulation, shared, scenario, names)
        try:
            _judged(simulation.run)
            _judged(audit.run)
        except ViolationError as violation:
            outcome.violation = violation
    outcome.digest = simulation.digest
    outcome.steps = simulation.steps
    outcome.calls = simulation.calls
    outcome.injected = simulation.injected
    outcome.timeline = simulation.timeline
    outcome.commits = audit.commits
    outcome.acknowledged = sum(attempt.outcome == "done" for attempt in shared.ledger.attempts)
    return outcome


@contextmanager
def _sizes(large: bool) -> Iterator[None]:
    """Inside the block snapshots of a few documents are as large as others are with millions, if the scenario says
    so."""
    if not large:
        yield
        return
    with (
        patch.multiple(runs, LOADED_BYTES=0, _REMEMBERED_BYTES=6000, _INDEXED_BYTES=250),
        patch.multiple(snapshot, BLOCK_BYTES=200, PART_BYTES=500),
    ):
        yield


@contextmanager
def _unlogged() -> Iterator[None]:
    """Inside the block the log does not get errors that the run itself handles: that buffered commits were not
    written."""
    log = logging.getLogger("opslog")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


def _names(scenario: Scenario) -> tuple[list[str], list[str], list[str]]:
    """The names of the agents, followed by those of the importers; the ids of the documents; and the prefixes of
    periods."""
    count = max(scenario.agents, scenario.rivals)
    if not scenario.odd:
        agents = [f"agent-{number}" for number in range(count)]
        if scenario.ignores_case:
            agents[1::2] = [name.upper() for name in agents[: count // 2 * 2 : 2]]
        importers = [f"import-{number}" for number in range(scenario.imports)]
        return agents + importers, [f"d{number}" for number in range(scenario.documents)], ["p"]
    choices = random.Random(f"names {scenario.seed}")
    names = random_names(choices, count + scenario.imports)
    return names, random_ids(choices, scenario.documents), random_names(choices, 4)


def _start_all(
    simulation: Simulation, shared: Shared, scenario: Scenario, names: list[str]
) -> tuple[list[Consumer], list[Worker]]:
    consumers, workers = [], []
    weights = dict(scenario.weights)
    if scenario.transactions:
        weights |= {name: weight * scenario.transactions for name, weight in transactions.WEIGHTS.items()}

    def agent(number: int) -> Agent:
        made = writing(number)
        if number >= max(scenario.buffered, scenario.agents - scenario.sessions):
            made.log = "shared"
        return made

    def writing(number: int) -> Agent:
        is_buffered = number < scenario.buffered
        if scenario.agents - number <= scenario.threaded:
            common = shared, names[number], scenario.calls, weights, is_buffered
            kind = AsyncAgent if number % 2 < scenario.asynchronous else ThreadedAgent
            return kind(*common, users=scenario.threads, leaving=scenario.leaving)
        return Agent(shared, names[number], scenario.calls, weights, is_buffered)

    for number in range(scenario.agents):
        simulation.start(f"agent-{number}", agent(number))
    for number in range(scenario.rivals):
        simulation.start(f"rival-{number}", agent(number), 1.0)
    for number in range(scenario.readers):
        simulation.start(f"reader-{number}", Reader(shared, f"reader-{number}", scenario.calls))
    pause_seconds = 5 * scenario.think_seconds
    for number in range(scenario.compactors):
        simulation.start(f"compactor-{number}", Compactor(shared, f"compactor-{number}", scenario.calls, pause_seconds))
    for number, name in enumerate(names[len(names) - scenario.imports :]):
        agents = names[: scenario.agents]
        simulation.start(f"import-{number}", Importer(shared, name, agents, scenario.calls // 3))
    for number in range(scenario.inspectors):
        simulation.start(f"inspector-{number}", Inspector(shared, f"inspector-{number}", scenario.calls))
    for number in range(scenario.consumers):
        consumer = Consumer(shared, f"consumer-{number}", scenario.calls)
        consumers.append(consumer)
        simulation.start(consumer.name, consumer)
    for number in range(scenario.workers):
        worker = Worker(shared, f"worker-{number}", scenario.calls)
        workers.append(worker)
        simulation.start(worker.name, worker)
    return consumers, workers


def _judged(action: object) -> None:
    """Runs something. Any exception counts as a violated invariant."""
    assert callable(action)
    try:
        action()
        invariants.the_store_is_readable(None, "everybody")
        invariants.every_run_ends(None)
    except ViolationError:
        raise
    except EndlessError as error:
        invariants.every_run_ends(error)
    except (Exception, Interrupt) as error:  # noqa: BLE001  (whatever it is, nobody was to meet it)
        invariants.the_store_is_readable(error, "a process")
