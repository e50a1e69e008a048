"""Settled sets kept as their lines, in memory of the kernel. Pure.

A record as an object takes three times the memory of its line, and most of the loaded records are never read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec

from opslog.format.commits import Record, Set, decode_records, encode_commit
from opslog.format.layout import TRANSACTIONS
from opslog.format.scanned import ScannedCommits, scan_commits
from opslog.format.snapshot import Row, SomeLines
from opslog.kernel import Table, Winners

if TYPE_CHECKING:
    from opslog.kernel import _kernel

# How many records are decoded at once when a caller reads all of them.
_BATCH = 512
# How many of the records that callers read are kept decoded.
_KEPT = 4096


class LineRange:
    """Consecutive lines of a table; see `opslog.format.snapshot.SortedLines`."""

    def __init__(self, table: _kernel.Table, start: int, stop: int) -> None:
        self._table, self._start, self._stop = table, start, stop

    def take(self, room: int) -> SomeLines | None:
        start = self._start
        if start == self._stop:
            return None
        text, after = self._table.block(start, self._stop, room)
        self._start = after
        return SomeLines(text, after - start, *self._table.ids(start, start + 1), *self._table.ids(after - 1, after))


class Lines:
    """For each document, the set with the greatest stamp among those that were taken in. Once all are in, they do not
    change, and any number of threads may read them.

    :ivar table: the kernel's table that holds them.
    """

    def __init__(self) -> None:
        assert Table is not None, "only the kernel scans lines"
        self.table = Table()
        self._kept: dict[str, Set] = {}

    def take(self, commits: ScannedCommits) -> bool:
        """Take in the sets of a chunk. False: they were not taken in."""
        return self.table.add(commits.sets)

    def get(self, id: str) -> Set | None:
        """The set of a document. The next calls may return the same object."""
        kept = self._kept.get(id)
        if kept is not None:
            return kept
        found = self.table.get(id)
        if found is None:
            return None
        ts, clock, agent, data, v = found
        record = Set(ts, clock, agent, id, msgspec.Raw(data), v)
        if len(self._kept) >= _KEPT:
            self._kept.clear()
        self._kept[id] = record
        return record

    def absorb(self, settled: dict[str, Record]) -> None:
        """Move the sets that lines can hold from `settled` to here. They outrank the sets that are here already."""
        for record in list(settled.values()):
            if isinstance(record, Set) and record.agent != TRANSACTIONS:
                scanned = scan_commits(encode_commit(record), record.agent, "a record in memory", 0)
                if scanned is not None and not scanned.others and self.take(scanned):
                    del settled[record.id]

    def winners(self) -> _kernel.Winners:
        """All sets, for comparing them with a snapshot."""
        assert Winners is not None
        return Winners(self.table)

    def over(self, rows: Iterable[Row]) -> Iterator[Row | LineRange]:
        """All sets in order of id, with rows put over them.

        :param rows: in order of id; each replaces the set with the same id.
        """
        place = 0
        for row in rows:
            below = self.table.rank(row.id)
            if below > place:
                yield LineRange(self.table, place, below)
            yield row
            place = below + (row.id in self.table)
        if place < len(self.table):
            yield LineRange(self.table, place, len(self.table))

    def __contains__(self, id: object) -> bool:
        return id in self.table

    def __len__(self) -> int:
        return len(self.table)

    def ids(self) -> Iterator[str]:
        """All ids in order."""
        for start in range(0, len(self.table), _BATCH):
            yield from self.table.ids(start, start + _BATCH)

    def records(self) -> Iterator[Record]:
        """All records in order of id."""
        for text in self.texts():
            yield from decode_records(text, "lines in memory", 0)

    def texts(self) -> Iterator[bytes]:
        """All lines in order of id, up to `_BATCH` at a time."""
        for start in range(0, len(self.table), _BATCH):
            yield self.table.lines(start, start + _BATCH)
