"""Random histories with transactions, as in `tests/test_state_machine.py`: each transaction sees everything
acknowledged before it, of any agent, and decides as the model does."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis.stateful import initialize, invariant, precondition, rule

import opslog
from opslog.errors import ConflictError, ExistsError
from opslog.format import snapshot
from opslog.format.commits import Commit, Record, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.format.snapshot import SHARED_MAX
from opslog.log.reader import list_log
from opslog.merge.merge import reference
from opslog.replica.state import State
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from tests.test_state_machine import AGENTS, IDS, NAMES, WINDOW, Agents, for_examples


class AgentsWithTransactions(Agents):
    """See the module's docstring."""

    @invariant()
    def everybody_knows_what_is_guarded(self) -> None:
        """The store answers like the record, although it looks up few documents. It misses no guarded one without a
        lookup."""
        for store in getattr(self, "agents", {}).values():
            replica = replica_of(store)
            for id in ("x", "y", "z", "never"):
                record = replica.read(State.record, id)
                is_guarded = record is not None and record.agent == TRANSACTIONS
                commit = opslog.Set("", 0, "", id, msgspec.Raw(b"{}"))
                assert (replica.unguarded(commit) is None) is is_guarded
                assert not is_guarded or replica.unguarded(commit, at_once=True) is None

    def read_seals(self) -> None:
        for name in (*NAMES, TRANSACTIONS):
            if list_log(self.backend, name):
                assert self.note_log(name) == []

    def current(self, id: str) -> opslog.Set | None:
        """The current record of a document, by the model."""
        record = reference(self.everything).get(id)
        return record if isinstance(record, opslog.Set) else None

    @rule(name=AGENTS, id=IDS)
    def create_document(self, name: str, id: str) -> None:
        self.value += 1
        there = self.current(id)
        try:
            self.agents[name].create(id, {"value": self.value})
        except ExistsError as error:
            found = error.record
            assert there is not None
            assert found.stamp == there.stamp
            self.note_commits(name, 0)
        else:
            assert there is None
            self.note_commits(name, 1)

    @rule(name=AGENTS, id=IDS, deletes=st.booleans())
    def modify(self, name: str, id: str, deletes: bool) -> None:
        self.value += 1
        seen: list[Any] = []

        def function(document: Any) -> Any:
            seen.append(document)
            return None if deletes else {"value": self.value}

        there = self.current(id)
        self.agents[name].modify(id, function)
        assert seen == [there and there.document]
        self.note_commits(name, 0 if deletes and there is None else 1)

    @rule(name=AGENTS, id=IDS)
    def set_if_stamp(self, name: str, id: str) -> None:
        """With the stamp that the agent knows, which may be an old one."""
        store = self.agents[name]
        known = store.record(id)
        stamp = None if known is None else str(known.stamp)
        there = self.current(id)
        self.value += 1
        try:
            store.set(id, {"value": self.value}, if_stamp=stamp)
        except ConflictError as error:
            found = error.record
            assert stamp != (None if there is None else str(there.stamp))
            assert (found and found.stamp) == (there and there.stamp)
            self.note_commits(name, 0)
        else:
            assert stamp == (None if there is None else str(there.stamp))
            self.note_commits(name, 1)

    @rule(name=AGENTS, other=AGENTS, id=IDS, raced=IDS)
    def transact_in_a_race(self, name: str, other: str, id: str, raced: str) -> None:
        """Another agent commits a transaction while the function runs."""
        if name == other:
            return
        calls: list[Any] = []

        def function(transaction: opslog.Transaction[Any]) -> None:
            calls.append(dict(transaction))
            if len(calls) == 1:
                self.value += 1
                self.agents[other].modify(raced, lambda document: {"value": self.value})
                self.note_commits(other, 1)
            self.value += 1
            transaction[id] = {"value": self.value}

        self.agents[name].transact(function)
        assert calls[-1] == self.expected()
        assert len(calls) == 2
        self.note_commits(name, 1)

    @rule(name=AGENTS)
    def undo(self, name: str) -> None:
        own = self.newest_undoable(name) or 0
        shared, passed = self.newest_in_shared_log(name)
        newest = shared.clock if shared is not None else 0
        try:
            done = self.agents[name].undo()
        except ConflictError:
            assert shared is not None
            assert newest > own
            winners: dict[str, Record] = reference(self.everything)
            assert any(winners[record.id].stamp != shared.stamp for record in shared.records)
            self.note_commits(name, 0)
            return
        if not done and passed > max(own, newest):
            self.note_commits(name, 0)
            return
        assert done is (max(own, newest) > 0)
        if done:
            (commit,) = self.note_commits(name, 1)
            assert isinstance(commit, Undo)
            assert commit.target == max(own, newest)

    def newest_in_shared_log(self, name: str) -> tuple[Commit | None, int]:
        """The newest commit there that the agent may undo, and the clock of the agent's newest commit that is out of
        reach."""
        log = [commit for commit in self.everything if commit.agent == TRANSACTIONS]
        cancelled = {commit.target for commit in log if isinstance(commit, Undo)}
        found, is_in_reach, passed = None, True, 0
        for place, commit in enumerate(reversed(log)):
            is_in_reach = is_in_reach and place < WINDOW and not isinstance(commit, opslog.Seal)
            if commit.by == name and commit.records and commit.clock not in cancelled:
                if not is_in_reach:
                    return found, max(passed, commit.clock)
                found = found or commit
        return found, passed


class AgentsWithTransactionsOnObjects(AgentsWithTransactions):
    """The same where each append is a segment of its own."""

    scheme = "bucket"


class AgentsWithTransactionsAndLargeSnapshots(AgentsWithTransactionsOnObjects):
    """The same with runs that stay on storage. Some parts do not list which of their documents may be guarded."""

    loaded_bytes = 0

    @initialize(most=st.sampled_from([0, 1, 1024]), unknown=st.booleans())
    def limit_lists(self, most: int, unknown: bool) -> None:
        snapshot.SHARED_MAX = most
        self.unknown = unknown

    @precondition(lambda self: self.unknown)
    @rule()
    def forget_lists(self) -> None:
        """As a compaction by opslog 0.1 does."""
        manifest = ManifestStore(self.backend).newest()
        for run in manifest.runs:
            run.parts[:] = [msgspec.structs.replace(part, shared=msgspec.UNSET) for part in run.parts]
        following = msgspec.structs.replace(manifest, number=manifest.number + 1)
        ManifestStore(self.backend).create(following)

    def teardown(self) -> None:
        snapshot.SHARED_MAX = SHARED_MAX
        super().teardown()


TestTransactions = for_examples(AgentsWithTransactions, 60)
TestTransactionsOnObjects = for_examples(AgentsWithTransactionsOnObjects, 60)
TestTransactionsAndLargeSnapshots = for_examples(AgentsWithTransactionsAndLargeSnapshots, 60)
TestTransactionsForLong = pytest.mark.long(for_examples(AgentsWithTransactions, 200))
TestTransactionsOnObjectsForLong = pytest.mark.long(for_examples(AgentsWithTransactionsOnObjects, 200))
TestTransactionsAndLargeSnapshotsForLong = pytest.mark.long(for_examples(AgentsWithTransactionsAndLargeSnapshots, 200))
