"""How recent a process's view of a store is: the newest manifest it has read, and the writes of others.

Two limits follow. Each is half of a retention time, so that the other half remains for acting on what was read:

- **Grace.** A segment is collected only when a manifest whose cut is beyond it has been the newest for the grace
  period. A process that read the newest manifest less than half a grace period ago has seen that cut, so it knows that
  the number is taken.
- **Tombstones.** A tombstone may leave the snapshot after its TTL. A process whose view is older than half of that TTL
  reads what is new before it writes. Otherwise it might bring back a document that was deleted.

A process also reads what is new before it writes if it has shown commits that are not in its view, such as those of a
history: an answer to a commit must outrank that commit.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import msgspec

from opslog.environment import Environment
from opslog.errors import MissingFileError, WriteFailedError
from opslog.format.commits import Commit
from opslog.format.manifest import Manifest
from opslog.snapshot.manifests import ManifestStore

# The minimum, however short the tombstone TTL is: a write may take this long.
_WRITE_SECONDS = 1.0


class NewestRead(msgspec.Struct, frozen=True):
    """A manifest, and a time of the monotonic clock at which, or after which, it was the newest."""

    manifest: Manifest
    at: float


class Freshness:
    """Remembers the newest manifest, and when the writes of others were read. Safe to use from many threads.

    All times are of the monotonic clock and were taken before reading began, since a process can be paused after that.

    :param newest: the newest manifest.
    :param at: when it was read, and the writes of others.
    :ivar read_at: when the writes of others were last read to their end.
    :ivar shown_at: when commits were last read from storage past the view. None of them is newer than that.
    """

    def __init__(self, manifests: ManifestStore, environment: Environment, newest: Manifest, at: float) -> None:
        self.environment = environment
        self.read_at = at
        self.shown_at = at
        self._lock = threading.RLock()
        self._manifests = manifests
        self._read = NewestRead(newest, at)
        self._fresh_seconds = newest.settings.tombstone_ttl_seconds / 2

    @property
    def newest(self) -> Manifest:
        """The newest manifest that was read."""
        return self._read.manifest

    def note(self, newest: Manifest, at: float) -> None:
        """Note that this manifest was read as the newest."""
        if newest.number >= self._read.manifest.number:
            self._read = NewestRead(newest, at)
            self._fresh_seconds = newest.settings.tombstone_ttl_seconds / 2

    def read_newest(self) -> Manifest:
        """The newest manifest, read now. Costs a listing, and a read if the manifest is new."""
        at = self.environment.monotonic()
        newest = self._manifests.newest()
        self.note(newest, at)
        return newest

    def recent(self) -> NewestRead:
        """The newest manifest, read again unless it is recent."""
        read = self._read
        if self.is_still_recent(read):
            return read
        self.read_newest()
        return self._read

    @property
    def is_recent(self) -> bool:
        """Whether the newest manifest was read less than half a grace period ago."""
        return self.is_still_recent(self._read)

    def is_recent_by(self, seconds: float) -> bool:
        """Whether it was, and no longer ago than so many seconds either."""
        read = self._read
        return self.environment.monotonic() - read.at <= min(seconds, read.manifest.settings.grace_seconds / 2)

    def is_still_recent(self, read: NewestRead) -> bool:
        """Whether this manifest was read as the newest less than half a grace period ago. Then no segment that is not
        before its cut was collected until now, even if newer manifests have compacted it."""
        return self.environment.monotonic() - read.at <= read.manifest.settings.grace_seconds / 2

    def check_recent(self) -> None:
        """Check that everything read until now was there when the manifest was read, and none of it was collected
        before.

        :raises MissingFileError: the manifest was read too long ago. On storages without locks, the numbers of the
            segments that were read may have been used, compacted and collected by others before; load again.
        """
        if not self.is_recent:
            raise MissingFileError("this process was paused for long between listing the logs and reading them")

    @property
    def is_stale(self) -> bool:
        """Whether what others wrote has to be read before the next commit is stamped."""
        read_at = self.read_at
        return read_at < self.shown_at or self.environment.monotonic() - read_at > self._fresh_seconds

    def showing(self, commits: Iterator[Commit]) -> Iterator[Commit]:
        """These commits, which were listed in storage before; notes that they are shown, as soon as one is."""
        for commit in commits:
            self.note_shown()
            yield commit
            yield from commits

    def note_shown(self) -> None:
        """Note that commits were read from storage past the view, and are about to be shown to the caller."""
        now = self.environment.monotonic()
        with self._lock:
            # Without a call: a signal handler may run after one, and what it has shown would be forgotten.
            if now > self.shown_at:  # noqa: PLR1730
                self.shown_at = now

    def is_too_old(self, read_at: float) -> bool:
        """Whether a commit that rests on a read at `read_at` must not enter the log any more. It was stamped when that
        view was not stale, and must not enter the log much later."""
        limit = max(_WRITE_SECONDS, 0.6 * self._read.manifest.settings.tombstone_ttl_seconds)
        return self.environment.monotonic() - read_at > limit

    def check_age(self, read_at: float) -> None:
        """:raises WriteFailedError: the read is too old, as of `is_too_old`."""
        if self.is_too_old(read_at):
            raise WriteFailedError(
                "this process was paused for most of the tombstone TTL since it last read what others wrote. What it "
                "was about to write may have been deleted meanwhile, and the tombstone dropped: nothing was written"
            )
