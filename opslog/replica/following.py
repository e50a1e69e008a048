"""How what others write comes into an open store: `refresh`, `watch`, and loading anew where reading on is not enough.

`opslog.replica.state` reads, `opslog.replica.news` keeps what was not handed out; here is decided when and how.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

from opslog.backends import Backend, forking
from opslog.compaction.automatic import AutoCompaction
from opslog.environment import Environment
from opslog.errors import ClosedError, HistoryGoneError, MissingFileError, ReopenError, UsageError
from opslog.format.commits import Commit
from opslog.format.documents import Schema
from opslog.format.layout import segment_path
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, Segments, cost_after, list_log
from opslog.log.survey import Survey, read_on
from opslog.log.writer import LogWriter
from opslog.merge.clock import LamportClock
from opslog.replica.news import GAP, News
from opslog.replica.reading import Documents
from opslog.replica.refresh import Step, refresh_decision
from opslog.replica.state import Loader, State, read_between

T = TypeVar("T")


class Following(Documents[T]):
    """The part of a store that follows what others write. Safe to use from many threads.

    :param read_at: when reading what the state rests on began, by the monotonic clock.
    :param included: which commits belong to the point in the past that this is a view of; None: it is of the present.
    """

    _log: LogWriter | None
    _compaction: AutoCompaction

    def __init__(
        self,
        backend: Backend,
        loader: Loader,
        state: State,
        schema: Schema[T],
        *,
        read_at: float,
        agent: str | None,
        environment: Environment,
        included: Callable[[Commit], bool] | None,
    ) -> None:
        super().__init__(backend, state, schema)
        self._loader = loader
        self._agent = agent
        self._environment = environment
        self._included = included
        self._closed = False
        self._generation = forking.generation
        self._clock = LamportClock(state.clock)
        self._refresh_lock = threading.RLock()
        # Whether somebody is in a block under `_refresh_lock`; see `_in_state`.
        self._is_refreshing = False
        self._news = News(state.cursors)
        self._freshness = Freshness(loader.manifests, environment, state.manifest, read_at)

    @property
    def _is_forked(self) -> bool:
        return self._generation != forking.generation

    def refresh(self) -> list[Commit]:
        """Take in what other agents wrote, and return those commits, log by log. Costs what is new.

        Each commit is returned once, by `refresh` or by `watch`. After an absence longer than the grace period, commits
        that were compacted and collected meanwhile are in the state but not in the list; `watch` reports that.

        :raises UsageError: called by a signal handler that came while its own thread was refreshing.
        """
        self._not_in_batch("refresh")
        self._bring_news()
        return self._news.take_all()

    def watch(self, poll_seconds: float = 0.2) -> Iterator[Commit]:
        """The commits of other agents as they come in, without end; looks for them every `poll_seconds`.

        Each commit is returned once, by one `watch` or by `refresh`: what a watch that is left has not given is there
        for the next one. Ends when the store is closed.

        :raises HistoryGoneError: commits were collected before they could be read here; the state is right all the
            same, and a new `watch` goes on from it.
        """
        while not self._closed:
            try:
                self._bring_news()
            except ClosedError:
                if self._is_forked:
                    raise
                return  # closed while it was looking
            is_quiet = True
            while (commit := self._next_news()) is not None:
                is_quiet = False
                yield commit
            if is_quiet:
                self._environment.sleep(poll_seconds)

    def _bring_news(self) -> None:
        """Refresh, for whoever asks for the news."""
        self._check_open()
        if self._included is None:  # a point in the past does not move
            self._refresh_quietly()

    def _next_news(self) -> Commit | None:
        """The next commit that was not handed out, None if there is none.

        :raises HistoryGoneError: as of `watch`.
        """
        commit = self._news.take_one()
        if commit is GAP:
            raise HistoryGoneError(
                "commits were compacted and collected before they were read here, after an absence longer than the "
                "grace period. The state is right; call watch again to follow from here",
                self._state.manifest.clock,
            )
        return commit

    def _refresh_if_stale(self) -> None:
        if self._freshness.is_stale:
            self._refresh_quietly()

    def _check_may_wait(self) -> None:
        """To be called before anything that waits for other threads, which may wait for this one in turn.

        :raises UsageError: called by the handler of a signal that came while its own thread was in the state, or in the
            log.
        """
        self._check_not_in_state()
        if self._log is not None:
            self._log.check_entry()

    def _refresh_quietly(self) -> None:
        """Refresh, and keep the commits for the caller's own `refresh` or `watch`."""
        self._one_at_a_time(self._read_new)

    def _one_at_a_time(self, work: Callable[[], None]) -> None:
        """Do what moves the state on with what others wrote.

        :raises UsageError: called by a signal handler that came while its own thread was at it.
        """
        self._check_may_wait()
        with self._refresh_lock:
            if self._is_refreshing:
                raise UsageError(
                    "this call came while the same thread was taking in what others wrote, as the handler of a signal "
                    "does: let the handler set a flag, and make the call after it has returned"
                )
            self._is_refreshing = True
            try:
                work()
            finally:
                self._is_refreshing = False

    def _read_new(self) -> None:
        """Take what is new into the state and the news.

        Whatever ends this early, the next call goes on where this one was: the cursors move with the commits, and
        the time of this look counts when everything is in.
        """
        self._catch_up()
        at = self._environment.monotonic()
        newest = self._loader.manifests.newest()
        self._freshness.note(newest, at)
        self._compaction.note_manifest(newest)
        state = self._state
        found: Survey | None = None
        progress = state.progress(self._agent)
        decision = refresh_decision(progress, newest)
        if decision.step is Step.LIST_LOGS:
            found = state.list_logs(self._backend, newest)
            own = found.segments.get(self._agent or "", [])
            has_more = self._log is not None and self._log.session.has_more(own)
            decision = refresh_decision(progress, newest, found.segments, own_has_more=has_more)
        if found is None or decision.step is Step.RELOAD or not self._read_on(decision.logs):
            self._reload()
            return
        state.listed = found.listed
        self._freshness.read_at = at

    def _read_on(self, logs: Segments) -> bool:
        """Take in what these logs have behind the cursors; False where loading again is the only way on."""
        cursors = self._state.cursors
        cost = cost_after(logs, cursors)
        # Where names are held by locks, nobody uses a number again.
        check = None if self._backend.segments_grow else self._freshness.check_recent
        try:
            for commits, cursor in read_on(self._backend, cursors, logs, check):
                self._take(commits, cursor)
        except MissingFileError:
            return False
        if self._state.is_torn:  # by a write of another thread, so that it has not taken in what came since
            return False
        self._compaction.tail_cost += cost
        return True

    def _take(self, commits: Sequence[Commit], cursor: Cursor) -> None:
        """Commits of another agent come into the state and the news; the cursor is where they end."""

        def take(state: State) -> None:
            if commits:
                # First, or a thread could read them, and answer with a smaller clock.
                self._clock.observe(commits[-1].clock)
            state.apply(commits, partial(self._news.add, commits, cursor))

        self._with_state(take)

    def _reload(self) -> None:
        """Load again, and read what that took in at once into the news."""
        self._load_again()
        self._catch_up()

    def _catch_up(self) -> None:
        """Read into the news what is in the state and not in them, because it was loaded at once."""
        state = self._state
        if self._news.cursors is not state.cursors:
            missed, complete = read_between(self._backend, self._news.cursors, state, self._agent)
            self._news.catch_up(missed, complete, state.cursors)

    def _forget_compacted(self) -> None:
        """After a compaction: forget what is in the snapshot now, or a store that only writes would hold everything it
        has ever written. A refresh under way is not waited for: whoever refreshes comes to that himself."""
        if not self._is_refreshing:
            self._one_at_a_time(self._forget_winners)

    def _forget_winners(self) -> None:
        if self._state.has_many_winners and not self._closed:
            decision = refresh_decision(self._state.progress(self._agent), self._loader.manifests.newest())
            if decision.step is Step.RELOAD:
                self._load_again()

    def _load_again(self) -> None:
        """Load beside ongoing writes; only what they add meanwhile is read while they wait."""
        at = self._environment.monotonic()
        old = self._state
        while True:
            state = self._loader.load()
            try:
                self._go_on_with(state)
                break
            except MissingFileError as error:
                # Compacted and collected since it was loaded, as a newer manifest says.
                if self._loader.manifests.newest_number() == state.manifest.number:
                    raise self._loader.manifests.lost(state.manifest, error) from error
        self._freshness.read_at = at
        self._compaction.note_manifest(state.manifest)
        old.empty()

    def _go_on_with(self, state: State) -> None:
        """Replace the state by one that was just loaded, and what was written here since.

        :raises MissingFileError: some of that is not there any more.
        """
        log = self._log
        if log is None:
            self._swap(state, None)
        else:
            log.quiet(lambda queue: self._swap(state, log))

    def _swap(self, state: State, log: LogWriter | None) -> None:
        if log is not None:
            self._read_own(state, log)
        with self._state_lock:
            # First, or a thread could read what is in it, and answer with a smaller clock.
            self._clock.observe(state.clock)
            self._state = state
        if log is not None:
            try:
                log.session.resume(state.cursors[log.agent], state.manifest)
            except BaseException:
                state.is_torn = True  # or nobody would know how much of the own log is in it
                raise

    def _read_own(self, state: State, log: LogWriter) -> None:
        """What was written here since the state was loaded.

        :raises MissingFileError: it is not there any more.
        """
        own = state.cursors.setdefault(log.agent, Cursor(log.agent))
        state.apply(commit for _, commit in own.read(self._backend, list_log(self._backend, log.agent)))
        last = log.session.last_segment
        if not self._backend.segments_grow and own.cut.last_segment < last:
            path = segment_path(log.agent, last)
            raise MissingFileError(f"{path} is missing, and was written here", path)

    def _apply(self, commits: Iterable[Commit]) -> None:
        """Take commits into the state."""
        self._with_state(lambda state: state.apply(commits))

    def _invalidate(self) -> None:
        """Nobody may read the state as it is."""
        with self._state_lock:
            self._state.is_torn = True

    def _mend_state(self) -> None:
        """Load the state anew if it is torn."""
        state = self._state
        if state.is_torn:
            self._replace(state, None)

    def _replace(self, state: State, missing: MissingFileError | None) -> None:
        if self._included is not None:
            reason = f"needs {missing.path}, which was collected meanwhile" if missing else "is torn by an exception"
            raise ReopenError(f"this view of the past {reason}: open it again")

        def replace() -> None:
            if self._state is state:
                self._reload()
            if missing is not None and self._state.manifest.number == state.manifest.number:
                raise self._loader.manifests.lost(state.manifest, missing)

        self._one_at_a_time(replace)
