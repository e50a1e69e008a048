"""Workers that share out jobs by leases: they claim, renew, lose and finish them, and some walk away.

Each job is done several times, one round after the other. Now and then a worker sleeps for longer than a lease lasts,
so that others take over from it even if nothing fails. The writes of each call are checked when all is quiet
(`tests.simulation.lease_invariants`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar, cast

from opslog.errors import LeaseLostError, MissingFileError, ReopenError, RetryError
from opslog.format.commits import Set
from opslog.lease import Lease
from opslog.replica.terms import ATTEMPTS
from opslog.replica.transaction import Transaction
from opslog.store import Store, replica_of
from opslog.testing.invariants import Logs
from opslog.testing.simulation import Process
from tests.simulation.agents import OPEN_TRIES_MAX
from tests.simulation.lease_invariants import Kind, LeaseCall, check_leases, jobs_of_the_gone_are_taken_over
from tests.simulation.ledger import TRANSACTION
from tests.simulation.shared import Shared
from tests.simulation.transaction_invariants import Replay

R = TypeVar("R")

JOBS: Final = ("job-0", "job-1")

# How many times each job is done.
ROUNDS: Final = 8

# How long a lease lasts: shorter than most pauses.
SECONDS: Final = 15.0

# How long a worker sleeps.
_NAPS = (0.1, 5.0, 10.0, 20.0, 40.0)


class Noted:
    """A store that records what each call of a lease has read and written in it."""

    def __init__(self, store: Store[Any], worker: Worker, process: Process) -> None:
        self._replica = replica_of(store)
        self._store = store
        self._worker = worker
        self._process = process
        self.call: LeaseCall | None = None

    def record(self, id: str) -> Set | None:
        return self._store.record(id)

    def transact(self, function: Callable[[Transaction[Any]], R], *, attempts: int = ATTEMPTS) -> R:
        call, self.call = self.call, None
        what = (TRANSACTION, "check" if call is None else f"{call.kind} {call.job}")
        with self._worker.shared.ledger.attempt(self._store, self._worker.name, what) as attempt:
            if call is not None:
                call.attempt = attempt

            def decide(transaction: Transaction[Any]) -> R:
                try:
                    return function(transaction)
                finally:
                    if call is not None:
                        call.decided_at = self._process.simulation.time
                    attempt.read = {id: _text(record) for id, record in transaction.reads.documents.items()}
                    attempt.written = {id: _text(record) for id, record in transaction.written.items()}

            return self._store.transact(decide, attempts=attempts)


def _text(record: object) -> bytes | None:
    return bytes(record.data) if isinstance(record, Set) else None


class Worker:
    """Does jobs under a name of its own until its calls are used up.

    :ivar calls: of its leases.
    """

    def __init__(self, shared: Shared, name: str, calls: int) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self.calls: list[LeaseCall] = []
        self._tries = 0

    def __call__(self, process: Process) -> None:
        while self.left > 0 and self._tries < OPEN_TRIES_MAX:
            try:
                with self.shared.open(process, agent=self.name) as store:
                    self._session(process, store)
            except MissingFileError:
                raise
            except (RetryError, ReopenError) as error:
                self.shared.excuse(error)
                self._tries += 1
                process.sleep(0.5)

    def _session(self, process: Process, store: Store[Any]) -> None:
        desk = Desk(self, process, store)
        for _ in range(process.random.randint(1, 10)):
            if self.left <= 0:
                return
            self.left -= 1
            self.shared.think(process)
            with suppress(LeaseLostError):
                desk.work(process.random.choice(JOBS))


class Desk:
    """A worker with its store open, and its leases."""

    def __init__(self, worker: Worker, process: Process, store: Store[Any]) -> None:
        self._worker = worker
        self._process = process
        self._store = Noted(store, worker, process)
        self._leases = {job: Lease(cast(Any, self._store), job, SECONDS) for job in JOBS}
        # How many times each job was done when it was claimed.
        self._rounds = dict.fromkeys(JOBS, 0)

    def work(self, job: str) -> None:
        """Claim a job. If the claim succeeds, work on the job, and end in one of several ways.

        :raises LeaseLostError: somebody else has the lease by now.
        """
        choices = self._process.random
        while not self.claim(job):
            if self._leases[job].holder is None or choices.random() < 0.3:
                return
            self._process.sleep(choices.choice((1.0, SECONDS / 2, SECONDS)))
        for _ in range(choices.randint(0, 3)):
            self._process.sleep(choices.choice(_NAPS))
            if choices.random() < 0.6:
                self._call("renew", job, self._leases[job].renew)
            if choices.random() < 0.3:
                self._call("set", job, lambda: self._leases[job].set(job, self._document(job, 0)))
        end = choices.random()
        if end < 0.75:
            self.finish(job)
        elif end < 0.85:
            self._call("release", job, self._leases[job].release)
        # Or walk away.

    def claim(self, job: str) -> bool:
        """Whether this call claimed a job."""

        def is_open(document: Any) -> bool:
            self._rounds[job] = call.round = 0 if document is None else document["round"]
            return self._rounds[job] < ROUNDS

        call = self._begun("claim", job)
        claimed = self._leases[job].claim(is_open)
        self._ended(call)
        return claimed

    def finish(self, job: str) -> None:
        """Finish the job once more."""
        self._call("finish", job, lambda: self._leases[job].finish(self._document(job, 1)))

    def finish_rest(self, job: str) -> None:
        """Finish the rest of a job, when nobody else does anything any more."""
        for _ in range(ROUNDS):
            if self._claim_of_the_gone(job):
                self.finish(job)

    def _claim_of_the_gone(self, job: str) -> bool:
        """Claim a job if there is something left to do. Returns whether it did."""
        lease = self._leases[job]
        if self.claim(job):
            return True
        if lease.holder is None:
            return False
        self._process.sleep(SECONDS)
        claimed = self.claim(job)
        # Nobody has the lease, so nothing was left to do.
        jobs_of_the_gone_are_taken_over(job, claimed or lease.holder is None)
        return claimed

    def _document(self, job: str, more: int) -> dict[str, Any]:
        return {"n": self._worker.shared.token(), "round": self._rounds[job] + more, "worker": self._worker.name}

    def _call(self, kind: Kind, job: str, function: Callable[[], None]) -> None:
        call = self._begun(kind, job)
        function()
        self._ended(call)

    def _begun(self, kind: Kind, job: str) -> LeaseCall:
        nonce = self._leases[job]._nonce
        call = LeaseCall(kind, self._worker.name, job, self._process.simulation.time, nonce, self._rounds[job])
        self._worker.calls.append(call)
        self._store.call = call
        self._process.note(f"{kind} {job}")
        return call

    def _ended(self, call: LeaseCall) -> None:
        lease = self._leases[call.job]
        if call.kind in ("claim", "renew"):
            call.claim, call.token = lease._nonce or call.claim, lease.token


def finish_all(process: Process, shared: Shared, workers: list[Worker]) -> None:
    """When all workers are gone, somebody else takes over what they have left, and finishes it."""
    if workers:
        foreman = Worker(shared, "foreman", 0)
        workers.append(foreman)
        with shared.open(process, agent=foreman.name) as store:
            desk = Desk(foreman, process, store)
            for job in JOBS:
                desk.finish_rest(job)


def check_workers(shared: Shared, workers: list[Worker], logs: Logs) -> None:
    """:raises ViolationError: an invariant of leases does not hold."""
    if workers:
        calls = [call for worker in workers for call in worker.calls]
        check_leases(calls, Replay(shared.ledger.attempts, logs))
