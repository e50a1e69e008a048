"""Reading what is new in logs.

A `Cursor` remembers how far a log was read. Only whole lines count. Bytes after the last newline of a segment are
either still being written or the torn tail of a crash; readers skip them once a later segment exists. They also skip
zeros that a power cut left there, and lines behind the zeros that were written together with the missing bytes
(`opslog.format.torn`). Listing comes before reading, so a segment that is not the last of the listing is finished.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from opslog.backends import Backend, Entry, Range
from opslog.chunks import batched
from opslog.errors import CorruptError, MissingFileError, RetryError
from opslog.format.commits import CLOCK_MAX, Commit, decode_commit, decode_commits, detached
from opslog.format.layout import log_prefix, segment_of, segment_path
from opslog.format.manifest import START, Cut
from opslog.format.scanned import ScannedCommits, first_clock, last_clock, scan_commits
from opslog.format.torn import last_append, sound_length

T = TypeVar("T")

# The cost of reading a segment besides its length, in bytes: a request on an object storage, where each append is a
# segment, and there are many.
SEGMENT_COST = 64 * 1024

# How many segments are fetched at once, at most.
_AHEAD = 500
# How many logs are read by turns, at most: the last chunk of each stays in memory, a megabyte with its commits.
_BY_TURNS = 16
# How much of a log is read and decoded at once: a few milliseconds of work between two chances for other threads.
_READ_BYTES = 1024 * 1024
# The same for readers that forget most of it at once, if a read costs little: with its commits the chunk fits into the
# processor's cache, and decoding takes three quarters of the time that a larger chunk takes.
_CHUNK_BYTES = 256 * 1024
# The last append of a segment is searched first in this much of its end; a group of commits is seldom longer.
_LAST_BYTES = 64 * 1024


class Segment(NamedTuple):
    """One segment in a listing: its number, its length, and when it was last written by the storage's clock."""

    number: int
    bytes: int
    modified: float


# The segments of each agent, in order of number.
Segments = dict[str, list[Segment]]


def list_segments(backend: Backend, cursors: Mapping[str, Cursor] | None = None) -> Segments:
    """All segments of all logs; those before the cursors may be left out. One listing."""
    return segments_in(backend.list_logs(Seen(cursors or {})))


class Seen(Mapping[str, int]):
    """The segment of each agent's cursor. Costs nothing for agents that nobody asks about."""

    def __init__(self, cursors: Mapping[str, Cursor]) -> None:
        self._cursors = cursors

    def __getitem__(self, agent: str) -> int:
        return self._cursors[agent].segment

    def __iter__(self) -> Iterator[str]:
        return iter(self._cursors)

    def __len__(self) -> int:
        return len(self._cursors)

    def __contains__(self, agent: object) -> bool:  # as the mixin, which finds out by an exception
        return agent in self._cursors


def list_log(backend: Backend, agent: str) -> list[Segment]:
    """The segments of one log. One listing."""
    return segments_in(backend.list(log_prefix(agent))).get(agent, [])


def segments_in(entries: Iterable[Entry]) -> Segments:
    """The segments of a listing, by agent."""
    segments: Segments = {}
    for path, size, modified in entries:
        named = segment_of(path)
        if named is not None:
            segments.setdefault(named[0], []).append(Segment(named[1], size, modified))
    return segments


def all_logs(segments: Segments, known: Iterable[str]) -> Segments:
    """A listing that contains every known log. Logs without segments come last, each as an empty list."""
    missing = set(known) - segments.keys()
    return segments | {agent: [] for agent in sorted(missing)} if missing else segments


def bytes_after(segments: Segments, cut: Mapping[str, Cut | Cursor]) -> int:
    """How many bytes of log lie after a cut, or after cursors."""
    total = 0
    for agent, listed in segments.items():
        segment, offset = cut.get(agent, START).position
        total += sum(size - (offset if number == segment else 0) for number, size, _ in listed if number >= segment)
    return total


def cost_after(segments: Segments, cut: Mapping[str, Cut | Cursor]) -> int:
    """The cost of reading the logs after a cut, or after cursors: their bytes, and `SEGMENT_COST` for each segment
    that begins there."""
    beginning = sum(
        (number, 0) >= cut.get(agent, START).position for agent, listed in segments.items() for number, _, _ in listed
    )
    return bytes_after(segments, cut) + SEGMENT_COST * beginning


