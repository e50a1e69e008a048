"""Garbage collection: what no retained manifest needs any more.

Retained are the newest manifest and all that were still the newest within the grace period (or `keep_history`,
whichever is longer), by the storage's clock. Garbage is

- manifests that are not retained, as the newest one says: so that one which a delayed write brings back stays garbage;
- segments wholly before the cut of the oldest retained manifest (cuts only move forward, and no log goes on before its
  cut, so numbers are never used twice);
- runs that no retained manifest names and whose number is not above the newest manifest's: those of superseded
  manifests and of compactions that failed. A compaction under way aims at a number above it. One that was paused until
  others used its number cannot publish any more: the number exists, or it is below the newest and so no longer the
  truth;
- temporary files that a creation left behind, and rows that a job put aside which was killed.

Only who has just published the newest manifest collects, so two collectors at once have both seen all that the other
needs.
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

# No creation of one file takes this long.
TEMPORARY_SECONDS = 3600.0

# No Spark job takes this long between putting its first rows aside and its end.
STAGED_SECONDS = 7 * 86400.0

_LIFETIME_SECONDS = {Kind.TEMPORARY: TEMPORARY_SECONDS, Kind.STAGED: STAGED_SECONDS}


class Garbage(msgspec.Struct, frozen=True):
    """Files that may be deleted, in the order in which they must be: a manifest before what it names."""

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
    """The number of the oldest manifest that is retained at `now` by the storage's clock; 0 where there is none."""
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
    """What may be deleted at `now` by the storage's clock, if manifest `number` is still the newest, and `oldest` the
    oldest that is retained; otherwise nothing."""
    store = ManifestStore(backend)
    manifests = store.entries()
    if not manifests or manifests[-1][0] != number:
        return NOTHING
    try:
        retained = [store.read(number) for number, _ in manifests if number >= oldest]
    except MissingFileError:
        return NOTHING  # somebody has published since, and is collecting
    files = [entry for prefix in (MANIFESTS, SNAPSHOTS, OPS, STAGING) for entry in backend.list(prefix)]
    return Garbage(
        [entry for number, entry in manifests if number < oldest],
        _unneeded_runs(files, retained),
        _compacted_segments(files, retained[0]),
        [entry for entry in files if has_expired(entry, now)],
    )


def collect(backend: Backend, number: int) -> Garbage:
    """Delete what may be deleted; to be called right after publishing manifest `number`. Returns what was deleted."""
    manifests = ManifestStore(backend)
    entries = manifests.entries()
    if not entries or entries[-1][0] != number:
        return NOTHING  # others have published since
    try:
        oldest = manifests.read(number).oldest
    except MissingFileError:
        return NOTHING  # and have collected it
    garbage = find_garbage(backend, entries[-1][1].modified, number, oldest)
    # First the manifests, for good: a power cut must not bring one back of which the runs are gone.
    first = len(garbage.manifests)
    backend.delete(garbage.paths[:first])
    backend.delete(garbage.paths[first:])
    return garbage


def has_expired(entry: Entry, now: float) -> bool:
    """Whether whoever was writing this file, or the job that put it aside, has been gone for long."""
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
