"""All documents of a store: the winners of the tail merged with the snapshot."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, TypeVar

import msgspec

from opslog.errors import MissingFileError, RetryError
from opslog.format.commits import Record, Set
from opslog.merge.stamps import newer
from opslog.snapshot.runs import SortedRecords, newest_records

if TYPE_CHECKING:
    from opslog.merge.lines import Lines

R = TypeVar("R")


class Layers(msgspec.Struct, frozen=True):
    """All documents, mostly undecoded: the oldest run as it is stored, and the records that differ from it.

    :ivar lines: the records of the oldest run, some whole lines at a time, in order of id. They are verified as they
        are read. Raises RetryError if the run was replaced and collected.
    :ivar has_tombstones: whether deletes are among them.
    :ivar above: for each document that was written since, the record that counts.
    """

    lines: Iterator[bytes | memoryview]
    has_tombstones: bool
    above: dict[str, Record]


class LinesOverRuns:
    """Merges the lines of a tail with the snapshot, newest run first: the newer record of each document."""

    def __init__(self, lines: Lines, runs: Sequence[SortedRecords]) -> None:
        self._lines = lines
        self._runs = runs

    def records(self) -> Iterator[Record]:
        if not self._runs:
            yield from self._lines.records()
            return
        lines = self._lines.records()
        line = next(lines, None)
        for stored in newest_records(self._runs):
            while line is not None and line.id < stored.id:
                yield line
                line = next(lines, None)
            if line is not None and line.id == stored.id:
                yield newer(line, stored)
                line = next(lines, None)
            else:
                yield stored
        if line is not None:
            yield line
            yield from lines


def retained(records: Iterator[R]) -> Iterator[R]:
    """Iterate over records of the snapshot.

    :raises RetryError: the snapshot was replaced and collected before its end was reached.
    """
    try:
        yield from records
    except MissingFileError as error:
        raise RetryError(
            f"{error.path} was replaced and collected before this iteration came to it: begin it again"
        ) from error


def live_records(
    runs: Sequence[SortedRecords], winners: dict[str, Record], overlaid: Container[str] = ()
) -> Iterator[Set]:
    """The records of all documents in order of id, out of the snapshot, newest run first, and the winners of the tail;
    see `State.records`.

    :param overlaid: ids whose record in `winners` outranks whatever the snapshot has.
    :raises MissingFileError: the snapshot was replaced and collected before its end was reached.
    """
    for record, _ in records_with_deletes(runs, winners, overlaid):
        if isinstance(record, Set):
            yield record


def records_with_deletes(
    runs: Sequence[SortedRecords], winners: dict[str, Record], overlaid: Container[str]
) -> Iterator[tuple[Record, bool]]:
    """Like `live_records`, with deletes. Each record comes with whether it outranks the records of older runs."""
    # Sort records, not ids: for very many ids, a second lookup of each costs as much as sorting.
    above = iter(sorted(winners.values(), key=attrgetter("id")))
    winner = next(above, None)
    for stored in newest_records(runs):
        record = stored
        while winner is not None and winner.id <= stored.id:
            if winner.id == stored.id:
                record = winner if winner.id in overlaid else newer(winner, stored)
            else:
                yield winner, winner.id in overlaid
            winner = next(above, None)
        yield record, True
    while winner is not None:
        yield winner, winner.id in overlaid
        winner = next(above, None)