def until(segments: list[Segment], end: tuple[int, int]) -> list[Segment]:
    """A log as it was when it ended at this segment and byte."""
    return [
        segment._replace(bytes=end[1]) if segment.number == end[0] and segment.bytes > end[1] else segment
        for segment in segments
        if (segment.number, 0) < end
    ]


def least_first(segments: Segments, cut: Mapping[str, Cut | Cursor]) -> list[str]:
    """The agents, ordered by the number of bytes after a cut, fewest first. So no log waits for ever behind one that
    is written faster, and the unused part of its share goes to the others."""
    return sorted(segments, key=lambda agent: (bytes_after({agent: segments[agent]}, cut), agent))


class LogSource(Protocol):
    """The part of a backend that a cursor needs for reading."""

    @property
    def segments_grow(self) -> bool: ...

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes: ...


class Chunk(msgspec.Struct, frozen=True):
    """Some commits of a log in a row, with the lines of them that begin at byte `offset` of `segment`."""

    segment: int
    offset: int
    lines: bytes
    commits: Sequence[Commit]

    def positions(self) -> list[tuple[int, int]]:
        """The position of each commit."""
        lengths = (len(line) + 1 for line in self.lines.split(b"\n"))
        offsets = accumulate(lengths, initial=self.offset)
        return [(self.segment, offset) for offset, _ in zip(offsets, self.commits, strict=False)]

    def last_mark(self) -> str:
        """The mark (`mark_of`) of the last commit."""
        if not isinstance(self.commits, ScannedCommits):
            return mark_of(self.commits[-1])
        last = decode_commit(self.lines[self.lines.rfind(b"\n", 0, -1) + 1 :])
        assert last is not None, "its line was read before"
        return mark_of(last)


def mark_of(commit: Commit) -> str:
    """What distinguishes a commit from another one of the same log and clock, which is there instead after a restore
    from a backup: its `ts`, and a transaction's nonce: its `ts` stays the same while that of the log is ahead."""
    return commit.ts + commit.tx


def ts_of(mark: str) -> str:
    """The `ts` in a mark; empty if that is empty."""
    return mark[: len("2026-11-20T12:00:00.123456Z")]


