"""Many processes of every kind on one store. One after the other is killed with SIGKILL, whatever it is doing.

No acknowledged commit is missing, no commit is there in part, and the store verifies clean.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.support import programs
from tests.support.processes import Process, start

KINDS = {"sets": "set", "batches": "batch", "buffer": "buffered", "archivist": "archive", "folder": "compact"}
SLOW = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Worker:
    """A process that is started again after a kill, and the commits that were acknowledged to it.

    :ivar number: the last of its commits that is known to be in the store.
    """

    def __init__(self, url: str, agent: str, stack: ExitStack) -> None:
        self.agent, self.kind = agent, KINDS[agent]
        self.number = 0
        self._url = url
        self._stack = stack
        self._process: Process | None = None

    def go_on(self) -> None:
        if self._process is None:
            started = start(programs.work, self._url, self.agent, self.kind, self.number + 1)
            self._process = self._stack.enter_context(started)
            self._hear()

    def kill(self, after: int) -> None:
        """Kill it as soon as `after` more acknowledgements have come."""
        assert self._process is not None
        for _ in range(after):
            self._hear()
        for number in self._process.kill():
            self.number = number
        self._process = None

    def _hear(self) -> None:
        assert self._process is not None
        self.number = self._process.hear()

    def check(self, documents: dict[str, Any], archived: dict[str, Any]) -> None:
        """The documents are those after one of its commits, and that is not before its last acknowledged one."""
        own = {id: document for id, document in (archived | documents).items() if document["agent"] == self.agent}
        reached = max((document["number"] for document in own.values()), default=0)
        if self.kind == "compact":
            assert not own
            return
        assert reached >= self.number, f"{self.agent} was acknowledged {self.number}, and {reached} is there"
        expected: dict[str, Any] = {}
        # Archives keep their documents. The next few commits of the other kinds overwrite theirs.
        for number in range(1 if self.kind == "archive" else max(1, reached - 20), reached + 1):
            expected |= programs.made(self.kind, self.agent, number)
        assert own == expected
        self.number = reached


@pytest.mark.parametrize(
    ("seed", "rounds", "kills"),
    [
        (0, 1, 4),
        pytest.param(0, 2, 5, marks=pytest.mark.long),
        # New stores now and then: each check reads the whole archive, which only grows.
        *(pytest.param(seed, 20, 5, marks=SLOW) for seed in range(20)),
    ],
)
def test_nothing_is_lost_however_many_are_killed(tmp_path: Path, seed: int, rounds: int, kills: int) -> None:
    rng = random.Random(f"{rounds} rounds, {seed}")
    root = tmp_path / "store"
    settings = opslog.Settings(undo_window=4, grace_seconds=0.0)
    opslog.open(root, agent="founder", settings=settings).close()
    with ExitStack() as stack:
        workers = [Worker(str(root), agent, stack) for agent in KINDS]
        for _ in range(rounds):
            for worker in workers:
                worker.go_on()
            for _ in range(kills - 1):
                worker = rng.choice(workers)
                worker.kill(rng.randrange(40))
                worker.go_on()
            # All at once. Then check what they have left.
            for worker in workers:
                worker.kill(0)
            check(root, workers)


def check(root: Path, workers: list[Worker]) -> None:
    report = verify(open_backend(root))
    assert report.ok, "\n".join(map(str, report.problems))
    with opslog.open(root, read_only=True) as store:
        archived = store.load_archive("2026-Q4") if "2026-Q4" in store.archives() else {}
        documents = dict(store.items())
    for worker in workers:
        worker.check(documents, archived)


@pytest.mark.parametrize(
    ("seed", "kills"),
    [
        (0, 2),
        pytest.param(0, 4, marks=pytest.mark.long),
        *(pytest.param(seed, 50, marks=SLOW) for seed in range(10)),
    ],
)
def test_stores_whose_makers_are_killed(tmp_path: Path, seed: int, kills: int) -> None:
    """Three processes at once make each of them, and are killed somewhere on the way."""
    rng = random.Random(f"{kills} kills, {seed}")
    for kill in range(kills):
        root = tmp_path / str(kill)
        with ExitStack() as stack:
            makers = [stack.enter_context(start(programs.create, str(root), agent)) for agent in "abc"]
            done = {agent: maker.hear() for agent, maker in zip("abc", makers, strict=True)}
            for agent, maker in zip("abc", makers, strict=True):
                for _ in range(rng.randrange(6)):
                    done[agent] = maker.hear()
                done[agent] = max([done[agent], *maker.kill()])
        for number in range(max(done.values()) + 1):
            place = root / str(number) / "new" / "store"
            with opslog.open(place, agent="visitor") as store:
                for agent, count in done.items():
                    assert agent in store or number >= count
                store["visited"] = {}
            assert verify(open_backend(place)).ok
