"""Reads slices of logs, so that all tasks together find what one reader of the whole log would. Does not use Spark.

A line belongs to the split that has its first byte. An undo cancels one of the `undo_window` commits before it. So only
the commits up to `undo_window` after a commit show whether it is cancelled, and a split reads that many commits after
its own end. They enter the merge without their records, only as positions in the log, undos and seals; another split
reports their records.

The commits go through `opslog.merge.merge.Merge`, from the end of the split to its beginning.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice, takewhile
from typing import NamedTuple

import msgspec

from opslog.backends import Backend
from opslog.errors import MissingFileError
from opslog.format.commits import CLOCK_MAX, Batch, Commit, Delete, Record, Seal, Set, Undo
from opslog.format.layout import segment_path
from opslog.format.scanned import first_clock, greatest_ts, last_clock
from opslog.history import Point, conditions
from opslog.log.reader import Chunk, Cursor, LogSource, Segment, by_turns, log_source
from opslog.merge.merge import Merge
from opslog.spark.read.planning import LogSplit

# The bytes of a log in one block.
BLOCK_BYTES = 8 * 1024 * 1024

# The bytes that are read at once to find the beginning of a line.
_NEWLINE_BYTES = 64 * 1024


class Included:
    """Selects the commits at or before a point in the past; without a point, all commits.

    :ivar all: whether all commits are selected.
    """

    def __init__(self, as_of: Point | None) -> None:
        self._test: Callable[[Commit], bool] = (lambda commit: True) if as_of is None else conditions(as_of)[1]
        self.all = as_of is None
        # Clocks grow along a log; times of day need not.
        self._select = takewhile if isinstance(as_of, int) else filter

    def among(self, commits: Sequence[Commit]) -> Sequence[Commit]:
        return commits if self.all else list(filter(self._test, commits))

    def ahead(self, commits: Iterable[Commit]) -> Iterable[Commit]:
        """The included commits of a sequence in the order of its log. Stops reading once no later commit can be
        included."""
        return commits if self.all else self._select(self._test, commits)


class SelectedChunk(NamedTuple):
    """The commits of a chunk that are included."""

    source: Chunk
    commits: Sequence[Commit]

    def positions(self) -> list[tuple[int, int]]:
        """The position of each commit."""
        positions = self.source.positions()
        if len(self.commits) == len(positions):
            return positions
        kept = {commit.clock for commit in self.commits}
        return [start for start, commit in zip(positions, self.source.commits, strict=True) if commit.clock in kept]


# Some megabytes of a log, newest first. The first chunk has the commits after the split, as in `LogReader.chunks`.
Block = list[SelectedChunk]


class LogReader:
    """Reads the splits of one task, each of another log.

    :ivar authors: for each author, the clock of the newest commit that `winners` read and that is not cancelled.
    :ivar commits: the number of commits read.
    :ivar ts: the greatest ts of them. Commits after a split's end, or after the point in the past, do not count.
    """

    def __init__(self, backend: Backend, splits: Sequence[LogSplit], window: int, as_of: Point | None = None) -> None:
        self.window = window
        self.commits, self.ts = 0, ""
        self.authors: dict[str, int] = {}
        self._backend = backend
        self._included = Included(as_of)
        segments = {
            split.agent: [Segment(slice_.number, slice_.stop, 0.0) for slice_ in split.slices] for split in splits
        }
        cursors = {agent: Cursor(agent, listed[0].number) for agent, listed in segments.items()}
        self._source = log_source(backend, cursors, segments, newest_first=True)

    def chunks(self, split: LogSplit, *, scans: bool = False) -> Iterator[SelectedChunk]:
        """First the commits after a split, as positions in the log, without bytes and without records; then the split,
        newest first. Nothing if no line begins in the split.

        :param scans: as of `Cursor.read_newest_first`.
        :raises CorruptError: a line is not a commit, or not the next one of this log.
        :raises MissingFileError: a segment was collected, or is shorter than it was.
        """
        split = self._sound(split)
        if not split.slices:
            return
        end = self._end(split)
        # At a point in the past each commit is tested, so each is decoded.
        own = self._own(split, end, scans=scans and self._included.all)
        newest = next(own, None)
        if newest is None:
            return
        yield _behind(self._later(split, end, last_clock(newest.commits)))
        for source in chain([newest], own):
            commits = self._included.among(source.commits)
            self._note(commits)
            yield SelectedChunk(source, commits)

    def by_turns(self, splits: Iterable[LogSplit], *, scans: bool = False) -> Iterator[tuple[str, SelectedChunk]]:
        """The chunks of some splits, each of another log, with its agent. On the whole newer chunks come first. `scans`
        as of `chunks`."""
        return by_turns(self._source, ((split.agent, self.chunks(split, scans=scans)) for split in splits), _lowest)

    def blocks(self, split: LogSplit) -> Iterator[Block]:
        """The same as `chunks`, some megabytes at once. Errors as of `chunks`."""
        chunks = self.chunks(split)
        behind = next(chunks, None)
        block: Block = []
        size = 0
        for chunk in chunks:
            assert behind is not None
            block.append(chunk)
            size += len(chunk.source.lines)
            if size >= BLOCK_BYTES:
                yield [behind, *block]
                oldest_first = chain.from_iterable(chunk.commits for chunk in reversed(block))
                behind = _behind(list(islice(chain(map(without_records, oldest_first), behind.commits), self.window)))
                block, size = [], 0
        if block and behind is not None:
            yield [behind, *block]

    def _note(self, commits: Sequence[Commit]) -> None:
        if commits:
            self.commits += len(commits)
            self.ts = max(self.ts, greatest_ts(commits))

    def _sound(self, split: LogSplit) -> LogSplit:
        """The split without torn bytes. Only the whole end of a segment shows whether zeros and the bytes after them
        are torn, and a slice may have only a part of it."""
        if not self._source.segments_grow:
            return split
        slices = []
        for slice_ in split.slices:
            ends = slice_.bytes
            if slice_.start or slice_.stop < slice_.bytes:
                ends = Cursor(split.agent, slice_.number).sound_end(self._source, slice_.number, 0, slice_.bytes)
            if slice_.start < ends:
                slices.append(slice_._replace(stop=min(slice_.stop, ends), bytes=ends))
        begins = split.begins or (bool(slices) and slices[0].start == 0)
        return msgspec.structs.replace(split, slices=tuple(slices), begins=begins)

    def _own(self, split: LogSplit, end: int, *, scans: bool) -> Iterator[Chunk]:
        """The lines of a split, newest first."""
        first = split.slices[0]
        segments = [Segment(slice_.number, slice_.stop, 0.0) for slice_ in split.slices]
        begin: int | None = first.start
        if not split.begins:
            begin = find_line(self._source, segment_path(split.agent, first.number), first.start, first.stop)
        if begin is None:
            # The whole slice is the middle of a line, or the torn end of a segment.
            del segments[0]
        if segments:
            segments[-1] = segments[-1]._replace(bytes=end)
            cursor = Cursor(split.agent, segments[0].number, begin or 0)
            yield from cursor.read_newest_first(self._source, segments, scans=scans)

    def _end(self, split: LogSplit) -> int:
        """The end of the last line that begins before the end of the last slice."""
        last = split.slices[-1]
        if last.stop == last.bytes:
            return last.stop
        path = segment_path(split.agent, last.number)
        return find_line(self._source, path, last.stop, last.bytes) or last.bytes

    def _later(self, split: LogSplit, end: int, clock: int) -> list[Commit]:
        """The commits after a split that may contain an undo of one of its own commits, without their records.

        :param end: the end of its last line.
        :param clock: the clock of its newest commit.
        """
        # Read at least one, to check that clocks grow there, too.
        found = islice(self._included.ahead(self._behind(split, end, clock)), max(1, self.window))
        return list(map(without_records, found))[: self.window]

    def _behind(self, split: LogSplit, end: int, clock: int) -> Iterator[Commit]:
        """The commits after a split, up to the end that the log had in the listing."""
        last = split.slices[-1]
        number, offset, size = (last.number, end, last.bytes) if end < last.bytes else (last.number + 1, 0, 0)
        while number <= split.end[0]:
            # A segment probably has one commit. So fetch as many segments as there are commits to read; more are seldom
            # needed. The lengths of later segments are not known: they count as short for fetching many at once, and
            # are read to their ends.
            numbers = range(number, min(split.end[0], number + self.window) + 1)
            fetched = [Segment(each, max(1, size if each == number else 0), 0.0) for each in numbers]
            cursor = Cursor(split.agent, number, offset, clock=clock)
            source = _Listed(self._backend, cursor, fetched, split.end)
            for _, commit in cursor.read(source, [segment._replace(bytes=sys.maxsize) for segment in fetched]):
                yield commit
            number, offset, size, clock = numbers[-1] + 1, 0, 0, cursor.clock


class _Listed:
    """A log, up to its end in the listing."""

    def __init__(self, backend: Backend, cursor: Cursor, segments: list[Segment], end: tuple[int, int]) -> None:
        self._source = log_source(backend, {cursor.agent: cursor}, {cursor.agent: segments})
        self._last, self._bytes = segment_path(cursor.agent, end[0]), end[1]

    @property
    def segments_grow(self) -> bool:
        return self._source.segments_grow

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if path == self._last:
            stop = self._bytes if stop is None else min(stop, self._bytes)
        return self._source.read(path, start, stop)


def _lowest(chunk: SelectedChunk) -> int:
    commits = chunk.source.commits
    return first_clock(commits) if commits else CLOCK_MAX


def find_line(source: LogSource, path: str, offset: int, limit: int) -> int | None:
    """The first line that begins at byte `offset` (above 0) or later; None if no line begins before `limit`.

    :raises MissingFileError: the file is gone, or shorter than it was.
    """
    offset = offset - 1
    while offset < limit - 1:
        stop = min(limit - 1, offset + _NEWLINE_BYTES)
        data = source.read(path, offset, stop)
        found = data.find(b"\n")
        if found >= 0:
            return offset + found + 1
        if len(data) < stop - offset:
            raise MissingFileError(f"{path} ends at byte {offset + len(data)}, and had {limit} bytes before", path)
        offset = stop
    return None


def without_records(commit: Commit) -> Commit:
    """The commit as a position in its log, with its references to other commits and without its records."""
    if isinstance(commit, Undo | Seal):
        return commit
    return Batch(commit.ts, commit.clock, commit.agent, [], by=commit.by, tx=commit.tx)


def _behind(later: list[Commit]) -> SelectedChunk:
    return SelectedChunk(Chunk(0, 0, b"", []), later)


# Whether a document is requested.
Wanted = Callable[[str], bool]


def restricted(commit: Commit, wanted: Wanted) -> Commit:
    """The commit with those of its ops that write wanted documents."""
    if isinstance(commit, Set | Delete):
        return commit if wanted(commit.id) else without_records(commit)
    if isinstance(commit, Batch):
        return msgspec.structs.replace(commit, ops=[op for op in commit.ops if wanted(op.id)])
    return commit


def winners(reader: LogReader, splits: Iterable[LogSplit], wanted: Wanted | None = None) -> Iterator[Record]:
    """The winners in some splits, each of another log, tombstones included, in no particular order. Reads all splits
    before it returns the first winner. Holds one record for each document."""
    chunks = ((agent, chunk.commits) for agent, chunk in reader.by_turns(splits, scans=wanted is None))
    if wanted is not None:
        chunks = ((agent, [restricted(commit, wanted) for commit in commits]) for agent, commits in chunks)
    merge = Merge(reader.window)
    merge.load(chunks)
    for author, clock in merge.newest_by_author().items():
        reader.authors[author] = max(clock, reader.authors.get(author, 0))
    # Not `merge.winners()`, which makes a copy: another 40 MB for a million documents.
    best = merge.settled
    for id in merge.contested:
        winner = merge.winner(id)
        assert winner is not None
        best[id] = winner
    yield from best.values()
    if merge.lines is not None:
        yield from (record for record in merge.lines.records() if record.id not in best)


def cancelled(block: Block, window: int) -> set[int]:
    """The clocks of the commits of a block that an undo cancels."""
    if not any(isinstance(commit, Undo) for chunk in block for commit in chunk.commits):
        return set()
    oldest_first = chain.from_iterable(chunk.commits for chunk in reversed(block))
    merge = Merge(window)
    found: set[int] = set()
    for commit in oldest_first:
        if any(merge.apply(commit)) and isinstance(commit, Undo):
            found.add(commit.target)
    return found