class Cursor(msgspec.Struct):
    """How far an agent's log was read: `commits` of them, up to byte `offset` of `segment`, the last at `clock`, and
    with this `mark` (`mark_of`)."""

    agent: str
    segment: int = START.segment
    offset: int = START.offset
    commits: int = START.commits
    clock: int = 0
    # The last segment that must exist, according to the manifest at whose cut this cursor began.
    needed: int = 0
    # The position that the log must reach, according to a manifest.
    end: tuple[int, int] = (0, 0)
    # Empty if the last commit was not read.
    mark: str = ""

    @classmethod
    def at(cls, agent: str, cut: Cut) -> Cursor:
        return cls(agent, cut.segment, cut.offset, cut.commits, needed=cut.needed_segment)

    @property
    def position(self) -> tuple[int, int]:
        return self.segment, self.offset

    @property
    def cut(self) -> Cut:
        """The cursor's position in the form of a manifest."""
        return Cut(self.segment, self.offset, self.commits)

    def has_reached(self, cut: Cut) -> bool:
        """Whether everything before a cut of this log was read."""
        return self.position >= cut.position or (cut.offset == 0 and self.segment == cut.needed_segment)

    def is_at_end(self, segments: list[Segment]) -> bool:
        """Whether `read` would find nothing, and nothing missing, in this listing of the log."""
        if not self._is_reached(segments):
            return False
        if not segments or segments[-1].number < self.segment:
            return not self.offset and self.needed != self.segment
        return segments[-1].number == self.segment and segments[-1].bytes == self.offset

    def _is_reached(self, listed: list[Segment]) -> bool:
        """Whether the log, listed from here on, reaches `end`. That can be the beginning of the segment after the last
        one that is there."""
        if not listed or listed[-1].number < self.segment:
            return self.position >= self.end
        last, size, _ = listed[-1]
        return (last, size) >= self.end or self.end == (last + 1, 0)

    def moved_to(self, cut: Cut) -> Cursor:
        """This cursor at a cut that lies farther on in the log without a commit in between, or this cursor itself.
        Segments before a cut may be collected, even if they were read."""
        if cut.commits != self.commits or cut.position <= self.position:
            return self
        return Cursor(
            self.agent, cut.segment, cut.offset, cut.commits, self.clock, cut.needed_segment, self.end, self.mark
        )

    def read(self, source: LogSource, segments: list[Segment]) -> Iterator[tuple[Cut, Commit]]:
        """The commits after the cursor, as far as the listing goes, each with its position; moves the cursor past each
        before it is yielded.

        :param segments: this log's part of a listing made just before.
        :raises MissingFileError: the log does not exist at the cursor, or does not continue there. A compaction has
            merged and collected the next commits, and a load from the newest manifest helps. If it does not, data was
            lost: the segment at a cut is never collected.
        :raises CorruptError: a line is not a commit, or not the next one of this log.
        """
        for number, size, _ in self.coming(segments):
            if number > self.segment:
                self.segment, self.offset = number, 0
            if size > self.offset:
                yield from self._read_segment(source, size)
            if not source.segments_grow:
                self.segment, self.offset = number + 1, 0
        self._check_end()

    def read_newest_first(self, source: LogSource, segments: list[Segment], *, scans: bool = False) -> Iterator[Chunk]:
        """The same commits in chunks, the newest chunk first, as far as the listing goes; moves the cursor when
        the last of them was taken. For readers that need only the winning writes: they can forget most of what is
        decoded at once. Errors as in `read`.

        :param scans: whether the commits of a chunk may be `ScannedCommits`, for readers that need few of them.
        """
        end, clock, mark, later = self.position, self.clock, self.mark, None
        commits = 0
        for number, size, _ in reversed(coming := self.coming(segments)):
            for chunk in self._read_segment_back(source, number, size, scans):
                self._check(chunk, later)
                if later is None:
                    end, clock = (number, chunk.offset + len(chunk.lines)), last_clock(chunk.commits)
                    mark = chunk.last_mark()
                later = chunk
                commits += len(chunk.commits)
                yield chunk
        if later is not None and first_clock(later.commits) <= self.clock:
            raise self._misplaced(later.commits[0], later.segment, later.offset, self.clock)
        last = coming[-1].number if coming else self.segment
        self.segment, self.offset = end if end[0] == last else (last, 0)
        if coming and not source.segments_grow:
            self.segment, self.offset = last + 1, 0
        self.commits += commits
        self.clock, self.mark = clock, mark
        self._check_end()

    def _check_end(self) -> None:
        """Check that the commits go on up to `end`. A file may be as long as it was, and have none any more.

        :raises MissingFileError: they end before it.
        """
        segment, offset = self.end
        if self.position < self.end != (self.segment + 1, 0):
            raise self._vanished(segment, f"has no commits before byte {offset}, and had some up to there")

    def coming(self, segments: list[Segment]) -> list[Segment]:
        """The segments to read, one after the other.

        :raises MissingFileError: a segment does not exist; see `read`.
        """
        coming = [segment for segment in segments if segment.number >= self.segment]
        for expected, (number, size, _) in enumerate(coming, self.segment):
            if number != expected:
                raise self._vanished(expected, "is missing, though the log goes on after it")
            if number == self.segment and size < self.offset:
                raise self._vanished(number, f"ends at byte {size}, and had {self.offset} bytes before")
        if not coming and (self.offset or self.needed == self.segment):
            raise self._vanished(
                self.segment, f"is missing, and was there, and read or compacted up to byte {self.offset} of it"
            )
        if not self._is_reached(coming):
            segment, offset = self.end
            if offset:
                raise self._vanished(segment, f"is missing, or ends before byte {offset}, which it once reached")
            raise self._vanished(segment - 1, "is missing, and was there")
        return coming

    def _read_segment_back(self, source: LogSource, number: int, size: int, scans: bool) -> Iterator[Chunk]:
        path, full = segment_path(self.agent, number), _CHUNK_BYTES if source.segments_grow else _READ_BYTES
        want = full
        first, end = self.offset if number == self.segment else 0, size
        if source.segments_grow and end > first:
            end = self.sound_end(source, number, first, size)
        while end > first:
            start = max(first, end - want)
            data = self._read_whole(source, number, start, end)
            # If reading began at the beginning of the segment, its first line is whole; bytes after the last newline
            # are torn.
            skipped = data.find(b"\n") + 1 if start > first else 0
            lines = data[skipped : data.rfind(b"\n") + 1]
            if lines:
                end = start + skipped
                scanned = scan_commits(lines, self.agent, path, end) if scans else None
                commits = decode_commits(lines, path, end) if scanned is None else scanned
                yield Chunk(number, end, lines, commits)
            elif start == first:
                return
            # A full read without a whole line is a part of a long one: ask for more of it.
            want = full if lines else want * 2

    def sound_end(self, source: LogSource, number: int, first: int, size: int) -> int:
        """The end of the commits in a segment of `size` bytes, where a torn tail begins. Reads no further back than the
        beginning of a line at `first`; costs a read of the last append.

        :raises MissingFileError: the segment is gone.
        """
        found, want, start = None, _LAST_BYTES, size
        data = b""
        while found is None:
            start = max(first, size - want)
            data = self._read_whole(source, number, start, size)
            found = last_append(data, is_start=start == first)
            want *= 4
        return start + found + sound_length(data[found:])

    def _read_whole(self, source: LogSource, number: int, start: int, end: int) -> bytes:
        data = source.read(segment_path(self.agent, number), start, end)
        if len(data) < end - start:
            raise self._vanished(number, f"ends at byte {start + len(data)}, and had {end} bytes before")
        return data

    def _check(self, chunk: Chunk, later: Chunk | None) -> None:
        """Check that this log can have these commits before those of the chunk `later`."""
        agent, clock = self.agent, 0
        if isinstance(chunk.commits, ScannedCommits):
            clock = last_clock(chunk.commits)  # and they are in order
        else:
            for index, commit in enumerate(chunk.commits):
                if commit.clock <= clock or commit.agent != agent:
                    raise self._misplaced(commit, *chunk.positions()[index], clock)
                clock = commit.clock
        if later is not None and first_clock(later.commits) <= clock:
            raise self._misplaced(later.commits[0], later.segment, later.offset, clock)

    def _read_segment(self, source: LogSource, size: int) -> Iterator[tuple[Cut, Commit]]:
        path = segment_path(self.agent, self.segment)
        for start, lines in read_lines(source.read, path, self.offset):
            if b"\0" in lines:  # their meaning only shows with all the bytes that follow
                rest = source.read(path, start)
                yield from self._decode(rest[: sound_length(rest)], path, size)
                return
            if lines.endswith(b"\n"):
                yield from self._decode(lines, path, size)
            if self.offset >= size:
                return

    def _decode(self, lines: bytes, path: str, size: int) -> Iterator[tuple[Cut, Commit]]:
        """The commits in these lines whose lines begin before byte `size`. (If one of them goes on there, its writer
        was about to append it when the log was listed.)"""
        commits = decode_commits(lines, path, self.offset)
        for commit, line in zip(commits, lines.split(b"\n"), strict=False):
            if self.offset >= size:
                return
            if commit.agent != self.agent or commit.clock <= self.clock:
                raise self._misplaced(commit, self.segment, self.offset, self.clock)
            start = self.cut
            self.offset += len(line) + 1
            self.commits += 1
            self.clock, self.mark = commit.clock, mark_of(commit)
            yield start, detached(commit, self.agent)

    def _vanished(self, number: int, what: str) -> MissingFileError:
        path = segment_path(self.agent, number)
        return MissingFileError(f"{path} {what}", path)

    def _misplaced(self, commit: Commit, segment: int, offset: int, clock: int) -> CorruptError:
        path = segment_path(self.agent, segment)
        return CorruptError(
            f"{path}: byte {offset}: a commit of agent {commit.agent!r} at clock {commit.clock}, where only one "
            f"of {self.agent!r} above {clock} can be: the file was edited or copied, or two programs wrote it",
            path,
            offset,
        )


