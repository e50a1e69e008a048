"""Scans: all documents of a state, of which only the needed fields are read."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from opslog.chunks import batched
from opslog.format.commits import Record
from opslog.merge.stamps import newer
from opslog.query.rows import Reader, Rows
from opslog.replica.live import LinesOverRuns, live_records, records_with_deletes, retained
from opslog.replica.state import State
from opslog.snapshot.runs import StoredRun

if TYPE_CHECKING:
    from opslog.merge.lines import Lines

# So many records that were not read are in one `Rows`.
_AT_ONCE = 512


def scan(state: State, reader: Reader, overlay: Mapping[str, Record] | None = None) -> Iterator[Rows]:
    """The records of `State.records` as rows in order of id, some at a time. Those of the oldest run, or in the lines
    of a tail without a snapshot, are not decoded; newer ones come with the rows around them.

    :param overlay: as of `State.records`.
    :raises MissingFileError: the snapshot was replaced and collected.
    :raises RetryError: when iterated: likewise.
    """
    for run in state.runs:
        run.hold()
    overlay = overlay or {}
    winners = {**state.winners, **overlay}
    return retained(_rows(list(state.runs), state.lines, winners, frozenset(overlay), reader))


def _rows(
    runs: Sequence[StoredRun],
    lines: Lines | None,
    winners: dict[str, Record],
    overlaid: Container[str],
    reader: Reader,
) -> Iterator[Rows]:
    if lines is not None and runs:
        yield from unread(live_records([LinesOverRuns(lines, runs)], winners, overlaid))
        return
    above = records_with_deletes(runs[:-1], winners, overlaid)
    upper = next(above, None)
    for text, path, offset in _oldest(runs, lines):
        rows = reader.lines(text, path, offset)
        over: dict[str, tuple[Record, bool]] = {}
        while upper is not None and upper[0].id <= rows.last:
            over[upper[0].id] = upper
            upper = next(above, None)
        yield _covered(rows, over) if over else rows
    if upper is not None:
        yield from unread(record for record, _ in chain([upper], above))


def unread(records: Iterable[Record]) -> Iterator[Rows]:
    """Rows for records whose fields are not read, some hundreds at a time."""
    return map(Rows.unread, batched(records, _AT_ONCE))


def _oldest(runs: Sequence[StoredRun], lines: Lines | None) -> Iterator[tuple[bytes, str, int]]:
    """Whole lines, and where they are."""
    if runs:
        yield from runs[-1].texts()
    elif lines is not None:
        for text in lines.texts():
            yield text, "lines in memory", 0


def _covered(rows: Rows, over: dict[str, tuple[Record, bool]]) -> Rows:
    """The rows with newer records over them."""
    covered = rows.sets([number for number, id in enumerate(rows.ids) if id in over])
    below: dict[str, Record] = {record.id: record for record in (*covered, *rows.others)}
    others = {record.id: record for record in rows.others}
    for id, (record, outranks) in over.items():
        stored = below.get(id)
        others[id] = record if outranks or stored is None else newer(record, stored)
    return rows.without(over, [others[id] for id in sorted(others)])
