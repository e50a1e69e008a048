"""Automatic compaction: when a tail has grown long enough, compact in a thread of its own, beside everything."""

from __future__ import annotations

import threading
from collections.abc import Callable

from opslog.backends import Backend
from opslog.concurrency.background import Worker
from opslog.environment import Environment
from opslog.errors import LockedError, OpslogError
from opslog.format.manifest import Manifest
from opslog.log.survey import at_cut, list_logs
from opslog.snapshot.manifests import ManifestStore

# Default length of the tail, in commits, from which a store compacts by itself.
COMPACT_AFTER = 10_000

# What the tail takes to read, in bytes (`opslog.log.reader.cost_after`), from which it does so whatever the number of
# commits: 64 MiB, or about a thousand segments.
COMPACT_AFTER_COST = 64 * 1024 * 1024

# From so many times `COMPACT_AFTER_COST` on, writers wait for the compaction under way.
_FAR_BEHIND = 4

# How soon a compaction that failed is tried again, also when nothing is written. Each try reads the tail.
_RETRY_SECONDS = 60.0

# Why a compaction could not begin. It does when the tail has grown.
NO_MORE_THREADS = "this process can start no more threads"

# Where no thread can be started, that is tried again each time the tail has grown by this part of what makes a
# compaction due, and not at every commit.
_NEXT_START = 100


class AutoCompaction:
    """Watches the length of the tail and compacts when it is due.

    :param compacted: called in the thread when somebody may have compacted.
    :ivar commits_compacted: how many commits the newest known manifest has compacted.
    :ivar tail_cost: what it takes to read the logs after its cut, as of `cost_after`.
    :ivar is_under_way: whether this process is at it.
    :ivar error: why the last attempt failed, or could not begin; None if it did not fail.
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
        self._due_at_cost = COMPACT_AFTER_COST
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
        self.tail_cost = tail_cost
        self.error: str | None = None

    def note_commits(self, commits: int) -> None:
        """So many commits exist now, compacted ones included. Wakes the thread when a compaction is due; never
        waits."""
        self._commits = commits
        if self._after is not None and self._is_due() and not self._worker.wake():
            self.error = NO_MORE_THREADS
            self._due_at = max(self._due_at, commits + 1 + self._after // _NEXT_START)
            self._due_at_cost = max(self._due_at_cost, self.tail_cost + COMPACT_AFTER_COST // _NEXT_START)

    def note_append(self, cost: int, commits: int) -> None:
        """The tail has grown by what costs so much to read; `commits` as of `note_commits`."""
        self.tail_cost += cost
        self.note_commits(commits)

    def note_manifest(self, newest: Manifest) -> None:
        """Somebody, or this thread, may have compacted. Costs a listing if so, for the length of what is left."""
        if newest.number == self._manifest:
            return
        self._manifest = newest.number
        self.commits_compacted = newest.commits
        if self._after is not None:
            self._due_at = max(self._due_at, newest.commits + self._after)
            self.tail_cost = list_logs(self._backend, newest, at_cut(newest)).log_cost

    @property
    def is_far_behind(self) -> bool:
        """Whether writing outruns the compaction under way, so that memory would grow without bound."""
        return self.tail_cost >= _FAR_BEHIND * COMPACT_AFTER_COST and self.is_under_way

    def wait(self) -> None:
        """Return when no compaction is under way. Not to be called with anything that it may wait for."""
        with self._under_way:
            """It has ended."""

    def close(self) -> None:
        """Let a compaction under way end."""
        self._worker.close()

    def _is_due(self) -> bool:
        return self._commits >= self._due_at or self.tail_cost >= self._due_at_cost

    def _compact(self) -> None:
        try:
            with self._under_way:
                try:
                    self.is_under_way = True
                    self._compact_if_due()
                finally:
                    self.is_under_way = False
            self._compacted()  # nobody waits for this, and it may wait for others
            self.error = None
        except LockedError:
            self.error = None  # somebody else is at it, and tries again if it fails
        except Exception as error:
            self.error = str(error) if isinstance(error, OpslogError) else f"{type(error).__name__}: {error}"
            raise  # the worker logs it, and tries again

    def _compact_if_due(self) -> None:
        assert self._after is not None
        commits = self._commits
        manifests = ManifestStore(self._backend)
        try:
            self.note_manifest(manifests.newest())
            if self._is_due() or self.error is not None:
                from opslog.compaction import compact as compaction  # few programs come to that

                compaction.compact(self._backend, self._environment)
                self.note_manifest(manifests.newest())
        finally:
            # Whatever the outcome: not again before the tail has grown by as much, or a tail that cannot be compacted
            # (each of many agents within its undo window) would be compacted at every commit. What was written
            # meanwhile counts as grown: this attempt may not have seen it.
            if commits >= self._due_at:
                self._due_at = commits + self._after
            self._due_at_cost = self.tail_cost + COMPACT_AFTER_COST