def read_lines(read: Callable[[str, int, int], bytes], path: str, start: int = 0) -> Iterator[tuple[int, bytes]]:
    """(offset, whole lines) of a file from a byte on, about a megabyte at a time. Bytes after the last newline come
    last, without one.

    :param start: the beginning of a line.
    :param read: reads the bytes of a file from one offset to another, or fewer if the file ends before. Not called
        beyond the end of the file.
    """
    want = _READ_BYTES
    while True:
        data = read(path, start, start + want)
        end = data.rfind(b"\n") + 1
        if end:
            yield start, data[:end]
        if len(data) < want:
            if end < len(data):
                yield start + end, data[end:]
            return
        # A full read without a newline is a part of a long line: ask for more of it.
        want = _READ_BYTES if end else want * 2
        start += end


def log_source(
    backend: Backend, cursors: Mapping[str, Cursor], segments: Segments, *, newest_first: bool = False
) -> LogSource:
    """The source for reading logs one after the other, in the order of the listing, from the cursors on. Where each
    append is a segment of its own, it fetches many at once."""
    if backend.segments_grow:
        return backend
    return _ReadAhead(
        backend,
        [
            (segment_path(agent, segment.number), segment.bytes)
            for agent, listed in segments.items()
            for segment in (reversed(listed) if newest_first else listed)
            if segment.number >= cursors[agent].segment and segment.bytes < _READ_BYTES
        ],
    )


