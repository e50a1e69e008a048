"""Garbage as `verify` reports it: each file that is not part of the store, with the reason why it is there. Pure.

Garbage collection deletes most of them later (`opslog.compaction.garbage`); `opslog verify` names them, and
can move those aside that nobody will ever need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opslog.backends import Entry
from opslog.compaction.garbage import has_expired
from opslog.format.layout import Kind, kind_of, run_of
from opslog.format.manifest import Manifest


class GarbageFile(NamedTuple):
    """A file, the reason why it is there, and whether it is certain that nobody needs it any more."""

    path: str
    reason: str
    movable: bool


def find_garbage_files(
    entries: Iterable[Entry], retained: Sequence[Manifest], unread: Sequence[str], now: float
) -> list[GarbageFile]:
    """The files of a complete listing that are not part of the store.

    :param retained: the retained manifests, oldest first, read after the listing was made: so a run that they do not
        name was either collected since, or is garbage.
    :param unread: the paths of manifests that may be retained, and could not be read or were not there. While there is
        one, a run that the others do not name may be its own, and is not movable.
    :param now: by the storage's clock.
    """
    named = {run.name for manifest in retained for run in manifest.runs}
    newest = retained[-1].number if retained else 0
    found = (_explain(entry, named, unread, newest, now) for entry in entries)
    return [file for file in found if file is not None]


def _explain(entry: Entry, named: set[str], unread: Sequence[str], newest: int, now: float) -> GarbageFile | None:
    path, kind = entry.path, kind_of(entry.path)
    if kind is Kind.TEMPORARY:
        if has_expired(entry, now):
            return GarbageFile(path, "a file that was never finished: its writer was killed", True)
        return GarbageFile(path, "a file that is being written, or that a killed writer left unfinished", False)
    if kind is Kind.STAGED:
        if has_expired(entry, now):
            return GarbageFile(path, "rows that a Spark job put aside which was killed", True)
        return GarbageFile(path, "rows that a Spark job has put aside: it is running, or was killed", False)
    if kind is Kind.FOREIGN:
        return GarbageFile(path, "not a file of opslog, or a link; nothing reads it", False)
    run = run_of(path)
    if run is None or run[0] in named:
        return None
    if unread:
        why = f"{unread[0]} cannot be read, or is not there, and may need it; no other manifest does"
        return GarbageFile(path, why, False)
    number = run[1]
    if number > newest:
        return GarbageFile(
            path, f"of a compaction that has not published manifest {number}: it is running, or failed", False
        )
    return GarbageFile(path, "of a compaction that failed, or of a manifest that was collected: nothing names it", True)
