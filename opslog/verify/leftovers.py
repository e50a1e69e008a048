"""Files that a store has and does not need, each with the reason why it is there. Pure: a listing in, reasons out.

Garbage collection deletes most of them in its own time (`opslog.compaction.garbage`); `opslog verify` names them, and
can move aside those that nobody will ever need.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from opslog.backends import Entry
from opslog.compaction.garbage import is_abandoned
from opslog.format.layout import Kind, kind_of, run_of
from opslog.format.manifest import Manifest


class Leftover(NamedTuple):
    """A file, why it is there, and whether nobody can need it any more."""

    path: str
    reason: str
    movable: bool


def find_leftovers(entries: Iterable[Entry], retained: Sequence[Manifest], now: float) -> list[Leftover]:
    """What of a listing of all files is not part of the store.

    :param retained: the retained manifests, oldest first, read after the listing was made: so a run that is not named
        was either collected since, or is garbage.
    :param now: by the storage's clock.
    """
    named = {run.name for manifest in retained for run in manifest.runs}
    newest = retained[-1].number if retained else 0
    found = (_leftover(entry, named, newest, now) for entry in entries)
    return [leftover for leftover in found if leftover is not None]


def _leftover(entry: Entry, named: set[str], newest: int, now: float) -> Leftover | None:
    path, kind = entry.path, kind_of(entry.path)
    if kind is Kind.TEMPORARY:
        if is_abandoned(entry, now):
            return Leftover(path, "a file that was never finished: its writer was killed", True)
        return Leftover(path, "a file that is being written, or that a killed writer left unfinished", False)
    if kind is Kind.STAGED:
        if is_abandoned(entry, now):
            return Leftover(path, "rows that a Spark job put aside which was killed", True)
        return Leftover(path, "rows that a Spark job has put aside: it is running, or was killed", False)
    if kind is Kind.FOREIGN:
        return Leftover(path, "not a file of opslog, or a link; nothing reads it", False)
    run = run_of(path)
    if run is None or run[0] in named:
        return None
    number = run[1]
    if number > newest:
        return Leftover(
            path, f"of a compaction that has not published manifest {number}: it is running, or failed", False
        )
    return Leftover(path, "of a compaction that failed, or of a manifest that was collected: nothing names it", True)
