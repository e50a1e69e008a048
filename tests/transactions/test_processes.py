"""Real processes share out tasks, move money and count. Meanwhile they are killed and paused, responses are lost, a
compaction with a short grace period runs, and others write the same documents plainly.
`tests.support.transactions_checker` checks the outcomes that each process recorded against the shared log."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend, turns
from opslog.errors import HistoryGoneError, LockedError, RetryError
from opslog.verify.verify import verify
from tests.support import programs
from tests.support.places import LOSSY, REMOTE, Place
from tests.support.processes import Process, start
from tests.support.s3_server import Fault, Request, S3Server
from tests.support.transactions_checker import ACCOUNTS, MONEY, Attempt, History, SharedLog, attempts, check

GRACE = 2.0
SETTINGS = opslog.Settings(undo_window=4, grace_seconds=GRACE)
SLOW = [pytest.mark.slow, pytest.mark.timeout(3600)]
SMALL = pytest.param((3, 12, 12, 1, 1), id="small")
SIZES = [SMALL, pytest.param((16, 1000, 500, 12, 4), id="large", marks=SLOW)]
# A test's server answers some hundred requests a second, and each transaction takes three.
SIZES_ON_SERVERS = [SMALL, pytest.param((16, 1000, 60, 12, 4), id="large", marks=SLOW)]

# The most points of the past at which the total is checked.
PAST_MAX = 300


class Worker:
    """A process of `programs.transact` that continues where it was killed."""

    def __init__(self, url: str, agent: str, folder: Path, work: tuple[int, int], options: dict[str, Any]) -> None:
        self.agent = agent
        self.journal = folder / f"{agent}.jsonl"
        self._url, self._work, self._options = url, work, options
        self._process: Process | None = None
        self._stopped_at = 0.0

    def start(self, stack: ExitStack) -> None:
        first = len(attempts(self.journal)) if self.journal.exists() else 0
        args = (self._url, self.agent, str(self.journal), (*self._work, first), self._options)
        self._process = stack.enter_context(start(programs.transact, *args))
        assert self._process.hear() in ("open", "done")

    def resume(self) -> None:
        with suppress(BrokenPipeError):  # it had nothing to do any more
            self.process.resume()

    @property
    def process(self) -> Process:
        assert self._process is not None
        return self._process

    def stop(self) -> None:
        self._stopped_at = time.monotonic()
        os.kill(self.process.pid, signal.SIGSTOP)

    def go_on_when_late(self) -> bool:
        """Let it continue if it was paused for longer than the grace period. Returns whether it is still paused."""
        if self._stopped_at and time.monotonic() > self._stopped_at + 1.5 * GRACE:
            os.kill(self.process.pid, signal.SIGCONT)
            self._stopped_at = 0.0
        return self._stopped_at > 0


def found(url: str, tasks: int, options: dict[str, Any]) -> None:
    with opslog.open(url, agent="founder", settings=SETTINGS, **options) as store:
        store.create("board", {"token": "founder:board"})
        store.create("counter", {"token": "founder:counter", "number": 0})
        for number in range(ACCOUNTS):
            store.create(f"account-{number}", {"balance": MONEY // ACCOUNTS, "token": f"founder:account-{number}"})
        for number in range(0, tasks, 2):
            store.create(f"task-{number}", {"owner": None, "token": f"founder:task-{number}"})


def money(store: opslog.Store[dict[str, Any]]) -> int:
    """The total of all accounts, in one view."""
    balances = [document["balance"] for _, document in store.filter(lambda document: "balance" in document)]
    assert min(balances) >= 0
    return sum(balances)


def prove(
    url: str,
    folder: Path,
    size: tuple[int, int, int, int, int],
    options: dict[str, Any],
    others: dict[str, Any],
    *,
    restart: Callable[[], None] = lambda: None,
) -> list[Attempt]:
    """Run the processes, and check everything. Returns what was tried.

    :param size: processes, tasks, other transactions of each, kills, stops.
    :param options: options for the processes.
    :param others: options for those that only read.
    :param restart: kills and restarts the server, if there is one. This happens with each kill of a process.
    """
    processes, tasks, more, kills, stops = size
    rng = random.Random(f"{size}")
    found(url, tasks, others)
    backend = open_backend(url, **others)
    log = SharedLog(backend)
    workers = [Worker(url, f"agent-{number}", folder, (tasks, more), options) for number in range(processes)]
    with ExitStack() as stack, opslog.open(url, agent="compactor", compact_after=None, **others) as store:
        for worker in workers:
            worker.start(stack)
        for worker in workers:
            worker.resume()
        running, turn, compactions = list(workers), 0, 0
        while running:
            # A list: each of them has to be asked.
            stopped = [worker.go_on_when_late() for worker in workers]
            running = [worker for worker in running if not worker.process.has_ended]
            free = [worker for worker in running if not stopped[workers.index(worker)]]
            if stops and free and turn % 3 == 0:
                stops -= 1
                free.pop(rng.randrange(len(free))).stop()
            if kills and free:
                kills -= 1
                victim = rng.choice(free)
                victim.process.discard()
                restart()
                victim.start(stack)
                victim.resume()
            turn += 1
            # A server with so many clients may miss the deadline of a request: then there is another turn.
            with suppress(RetryError, LockedError):
                log.collect()
                store.compact(full=rng.random() < 0.3)
                compactions += 1
                store.refresh()
                assert money(store) == MONEY
        assert compactions
        for worker in workers:
            worker.process.end()
        assert (kills, stops) < size[3:], "all was done before anything had gone wrong"
        log.collect()
    history = History(log.lines())
    tried = [attempt for worker in workers for attempt in attempts(worker.journal)]
    check(history, tried)
    with opslog.open(url, read_only=True, **others) as store:
        assert dict(store.items()) == history.documents
        owners = [store[f"task-{number}"]["owner"] for number in range(tasks)]
        assert None not in owners
        known = [commit.clock for commit in store.ops() if commit.clock >= history.founded]
    seen = 0
    # Between two commits nothing changes. With the small size these are all points of the past.
    for clock in known if len(known) <= PAST_MAX else {known[-1], *rng.sample(known, PAST_MAX)}:
        with suppress(HistoryGoneError), opslog.open(url, as_of=clock, **others) as past:
            assert money(past) == MONEY
            seen += 1
    assert seen
    assert verify(backend).ok
    backend.close()
    return tried


@pytest.mark.parametrize("size", SIZES)
def test_in_a_directory(tmp_path: Path, size: tuple[int, int, int, int, int]) -> None:
    prove(str(tmp_path / "store"), tmp_path, size, {"compact_after": None}, {})


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", SIZES_ON_SERVERS)
@pytest.mark.parametrize("place", ["moto-obstore", "moto-s3fs", "ceph-obstore"], indirect=True)
def test_on_a_real_object_storage(place: Place, tmp_path: Path, size: tuple[int, int, int, int, int]) -> None:
    prove(place.url(), tmp_path, size, place.options | {"compact_after": None}, place.options)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("size", SIZES_ON_SERVERS)
@pytest.mark.parametrize("place", [REMOTE, LOSSY], indirect=True)
def test_through_a_server_that_is_killed(place: Place, tmp_path: Path, size: tuple[int, int, int, int, int]) -> None:
    prove(place.url("transactions"), tmp_path, size, {"compact_after": None}, {}, restart=place.restart)


@pytest.fixture
def server() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.mark.parametrize("size", SIZES_ON_SERVERS)
@pytest.mark.parametrize("driver", ["obstore", pytest.param("s3fs", marks=pytest.mark.long)])
def test_with_lost_replies(server: S3Server, tmp_path: Path, driver: str, size: tuple[int, int, int, int, int]) -> None:
    pytest.importorskip(driver, reason="needs opslog[fast]")
    rng = random.Random(driver)
    lost: list[Request] = []

    def fault(request: Request) -> Fault | None:
        if request.method != "PUT" or "ops/" not in request.key or rng.random() > 0.1:
            return None
        lost.append(request)
        # It was carried out or not, also if others have written since.
        return rng.choice([Fault(0, done=True), Fault(503, done=True), Fault(0), Fault(0, late=3)])

    options = {**server.options(), "lease_seconds": 1.0}
    url = f"s3://bucket/store?driver={driver}"
    found_by = options | {"compact_after": None}
    with server.failing(fault):
        prove(url, tmp_path, size, found_by, options)
    assert lost


def test_others_learn_which_process_stopped_with_the_log_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.2)
    with opslog.open(url, agent="founder") as store:
        store.create("counter", {"number": 0})
        store["unguarded"] = {"number": 0}
        with start(programs.stop_inside, url, "stopped") as process:
            assert process.hear() == "ready"
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            calls: list[Callable[[], object]] = [
                lambda: store.modify("counter", programs.increment),
                lambda: store.create("another", {}),
                lambda: store.set("counter", {"number": 7}),
            ]
            for call in calls:
                with pytest.raises(LockedError, match=f"pid {process.pid}"):
                    call()
            store["unguarded"] = {"number": 1}  # waits for nobody
            os.kill(process.pid, signal.SIGCONT)
            assert process.hear() == "done"
            process.end()
        assert store.modify("counter", programs.increment) == {"number": 2}
        assert "another" not in store
