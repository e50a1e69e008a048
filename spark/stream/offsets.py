"""How far a stream has read the logs, and the rows between two such offsets. Does not use Spark.

An `Offset` has one position for each log, always between two lines: bytes after the last newline of a segment do not
count yet. The commits between two offsets never change, so a batch that is tried again has the same rows. But a
compaction may have collected commits before they were read. That is a *gap* (`opslog.log.gaps`). A *resync* closes it:
the batch then begins with the state of the newest manifest, and everything that is retained follows. A batch that was
planned before the gap was known, and ends before it, leaves the state to the next batch.

Each row of a batch says why it is delivered:

- `OP`: a commit of a log, delivered once.
- `RESYNC`: all rows of this kind in a batch are one state, which replaces everything delivered before. They are the
  snapshot, and those commits after its cut that were delivered before.
- `FOLDED`: as `OP`, but the state of the resync in the same batch, or in the next one, includes its effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain
from typing import Any

import msgspec

from opslog.backends import Backend
from opslog.errors import CorruptError, HistoryGoneError, MissingFileError
from opslog.format.layout import segment_path
from opslog.format.manifest import START, Cut, Manifest, Run
from opslog.format.prepared import prepare
from opslog.log.gaps import missing_segment, resume
from opslog.log.reader import SEGMENT_COST, Cursor, Segment, bytes_after, least_first, list_segments, until
from opslog.log.survey import Survey, at_cut, list_logs, survey
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.read.planning import SPLIT_BYTES
from opslog.spark.read.ranges import IdRange, cut_ranges, part_weights
from opslog.spark.read.splits import find_line

OP, RESYNC, FOLDED = "op", "resync", "folded"

_READ_BYTES = 1024 * 1024


class Offset(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a stream has read.

    :ivar logs: for each agent the position of its next commit. On storages whose segments grow, its `commits` are
        counted; on others they are 0.
    :ivar resync: the number of the last resync's manifest; 0: there was no resync yet.
    """

    logs: dict[str, Cut] = {}
    resync: int = 0

    @classmethod
    def parse(cls, plain: object) -> Offset:
        return msgspec.convert(plain, cls)

    def plain(self) -> dict[str, Any]:
        """The form that Spark stores, in JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    @property
    def is_first(self) -> bool:
        """Whether nothing was delivered yet."""
        return not self.logs and not self.resync


prepare(Offset)


class Slice(msgspec.Struct, frozen=True):
    """Bytes `start` up to, not including, `stop` of a segment: whole lines, and perhaps a torn tail at the segment's
    end.

    :ivar delivery: why its rows are delivered.
    """

    agent: str
    number: int
    start: int
    stop: int
    delivery: str

    @property
    def cost(self) -> int:
        return self.stop - self.start + SEGMENT_COST


class Resync(msgspec.Struct, frozen=True):
    """The head of a resync: the clock and the greatest `ts` of its manifest."""

    clock: int
    ts: str


class Stored(msgspec.Struct, frozen=True):
    """The records of a snapshot in a range of ids, as part of a resync."""

    runs: list[Run]
    range: IdRange


class Work(msgspec.Struct, frozen=True):
    """The contents of a batch."""

    resync: Resync | None
    stored: list[Stored]
    slices: list[Slice]


class Log(msgspec.Struct, frozen=True):
    """A log as a stream finds it.

    :ivar start: where the stream continues.
    :ivar segments: the segments from there on.
    :ivar gap: whether commits before `start` were collected unread.
    """

    start: Cut
    segments: list[Segment]
    gap: bool

    @property
    def bytes(self) -> int:
        """The number of bytes to read."""
        return bytes_after({"": self.segments}, {"": self.start})

    def until(self, end: tuple[int, int]) -> Log:
        """The log as it was when it ended at this position."""
        return msgspec.structs.replace(self, segments=until(self.segments, end))

    def cut(self, position: Cut) -> Log:
        """The log from a later position on, for a stream that needs nothing in between."""
        return Log(position, [segment for segment in self.segments if segment.number >= position.segment], False)


class Found(msgspec.Struct, frozen=True):
    """A store as a stream finds it.

    :ivar manifest: the newest one.
    :ivar logs: every log that is listed, has a position in the stream or in its plan, or is compacted in part.
    :ivar is_overtaken: whether there is a gap even after everything that was planned.
    """

    manifest: Manifest
    logs: dict[str, Log]
    is_overtaken: bool

    @property
    def gap(self) -> str | None:
        """An agent whose log has a gap."""
        return next((agent for agent, log in self.logs.items() if log.gap), None)


def _position(cut: Cut) -> tuple[int, int]:
    return cut.position


class Follower:
    """Follows the logs of a store.

    :param resyncs: whether a resync closes a gap. Otherwise a gap is an error, except at the very beginning.
    """

    def __init__(self, backend: Backend, *, resyncs: bool = True) -> None:
        self._backend = backend
        self._manifests = ManifestStore(backend)
        self._resyncs = resyncs

    def newest(self) -> Offset:
        """The offset after everything that is there now. On storages whose segments grow, this reads all that is
        retained."""
        found = self._find(Offset())
        return Offset(
            {agent: self._advance(agent, log, None) for agent, log in found.logs.items()}, found.manifest.number
        )

    def ends(self) -> dict[str, tuple[int, int]]:
        """For each log the last segment and its length; if no segment is left, the position of the cut."""
        newest = self._manifests.newest()
        found = list_logs(self._backend, newest, at_cut(newest))
        return {
            agent: (listed[-1].number, listed[-1].bytes) if listed else found.cursors[agent].position
            for agent, listed in found.segments.items()
        }

    def advance(
        self, start: Offset, limit: int | None = None, ends: Mapping[str, tuple[int, int]] | None = None
    ) -> Offset:
        """The offset up to which a batch may go from `start`.

        :param limit: about how many bytes of logs to read; a resync takes more if it has to.
        :param ends: go no farther than this; as returned by `ends`.
        :raises HistoryGoneError: there is a gap, and resyncs are switched off.
        """
        found = self._find(start)
        manifest, logs = found.manifest, found.logs
        if ends is not None:
            logs = {agent: log.until(ends[agent]) for agent, log in logs.items() if agent in ends}
        gaps = any(log.gap for log in logs.values())
        positions: dict[str, Cut] = dict(start.logs)
        left = limit
        waiting = least_first(
            {agent: log.segments for agent, log in logs.items()}, {agent: log.start for agent, log in logs.items()}
        )
        for count, agent in enumerate(waiting):
            log = logs[agent]
            share = None if left is None else left // (len(waiting) - count)
            if share is not None and gaps:
                share = max(share, log.until(manifest.cut.get(agent, START).position).bytes)
            if share is None or share > 0 or gaps:
                positions[agent] = end = self._advance(agent, log, share)
                if left is not None:
                    left = max(0, left - log.until(end.position).bytes)
        return Offset(dict(sorted(positions.items())), manifest.number if gaps else start.resync)

    def between(self, start: Offset, end: Offset) -> Work:
        """The work between two offsets.

        :raises HistoryGoneError: some of it was collected since then, and resyncs are switched off.
        """
        found = self._find(start, end)
        manifest = found.manifest
        resyncs = end.resync != start.resync or any(found.logs[agent].gap for agent in end.logs)
        if resyncs and self._resyncs and found.is_overtaken:
            # The next batch begins with a state that includes all this. The rows in the gap are missing here, and
            # without them the effect of the other rows is unknown.
            late = [self._slices(agent, found.logs[agent], stop.position, FOLDED) for agent, stop in end.logs.items()]
            return Work(None, [], list(chain.from_iterable(late)))
        if end.resync != start.resync:
            with suppress(MissingFileError):  # it was collected since then, as when a batch is tried again much later
                manifest = self._manifests.read(end.resync)
        slices: list[Slice] = []
        for agent, stop in end.logs.items():
            log = found.logs[agent]
            cut = manifest.cut.get(agent, START)
            if not resyncs:
                slices += self._slices(agent, log, stop.position, OP)
                continue
            slices += self._slices(agent, log, min(stop.position, cut.position), FOLDED)
            if log.start.position < cut.position:
                log = log.cut(cut)
            elif not log.gap:
                again = list_segments(self._backend, {agent: Cursor.at(agent, cut)}).get(agent, [])
                slices += self._slices(agent, Log(cut, again, False).cut(cut), log.start.position, RESYNC)
            slices += self._slices(agent, log, stop.position, OP)
        if not resyncs:
            return Work(None, [], slices)
        ranges = cut_ranges(part_weights(manifest.runs), SPLIT_BYTES) if manifest.runs else []
        stored = [Stored([range.run(run) for run in manifest.runs], range) for range in ranges]
        return Work(Resync(manifest.clock, manifest.ts), stored, slices)

    def _find(self, start: Offset, planned: Offset | None = None) -> Found:
        """The newest manifest, and all logs from `start` on.

        :param planned: the end of a batch; a log that ends before it is damaged.
        :raises HistoryGoneError: there is a gap, and resyncs are switched off.
        """
        plan = {} if planned is None else planned.logs
        found = survey(
            self._manifests,
            lambda found: self._judge(found, start.logs, plan),
            # Also list the last segments that were read: they show that the log did not end before them.
            begin=lambda _: {
                agent: Cursor(agent, max(1, start.logs.get(agent, START).last_segment))
                for agent in sorted({*start.logs, *plan})
            },
        )
        if found.gap is not None and not self._resyncs and not start.is_first:
            position = start.logs.get(found.gap, START)
            raise HistoryGoneError(
                f"{self._backend.url}: commits of agent {found.gap!r} from segment {position.segment}, byte "
                f"{position.offset} on were compacted and collected before this stream read them. Let it resync "
                "(onGap=resync), or begin a new one with an empty checkpoint; so that it does not happen again, run it "
                "more often or compact with keep_history",
                found.manifest.clock,
            )
        return found

    def _judge(self, found: Survey, start: Mapping[str, Cut], planned: Mapping[str, Cut]) -> Found:
        newest = found.manifest
        agents = sorted({*found.segments, *newest.cut})
        oldest = newest
        if any(start.get(agent, START).segment < newest.cut.get(agent, START).segment for agent in agents):
            oldest = self._manifests.oldest()
        logs = {}
        for agent in agents:
            listed, position = found.segments.get(agent, []), start.get(agent, START)
            self._check_there(agent, listed, max(position, planned.get(agent, START), key=_position), newest)
            position, gap = self._resume(agent, position, oldest, newest)
            logs[agent] = Log(position, Cursor.at(agent, position).coming(listed), gap)
        overtaken = any(self._resume(agent, stop, oldest, newest)[1] for agent, stop in planned.items())
        return Found(newest, logs, overtaken)

    def _check_there(self, agent: str, listed: list[Segment], reached: Cut, newest: Manifest) -> None:
        missing = missing_segment(listed, reached, newest.cut.get(agent, START))
        if missing is not None:
            path = segment_path(agent, missing)
            raise MissingFileError(f"{path} is missing, and was read, or compacted in part", path)

    def _resume(self, agent: str, position: Cut, oldest: Manifest, newest: Manifest) -> tuple[Cut, bool]:
        first, commits = oldest.cut.get(agent, START), None
        if self._backend.segments_grow and position.segment < first.segment:
            commits = first.commits - self._lines(agent, first.segment, 0, first.offset)[1]
        # Manifests of older programs do not say whether the segment at a cut exists.
        return resume(position, first, commits, newest.settings.undo_window if oldest.oldest else 0)

    def _advance(self, agent: str, log: Log, limit: int | None) -> Cut:
        """The position in a log after about `limit` bytes."""
        number, offset, commits = log.start.segment, log.start.offset, log.start.commits
        taken = 0
        for segment in log.segments:
            room = None if limit is None else limit - taken
            if room is not None and room <= 0:
                break
            if segment.number > number:
                number, offset = segment.number, 0
            if not self._backend.segments_grow:
                taken += segment.bytes
                number, offset = number + 1, 0
                continue
            end, lines = self._lines(agent, number, offset, segment.bytes, room)
            taken += end - offset
            offset, commits = end, commits + lines
        return Cut(number, offset, commits)

    def _lines(self, agent: str, number: int, start: int, stop: int, limit: int | None = None) -> tuple[int, int]:
        """The end of the whole lines in some bytes of a segment, and the number of these lines. Stops after about
        `limit` bytes."""
        path, offset, end, lines = segment_path(agent, number), start, start, 0
        if start < stop:
            stop = Cursor(agent, number).sound_end(self._backend, number, start, stop)
        while offset < stop and (limit is None or end - start < limit):
            want = _READ_BYTES if limit is None else min(_READ_BYTES, max(limit, 4096))
            data = self._backend.read(path, offset, min(stop, offset + want))
            if not data:
                raise MissingFileError(f"{path} ends at byte {offset}, and had {stop} bytes before", path)
            found = data.rfind(b"\n") + 1
            if limit is not None and offset + found - start > limit:
                found = data.find(b"\n", max(0, start + limit - offset - 1)) + 1
            if found:
                end = offset + found
                lines += data.count(b"\n", 0, found)
            offset += len(data)
        return end, lines

    def _slices(self, agent: str, log: Log, stop: tuple[int, int], delivery: str) -> Iterator[Slice]:
        for number, size, _ in log.segments:
            start = log.start.offset if number == log.start.segment else 0
            if (number, start) >= stop:
                return
            end = stop[1] if number == stop[0] else size
            if size < end:
                path = segment_path(agent, number)
                raise CorruptError(
                    f"{path} ends at byte {size}, and had {end} bytes before: something other than opslog cut it "
                    "short. Restore it from a copy; `opslog verify` lists all such files",
                    path,
                    size,
                )
            yield from self._cut(agent, Slice(agent, number, start, end, delivery))

    def _cut(self, agent: str, slice_: Slice) -> Iterator[Slice]:
        """Divide a slice so that no part is too large for one task."""
        start = slice_.start
        path = segment_path(agent, slice_.number)
        while slice_.stop - start > SPLIT_BYTES:
            line = find_line(self._backend, path, start + SPLIT_BYTES, slice_.stop)
            if line is None:
                break
            yield msgspec.structs.replace(slice_, start=start, stop=line)
            start = line
        if start < slice_.stop:
            yield msgspec.structs.replace(slice_, start=start)
