"""Programs that follow a store by its feed, and keep the result where it survives their own death."""

from __future__ import annotations

from typing import Any

from opslog.errors import MissingFileError, NotFoundError, ReopenError, RetryError
from opslog.format.commits import Stamp
from opslog.replica.feed import Changes
from opslog.store import Store, replica_of
from opslog.testing.invariants import State
from opslog.testing.simulation import Process
from opslog.testing.storages import all_commits
from tests.simulation import ledger_invariants
from tests.simulation.agents import OPEN_TRIES_MAX
from tests.simulation.shared import Shared, view


class _KilledError(Exception):
    """The consumer is killed between any two steps of its own. The simulation does not do this."""


class Consumer:
    """Applies changes one by one to its stored state, and then stores their token. It is killed between any two steps,
    and continues from the stored state.

    :param calls: how many times it still asks for changes.
    :ivar documents, token, taken: its stored state: the texts of the documents, the token, and the commits since the
        last reset.
    :ivar begun: the commits that were there at that reset.
    :ivar given: every commit that it was ever given.
    """

    def __init__(self, shared: Shared, name: str, calls: int) -> None:
        self.shared = shared
        self.name = name
        self.left = calls
        self.documents: State = {}
        self.token: str | None = None
        self.taken: set[Stamp] = set()
        self.begun: set[Stamp] = set()
        self.given: set[Stamp] = set()
        self._tries = 0

    def __call__(self, process: Process) -> None:
        while self.left > 0 and self._tries < OPEN_TRIES_MAX:
            try:
                with self.shared.open(process, read_only=True) as store:
                    self._session(process, store)
            except MissingFileError:
                raise
            except _KilledError:
                continue
            except (RetryError, ReopenError, NotFoundError):
                self._tries += 1
                process.sleep(0.5)

    def _session(self, process: Process, store: Store[Any]) -> None:
        for _ in range(process.random.randint(1, 8)):
            if self.left <= 0:
                return
            self.left -= 1
            self.shared.think(process)
            self.consume(process, store, process.random.choice([None, None, None, 1, 4]))

    def consume(self, process: Process, store: Store[Any], limit: int | None = None) -> None:
        """Ask for changes, and apply them."""
        changes = store.changes(self.token, limit)
        state = replica_of(store).state
        self._apply(process, changes)
        if limit is None or changes.reset:
            shown = view(store)
            if replica_of(store).state is state:  # otherwise it was loaded again meanwhile, and has newer commits
                ledger_invariants.consumers_hold_the_state(self.documents, shown, self.name)

    def _apply(self, process: Process, changes: Changes[Any]) -> None:
        self.given |= {effect.stamp for effect in changes.commits}
        if changes.reset:
            self.token = None
            self.documents.clear()
            self.taken.clear()
            self.begun = {commit.stamp for log in all_commits(self.shared.storage).values() for commit in log}
        for id, _, record, _ in changes:
            if process.random.random() < 0.03:
                raise _KilledError
            if record is not None:
                self.given.add(record.stamp)
            if record is None or record.op == "delete":
                self.documents.pop(id, None)
            else:
                self.documents[id] = bytes(record.data)  # type: ignore[union-attr]
        if process.random.random() < 0.05:
            raise _KilledError
        stamps = {effect.stamp for effect in changes.commits}
        ledger_invariants.consumers_get_each_commit_once(self.taken, stamps, self.name)
        self.taken |= stamps
        self.token = changes.token

    def finish(self, process: Process, store: Store[Any]) -> State:
        """Read what is left, when all is quiet."""
        while True:
            try:
                self.consume(process, store)
                break
            except _KilledError:
                continue
        logs = all_commits(self.shared.storage)
        ledger_invariants.consumers_miss_no_commit(self.begun, self.taken, logs, self.name)
        ledger_invariants.consumers_are_given_what_lasts(self.given, logs, self.name)
        return self.documents
