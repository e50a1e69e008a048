"""The merge: the documents that follow from a set of commits, in whatever order they are read. Pure.

The rule: per document the record with the greatest stamp wins, among all records of commits that no undo cancels.

A commit that no undo can reach any more (`opslog.merge.undo`) is *settled*. Everything else follows from that:

- Of settled commits, only one winner per document is kept. Only the last `window` commits of each log are kept as
  *recent*, with the records that they compete against. So an undo costs the window and not the tail.
- A compaction may take exactly the settled commits. In each log, the new cut is exactly where the recent commits begin.
- An undo whose target is not recent was already applied, by the compaction that moved the cut past its target: a no-op.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import TYPE_CHECKING, cast

import msgspec

from opslog.format.commits import CLOCK_MAX, Batch, Commit, Delete, Record, Seal, Set, Undo, detached
from opslog.format.layout import TRANSACTIONS
from opslog.format.scanned import ScannedCommits, first_clock
from opslog.merge.stamps import newer, outranks
from opslog.merge.undo import Recent, farthest, newest_in_reach, newest_undoable, reachable_after

if TYPE_CHECKING:
    from opslog.merge.lines import Lines

# How many sets `apply_sets` takes in at most. More would gain nothing, and callers that need the merge would wait
# longer.
_SETS_MAX = 256

# Commits that do not affect other commits of their log.
_PLAIN = frozenset[type]({Set, Delete, Batch})


class _Loading(msgspec.Struct):
    """A log that is loaded backwards from its end: how the `seen` commits affect those before them.

    :ivar room: how many commits may be recent.
    :ivar undone: per clock of a commit that an undo names: how far back from the end of the log that undo reaches.
    :ivar undos: per clock of such a commit: the clock of that undo.
    :ivar reach: a commit farther back than this is not recent, and no undo that was seen reaches it.
    """

    agent: str
    recent: deque[Recent]
    room: int
    reach: int
    undone: dict[int, int] = {}
    undos: dict[int, int] = {}
    seen: int = 0


def _all_settled(log: _Loading, commits: Sequence[Commit]) -> bool:
    """Whether each of the next commits is settled and not cancelled."""
    return log.seen > log.reach and _PLAIN.issuperset(map(type, commits))


class Merge(msgspec.Struct):
    """The merge of the commits applied so far. Logs may be mixed in any way; each log's commits come in their order.

    :ivar window: the store's undo window, in commits of one log.
    :ivar settled: the winners among settled commits, tombstones included, except those that are only in `lines`.
    :ivar lines: settled sets that `load` has not decoded; None: there are none. A record in `settled` outranks the one
        here.
    :ivar recent: per agent its recent commits, oldest first.
    :ivar contested: per document the uncancelled records of recent commits, in no particular order.
    :ivar settled_by: per author the clock of the newest settled commit, in its own log or in the shared log.
    :ivar undone: per document that undos have taken records away from: per agent the clock of the newest such undo in
        its log. The winner of that document depends on those undos, too.
    """

    window: int
    settled: dict[str, Record] = {}
    recent: dict[str, deque[Recent]] = {}
    contested: dict[str, list[Record]] = {}
    settled_by: dict[str, int] = {}
    undone: dict[str, dict[str, int]] = {}
    lines: Lines | None = None

    def apply(self, commit: Commit) -> Iterable[Record]:
        """Take in the next commit of its log. Returns the records that it added or, for an undo, took away; their ids
        are then set as the undo's `ids`."""
        log = self.recent.get(commit.agent)
        if log is None:
            log = self.recent[commit.agent] = deque()
        records = commit.records
        touched: Iterable[Record] = records
        if isinstance(commit, Undo):
            touched = self._cancel(log, commit.target)
            commit.note_ids(tuple(record.id for record in touched))
            self._note_undone(touched, commit.agent, commit.clock)
        else:
            self._contest(records)
        log.append(Recent(commit, records))
        reachable = reachable_after(commit, self.window)
        while len(log) > reachable:
            self._settle(log.popleft())
        return touched

    def apply_sets(self, sets: Sequence[Set]) -> None:
        """As `apply` for each of some plain sets, which are consecutive commits of one log. Those that no undo after
        the last one can reach are settled at once, at a fifth of the cost."""
        agent = sets[0].agent
        log = self.recent.get(agent)
        if log is None:
            log = self.recent[agent] = deque()
        settling = len(log) + len(sets) - self.window
        while settling > 0 and log:
            self._settle(log.popleft())
            settling -= 1
        if settling > 0:
            self._settle_sets(sets[:settling])
            sets = sets[settling:]
        self._contest(sets)
        log.extend([Recent(commit, (commit,)) for commit in sets])

    def sets_at_once(self, agent: str) -> int:
        """How many plain sets of a log to collect for `apply_sets`: as many as pay off, but so few that they settle
        one large batch at a time. The last of these sets waits for all that is settled."""
        log = self.recent.get(agent, ())
        count, records = self.window - len(log), 0
        for entry in log:
            records += len(entry.records)
            if records > _SETS_MAX:
                break
            count += 1
        else:
            count = _SETS_MAX
        return min(max(count, 1), _SETS_MAX)

    def _settle_sets(self, sets: Sequence[Set]) -> None:
        found = {commit.id: commit for commit in sets}  # within a log the later one outranks the earlier
        for id in found.keys() & self.settled.keys() if self.lines is None else list(found):
            best = self._best_settled(id)
            if best is not None and not outranks(found[id], best):
                del found[id]
        self.settled.update(found)
        self._note_settled(sets[-1].agent, sets[-1].clock)

    def shared_ids(self) -> Iterator[str]:
        """The documents that have a record from the shared log in here. It counts even if another record outranks it,
        since an undo may take that one back."""
        for record in self.settled.values():
            if record.agent == TRANSACTIONS:
                yield record.id
        for entry in self.recent.get(TRANSACTIONS, ()):
            for record in entry.records:
                yield record.id

    def touched_by(self, commit: Commit) -> Iterable[Record]:
        """The records that `apply` would return for this commit."""
        if not isinstance(commit, Undo):
            return commit.records
        target = self._find(self.recent.get(commit.agent, ()), commit.target)
        return () if target is None else target.records

    def load(self, chunks: Iterable[tuple[str, Sequence[Commit]]]) -> None:
        """Take in whole logs at once. The result is that of `apply` for their commits one by one. But a commit that was
        overwritten later costs only one lookup, and only kept commits are detached from the bytes that they came in.
        It costs least if newer commits mostly come first, from whichever log: then hardly any record is kept and
        replaced later.

        :param chunks: (agent, commits): consecutive commits of a log, in their order; of each log the newest chunk
            first, and all of the log. No commit of these logs was applied before. Afterwards, `lines` has the sets of
            `ScannedCommits`; if there were none, everything is in `settled`.
        """
        scans = self.lines is None
        logs: dict[str, _Loading] = {}
        settled = self.settled
        oldest = 0 if settled else CLOCK_MAX
        for agent, commits in chunks:
            log = logs.get(agent)
            if log is None:
                recent = self.recent[agent] = deque()
                log = logs[agent] = _Loading(agent, recent, room=self.window, reach=farthest(-1, self.window))
            decoded = commits
            if scans and isinstance(commits, ScannedCommits) and self._take(log, commits):
                decoded = commits.others
            if decoded and _all_settled(log, decoded):
                self._settle_all(log, decoded, oldest)
            else:
                for record in self._settled_in(log, decoded):
                    best = settled.get(record.id)
                    if best is None or outranks(record, best):
                        settled[record.id] = detached(record, agent)
            if commits:
                oldest = min(oldest, first_clock(commits))
        if scans:
            self._settle_lines()

    def _take(self, log: _Loading, commits: ScannedCommits) -> bool:
        """Take the sets of a chunk into `lines`, if all of the chunk is settled and not cancelled. Sets of the shared
        log are never taken, since their authors have to be noted. Returns whether they were taken."""
        if log.agent == TRANSACTIONS or not _all_settled(log, commits.others):
            return False
        if self.lines is None:
            from opslog.merge.lines import Lines  # only where a log is longer than a chunk

            self.lines = Lines()
        if not self.lines.take(commits):
            return False
        log.seen += commits.sets.commits
        self._note_settled(log.agent, commits.clocks[1])
        return True

    def _settle_lines(self) -> None:
        """Remove from `settled` what a line outranks. From now on, a record in `settled` outranks its line."""
        if self.lines is not None:
            for id in list(self.settled):
                line = self.lines.get(id)
                if line is not None and outranks(line, self.settled[id]):
                    del self.settled[id]

    def _settle_all(self, log: _Loading, commits: Sequence[Commit], oldest: int) -> None:
        """Take in commits that are all settled and not cancelled. Within a log the later one outranks the earlier.

        :param oldest: no settled record has a clock below this one.
        """
        for commit in commits if log.agent == TRANSACTIONS else commits[-1:]:
            self._note_author(commit)
        log.seen += len(commits)
        settled = self.settled
        records = _records_of(commits)
        if commits[-1].clock < oldest:  # so each settled record outranks them
            found = {record.id: record for record in records if record.id not in settled}
        else:
            found = {record.id: record for record in records}
            for id in found.keys() & settled.keys():
                if outranks(settled[id], found[id]):
                    del found[id]
        for record in found.values():
            detached(record, log.agent)
        settled.update(found)

    def _settled_in(self, log: _Loading, commits: Sequence[Commit]) -> Iterator[Record]:
        """The records of those commits that are settled and not cancelled; keeps the recent ones."""
        reach = log.reach
        for back, commit in enumerate(reversed(commits), log.seen):
            if back > reach and isinstance(commit, (Set, Delete)):
                self._note_author(commit)
                yield commit
                continue
            if isinstance(commit, Undo):
                reach = log.undone[commit.target] = farthest(back, self.window)
                log.undos[commit.target] = commit.clock
            elif isinstance(commit, Seal):
                log.room = reachable_after(commit, self.window)
                log.undone.clear()
            cancelled = log.undone.get(commit.clock, -1) >= back
            if cancelled:
                self._note_undone(commit.records, log.agent, log.undos[commit.clock])
            if len(log.recent) < log.room:
                kept = detached(commit, log.agent)
                entry = Recent(kept, kept.records, cancelled)
                log.recent.appendleft(entry)
                self._contest(() if cancelled else entry.records)
            elif not cancelled:
                self._note_author(commit)
                yield from commit.records
        log.reach = reach
        log.seen += len(commits)

    def winner(self, id: str) -> Record | None:
        """The record that wins among all applied commits, None where no record is left."""
        best = self._best_settled(id)
        for record in self.contested.get(id, ()):
            best = newer(record, best)
        return best

    def winner_after(self, commit: Commit, record: Record, best: Record | None) -> Record | None:
        """The winner of a document, after `apply` has returned this record of it for this commit.

        :param best: the winner before; None: none, or one that only `lines` has.
        """
        if isinstance(commit, Undo):
            return self.winner(record.id)
        # All that was there before lost to `best`. Comparing with all of it would cost a hundred agents that write one
        # document thousands of comparisons for each commit.
        return newer(record, best or self._best_settled(record.id))

    def _best_settled(self, id: str) -> Record | None:
        best = self.settled.get(id)
        return self.lines.get(id) if best is None and self.lines is not None else best

    def winners(self) -> dict[str, Record]:
        """The winner of each document that has a record, tombstones included, except for documents that are only in
        `lines`."""
        winners = dict(self.settled)
        for id in self.contested:
            winner = self.winner(id)
            assert winner is not None
            winners[id] = winner
        return winners

    def undoable(self, author: str) -> Commit | None:
        """The commit that an undo of an author takes back, in the author's own log or in the shared log; None: nothing
        is in reach."""
        own = newest_undoable(self.recent.get(author, ()))
        shared = newest_undoable(self.recent.get(TRANSACTIONS, ()), author)
        return newest_in_reach(own, shared, self.settled_by.get(author, 0))

    def newest_by_author(self) -> dict[str, int]:
        """Per author the clock of its newest commit that is not cancelled, in its own log or in the shared log."""
        newest = dict(self.settled_by)
        for entry in chain.from_iterable(self.recent.values()):
            if entry.is_undoable:
                author = entry.commit.author
                newest[author] = max(entry.commit.clock, newest.get(author, 0))
        return newest

    def _cancel(self, log: deque[Recent], target: int) -> Iterable[Record]:
        entry = self._find(log, target)
        if entry is None:
            return ()
        entry.cancelled = True
        for record in entry.records:
            self._withdraw(record)
        return entry.records

    @staticmethod
    def _find(log: Iterable[Recent], target: int) -> Recent | None:
        """The commit that an undo of this target would cancel."""
        return next((entry for entry in log if entry.commit.clock == target and not entry.cancelled), None)

    def _contest(self, records: Iterable[Record]) -> None:
        for record in records:
            self.contested.setdefault(record.id, []).append(record)

    def _settle(self, entry: Recent) -> None:
        if entry.cancelled:
            return
        self._note_author(entry.commit)
        settled = self.settled
        for record in entry.records:
            self._withdraw(record)
            best = self._best_settled(record.id)
            if best is None or outranks(record, best):
                settled[record.id] = record

    def _note_undone(self, records: Iterable[Record], agent: str, clock: int) -> None:
        # New dictionaries, since other threads may be reading the old ones. The documents of a large batch share one.
        alone = {agent: clock}
        for record in records:
            known = self.undone.get(record.id)
            self.undone[record.id] = alone if known is None else {**known, agent: max(clock, known.get(agent, 0))}

    def _note_author(self, commit: Commit) -> None:
        if commit.records:  # not an undo: the next undo would not take it back
            self._note_settled(commit.author, commit.clock)

    def _note_settled(self, author: str, clock: int) -> None:
        if clock > self.settled_by.get(author, 0):
            self.settled_by[author] = clock

    def _withdraw(self, record: Record) -> None:
        records = self.contested[record.id]
        if len(records) == 1:
            del self.contested[record.id]
        else:
            # Not list.remove: it would compare field by field, and this must be the same object.
            del records[next(place for place, other in enumerate(records) if other is record)]


def _records_of(commits: Sequence[Commit]) -> Iterable[Record]:
    """The records of sets, deletes and batches, in their order."""
    if Batch in set(map(type, commits)):
        return (record for commit in commits for record in commit.records)
    return cast(Sequence[Record], commits)


def reference(commits: Iterable[Commit]) -> dict[str, Record]:
    """The same result in the plain way, from all commits at once and without any window: `Merge` must equal it.

    Tests, the demo and Spark compare the store with it. Winning tombstones are included.
    """
    commits = list(commits)
    cancelled = {(commit.target, commit.agent) for commit in commits if isinstance(commit, Undo)}
    winners: dict[str, Record] = {}
    for commit in commits:
        if commit.stamp not in cancelled:
            for record in commit.records:
                winners[record.id] = newer(record, winners.get(record.id))
    return winners
