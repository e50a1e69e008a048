"""The plan of a Spark job: plain values that are small to pickle. The driver makes it once. Does not use Spark.

The plan follows from one survey of the store (`opslog.log.survey`), without another listing. Each task reads only the
files and bytes that it is given. So all tasks of a job, also retried ones, see the same store, whatever is written
meanwhile:

- A slice of a log ends where the log ended in the listing. Bytes after that were written later, and are not read.
- A part of a run, an archive, and the bytes of a log that were listed never change.
- A file that a compaction collects stays for the store's grace period after the manifest that needed it was superseded.
  A task that comes later fails because a file is missing; it never reads another file in its place.

A log can be divided at any byte: a line belongs to the slice that has its first byte (`opslog.spark.read.splits` reads
slices).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

import msgspec

from opslog.backends import Backend
from opslog.environment import REAL
from opslog.format.commits import Commit, Undo
from opslog.format.manifest import START, Cut, Manifest
from opslog.history import Point, check_past, conditions, manifest_before
from opslog.log.reader import SEGMENT_COST, Cursor, Segment, log_source
from opslog.log.survey import Survey, check_reaches, survey, survey_history
from opslog.merge.undo import reachable_after
from opslog.snapshot.manifests import ManifestStore

# The bytes that one task reads: a few seconds of work, and one segment of a directory. A task takes a few times as much
# memory.
SPLIT_BYTES = 64 * 1024 * 1024


class Log(msgspec.Struct, frozen=True):
    """A log from `start` on, as it was listed.

    :ivar segments: from the segment of `start` on, without gaps; empty if nothing was written since then.
    """

    agent: str
    start: Cut
    segments: tuple[Segment, ...]

    @property
    def end(self) -> tuple[int, int]:
        """The last segment of the listing, and its length then."""
        return (self.segments[-1].number, self.segments[-1].bytes) if self.segments else self.start.position

    @property
    def bytes(self) -> int:
        """The number of bytes from `start` on."""
        return sum(segment.bytes for segment in self.segments) - (self.start.offset if self.segments else 0)


class JobSurvey(Survey, frozen=True):
    """The survey from which a job takes the input of each task.

    :ivar logs: the logs after the manifest's cut, or all that is retained of them, in order of agents.
    """

    logs: tuple[Log, ...]


def survey_state(backend: Backend, as_of: Point | None = None) -> JobSurvey:
    """The sources of a state: the snapshot of a manifest, and the logs after its cut. Costs and errors as of
    `opslog.log.survey.survey`, and:

    :param as_of: take a manifest with nothing later than this point; the logs may extend beyond it.
    :raises HistoryGoneError: that point was compacted away.
    :raises UsageError: it lies in the future.
    """
    manifests = ManifestStore(backend)
    if as_of is None:
        return survey(manifests, tails)
    before, _ = conditions(as_of)
    found = survey(manifests, tails, choose=lambda: manifest_before(manifests, before, as_of))
    _check_past(backend, as_of, found)
    return found


def _check_past(backend: Backend, as_of: Point, found: JobSurvey) -> None:
    """Check that the point does not lie in the future. Reads nothing for a clock up to that of the newest manifest, or
    for a time up to now. For other clocks it reads the ends of logs, for other times all logs after the cut.

    :raises UsageError: the point lies in the future.
    """
    newest = ManifestStore(backend).newest()
    if isinstance(as_of, int) and as_of <= newest.clock:
        return

    def newest_commit() -> tuple[int, str]:
        clock, ts = newest.clock, newest.ts
        for log in found.logs:
            for _, commit in _newest_first(backend, log, newest.settings.undo_window):
                clock, ts = max(clock, commit.clock), max(ts, commit.ts)
                if isinstance(as_of, int):
                    break  # clocks only grow
        return clock, ts

    check_past(backend, as_of, REAL, newest_commit)


def survey_retained(backend: Backend, as_of: Point | None = None) -> JobSurvey:
    """All retained commits, as in `Store.ops`: each log from the segment with the cut of the oldest retained manifest
    on. Costs and errors as of `survey_state`, and one more listing and read.

    :param as_of: only checked; all logs may extend beyond it.
    """
    found = survey_history(ManifestStore(backend), _retained)
    if as_of is not None:
        _check_past(backend, as_of, found)
    return found


def tails(found: Survey) -> JobSurvey:
    """The logs after the manifest's cut."""
    logs = (_log(found, agent, found.manifest.cut.get(agent, START)) for agent in sorted(found.segments))
    return JobSurvey(found.manifest, found.cursors, found.segments, tuple(logs))