def read_logs(
    backend: Backend, cursors: dict[str, Cursor], segments: Segments, *, scans: bool = False
) -> Iterator[tuple[str, Chunk]]:
    """All logs from the cursors on, in chunks, each with its agent; adds the cursors of new logs. The newest chunk of
    each log comes first. Among logs the newest also come first, on the whole, if they are read one by one and not
    fetched in groups. Each cursor moves when the last chunk of its log was taken. Errors as in `Cursor.read`.

    :param segments: a listing with all logs that have a cursor (`all_logs`).
    :param scans: as in `Cursor.read_newest_first`.
    """
    for agent in segments:
        cursors.setdefault(agent, Cursor(agent))
    source = log_source(backend, cursors, segments, newest_first=True)
    readers = (
        (agent, cursors[agent].read_newest_first(source, listed, scans=scans)) for agent, listed in segments.items()
    )
    return by_turns(source, readers, lambda chunk: first_clock(chunk.commits))


def by_turns(
    source: LogSource, readers: Iterator[tuple[str, Iterator[T]]], lowest: Callable[[T], int]
) -> Iterator[tuple[str, T]]:
    """The chunks of logs read from a source, the newest of each log first. The next chunk is always one of the log
    whose rest may be the newest, since that rest is below the `lowest` clock of a chunk. If segments are fetched in
    groups, the chunks come log by log."""
    for some in batched(readers, _BY_TURNS if source.segments_grow else 1):
        yield from _by_turns(some, lowest)


def _by_turns(readers: Iterable[tuple[str, Iterator[T]]], lowest: Callable[[T], int]) -> Iterator[tuple[str, T]]:
    waiting = [(-CLOCK_MAX, agent, reader) for agent, reader in readers]
    heapq.heapify(waiting)
    while waiting:
        _, agent, reader = waiting[0]
        chunk = next(reader, None)
        if chunk is None:
            heapq.heappop(waiting)
        else:
            heapq.heapreplace(waiting, (-lowest(chunk), agent, reader))
            yield agent, chunk


class _ReadAhead:
    """Reads segments in the order of `coming` (paths and lengths), each once and a group of them at once; reads all
    other segments one by one."""

    segments_grow = False

    def __init__(self, backend: Backend, coming: list[tuple[str, int]]) -> None:
        self._backend = backend
        self._coming = deque(coming)
        self._announced = {path for path, _ in coming}
        self._fetched: dict[str, bytes | None] = {}

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if path in self._announced:
            with suppress(RetryError):  # reading them one by one shows which of them failed
                self._fetch(path)
        if path not in self._fetched:
            return self._backend.read(path, start, stop)
        data = self._fetched.pop(path)
        if data is None:
            raise MissingFileError(f"no file {path} in {self._backend.url}", path)
        return data[start:stop]

    def _fetch(self, path: str) -> None:
        """Fetch a segment, and those that come after it."""
        while self._coming[0][0] != path:
            self._announced.discard(self._coming.popleft()[0])
        group: list[Range] = []
        size = 0
        while self._coming and len(group) < _AHEAD and size < _READ_BYTES:
            coming, length = self._coming.popleft()
            group.append(Range(coming))
            size += length
            self._announced.discard(coming)
        found = self._backend.read_many(group)
        self._fetched = dict(zip((part.path for part in group), found, strict=True))
