"""What all processes of a run share: the storage, their writes, and notes about it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from opslog.aio import Opening
from opslog.backends.local.fs import FsBackend
from opslog.backends.local.fs_log import FsAppender
from opslog.compaction.automatic import NO_MORE_THREADS
from opslog.errors import OpslogError, ReopenError, WriteFailedError
from opslog.format.commits import Commit
from opslog.format.layout import TRANSACTIONS
from opslog.format.manifest import Settings
from opslog.store import Store, replica_of
from opslog.testing import invariants
from opslog.testing.invariants import State
from opslog.testing.signals import Interrupt
from opslog.testing.simulation import Process
from opslog.testing.storages import SimulatedStorage, all_commits, open_async_store, open_store
from tests.simulation.ledger import Attempt, Ledger, progress
from tests.simulation.transaction_invariants import guarded_documents_go_to_the_shared_log


class Shared:
    """See the module's docstring.

    :param ids: the ids of the documents.
    :param periods: the prefixes of archive names.
    :param is_calm: nothing goes wrong, and nobody else uses an agent's name: no write may fail.
    :param names_are_kept: only the process that has a store open under an agent's name writes that log.
    """

    kinds = frozenset[str]()  # it makes no calls in which a fault could happen

    def __init__(
        self,
        storage: SimulatedStorage,
        settings: Settings,
        ids: Sequence[str],
        *,
        think_seconds: float = 1.0,
        nap_seconds: float = 0.0,
        periods: Sequence[str] = ("p",),
        compact_after: int | None = None,
        is_calm: bool = False,
        names_are_kept: bool = True,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.ids = list(ids)
        self.periods = periods
        self.ledger = Ledger(_check_queued)
        self.think_seconds = think_seconds
        self.nap_seconds = nap_seconds
        self.compact_after = compact_after
        self._is_calm = is_calm
        self._names_are_kept = names_are_kept
        # Stores that nobody closed, by their opener. They must still show the right documents after a refresh.
        self.left_open: dict[Process, Store[Any]] = {}
        self._tokens = 0

    def close_all(self) -> None:
        """Release the names of those who left their stores open."""
        while self.left_open:
            self.left_open.popitem()[1].close()

    def lose_power(self, choices: random.Random) -> None:
        """No store is open any more. Commits that were handed out may be gone, and others may take their positions."""
        self.left_open.clear()
        for handout in self.ledger.handouts:
            handout.until = None

    def process_died(self, process: Process) -> None:
        """Its open files are gone."""
        self.left_open.pop(process, None)

    def recover(self) -> None:
        """Nothing is left from before."""

    def check_memory(self, store: Store[Any], who: str) -> None:
        """Check an open store, which no other thread uses, against what it has read and written."""
        self.flush(store)
        replica = replica_of(store)
        state = replica.state
        shown, read = view(store), progress(store)
        if replica.state is not state or not self._names_are_kept or replica.log is None or must_be_opened_again(store):
            return  # it was loaded again meanwhile, or its next write will say that it has to be opened again
        logs = all_commits(self.storage)
        invariants.memory_is_what_was_read(
            shown, logs, read | {str(replica.agent): len(logs.get(str(replica.agent), []))}, who
        )

    def excuse(self, error: OpslogError) -> None:
        """:raises: the error, if nothing in the run can explain it."""
        if self._is_calm and isinstance(error, (ReopenError, WriteFailedError)):
            raise error

    def token(self) -> int:
        """A number that was never used before."""
        self._tokens += 1
        return self._tokens

    def open(self, process: Process, **options: Any) -> Store[Any]:
        options.setdefault("compact_after", self.compact_after)
        return open_store(self.storage, process, settings=self.settings, **options)

    def open_async(self, process: Process, **options: Any) -> Opening[Any]:
        options.setdefault("compact_after", self.compact_after)
        return open_async_store(self.storage, process, settings=self.settings, **options)

    def flush(self, store: Store[Any]) -> None:
        waiting = self.ledger.buffered(store)
        store.flush()
        self.ledger.flushed(waiting)

    def close(self, store: Store[Any]) -> None:
        """Close a store that nobody writes to any more."""
        self.end(store)
        self.ledger.flushed(self.ledger.buffered(store))

    def end(self, store: Store[Any]) -> None:
        """Close a store. If a signal handler prevents that, the next call closes it."""
        while True:
            try:
                return store.close()
            except (Interrupt, MemoryError):
                continue

    def may_be_lost(self, store: Store[Any]) -> bool:
        """Whether a store that nobody has closed may have to be opened again, for example because its directory was
        moved away."""
        return not self._is_calm

    def abandon(self, process: Process) -> None:
        """Close a store that was left open, and has to be opened again."""
        with suppress(ReopenError, WriteFailedError):
            self.left_open.pop(process).close()

    def thinking(self, process: Process, times: float = 1.0) -> float:
        """The pause of a process between two calls in seconds, times a factor. Now and then it is a long one."""
        seconds = process.random.expovariate(1.0 / (times * self.think_seconds))
        if self.nap_seconds and process.random.random() < 0.05:
            seconds += self.nap_seconds
        return seconds

    def think(self, process: Process, times: float = 1.0) -> None:
        """Do nothing for a while."""
        process.sleep(self.thinking(process, times))


def _check_queued(attempt: Attempt, commit: Commit) -> None:
    """Whether the commits queued for an agent's log may be in it, as far as memory knows."""
    assert attempt.store is not None
    if not commit.records:
        return
    state = replica_of(attempt.store).state
    winners = [state.winners.get(record.id) for record in commit.records]
    newer = [winner for winner in winners if winner is not None and winner.clock > state.manifest.clock]
    guarded_documents_go_to_the_shared_log(
        (winner.id for winner in newer if winner.agent == TRANSACTIONS and winner.clock <= attempt.known), attempt
    )


def view(store: Store[Any]) -> State:
    """Everything that a store shows."""
    return {record.id: bytes(record.data) for record in store.records()}


def must_be_opened_again(store: Store[Any]) -> bool:
    """Whether the store must be opened again before it can do anything: a commit may or may not be in its log, another
    directory has replaced the store's, or its lock file was removed, so that others may write under its name."""
    replica = replica_of(store)
    log = replica.log
    if log is not None and log._broken is not None:
        return True
    if not isinstance(replica.backend, FsBackend):
        return False  # an object storage, which does not hold names
    appender = log.session._appender if log is not None else None
    has_lost_its_name = isinstance(appender, FsAppender) and not appender._lock_file.is_in_place()
    return has_lost_its_name or replica.backend.tree().is_replaced()


def left_to_do(store: Store[Any]) -> str | None:
    """The background work that a store has not done yet; None if there is none."""
    replica = replica_of(store)
    log, error = replica.log, replica.compaction.error
    if log is not None and replica.failure is None and (log._queue or log._group):
        return "its buffer is not written"
    return None if error is None or error == NO_MORE_THREADS else f"automatic compaction failed: {error}"
