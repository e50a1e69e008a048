"""The state of a store in memory: the snapshot, with the winners of the tail over it.

A state starts from a manifest and takes in commits. For every document it returns the record that wins among the
snapshot and these commits. It does no locking of its own.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opslog.backends import Backend, Entry
from opslog.errors import UsageError
from opslog.format.commits import Commit, Delete, Record, Set
from opslog.format.layout import TRANSACTIONS
from opslog.format.manifest import Manifest
from opslog.format.scanned import greatest_ts, last_clock
from opslog.format.snapshot import Row, SortedLines
from opslog.log.reader import Cursor
from opslog.log.survey import Survey, at_cut, list_logs
from opslog.merge.merge import Merge
from opslog.merge.ordering import in_order
from opslog.merge.stamps import newer
from opslog.replica.live import Layers, LinesOverRuns, live_records, retained
from opslog.replica.refresh import Progress
from opslog.snapshot.runs import BlockRun, LoadedRun, SortedRecords, StoredRun, newest_records

if TYPE_CHECKING:
    from opslog.merge.lines import Lines
    from opslog.replica.indexes import Indexes
    from opslog.snapshot.shared_ids import SharedIds

R = TypeVar("R")

# A state with more winners of the tail than this is loaded again once some of them are in a snapshot.
_WINNERS_MAX = 10_000


class State:
    """The documents and log positions that one reader has read.

    :ivar manifest: the manifest that it was loaded from.
    :ivar runs: the snapshot, newest first.
    :ivar passed: the newest manifest that did not make it necessary to load again. Everything up to its cut was read.
    :ivar winners: per document the winner among the commits of the tail, tombstones included; the snapshot may have a
        newer record.
    :ivar lines: further winners of the tail, all of them sets. `winners` overrides them: a document that is in both is
        outdated here. None: there are none. Does not change.
    :ivar cursors: per agent how far its log was read.
    :ivar clock: the greatest clock, compacted commits included.
    :ivar commits: the number of commits, compacted ones included.
    :ivar tail_cost: the cost of reading the logs after the manifest's cut (`cost_after`), when it was loaded.
    :ivar listed: the agents whose logs had files at the last listing. If one has none at the next listing, they were
        collected, or lost. All other logs need no files, so they cost a refresh nothing.
    :ivar shared_ids: the documents that have a record from the shared log here, even if another record outranks it now.
        Made by the first call of `guards`; later ones are added, and none is removed. None: not made yet.
    :ivar is_torn: whether an exception, such as one that a signal handler raised, ended `apply` half-way, or commits
        that are here came into their log under other stamps. The state is then not that of any moment: nobody may read
        it, and it has to be loaded again.

    Taking in commits never reads the snapshot. Reading a document does, and may raise MissingFileError if another
    compaction has replaced and collected the snapshot meanwhile. The caller then loads again.
    """

    def __init__(self, found: Survey, runs: list[StoredRun]) -> None:
        self.manifest = manifest = found.manifest
        self.runs = runs
        self._merge = Merge(manifest.settings.undo_window, settled_by=dict(manifest.settled_by))
        # Plain sets that are in the state already, except in `_merge`: consecutive commits of one log, and newer than
        # everything else.
        self._unmerged: list[Set] = []
        self._unmerged_max = 0
        self.winners: dict[str, Record] = {}
        self.lines: Lines | None = None
        self.clock = manifest.clock
        self.commits = manifest.commits
        self.tail_cost = found.log_cost
        self.cursors = found.cursors
        self.listed = found.listed
        # The greatest ts of the shared log.
        self.shared_ts = manifest.ts if TRANSACTIONS in manifest.cut else ""
        self.passed = manifest
        self._documents = manifest.documents
        # Whether `_documents` counts a document; one that is not in here counts if the snapshot has it.
        self._counted: dict[str, bool] = {}
        # Whether the winners that were loaded are counted. That waits until somebody asks for the number.
        self._counts_loaded = False
        # The documents that were written since.
        self._uncounted: set[str] = set()
        self.is_torn = False
        self.shared_ids: SharedIds | None = None
        # The views of earlier moments of this state that somebody still reads.
        self._views: list[weakref.ref[View]] = []
        # None: nobody has asked a question yet.
        self.indexes: Indexes | None = None
        # Whether `apply`, the counting of documents or a question is under way.
        self._is_busy = False

    def apply(self, commits: Iterable[Commit], then: Callable[[], None] | None = None) -> None:
        """Take in the next commits of their logs. An exception that ends this early leaves the state torn. A torn state
        takes in nothing: everything is in the logs, from which it is loaded again.

        :param then: called as the last step, when all commits are in; its exceptions leave the state torn, too.
        :raises UsageError: as of `check_idle`; nothing has changed.
        """
        if self._is_busy:
            self.check_idle()  # raises
        if self.is_torn:
            return
        self._is_busy = True
        try:
            for commit in commits:
                self._apply(commit)
            if then is not None:
                then()
        except BaseException:
            self.is_torn = True
            raise
        finally:
            self._is_busy = False

    def take(self, commit: Commit, before: dict[str, Record | None]) -> tuple[str, ...]:
        """Take in the next commit of its log.

        :param before: gets the record that has counted so far for each document that the commit touches, unless it has
            that document already.
        :returns: these documents; for an undo, those that it gives back.
        """
        ids = tuple(record.id for record in self.merge.touched_by(commit))
        for id in ids:
            if id not in before:
                before[id] = self.record(id)
        self.apply((commit,))
        return ids

    @property
    def ends(self) -> dict[str, tuple[int, int]]:
        """Per agent the position in its log at which this state ends."""
        return {agent: cursor.position for agent, cursor in self.cursors.items()}

    def cursor(self, agent: str) -> Cursor:
        """A copy of the cursor in a log."""
        return msgspec.structs.replace(self.cursors.get(agent) or Cursor(agent))

    def check_idle(self) -> None:
        """:raises UsageError: `apply`, the counting of documents or a question is under way. Since threads exclude each
        other, the caller is a signal handler that interrupted it in its own thread.
        """
        if self._is_busy:
            raise UsageError(
                "this call came while the same thread was changing what the store has in memory, as the handler of a "
                "signal does: let the handler set a flag, and make the call after it has returned"
            )

    def _apply(self, commit: Commit) -> None:
        before, clock = self.clock, commit.clock
        if clock > before:
            self.clock = clock
        self.commits += 1
        if commit.agent == TRANSACTIONS:
            self.shared_ts = max(self.shared_ts, commit.ts)
            if self.shared_ids is not None:
                self.shared_ids.add(record.id for record in commit.records)
        indexes = self.indexes  # another thread, or a handler of a signal, may close the store
        if clock > before and type(commit) is Set and not (commit.by or self._views):
            # A short way for a set that is newer than everything before it, with the same result as the code below. The
            # merge takes in many such sets at once.
            unmerged = self._unmerged
            if unmerged and (len(unmerged) >= self._unmerged_max or unmerged[0].agent != commit.agent):
                self._merge_sets()
                unmerged = self._unmerged
            if not unmerged:
                self._unmerged_max = self._merge.sets_at_once(commit.agent)
            if indexes is not None:
                indexes.note(commit.id)
            self.winners[commit.id] = commit
            unmerged.append(commit)
            return
        for record in self.merge.apply(commit):
            # A record that is newer than everything before it wins. The records of an undo are older ones, which it
            # takes away.
            best = self.winners.get(record.id)
            winner = record if record.clock > before else self._merge.winner_after(commit, record, best)
            if self._views:
                self._keep(record.id)
            if indexes is not None:
                indexes.note(record.id)
            if winner is None:
                self.winners.pop(record.id, None)
            else:
                self.winners[record.id] = winner
            self._uncounted.add(record.id)

    @property
    def merge(self) -> Merge:
        """The merge of all commits that were taken in. Only for a caller that has the state to itself."""
        if self._unmerged:
            self._merge_sets()
        return self._merge

    def _merge_sets(self) -> None:
        was_busy, self._is_busy = self._is_busy, True
        try:
            if not self.is_torn:
                sets, self._unmerged = self._unmerged, []
                self._merge.apply_sets(sets)
                self._uncounted.update([commit.id for commit in sets])
        except BaseException:
            self.is_torn = True
            raise
        finally:
            self._is_busy = was_busy

    def _keep(self, id: str) -> None:
        """The winner of a document is about to change."""
        for held in self._views:
            if (view := held()) is not None:
                view.keep(id, self.winners.get(id))

    def load(self, chunks: Iterable[tuple[str, Sequence[Commit]]]) -> None:
        """Take in whole logs at once, before anything else; see `Merge.load`."""
        self._merge.load(self._count(chunks))
        self.winners = self._merge.winners()
        self.lines = self._merge.lines

    def _count(self, chunks: Iterable[tuple[str, Sequence[Commit]]]) -> Iterator[tuple[str, Sequence[Commit]]]:
        for agent, commits in chunks:
            self.commits += len(commits)
            if commits:
                self.clock = max(self.clock, last_clock(commits))
                if agent == TRANSACTIONS:
                    self.shared_ts = max(self.shared_ts, greatest_ts(commits))
            yield agent, commits

    @property
    def documents(self) -> int:
        """How many documents there are. Costs a lookup for each that was written since this was asked last.

        :raises UsageError: as of `check_idle`.
        """
        self.check_idle()
        self._is_busy = True
        try:
            if not self._counts_loaded:
                for id in in_order(self.winners):
                    self._recount(id)
                if self.lines is not None:
                    # Last: a count that reading the snapshot ends early begins again, and adds no lines twice.
                    self._documents += self._count_lines(self.lines)
                self._counts_loaded = True
            if self._unmerged:
                self._merge_sets()
            for id in sorted(self._uncounted):
                self._recount(id)
                self._uncounted.discard(id)
            return self._documents
        finally:
            self._is_busy = False

    def _recount(self, id: str) -> None:
        before = self._counted.get(id)
        if before is None:
            before = isinstance(self.record_over(id, None), Set) if self._in_lines(id) else bool(self._stored_live(id))
        now = self._counted[id] = self.contains(id)
        self._documents += now - before

    def _count_lines(self, lines: Lines) -> int:
        """How many documents `lines` add to those of the snapshot, without regard to `winners`."""
        if not self.runs:
            return len(lines)
        return sum(isinstance(self.record_over(id, None), Set) - bool(self._stored_live(id)) for id in lines.ids())

    def _in_lines(self, id: str) -> bool:
        return self.lines is not None and id in self.lines

    def ask(self, query: Callable[[State], R]) -> R:
        """The result of a query, which may update the indexes.

        :raises UsageError: as of `check_idle`.
        """
        self.check_idle()
        self._is_busy = True
        try:
            return query(self)
        finally:
            self._is_busy = False

    def take_indexes(self, before: State) -> None:
        """Take over the indexes of the state that this one replaces. Documents that differ are in a tail of one of the
        two, or in a run that only one of them has. If such a run is read from storage, the indexes are dropped."""
        indexes, before.indexes = before.indexes, None
        if indexes is None:
            return
        ours, theirs = ({run.run.name: run for run in state.runs} for state in (self, before))
        for name in ours.keys() ^ theirs.keys():
            run = ours.get(name) or theirs[name]
            if not isinstance(run, LoadedRun):
                indexes.drop()
                return
            indexes.note_all(run.by_id)
        for state in (before, self):
            indexes.note_all(state.winners)
            if state.lines is not None:
                indexes.note_all(state.lines.ids())
        self.indexes = indexes

    @property
    def has_many_winners(self) -> bool:
        """Whether so many winners are in memory that it pays to check whether a snapshot has some of them by now."""
        return len(self.winners) + (0 if self.lines is None else len(self.lines)) > _WINNERS_MAX

    def empty(self) -> None:
        """Free the records of a state that nobody uses any more, one by one: to free a million of them at once would
        block all other threads for that time."""
        if any(held() is not None for held in self._views):
            return  # a transaction still uses it
        self.lines = self._merge.lines = None
        self._unmerged = []
        for held in (self.winners, self._merge.settled, self._counted):
            while held:
                held.popitem()
        while self._uncounted:
            self._uncounted.pop()

    def progress(self, agent: str | None) -> Progress:
        """What was read, as `refresh_decision` takes it.

        :param agent: whose log needs no reading, because it is written here.
        """
        runs = frozenset(run.run.name for run in self.runs if isinstance(run, BlockRun))
        return Progress(
            self.manifest.number,
            self.passed.number,
            self.cursors,
            agent,
            runs,
            has_many_winners=self.has_many_winners,
            is_torn=self.is_torn,
        )

    def list_logs(self, backend: Backend, newest: Manifest, listed: Iterable[Entry] | None = None) -> Survey:
        """List the parts of the logs that were not read yet, by a manifest that does not make it necessary to load
        again. From now on, until everything is read, the files in this listing must be there.

        :param listed: the listing, if it was made together with that of the manifests.
        """
        known: Iterable[str] = self.listed
        if newest.number != self.passed.number:
            at_cut(newest, self.cursors)
            known = {*known, *newest.log_ends}
        found = list_logs(backend, newest, self.cursors, known, listed)
        self.listed = frozenset(found.segments)
        self.passed = newest  # now, since a listing that fails must not make the next one forget what must be there
        return found

    def get(self, id: str) -> Set | None:
        """The record of a document, None where there is none."""
        record = self.record_over(id, self.winners.get(id))
        return record if isinstance(record, Set) else None

    def contains(self, id: str) -> bool:
        winner = self.winners.get(id)
        if winner is None and self.lines is not None:
            winner = self.lines.get(id)
        if winner is None:
            return bool(self._stored_live(id))
        return isinstance(winner if self._outranks_all(winner) else self.record(id), Set)

    def records(self, overlay: dict[str, Record] | None = None) -> Iterator[Set]:
        """All documents' records in order of id, as they are at the call, however long the iteration takes.

        :param overlay: records that outrank everything else (those of an open batch).
        """
        for run in self.runs:
            run.hold()
        overlay = overlay or {}
        return retained(live_records(self.below(), self.winners | overlay, frozenset(overlay)))

    def rows(self) -> Iterator[Row | SortedLines]:
        """`records` as their lines. In a store without a snapshot, `lines` are passed on as they are, not decoded."""
        if self.lines is None or self.runs:
            return map(Row.new, self.records())
        above = map(Row.new, sorted(self.winners.values(), key=attrgetter("id")))
        return (row for row in self.lines.over(above) if not isinstance(row, Row) or row.deleted is None)

    def below(self) -> Sequence[SortedRecords]:
        """The sorted records that the `winners` override. The runs must be held."""
        return list(self.runs) if self.lines is None else [LinesOverRuns(self.lines, list(self.runs))]

    def freeze(self) -> View:
        """A view of this state as it is now. It is kept as long as somebody has it, or until `View.release`."""
        view = View(self)
        self._views = [*self._held_views(None), weakref.ref(view)]
        return view

    def release(self, view: View) -> None:
        """Nobody reads this view any more."""
        self._views = self._held_views(view)

    def _held_views(self, but: View | None) -> list[weakref.ref[View]]:
        """The other views that somebody still has. The references are weak: otherwise, a block that is never left, or a
        call that was interrupted, would keep every later change in memory."""
        return [held for held in self._views if held() not in (None, but)]

    @property
    def has_transactions(self) -> bool:
        """Whether any document may be guarded. True for a torn state: a transaction may be in the log alone."""
        return self.is_torn or TRANSACTIONS in self.cursors

    def guards(self, ids: Iterable[str]) -> bool:
        """Whether one of these documents is guarded: its last write was in a transaction. Costs a lookup only for those
        that a transaction may have written, according to the manifest."""
        if not self.has_transactions:
            return False
        if self.shared_ids is None:
            from opslog.snapshot.shared_ids import SharedIds

            self.shared_ids = SharedIds((run.run for run in self.runs), self.merge.shared_ids())
        return any(self.shared_ids.may_have(id) and self._is_guarded(id) for id in ids)

    def _is_guarded(self, id: str) -> bool:
        record = self.record(id)
        return record is not None and record.agent == TRANSACTIONS

    def record(self, id: str) -> Record | None:
        """The record that counts for a document, which may be a tombstone; None: there is none."""
        return self.record_over(id, self.winners.get(id))

    def record_over(self, id: str, winner: Record | None) -> Record | None:
        """The record that counts for a document: this winner of the tail or the record of the snapshot, whichever is
        newer.

        :param winner: of `winners`; None: there is none.
        """
        if winner is None and self.lines is not None:
            winner = self.lines.get(id)
        if winner is not None and winner.clock > self.manifest.clock:  # `_outranks_all`, without a call
            return winner
        for run in self.runs:
            stored = run.get(id)
            if stored is not None:
                return stored if winner is None else newer(winner, stored)
        return winner

    def snapshot(self) -> Callable[[], Iterator[Set]]:
        """All documents' records in order of id, as they are at this call. They may be iterated later, and many times.

        :raises MissingFileError: the snapshot was replaced and collected.
        :raises RetryError: when iterated: likewise.
        """
        for run in self.runs:
            run.hold()
        below, winners = self.below(), dict(self.winners)
        return lambda: retained(live_records(below, winners))

    def layers(self) -> Layers:
        """All documents, as they are at this call. The cost depends on how much was written since the oldest run.

        :raises MissingFileError: the snapshot was replaced and collected.
        """
        for run in self.runs:
            run.hold()
        above = {record.id: record for record in newest_records(self.runs[:-1])}
        for id, winner in self.winners.items():
            above[id] = self.record_over(id, winner) or winner
        if not self.runs:
            lines: Iterator[bytes | memoryview] = iter(()) if self.lines is None else self.lines.texts()
            return Layers(lines, has_tombstones=False, above=above)
        if self.lines is not None:
            for id in self.lines.ids():
                if id not in self.winners and (record := self.record_over(id, None)) is not None:
                    above[id] = record
        oldest = self.runs[-1]
        return Layers(retained(oldest.lines()), oldest.run.live < oldest.run.records, above)

    def _outranks_all(self, winner: Record) -> bool:
        """Whether it is newer than the whole snapshot, so that nothing has to be looked up."""
        return winner.clock > self.manifest.clock

    def _stored_live(self, id: str) -> bool | None:
        return next((live for run in self.runs if (live := run.is_live(id)) is not None), None)


class View:
    """A state as it was at one moment, while the state itself goes on. Made by `State.freeze`. Like the state it does
    no locking of its own. Takes memory only for documents that change while it exists.

    :ivar state: the state.
    :ivar end: where the shared log ended at that moment.
    :ivar changed: per document that has changed since, the winner that the tail had before; None: it had none.
    :ivar is_released: whether it was released, so that `changed` is not complete any more.
    """

    def __init__(self, state: State) -> None:
        self.state = state
        cursor = state.cursors.get(TRANSACTIONS)
        self.end = Cursor(TRANSACTIONS) if cursor is None else msgspec.structs.replace(cursor)
        self.changed: dict[str, Record | None] = {}
        self.is_released = False

    def keep(self, id: str, winner: Record | None) -> None:
        """The winner of a document is about to change."""
        self.changed.setdefault(id, winner)

    def record(self, id: str) -> Record | None:
        """The record that counted for a document, which may be a tombstone; None: there was none."""
        changed = self.changed
        return self.state.record_over(id, changed[id] if id in changed else self.state.winners.get(id))

    def undone(self, id: str | None = None) -> Iterable[tuple[str, int]]:
        """The undos that took something away from a document: agents and clocks.

        :param id: None: from any document.
        """
        undone = self.state.merge.undone
        if id is not None:
            return undone.get(id, {}).items()
        return [undo for undos in undone.values() for undo in undos.items()]

    def records(self, overlay: dict[str, Record], agents: set[str]) -> Iterator[Set]:
        """As `State.records`, but raises MissingFileError where that raises RetryError.

        :param agents: gets the agents that deleted documents which the snapshot may have.
        """
        winners = dict(self.state.winners)
        for id, winner in self.changed.items():
            if winner is None:
                winners.pop(id, None)
            else:
                winners[id] = winner
        agents.update(winner.agent for winner in winners.values() if isinstance(winner, Delete))
        for run in self.state.runs:
            run.hold()
        return live_records(self.state.below(), winners | overlay, frozenset(overlay))

    def release(self) -> None:
        """Release this view, when nobody reads it any more. Idempotent."""
        self.is_released = True
        self.state.release(self)