def _retained(oldest: Manifest, found: Survey) -> JobSurvey:
    logs = []
    for agent in sorted(found.segments):
        start = Cut(oldest.cut.get(agent, START).segment, 0, 0)
        logs.append(_log(found, agent, start))
        check_reaches(Cursor(agent, *logs[-1].end), found.manifest)
    return JobSurvey(found.manifest, found.cursors, found.segments, tuple(logs))


def _log(found: Survey, agent: str, start: Cut) -> Log:
    cursor = found.cursors.get(agent) or Cursor(agent)
    return Log(agent, start, tuple(cursor.coming(found.segments[agent])))


# -- logs in slices


class Slice(NamedTuple):
    """Bytes `start` up to, not including, `stop` of a segment that had `bytes` of them when it was listed."""

    number: int
    start: int
    stop: int
    bytes: int

    @property
    def cost(self) -> int:
        return self.stop - self.start + (SEGMENT_COST if self.start == 0 else 0)


class LogSplit(msgspec.Struct, frozen=True):
    """The lines of a log that begin in some slices of it.

    :ivar slices: in order, without gaps.
    :ivar begins: whether a line is known to begin at the first slice.
    :ivar end: the last segment of the listing, and its length then. A task reads later lines up to there, as far as
        undos among them may cancel commits of this split.
    """

    agent: str
    slices: tuple[Slice, ...]
    begins: bool
    end: tuple[int, int]

    @property
    def cost(self) -> int:
        return sum(slice_.cost for slice_ in self.slices)


def split_logs(logs: Iterable[Log], split_bytes: int = SPLIT_BYTES) -> list[LogSplit]:
    """The splits of logs, each of at most about `split_bytes`."""
    return [split for log in logs for split in _split(log, max(1, split_bytes))]


def split_before(log: Log, position: tuple[int, int], split_bytes: int = SPLIT_BYTES) -> list[LogSplit]:
    """The splits of a log up to a position, such as a new cut. Undos after it still count."""
    segments = takewhile(lambda segment: (segment.number, 0) < position, log.segments)
    kept = [segment._replace(bytes=position[1]) if segment.number == position[0] else segment for segment in segments]
    whole = {segment.number: segment.bytes for segment in log.segments}
    return [
        msgspec.structs.replace(
            split,
            slices=tuple(slice_._replace(bytes=whole[slice_.number]) for slice_ in split.slices),
            end=log.end,
        )
        for split in _split(Log(log.agent, log.start, tuple(kept)), max(1, split_bytes))
    ]


def _split(log: Log, split_bytes: int, room: int | None = None) -> Iterator[LogSplit]:
    """:param room: the most that the first split may cost, if less than the others."""
    slices: list[Slice] = []
    begins, room = True, room or split_bytes
    for number, size, _ in log.segments:
        start = log.start.offset if number == log.start.segment else 0
        while start < size:
            if not slices:
                begins = start == 0 or (number, start) == log.start.position
            stop = min(size, start + room)
            slice_ = Slice(number, start, stop, size)
            slices.append(slice_)
            room -= slice_.cost
            start = stop
            if room <= 0:
                yield LogSplit(log.agent, tuple(slices), begins, log.end)
                slices, room = [], split_bytes
    if slices:
        yield LogSplit(log.agent, tuple(slices), begins, log.end)


