"""The one primitive under transactions, on simulated storages with all their faults.

Each line names the line that its writer had read last. Whatever goes wrong, the log is a chain.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import closing
from typing import NamedTuple

import msgspec
import pytest

from opslog.backends import Backend, Position
from opslog.environment import format_ts
from opslog.errors import LockedError, OpslogError, WriteFailedError
from opslog.format.commits import Seal, Set, encode_commit
from opslog.format.layout import TRANSACTIONS
from opslog.format.torn import joined
from opslog.log.reader import Cursor, list_log
from opslog.testing import Fault, Process, Simulation
from opslog.testing.faults import ANYWHERE
from opslog.testing.storages import Directory, ObjectStorage

WRITERS = 4
APPENDS = 6
STEPS = 750

FAULTS = {
    Directory: [*sorted(ANYWHERE), *["fail", "full", "short", "lost", "moved", "unlocked"] * 2],
    ObjectStorage: [*sorted(ANYWHERE), *["fail", "lost", "late", "down"] * 3],
}
AMOUNTS = {"short": 1.0, "moved": 1.0, "skew": 5.0, "full": 3.0, "down": 400.0, "late": 40.0}

# The id of a line and of the one before it; "" for the first line.
Link = tuple[str, str]


class Read(NamedTuple):
    cursor: Cursor
    chain: list[Link]

    @property
    def last(self) -> str:
        return self.chain[-1][0] if self.chain else ""


def read(backend: Backend) -> Read:
    cursor = Cursor(TRANSACTIONS)
    chain: list[Link] = []
    for _, commit in cursor.read(backend, list_log(backend, TRANSACTIONS)):
        if isinstance(commit, Set):
            chain.append((commit.id, msgspec.json.decode(commit.data)["after"]))
        else:
            assert isinstance(commit, Seal)
    return Read(cursor, chain)


def lines(ids: list[str], found: Read, now: float) -> list[bytes]:
    written, after = list[bytes](), found.last
    for number, id in enumerate(ids):
        data = msgspec.Raw(msgspec.json.encode({"after": after}))
        line = encode_commit(Set(format_ts(now), found.cursor.clock + 1 + number, TRANSACTIONS, id, data))
        written.append(joined(line) if number else line)
        after = id
    return written


class Writers:
    """The calls of writers, and how they ended."""

    def __init__(self, storage: Directory | ObjectStorage) -> None:
        self.storage = storage
        self.to_do = Counter({f"writer-{number}": APPENDS for number in range(WRITERS)})
        self.attempts = 0
        self.acknowledged: list[str] = []
        # For each id, how many lines were acknowledged when its writer began to read.
        self.begun: dict[str, int] = {}
        self.refused: set[str] = set()
        self.outcomes: Counter[str] = Counter()

    def work(self, process: Process) -> None:
        while self.to_do[process.name]:
            try:
                with closing(self.storage.backend(process)) as backend:
                    self._session(process, backend)
            except OpslogError as error:
                self.outcomes[type(error).__name__] += 1
                process.sleep(0.05)

    def _session(self, process: Process, backend: Backend) -> None:
        while self.to_do[process.name]:
            before = len(self.acknowledged)
            found = read(backend)
            self.attempts += 1
            ids = [f"{self.attempts}.{number}" for number in range(process.random.choice([1, 1, 2, 3]))]
            self.begun |= dict.fromkeys(ids, before)
            if process.random.random() < 0.1 and backend.segments_grow:
                self._seal(process, backend)
                continue
            self._append(process, backend, ids, lines(ids, found, process.environment.time()), found)

    def _append(self, process: Process, backend: Backend, ids: list[str], written: list[bytes], found: Read) -> None:
        try:
            position = backend.append_at(TRANSACTIONS, Position(*found.cursor.position), b"".join(written))
        except WriteFailedError as error:
            self._note(ids, written, error.durable)
            raise
        except LockedError:
            self.refused.update(ids)
            raise
        if position is None:
            self.outcomes["passed"] += 1
            self.refused.update(ids)
            return
        self.outcomes["appended"] += 1
        self._note(ids, written, sum(map(len, written)))
        self.to_do[process.name] -= 1

    def _note(self, ids: list[str], written: list[bytes], durable: int) -> None:
        for id, line in zip(ids, written, strict=True):
            durable -= len(line)
            if durable >= 0:
                self.acknowledged.append(id)
            else:
                self.refused.add(id)

    def _seal(self, process: Process, backend: Backend) -> None:
        """As a compaction does: with the name, and after what is there at that moment."""
        with closing(backend.appender(TRANSACTIONS)) as appender:
            found = read(backend)
            appender.append(
                encode_commit(Seal(format_ts(process.environment.time()), found.cursor.clock + 1, TRANSACTIONS))
            )
            self.outcomes["sealed"] += 1

    def check(self, backend: Backend) -> None:
        chain = read(backend).chain
        ids = [id for id, _ in chain]
        assert [after for _, after in chain] == ["", *ids][:-1], "each was written after what its writer had read"
        place = {id: number for number, id in enumerate(ids)}
        assert len(place) == len(ids), "each is there once"
        assert place.keys() >= set(self.acknowledged), "what was acknowledged is there"
        assert not place.keys() & self.refused, "what was refused is not"
        for id, before in self.begun.items():
            if id in place:
                earlier = max((place[other] for other in self.acknowledged[:before]), default=-1)
                assert earlier < place[id], "what was acknowledged before a writer began comes before"


def run(seed: int, kind: type[Directory | ObjectStorage]) -> Writers:
    choices = random.Random(f"shared/{seed}")
    kinds = FAULTS[kind]
    faults = [
        Fault(choices.randrange(STEPS), name := choices.choice(kinds), choices.uniform(0.0, AMOUNTS.get(name, 15.0)))
        for _ in range(choices.randrange(12))
    ]
    simulation = Simulation(seed, faults)
    storage = kind(simulation)
    writers = Writers(storage)
    with storage.installed():
        for name in list(writers.to_do):
            simulation.start(name, writers.work)
        simulation.run()
        simulation.calm()
        with closing(storage.backend(None)) as backend:
            writers.check(backend)
            found = read(backend)
            [line] = lines(["last"], found, 0.0)
            assert backend.append_at(TRANSACTIONS, Position(*found.cursor.position), line) is not None
            assert read(backend).last == "last"
    return writers


@pytest.mark.parametrize("kind", [Directory, ObjectStorage])
@pytest.mark.parametrize(
    "seeds", [range(40), pytest.param(range(40, 1000), marks=pytest.mark.slow)], ids=["few", "many"]
)
def test_the_log_is_a_chain_whatever_goes_wrong(kind: type[Directory | ObjectStorage], seeds: range) -> None:
    outcomes: Counter[str] = Counter()
    for seed in seeds:
        try:
            outcomes += run(seed, kind).outcomes
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
    assert outcomes["appended"] == len(seeds) * WRITERS * APPENDS
    assert outcomes["passed"] > len(seeds)
    assert outcomes["CommitUnknownError"] > len(seeds) // 40
