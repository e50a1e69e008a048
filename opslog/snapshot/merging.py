"""Compaction with the kernel: sets in memory are compared with runs and merged with them as lines, without decoding.

Without the kernel, `opslog.compaction.compact` does the same with records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from opslog.format.commits import Set, decode_record, decode_records
from opslog.format.layout import TRANSACTIONS
from opslog.format.snapshot import Row, SomeLines
from opslog.kernel import Merger, rows
from opslog.snapshot.runs import BlockRun

if TYPE_CHECKING:
    from opslog.kernel import _kernel


def rows_of(lines: bytes, path: str, offset: int) -> _kernel.Rows:
    """The rows of whole lines, which begin at byte `offset` of the file `path`.

    :raises CorruptError: a line is not a record.
    """
    assert rows is not None, "only the kernel has these"
    whole = lines if lines.endswith(b"\n") else lines + b"\n"  # as `decode_rows` ends them
    found = rows(whole, None)
    if found is None:  # some of them were written by another program
        records = decode_records(lines, path, offset)
        found = rows(whole, tuple((item.id, item.clock, item.agent, isinstance(item, Set)) for item in records))
        assert found is not None
    return found


def rows_in(run: BlockRun) -> Iterator[_kernel.Rows]:
    """All rows of a run, verified."""
    for lines, path, offset in run.texts():
        yield rows_of(lines, path, offset)


def rows_from(taken: Iterable[tuple[Row, ...]]) -> Iterator[_kernel.Rows]:
    """Rows in memory, as the kernel's rows."""
    assert rows is not None
    for some in taken:
        known = tuple((row.id, 0, TRANSACTIONS if row.shared else "", row.deleted is None) for row in some)
        found = rows(b"".join(row.line for row in some), known)
        assert found is not None
        yield found


def compare(winners: _kernel.Winners, run: BlockRun, count: int) -> None:
    """Find out which of `count` winners win against a run, and which of their documents it has. With several runs, call
    this for the newest first. Costs a pass over the run; or over the blocks that may have one of the documents, if that
    costs less."""
    winners.begin()
    if not run.is_worth_lookups(count):
        for some in rows_in(run):
            winners.meet(some)
        return
    met = None
    while (id := winners.next()) is not None:
        place = run.place_of(id)
        if place is None or place == met:
            winners.skip()
        else:
            winners.meet(rows_of(*run.block_at(place)))
            met = place


class Merged:
    """Merges several sources, newer ones first, each in order of id, into one in order of id: the newest row of each
    id. Iterate it only once.

    It is also the `SortedLines` between the rows.
    """

    def __init__(self, sources: Iterable[_kernel.Winners | Iterator[_kernel.Rows]]) -> None:
        assert Merger is not None
        self._sources = tuple(sources)
        self._merger = Merger(tuple(None if isinstance(source, Iterator) else source for source in self._sources))

    def __iter__(self) -> Iterator[Row | Merged]:
        yield self
        while (line := self._merger.row()) is not None:
            yield Row.of(decode_record(line), line)
            yield self

    def take(self, room: int) -> SomeLines | None:
        while isinstance(found := self._merger.take(room), int):
            source = self._sources[found]
            assert isinstance(source, Iterator)
            self._merger.give(found, next(source, None))
        return None if found is None else SomeLines(*found)
