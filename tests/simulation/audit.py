"""Checks every invariant of a whole store, when all is quiet and nothing fails any more."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from opslog import archive
from opslog.compaction import compact as compaction
from opslog.compaction.garbage import TEMPORARY_SECONDS
from opslog.environment import format_ts
from opslog.errors import ConflictError, HistoryGoneError, InvalidNameError, LockedError, NotFoundError, ReopenError
from opslog.format.commits import Commit, Undo
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from opslog.testing import invariants
from opslog.testing.invariants import State
from opslog.testing.simulation import EPOCH, Process, Simulation
from opslog.testing.storages import Directory, ObjectStorage, all_commits
from opslog.verify.verify import verify
from tests.simulation import ledger_invariants
from tests.simulation.consumers import Consumer
from tests.simulation.leasing import Worker, check_workers, finish_all
from tests.simulation.shared import Shared, left_to_do, must_be_opened_again, view
from tests.simulation.transaction_invariants import check_transactions, check_view

# After this time the lease of a dead compaction has run out.
_LOCK_SECONDS = 30.0

# After this time a store that could not write or compact has tried again.
_BACKGROUND_SECONDS = 2 * 3600.0

# After this time a file whose creation began counts as garbage.
_LONG_SECONDS = 2 * TEMPORARY_SECONDS


class Audit:
    """Checks everything that can be checked from outside.

    :param undoing: agents whose commits are undone, one by one, to check that each undo is exact.
    :ivar consumers: the programs that followed the store by its feed.
    :ivar workers: the workers that shared out jobs by leases.
    """

    def __init__(
        self, simulation: Simulation, storage: Directory | ObjectStorage, shared: Shared, undoing: Sequence[str]
    ) -> None:
        self.simulation = simulation
        self.storage = storage
        self.shared = shared
        self.undoing = undoing
        self.commits = 0
        self.consumers: Sequence[Consumer] = ()
        self.workers: list[Worker] = []

    def run(self) -> None:
        """:raises ViolationError: an invariant does not hold."""
        self.simulation.calm()
        self.simulation.start("audit", self._check)
        self.simulation.run()

    def _check(self, process: Process) -> None:
        backend = self.storage.backend(process)
        try:
            ManifestStore(backend).newest()
        except NotFoundError:
            logs = all_commits(self.storage)
            ledger_invariants.acknowledged_commits_are_never_lost(self.shared.ledger.attempts, logs)
            return  # nobody got as far as making a store
        self._check_background(process)
        finish_all(process, self.shared, self.workers)
        commits = self._check_logs()
        states = {"a reader": self._read(process)}
        invariants.state_is_the_reference_merge(states["a reader"], commits, "a reader")
        states |= self._refreshed()
        states |= self._consumed(process)
        invariants.readers_converge(states)
        self._check_handouts()
        self._check_past(process, commits)
        past = self._past_by_time(process, backend)
        self._check_archives(backend)
        invariants.verify_is_clean(verify(backend))
        for full in (False, True):
            self._compact(process, backend, full)
            name = "a reader after a full compaction" if full else "a reader after a compaction"
            states[name] = self._read(process)
            states |= self._refreshed(f" after a {'full ' if full else ''}compaction")
            states |= self._consumed(process)
        invariants.readers_converge(states)
        for time, state in self._past_by_time(process, backend, past).items():
            invariants.the_past_does_not_change(past[time], state, time)
        self.shared.close_all()
        for name in self.undoing:
            self._undo_all(process, name)
        invariants.readers_converge({"a reader": self._read(process), **self._consumed(process)})
        self._check_past(process, self._check_logs())
        invariants.verify_is_clean(verify(backend))
        self._repair(process, backend)
        backend.close()

    def _check_background(self, process: Process) -> None:
        """Stores do their background work as soon as nothing fails any more."""
        stores = self.shared.left_open
        deadline = self.simulation.time + _BACKGROUND_SECONDS
        while any(map(left_to_do, stores.values())) and self.simulation.time < deadline:
            process.sleep(_BACKGROUND_SECONDS / 20)
        for owner, store in list(stores.items()):
            if replica_of(store).failure is None and not must_be_opened_again(store):
                invariants.background_work_is_done(left_to_do(store), owner.name)
                self.shared.ledger.flushed(self.shared.ledger.buffered(store))
            else:
                self.shared.abandon(owner)

    def _repair(self, process: Process, backend: Any) -> None:
        """A repair may move old garbage aside, and nothing else."""
        process.sleep(_LONG_SECONDS)
        before = self._read(process)
        invariants.verify_is_clean(verify(backend, repair=True, environment=process.environment))
        self._check_logs()
        invariants.readers_converge({"a reader": before, "a reader after a repair": self._read(process)})

    def _check_logs(self) -> list[Commit]:
        logs = all_commits(self.storage)
        attempts = self.shared.ledger.attempts
        ledger_invariants.buffers_are_written_in_order(attempts, logs)
        ledger_invariants.acknowledged_commits_are_never_lost(attempts, logs)
        ledger_invariants.refused_commits_are_absent(attempts, logs)
        check_transactions(attempts, logs)
        check_workers(self.shared, self.workers, logs)
        for log in logs.values():
            invariants.clocks_never_go_back(log)
            invariants.transactions_keep_their_order(log)
            invariants.undo_is_exact(log, self.shared.settings.undo_window)
        commits = [commit for log in logs.values() for commit in log]
        self.commits = len(commits)
        return commits

    def _read(self, process: Process) -> State:
        with self.shared.open(process, read_only=True) as store:
            state = view(store)
            assert len(store) == len(state), f"len says {len(store)}, and there are {len(state)} documents"
            check_view(state, "a reader")
            return state

    def _refreshed(self, when: str = "") -> dict[str, State]:
        """The views of readers that have had the store open for long."""
        states = {}
        for process, store in list(self.shared.left_open.items()):
            try:
                self.shared.ledger.catch_up(store)
                states[f"{process.name}{when}"] = view(store)
            except ReopenError:
                if not self.shared.may_be_lost(store):
                    raise
                self.shared.abandon(process)
        return states

    def _consumed(self, process: Process) -> dict[str, State]:
        """The documents of consumers that follow the store by its feed."""
        if not self.consumers:
            return {}
        with self.shared.open(process, read_only=True) as store:
            return {consumer.name: consumer.finish(process, store) for consumer in self.consumers}

    def _check_handouts(self) -> None:
        logs = all_commits(self.storage)
        for handout in self.shared.ledger.handouts:
            ledger_invariants.commits_are_handed_out_once(handout)
            ledger_invariants.every_commit_is_handed_out(handout, logs)

    def _check_past(self, process: Process, commits: Sequence[Commit]) -> None:
        choices = random.Random(process.random.random())
        clocks = sorted({commit.clock for commit in commits})
        for clock in choices.sample(clocks, min(3, len(clocks))):
            try:
                with self.shared.open(process, as_of=clock) as past:
                    state = view(past)
                    invariants.time_travel_shows_what_was(state, commits, clock)
                    check_view(state, f"as_of={clock}")
            except HistoryGoneError:
                continue
            with self.shared.open(process, read_only=True) as store:
                try:
                    found = list(store.ops(since=clock))
                except HistoryGoneError:
                    continue
                invariants.history_is_complete(found, commits, clock)

    def _past_by_time(self, process: Process, backend: Any, times: Iterable[str] | None = None) -> dict[str, State]:
        """The views as of some times, without those that are gone.

        :param times: if None, now and some times since the beginning, by the storage's clock.
        """
        now = self.simulation.time
        drawn = [now, *(process.random.uniform(EPOCH, now) for _ in range(3))]
        states: dict[str, State] = {}
        for time in map(format_ts, drawn) if times is None else times:
            try:
                with self.shared.open(process, as_of=time) as past:
                    states[time] = view(past)
                    check_view(states[time], f"as_of={time!r}")
            except HistoryGoneError:
                manifests = ManifestStore(backend)
                invariants.the_past_is_there(time, [format_ts(entry.modified) for _, entry in manifests.retained()])
        return states

    def _check_archives(self, backend: Any) -> None:
        periods = {period: archive.read_archive(backend, period) for period in archive.list_periods(backend)}
        invariants.archived_documents_are_kept(all_commits(self.storage), periods)

    def _compact(self, process: Process, backend: Any, full: bool) -> None:
        while True:
            try:
                compaction.compact(backend, process.environment, full=full)
                return
            except LockedError:
                process.sleep(_LOCK_SECONDS)

    def _undo_all(self, process: Process, name: str) -> None:
        try:
            opened = self.shared.open(process, agent=name)
        except InvalidNameError:
            return  # another agent has it, on a disk that ignores case
        with opened as store:
            for _ in range(self.shared.settings.undo_window + 2):
                try:
                    with self.shared.ledger.attempt(store, name, ("undo", None)) as attempt:
                        if not store.undo():
                            attempt.outcome = "nothing"
                            break
                except ConflictError:
                    break  # others have overwritten it
                store.refresh()
                logs = all_commits(self.storage)
                log = logs[attempt.stamp.agent]
                assert isinstance(log[-1], Undo)
                invariants.undo_is_exact(log, self.shared.settings.undo_window)
                commits = [commit for log in logs.values() for commit in log]
                invariants.state_is_the_reference_merge(view(store), commits, f"{name} after an undo")
