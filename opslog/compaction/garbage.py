"""Garbage collection: deleting what no retained manifest needs any more.

The newest manifest is retained, and all that were still the newest within the grace period (or `keep_history`,
whichever is longer), by the storage's clock. Garbage is

- manifests that are not retained. The newest manifest says which ones are, so one that a delayed write brings back
  stays garbage;
- segments that end before the cut of the oldest retained manifest. Cuts only move forward, and no log continues before
  its cut, so segment numbers are never used twice;
- runs that no retained manifest names and whose number is not above the newest manifest's: those of superseded
  manifests and of failed compactions. A running compaction uses a greater number. If it is paused until others have
  used its number, it can no longer publish: either the number exists, or it is below the newest, so no reader takes it
  for the truth;
- temporary files that were left behind when a file was created, and staged rows of a Spark job that was killed.

Only the process that has just published the newest manifest collects. So if two processes collect at once, each has
seen everything that the other one needs.
"""

from __future__ import annotations

import math
from itertools import pairwise

import msgspec

from opslog.backends import Backend, Entry
from opslog.errors import MissingFileError
from opslog.format.layout import MANIFESTS, OPS, SNAPSHOTS, STAGING, Kind, kind_of, run_of, segment_of
from opslog.format.manifest import START, Manifest, Settings
from opslog.snapshot.manifests import ManifestStore

# Creating one file never takes this long.
TEMPORARY_SECONDS = 3600.0

# A Spark job never takes this long between staging its first rows and its end.
STAGED_SECONDS = 7 * 86400.0

_LIFETIME_SECONDS = {Kind.TEMPORARY: TEMPORARY_SECONDS, Kind.STAGED: STAGED_SECONDS}


class Garbage(msgspec.Struct, frozen=True):
    """Files that may be deleted, in the order in which to delete them: a manifest goes before the files it names."""

    manifests: list[Entry]
    runs: list[Entry]
    segments: list[Entry]
    temporary: list[Entry]

    @property
    def paths(self) -> list[str]:
        return [entry.path for entry in [*self.manifests, *self.runs, *self.segments, *self.temporary]]

    @property
    def bytes(self) -> int:
        return sum(entry.size for entry in [*self.manifests, *self.runs, *self.segments, *self.temporary])


NOTHING = Garbage([], [], [], [])


def oldest_retained(backend: Backend, now: float, settings: Settings) -> int:
    """The number of the oldest manifest that is retained at `now`, by the storage's clock; 0 if there is none."""
    keep = settings.keep_history_seconds
    keep_seconds = math.inf if keep is None else max(keep, settings.grace_seconds)
    retained = ManifestStore(backend).retained()
    oldest = retained[-1][0] if retained else 0
    for (number, _), (_, successor) in reversed(list(pairwise(retained))):
        if now - successor.modified > keep_seconds:
            break
        oldest = number
    return oldest


def find_garbage(backend: Backend, now: float, number: int, oldest: int) -> Garbage:
    """Find what may be deleted at `now`, by the storage's clock. Finds nothing if manifest `number` is no longer the
    newest.

    :param oldest: the number of the oldest retained manifest.
    """
    store = ManifestStore(backend)
    manifests = store.entries()
    if not manifests or manifests[-1][0] != number:
        return NOTHING
    try:
        retained = [store.read(number) for number, _ in manifests if number >= oldest]
    except MissingFileError:
        return NOTHING  # another process has published since, and is collecting
    files = [entry for prefix in (MANIFESTS, SNAPSHOTS, OPS, STAGING) for entry in backend.list(prefix)]
    return Garbage(
        [entry for number, entry in manifests if number < oldest],
        _unneeded_runs(files, retained),
        _compacted_segments(files, retained[0]),
        [entry for entry in files if has_expired(entry, now)],
    )


def collect(backend: Backend, number: int) -> Garbage:
    """Delete what may be deleted, and return it. Call this right after publishing manifest `number`."""
    manifests = ManifestStore(backend)
    entries = manifests.entries()
    if not entries or entries[-1][0] != number:
        return NOTHING  # others have published since
    try:
        oldest = manifests.read(number).oldest
    except MissingFileError:
        return NOTHING  # others have published since, and have collected it
    garbage = find_garbage(backend, entries[-1][1].modified, number, oldest)
    # The manifests first, durably: a power cut must not bring back a manifest whose runs are gone.
    first = len(garbage.manifests)
    backend.delete(garbage.paths[:first])
    backend.delete(garbage.paths[first:])
    return garbage


def has_expired(entry: Entry, now: float) -> bool:
    """Whether a temporary or staged file is so old that its writer must be gone."""
    limit = _LIFETIME_SECONDS.get(kind_of(entry.path))
    return limit is not None and now - entry.modified > limit


def _unneeded_runs(files: list[Entry], retained: list[Manifest]) -> list[Entry]:
    needed = {run.name for manifest in retained for run in manifest.runs}
    garbage = []
    for entry in files:
        named = run_of(entry.path)
        if named and named[0] not in needed and named[1] <= retained[-1].number:
            garbage.append(entry)
    return garbage


def _compacted_segments(files: list[Entry], oldest: Manifest) -> list[Entry]:
    garbage = []
    for entry in files:
        named = segment_of(entry.path)
        if named and named[1] < oldest.cut.get(named[0], START).segment:
            garbage.append(entry)
    return garbage
