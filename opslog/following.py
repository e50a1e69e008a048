"""What others write comes into an open store: `refresh`, `watch`, and loading anew where reading on is not enough.

`opslog.state` reads; here is decided when and how, and kept what was not handed out yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from typing import TypeVar

from opslog.autocompaction import AutoCompaction
from opslog.backends import Backend, forking
from opslog.clock import LamportClock
from opslog.commits import Commit
from opslog.documents import Schema
from opslog.environment import Environment
from opslog.errors import ClosedError, HistoryGoneError, MissingFileError, ReopenError
from opslog.fencing import Fence, OwnLog
from opslog.layout import segment_path
from opslog.log import Cursor, cost_after, list_log, list_segments
from opslog.log_writer import LogWriter
from opslog.reading import Documents
from opslog.state import Loader, State, read_between, read_new

T = TypeVar("T")


class Following(Documents[T]):
    """The part of a store that follows what others write. Safe to use from many threads.

    :param looked: when what the state rests on was looked at, by the monotonic clock.
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
        looked: float,
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
        self._unseen: list[Commit] = []
        self._complete = True
        """Whether `_unseen` has everything that was not handed out, up to `_unread`."""
        self._unread: dict[str, Cursor] | None = None
        """From where on others' commits are in the state, but neither handed out nor in `_unseen`."""
        self._looked = looked
        self._fence = Fence(loader.manifests, environment, state.manifest, looked)
        self._own = OwnLog(self._fence, backend, state.cursors.get(agent or "", Cursor(agent or "")))

    @property
    def _is_forked(self) -> bool:
        return self._generation != forking.generation

    def refresh(self) -> list[Commit]:
        """Take in what other agents wrote, and return those commits, log by log. Costs what is new.

        Each commit is returned once, by `refresh` or by `watch`. After an absence longer than the grace period, commits
        that were folded and collected meanwhile are in the state but not in the list; `watch` reports that.
        """
        self._not_in_batch("refresh")
        return self._take_new()[0]

    def watch(self, poll_seconds: float = 0.2) -> Iterator[Commit]:
        """The commits of other agents as they come in, without end; looks for them every `poll_seconds`.

        Ends when the store is closed. :raises HistoryGoneError: commits were collected before they could be read here;
        the state is right all the same, and a new `watch` goes on from it.
        """
        while not self._closed:
            try:
                commits, complete = self._take_new()
            except ClosedError:
                if self._is_forked:
                    raise
                return  # closed while it was looking
            yield from commits
            self._check_complete(complete)
            if not commits:
                self._environment.sleep(poll_seconds)

    def _check_complete(self, complete: bool) -> None:
        if not complete:
            raise HistoryGoneError(
                "commits were folded and collected before they were read here, after an absence longer than the "
                "grace period. The state is right; call watch again to follow from here",
                self._state.manifest.clock,
            )

    def _take_new(self) -> tuple[list[Commit], bool]:
        """The commits not handed out yet, and whether they are all."""
        self._check_open()
        self._check_not_in_state()
        if self._included is not None:
            return [], True  # a point in the past does not move
        with self._refresh_lock:
            self._refresh_quietly()
            commits, self._unseen = self._unseen, []
            complete, self._complete = self._complete, True
            return commits, complete

    def _refresh_if_stale(self) -> None:
        if self._is_stale:
            self._refresh_quietly()

    @property
    def _is_stale(self) -> bool:
        """A tombstone may leave the snapshot after its TTL; so nobody may write with a view older than half of that."""
        age = self._environment.monotonic() - self._looked
        return age > self._state.manifest.settings.tombstone_ttl_seconds / 2

    def _refresh_quietly(self) -> None:
        """Refresh, and keep the commits for the caller's own `refresh` or `watch`."""
        with self._refresh_lock:
            self._read_new()

    def _read_new(self) -> None:
        """Read what is new into the state and `_unseen`."""
        self._catch_up()
        if self._state.is_torn:
            self._reload()
            return
        self._looked = self._environment.monotonic()
        newest = self._loader.manifests.newest()
        self._fence.look(newest, self._looked)
        if newest.number != self._state.manifest.number:
            self._compaction.note_manifest(newest)
            if self._state.is_behind(newest, self._agent):
                self._reload()
                return
        try:
            segments = list_segments(self._backend, self._state.cursors)
            # What it writes itself is counted when it is written.
            if self._own.has_more(segments.pop(self._agent or "", [])):
                self._reload()
                return
            self._compaction.tail_cost += cost_after(segments, self._state.cursors)
            # Where names are held by locks, nobody uses a number again.
            check = None if self._backend.segments_grow else self._fence.check_recent
            for commit in read_new(self._backend, self._state.cursors, segments, self._agent, check):
                self._apply([commit])
                self._clock.observe(commit.clock)
                self._unseen.append(commit)
        except MissingFileError:
            self._reload()

    def _reload(self) -> None:
        """Load again, and read what that took in at once into `_unseen`."""
        self._load_again()
        self._catch_up()

    def _catch_up(self) -> None:
        if self._unread is not None:
            missed, complete = read_between(self._backend, self._unread, self._state, self._agent)
            self._unseen += missed
            self._complete = self._complete and complete
            self._unread = None

    def _forget_folded(self) -> None:
        """After a compaction: let go of what it folded, or a store that only writes would hold everything it has ever
        written."""
        with self._refresh_lock:
            is_old = self._loader.manifests.newest_number() != self._state.manifest.number
            if is_old and self._state.is_heavy and not self._closed:
                self._load_again()

    def _load_again(self) -> None:
        """Load beside ongoing writes; only what they add meanwhile is read while they wait."""
        old = self._state
        while True:
            state = self._loader.load()
            try:
                self._go_on_with(state)
                break
            except MissingFileError as error:
                # Folded and collected since it was loaded, as a newer manifest says.
                if self._loader.manifests.newest_number() == state.manifest.number:
                    raise self._loader.manifests.lost(state.manifest, error) from error
        if self._unread is None:
            self._unread = old.cursors
        self._compaction.note_manifest(state.manifest)
        self._clock.observe(state.clock)
        old.empty()

    def _go_on_with(self, state: State) -> None:
        """Replace the state by one that was just loaded, and what was written here since.

        :raises MissingFileError: some of that is not there any more.
        """
        with nullcontext() if self._log is None else self._log.quiet(), self._state_lock:
            if self._log is not None:
                own = state.cursors.setdefault(self._log.agent, Cursor(self._log.agent))
                state.apply(commit for _, commit in own.read(self._backend, list_log(self._backend, own.agent)))
                if not self._backend.segments_grow and own.segment <= self._own.segment:
                    path = segment_path(own.agent, self._own.segment)
                    raise MissingFileError(f"{path} is missing, and was written here", path)
                self._log.advance(self._own.loaded(own, state.manifest))
            self._state = state

    def _apply(self, commits: Iterable[Commit]) -> None:
        """Take commits into the state."""
        with self._state_lock:
            outer, self._in_state = self._in_state, True
            try:
                self._state.apply(commits)
            finally:
                self._in_state = outer

    def _mend_state(self) -> None:
        """Load the state anew if it is torn."""
        state = self._state
        if state.is_torn:
            self._replace(state, None)

    def _replace(self, state: State, missing: MissingFileError | None) -> None:
        self._check_not_in_state()
        if self._included is not None:
            reason = f"needs {missing.path}, which was collected meanwhile" if missing else "is torn by an exception"
            raise ReopenError(f"this view of the past {reason}: open it again")
        with self._refresh_lock:
            if self._state is state:
                self._reload()
            if missing is not None and self._state.manifest.number == state.manifest.number:
                raise self._loader.manifests.lost(state.manifest, missing)
