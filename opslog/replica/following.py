"""Following other writers: how an open store takes in their commits, and loads again where reading on is not enough.

This module decides when and how. `opslog.replica.state` holds the commits, and `opslog.replica.news` keeps those that
nobody has asked for yet.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from opslog.concurrency.interpreter import short_switch_interval
from opslog.environment import Environment
from opslog.errors import HistoryGoneError, MissingFileError, ReopenError, UsageError
from opslog.format.commits import Commit, Undo
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.format.manifest import START
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, Seen, Segments, cost_after, list_log
from opslog.log.survey import Survey, read_on, shared_log_first
from opslog.merge.clock import LamportClock
from opslog.replica.decoded import DecodedDocuments
from opslog.replica.loading import Loader
from opslog.replica.memory import Memory
from opslog.replica.news import GAP, News
from opslog.replica.refresh import Step, refresh_decision
from opslog.replica.state import State, View

if TYPE_CHECKING:
    from opslog.compaction.automatic import AutoCompaction
    from opslog.log.writer import LogWriter

R = TypeVar("R")

# A transaction reads the logs by a manifest that may be this old. So commits that a compaction has moved into the
# snapshot may stay in memory this much longer.
_MANIFEST_SECONDS = 1.0


class Following(Memory):
    """The part of an open store that follows what others write. Safe to use from many threads.

    :param read_at: when reading the files of the state began, by the monotonic clock.
    :param agent: whose log is written here; None: nobody's.
    :param author: in whose name transactions are written here; None: nothing is written.
    :param included: for a view of a point in the past, which commits belong to it; None: the store shows the present.
    :ivar clock: has observed everything that is in memory.
    :ivar news: commits of others that nobody has asked for yet.
    :ivar freshness: how recent the state is.
    :ivar log: the writer of the agent's log, None where nothing is written.
    :ivar compaction: the automatic one.
    :ivar is_closed: whether somebody has begun to close the store.
    :ivar decoded: documents of the state that were read lately.
    """

    log: LogWriter | None
    compaction: AutoCompaction
    is_closed: bool
    decoded: DecodedDocuments

    def __init__(
        self,
        loader: Loader,
        state: State,
        *,
        read_at: float,
        agent: str | None,
        author: str | None,
        environment: Environment,
        included: Callable[[Commit], bool] | None,
    ) -> None:
        super().__init__(state)
        self.backend = loader.backend
        self.loader = loader
        self.agent = agent
        self.author = author
        self.environment = environment
        self.included = included
        self.clock = LamportClock(state.clock)
        self.news = News(state.cursors)
        self.freshness = Freshness(loader.manifests, environment, state.manifest, read_at)
        self._refresh_lock = threading.RLock()
        # The threads that are in a block under `_refresh_lock`, or about to enter one.
        self._refreshing: set[int] = set()

    @property
    @abstractmethod
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child of the process that opened the store."""

    @abstractmethod
    def check_open(self) -> None:
        """:raises ClosedError: the store is closed, or belongs to the parent of this process."""

    def refresh(self) -> None:
        """Take in what other agents wrote, and keep those commits as news if anybody wants them. The cost depends only
        on how much is new. A view of the past does not change.

        :raises ClosedError: as of `check_open`.
        :raises UsageError: called by a signal handler that came while its own thread was refreshing.
        """
        self.check_open()
        if self.included is None:
            self._one_at_a_time(self._read_new)

    def refresh_for_news(self) -> None:
        """As `refresh`, for a caller that asks for the news next."""
        self.news.is_wanted = True
        self.refresh()

    def read_logs(self) -> None:
        """Take in what other agents wrote, as `refresh` does, for a transaction. Where locks hold the names of agents,
        this saves a listing: it uses the manifest that was read last, unless that was longer than `_MANIFEST_SECONDS`
        ago. Errors as of `refresh`.

        No commit is missed. Every commit is in a log first, and its segment stays there until a manifest that does not
        need the segment has been the newest for the grace period. The manifest used here was the newest less than half
        a grace period ago, which is checked after the logs were listed. So every segment that it has not compacted was
        there to be listed.
        """
        self.check_open()
        if self.included is None:
            self._one_at_a_time(partial(self._read_new, by_known=self.backend.segments_grow))

    def refresh_if_stale(self) -> None:
        """Call it before a commit is stamped; otherwise, the commit might bring back what was deleted long ago."""
        if self.freshness.is_stale:
            self.refresh()

    def next_news(self) -> Commit | None:
        """The next commit of another agent that this method has not returned yet; None if there is none.

        :raises HistoryGoneError: commits were collected before they could be read here.
        """
        commit = self.news.take_one()
        if commit is GAP:
            raise HistoryGoneError(
                "commits were compacted and collected before they were read here, after an absence longer than the "
                "grace period. The state is right; call watch again to follow from here",
                self.state.manifest.clock,
            )
        return commit

    def check_may_wait(self) -> None:
        """Call it before anything that waits for other threads: those may be waiting for this one.

        :raises UsageError: called by the handler of a signal that came while its own thread was in the state, or in the
            log.
        """
        self.check_not_in_state()
        if self.log is not None:
            self.log.check_entry()

    def check_not_refreshing(self) -> None:
        """Call it before anything that waits for threads that may have to refresh.

        :raises UsageError: called by the handler of a signal that came while its own thread was refreshing.
        """
        if threading.get_ident() in self._refreshing:
            raise UsageError(
                "this call came while the same thread was taking in what others wrote, as the handler of a signal "
                "does: let the handler set a flag, and make the call after it has returned"
            )

    def _one_at_a_time(self, work: Callable[[], None]) -> None:
        """Do work that takes in what others wrote, one thread at a time. Errors as of `check_not_refreshing`."""
        self.check_may_wait()
        self.check_not_refreshing()
        me = threading.get_ident()
        try:
            # Before it has the lock. Other threads wait for the lock as long as a signal handler runs, so the handler
            # has to find this thread in here.
            self._refreshing.add(me)
            with self._refresh_lock:
                work()
        finally:
            self._refreshing.discard(me)

    def _read_new(self, *, by_known: bool = False) -> None:
        """Take what is new into the state and the news.

        :param by_known: whether the manifest that was read last may be used, if it is recent.

        If anything ends this early, the next call goes on from there: the cursors move together with the commits, and
        the time of this read counts only when everything is in.
        """
        self._catch_up()
        at = self.environment.monotonic()
        state = self.state
        by_known = by_known and self.freshness.is_recent_by(_MANIFEST_SECONDS)
        if by_known:
            newest, listed = self.freshness.newest, None
        else:
            newest, listed = self.loader.manifests.newest_with_logs(Seen(state.cursors))
            self.freshness.note(newest, at)
        found: Survey | None = None
        progress = state.progress(self.agent)
        decision = refresh_decision(progress, newest)
        if decision.step is Step.LIST_LOGS:
            found = state.list_logs(self.backend, newest, listed)
            if self.log is not None:
                found = shared_log_first(self.backend, found, self.log.agent)
            if by_known and not self.freshness.is_recent:  # this process was paused
                self._read_new()
                return
            own = found.segments.get(self.agent or "", [])
            has_more = self.log is not None and self.log.session.has_more(own)
            decision = refresh_decision(progress, newest, found.segments, own_has_more=has_more)
        logs = decision.logs
        if found is None or decision.step is Step.RELOAD or (logs and not self._read_on(logs)):
            self._reload()
            return
        state.listed = found.listed
        self.freshness.read_at = at
        if not by_known:
            # Last, because it counts the whole tail, including the commits that were just read.
            self.compaction.note_manifest(newest)

    def _read_on(self, logs: Segments) -> bool:
        """Take in the commits of these logs after the cursors; False if the state has to be loaded again."""
        cursors = self.state.cursors
        cost = cost_after(logs, cursors)
        # Where locks hold the names of agents, nobody uses the number of a segment twice.
        check = None if self.backend.segments_grow else self.freshness.check_recent
        try:
            for commits, cursor in read_on(self.backend, cursors, logs, check):
                self._take(commits, cursor, self._of_others(commits))
        except MissingFileError:
            return False
        if self.state.is_torn:  # by a write of another thread; since then it has taken in nothing
            return False
        self.compaction.tail_cost += cost
        return True

    def _take(self, commits: Sequence[Commit], cursor: Cursor, news: Sequence[Commit]) -> None:
        """Take the next commits of another agent's log, or of the shared log, into the state, and some of them into the
        news.

        :param cursor: where they end.
        """

        def coming() -> Iterator[Commit]:
            # Before the first one comes in: otherwise, a thread could read it and answer it with a smaller clock. And
            # in here, so that an interrupt leaves the state torn: a plain write must not outrank a commit that is not
            # in memory.
            if commits:
                if cursor.agent == TRANSACTIONS or (self.guards and any(type(commit) is Undo for commit in commits)):
                    self.guards += 1
                self.clock.observe(commits[-1].clock)
            yield from commits

        def note_end(state: State) -> None:
            if self.news.cursors is state.cursors:
                self.news.add(news, cursor)
            else:
                # Nobody wants the news. Or this is a store's own transaction, after another thread has loaded the state
                # again and not yet caught up: the news read it, and leave it out, with what came in by loading.
                state.cursors[cursor.agent] = cursor

        self.change(lambda state: state.apply(coming(), partial(note_end, state)))

    def _of_others(self, commits: Sequence[Commit]) -> Sequence[Commit]:
        """These commits without this author's own transactions, which are no news here. Transactions of this store in
        the name of another author are."""
        return [commit for commit in commits if not (commit.by and commit.by == self.author)]

    # -- transactions, which this store has in memory before the next refresh reads their log

    def freeze(self) -> View:
        """A view of the current state that does not change while a transaction is decided on it."""
        return self.read(State.freeze)

    def read_frozen(self, read: Callable[[], R]) -> R:
        """The result of a function that reads a view, called while nobody changes the state.

        :raises ClosedError: the store belongs to the parent of this process.
        """
        if self.is_forked:
            self.check_open()  # raises
        return self.change(lambda state: read())

    def between_refreshes(self, work: Callable[[], R]) -> R:
        """The result of `work`, called while nobody takes in what others wrote. Reads nothing of the state."""
        results: list[R] = []
        self._one_at_a_time(lambda: results.append(work()))
        return results[0]

    def take_own(self, commits: Sequence[Commit], end: Cursor) -> None:
        """Take in transactions that this store has just appended to the shared log.

        :param end: where the shared log ends now.
        """
        self.guards += 1  # also if the state is torn and does not take them in
        self._take(commits, end, self._of_others(commits))

    def _reload(self) -> None:
        """Load again, and read into the news the commits that only the new state has."""
        self._load_again()
        self._catch_up()

    def _catch_up(self) -> None:
        """Read into the news, if anybody wants them, the commits that came into the state and not into the news: by
        loading, or before anybody wanted them."""
        state, old = self.state, self.news.cursors
        if not self.news.is_wanted or old is state.cursors:
            return
        new = tuple(state.cursors.items())
        if all(agent == self.agent or cursor.commits == old.get(agent, START).commits for agent, cursor in new):
            self.news.catch_up((), True, state.cursors)
            return
        from opslog.replica.between import read_between  # few programs need it

        missed, complete = read_between(self.backend, old, state, self.agent)
        self.news.catch_up(self._of_others(missed), complete, state.cursors)

    def forget_compacted(self) -> None:
        """After a compaction: forget what is in the snapshot now. Otherwise, a store that only writes would hold
        everything that it has ever written. It does not wait for a refresh that is under way, since that does the same.
        """
        if not self._refreshing:
            self._one_at_a_time(self._forget_winners)

    def _forget_winners(self) -> None:
        if self.state.has_many_winners and not self.is_closed:
            decision = refresh_decision(self.state.progress(self.agent), self.loader.manifests.newest())
            if decision.step is Step.RELOAD:
                self._load_again()

    def _load_again(self) -> None:
        """Load while other threads write. They wait only while the commits that they wrote meanwhile are read."""
        with short_switch_interval():
            at = self.environment.monotonic()
            old = self.state
            while True:
                state = self.loader.load()
                try:
                    self._go_on_with(state)
                    break
                except MissingFileError as error:
                    # If there is a newer manifest, a compaction has collected it since the load, and loading again
                    # helps.
                    if self.loader.manifests.newest_number() == state.manifest.number:
                        raise self.loader.manifests.lost(state.manifest, error) from error
            self.freshness.note(state.manifest, at)
            self.freshness.read_at = at
            self.compaction.note_manifest(state.manifest)
            old.empty()

    def _go_on_with(self, state: State) -> None:
        """Replace the state by one that was just loaded, with the commits that were written here since.

        :raises MissingFileError: some of those commits are not there any more.
        """
        log = self.log
        if log is None:
            self._swap(state, None)
        else:
            log.quiet(lambda queue: self._swap(state, log))

    def _swap(self, state: State, log: LogWriter | None) -> None:
        if log is not None:
            self._read_own(state, log)

        def swap(old: State) -> None:
            state.take_indexes(old)
            self.decoded.clear()  # before the swap: after an exception, the rest has to fit the state that is there
            # First the clock, as in `_take`. Until the new state is in its place, the old one counts as torn.
            old.is_torn = True
            if state.has_transactions:
                self.guards += 1
            self.clock.observe(state.clock)
            self.state = state

        self.change(swap)
        if log is not None:
            try:
                log.session.resume(state.cursors[log.agent], state.manifest)
            except BaseException:
                state.is_torn = True  # otherwise, nobody would know how much of the own log is in it
                raise

    def _read_own(self, state: State, log: LogWriter) -> None:
        """Read into a state what was written here since it was loaded.

        :raises MissingFileError: it is not there any more.
        """
        own = state.cursors.setdefault(log.agent, Cursor(log.agent))
        state.apply(commit for _, commit in own.read(self.backend, list_log(self.backend, log.agent)))
        last = log.session.last_segment
        if not self.backend.segments_grow and own.cut.last_segment < last:
            path = segment_path(log.agent, last)
            raise MissingFileError(f"{path} is missing, and was written here", path)

    def replace(self, state: State, missing: MissingFileError | None) -> None:
        if self.included is not None:
            reason = f"needs {missing.path}, which was collected meanwhile" if missing else "is torn by an exception"
            raise ReopenError(f"this view of the past {reason}: open it again")

        def replace() -> None:
            if self.state is state:
                self._reload()
            if missing is not None and self.state.manifest.number == state.manifest.number:
                raise self.loader.manifests.lost(state.manifest, missing)

        self._one_at_a_time(replace)
