"""Automatic compaction: when the tail has grown long enough, a thread of its own compacts. Nobody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opslog.backends import Backend
from opslog.concurrency.background import Worker
from opslog.environment import Environment
from opslog.errors import LockedError, OpslogError, RetryError
from opslog.format.manifest import Manifest
from opslog.log.survey import at_cut, list_logs
from opslog.snapshot.manifests import ManifestStore

# A store compacts by itself when its tail has so many commits. This is the default of `compact_after`.
COMPACT_AFTER = 10_000

# It also does so when reading the tail costs so many bytes (`opslog.log.reader.cost_after`), whatever the number of
# commits: 64 MiB, or about a thousand segments.
COMPACT_AFTER_COST = 64 * 1024 * 1024

# On object storages each append is a segment, and so one request for everybody who opens the store. There a compaction
# is due when the tail has grown by a quarter of that. Writers then send about one request more for every fourth set.
_WITH_REQUESTS = 4

# When the tail costs so many times `COMPACT_AFTER_COST`, writers wait for the running compaction.
_FAR_BEHIND = 4

# A failed compaction is tried again after this time, even if nothing is written. Each attempt reads the tail.
_RETRY_SECONDS = 60.0

# Why a compaction could not begin. It is tried again when the tail has grown.
NO_MORE_THREADS = "this process can start no more threads"

# If no thread can be started, the next attempt is not at the next commit. It comes when the tail has grown by a
# hundredth of what makes a compaction due.
_NEXT_START = 100


def _nothing() -> None:
    """In place of `compacted`, when nothing compacts any more."""


class AutoCompaction:
    """Watches the length of the tail and compacts when it is due.

    :param compacted: called in the thread when this or another process may have compacted.
    :ivar commits_compacted: how many commits the newest known manifest has compacted.
    :ivar tail_cost: what it costs to read the logs after that manifest's cut, as `cost_after` counts it.
    :ivar is_under_way: whether this process is compacting now.
    :ivar error: why the last attempt failed or could not begin; None if it did not fail.
    """

    def __init__(
        self,
        backend: Backend,
        environment: Environment,
        manifest: Manifest,
        *,
        tail_cost: int,
        after: int | None,
        compacted: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._environment = environment
        self._after = after
        self._compacted = compacted
        self._commits = 0
        self._manifest = manifest.number
        self._due_at = manifest.commits + (after or 0)
        self.tail_cost = tail_cost
        self._due_at_cost = min(COMPACT_AFTER_COST, tail_cost + self._growth)
        self._under_way = threading.Lock()
        self.is_under_way = False
        self._worker = Worker(
            "opslog-compact",
            self._compact,
            what="automatic compaction",
            subject="compaction",
            retry_seconds=_RETRY_SECONDS,
        )
        self.commits_compacted = manifest.commits
        self.error: str | None = None

    def tail_of(self, commits: int) -> int:
        """How many of so many commits are not compacted; 0 if the newest known manifest has others, too, that were not
        read yet."""
        return max(0, commits - self.commits_compacted)

    def note_commits(self, commits: int) -> None:
        """Note the number of commits that exist now, compacted ones included. Wakes the thread if a compaction is due.
        Never waits."""
        self._commits = commits
        if self._after is not None and self._is_due() and not self._worker.wake():
            self.error = NO_MORE_THREADS
            self._due_at = max(self._due_at, commits + 1 + self._after // _NEXT_START)
            self._due_at_cost = max(self._due_at_cost, self.tail_cost + COMPACT_AFTER_COST // _NEXT_START)

    def note_append(self, cost: int, commits: int) -> None:
        """Note that the tail has grown. `cost` is what it costs to read the new part; `commits` is as in
        `note_commits`."""
        self.tail_cost += cost
        self.note_commits(commits)

    def note_manifest(self, newest: Manifest) -> None:
        """Note the newest manifest: this or another process may have compacted. If so, this lists the logs to find out
        how long the tail still is."""
        if newest.number == self._manifest:
            return
        self._manifest = newest.number
        self.commits_compacted = newest.commits
        if self._after is not None:
            self._due_at = max(self._due_at, newest.commits + self._after)
            self.tail_cost = list_logs(self._backend, newest, at_cut(newest)).log_cost
            # The limit may have been set when the tail was longer.
            self._due_at_cost = min(self._due_at_cost, self.tail_cost + self._growth)

    @property
    def is_far_behind(self) -> bool:
        """Whether writers outrun the running compaction, so that memory would grow without bound."""
        return self.tail_cost >= _FAR_BEHIND * COMPACT_AFTER_COST and self.is_under_way

    def wait(self) -> None:
        """Wait until no compaction is running. The caller must not hold anything that a compaction may wait for."""
        with self._under_way:
            pass

    def close(self) -> None:
        """Wait for a running compaction to end, and start no other one. Lets go of `compacted`."""
        self._worker.close()
        self._compacted = _nothing

    @property
    def _growth(self) -> int:
        """By how much the tail may grow before the next compaction is due. On object storages that is at least the
        length of the tail, up to `COMPACT_AFTER_COST`. Otherwise compactions of many agents would read the commits that
        can still be undone again and again, for few new ones."""
        if self._backend.segments_grow:
            return COMPACT_AFTER_COST
        return min(COMPACT_AFTER_COST, max(COMPACT_AFTER_COST // _WITH_REQUESTS, self.tail_cost))

    def _is_due(self) -> bool:
        return self._commits >= self._due_at or self.tail_cost >= self._due_at_cost

    def _compact(self) -> None:
        try:
            with self._under_way:
                try:
                    self.is_under_way = True
                    garbage_error = self._compact_if_due()
                finally:
                    self.is_under_way = False
            self._compacted()  # without the lock: nobody waits for this call, and it may wait for others
            if garbage_error is not None:
                raise RetryError(f"files that nobody needs any more were not deleted: {garbage_error}")
            self.error = None
        except LockedError:
            self.error = None  # another process is compacting, and tries again if it fails
        except Exception as error:
            self.error = str(error) if isinstance(error, OpslogError) else f"{type(error).__name__}: {error}"
            raise  # the worker logs it, and tries again

    def _compact_if_due(self) -> str | None:
        """As of `Compaction.garbage_error`."""
        assert self._after is not None
        commits = self._commits
        manifests = ManifestStore(self._backend)
        try:
            self.note_manifest(manifests.newest())
            if self._is_due() or self.error is not None:
                from opslog.compaction import compact as compaction  # few programs need it

                done = compaction.compact(self._backend, self._environment)
                self.note_manifest(manifests.newest())
                return done.garbage_error
            return None
        finally:
            # Whatever the outcome, wait until the tail has grown by as much again. Otherwise a tail that cannot be
            # compacted (many agents, each within its undo window) would cause an attempt at every commit. Commits
            # written meanwhile count as growth, because this attempt may not have seen them.
            if commits >= self._due_at:
                self._due_at = commits + self._after
            self._due_at_cost = self.tail_cost + self._growth