def share(logs: Iterable[Log], task_bytes: int) -> list[tuple[LogSplit, ...]]:
    """Divide logs among tasks of about equal cost; the last one may cost less. A task has at most one split of a
    log."""
    tasks: list[tuple[LogSplit, ...]] = []
    together: list[LogSplit] = []
    room = task_bytes = max(1, task_bytes)
    for log in logs:
        for split in _split(log, task_bytes, room):
            together.append(split)
            room -= split.cost
            if room <= 0:
                tasks.append(tuple(together))
                together, room = [], task_bytes
    return [*tasks, tuple(together)] if together else tasks


# -- what a compaction may compact


class Recent(msgspec.Struct, frozen=True):
    """The recent commits of a log, which an undo may still reach. Everything before them is settled.

    :ivar position: where they begin, which will be the next cut; if there are none, the end of the log.
    :ivar end: the position of a reader that has read all of the log.
    :ivar there: as of `Cut`.
    :ivar commits: the number of recent commits.
    :ivar clock: the greatest clock in the log from its start on; 0: there are no commits.
    :ivar ts: the greatest `ts` of the recent commits alone; empty if there are none.
    :ivar ids: the documents of recent commits that are not cancelled.
    :ivar oldest: per author the clock of the oldest recent commit that has documents and is not cancelled.
    """

    position: tuple[int, int]
    end: tuple[int, int]
    there: bool
    commits: int
    clock: int
    ts: str
    ids: frozenset[str]
    oldest: dict[str, int] = {}

    def cut(self, commits: int) -> Cut:
        """The new cut. `commits` is the number of commits before the end of the log, compacted ones included."""
        return Cut(*self.position, commits - self.commits, there=self.there)

    def log_end(self, cut: Cut) -> Cut:
        """The end of the log, given the new cut."""
        return Cut(*self.end, cut.commits + self.commits)


def find_recent(backend: Backend, log: Log, window: int) -> Recent:
    """Read a log from its end, as far as its recent commits go.

    :raises CorruptError: as reading.
    :raises MissingFileError: likewise.
    """
    positions: list[tuple[int, int]] = []
    ids: set[str] = set()
    undone: set[int] = set()
    oldest: dict[str, int] = {}
    clock, ts = 0, ""
    for start, commit in _newest_first(backend, log, window):
        clock = max(clock, commit.clock)
        if len(positions) >= reachable_after(commit, window):
            break
        positions.append(start)
        ts = max(ts, commit.ts)
        if isinstance(commit, Undo):
            undone.add(commit.target)
        elif commit.clock not in undone:
            ids.update(record.id for record in commit.records)
            if commit.records:
                oldest[commit.author] = commit.clock
    end = _end_position(backend, log)
    position = positions[-1] if positions else end
    there = bool(positions) and position[1] == 0
    return Recent(position, end, there, len(positions), clock, ts, frozenset(ids), oldest)


def _newest_first(backend: Backend, log: Log, window: int) -> Iterator[tuple[tuple[int, int], Commit]]:
    """The commits of a log with their positions, newest first. If segments are fetched in groups, a group has as many
    segments as are likely to be needed."""
    cursor, segments = Cursor.at(log.agent, log.start), list(log.segments)
    source = log_source(backend, {log.agent: cursor}, {log.agent: segments[-window - 1 :]}, newest_first=True)
    for chunk in cursor.read_newest_first(source, segments):
        yield from reversed(list(zip(chunk.positions(), chunk.commits, strict=True)))


def _end_position(backend: Backend, log: Log) -> tuple[int, int]:
    """The cursor of a reader that has read a log to the end of the listing. Costs a read of the last append."""
    if not log.segments:
        return log.start.position
    number, size, _ = log.segments[-1]
    if not backend.segments_grow:
        return number + 1, 0
    first = log.start.offset if number == log.start.segment else 0
    return number, Cursor(log.agent).sound_end(backend, number, first, size) if size > first else first
