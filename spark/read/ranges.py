"""Ranges of ids. Sorted data is divided by them, so that each task can assemble its documents alone.

Does not use Spark."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

import msgspec

from opslog.backends import Backend
from opslog.format.commits import Record, decode_commits, decode_records
from opslog.format.layout import segment_path
from opslog.format.manifest import Part, Run
from opslog.format.snapshot import Block
from opslog.snapshot.runs import read_blocks, read_index, read_part
from opslog.spark.read.planning import Log, split_logs
from opslog.spark.read.splits import find_line

# The number of positions in the logs at which ids are sampled, to make ranges of similar size. If a range is twice as
# large as another, that does no harm.
_SAMPLES = 64

_SAMPLE_BYTES = 64 * 1024


class IdRange(msgspec.Struct, frozen=True):
    """The ids from `first` up to, not including, `until` (None: to the end)."""

    first: str = ""
    until: str | None = None

    def __contains__(self, id: str) -> bool:
        return self.first <= id and (self.until is None or id < self.until)

    def meets(self, first: str, last: str) -> bool:
        """Whether any id from `first` to `last` can be in it."""
        return self.first <= last and (self.until is None or first < self.until)

    def covers(self, first: str, last: str) -> bool:
        return first in self and last in self

    def common(self, other: IdRange) -> IdRange | None:
        """The intersection; None: it is empty."""
        ends = [until for until in (self.until, other.until) if until is not None]
        both = IdRange(max(self.first, other.first), min(ends, default=None))
        return both if both.until is None or both.first < both.until else None

    def blocks(self, blocks: list[Block]) -> list[Block]:
        """The blocks of a file that may have an id of this range."""
        firsts = [block.first for block in blocks]
        begin = max(0, bisect.bisect_right(firsts, self.first) - 1)
        end = len(blocks) if self.until is None else bisect.bisect_left(firsts, self.until)
        return blocks[begin:end]

    def run(self, run: Run) -> Run:
        """A run with only those of its parts that may have an id of this range."""
        return Run(run.name, [part for part in run.parts if self.meets(part.first, part.last)])


ALL = IdRange()


def cut_ranges(weights: Iterable[tuple[str, int]], limit: int) -> list[IdRange]:
    """Ranges that together cover all ids, with a weight of about `limit` each.

    :param weights: (id, weight from this id on), in any order.
    """
    bounds = [""]
    weight = 0
    for id, more in sorted(weights):
        if weight >= limit and id > bounds[-1]:
            bounds.append(id)
            weight = 0
        weight += more
    ends: list[str | None] = [*bounds[1:], None]
    return [IdRange(first, until) for first, until in zip(bounds, ends, strict=True)]


def part_weights(runs: Iterable[Run]) -> list[tuple[str, int]]:
    return [(part.first, part.bytes) for run in runs for part in run.parts]


def log_weights(backend: Backend, logs: tuple[Log, ...]) -> list[tuple[str, int]]:
    """Ids sampled throughout some logs, each with the share of the bytes for which it stands."""
    total = sum(log.bytes for log in logs)
    ids: list[str] = []
    for split in split_logs(logs, total // _SAMPLES + 1):
        slice_ = split.slices[0]
        path, stop = segment_path(split.agent, slice_.number), min(slice_.bytes, slice_.start + _SAMPLE_BYTES)
        start = slice_.start if split.begins else find_line(backend, path, slice_.start, stop)
        if start is not None:
            data = backend.read(path, start, stop)
            # Stop at zeros: only a reader of the whole end of the segment can find out whether they are a torn tail or
            # damage.
            data = data.partition(b"\0")[0]
            lines = data[: data.rfind(b"\n") + 1]
            ids += [record.id for commit in decode_commits(lines, path, start) for record in commit.records]
    return [(id, total // len(ids)) for id in ids]


class RunRange:
    """The records of a run in a range of ids. Every byte is verified against its checksum."""

    def __init__(self, backend: Backend, run: Run, range: IdRange) -> None:
        self._backend = backend
        self._parts = range.run(run).parts
        self._range = range

    def chunks(self) -> Iterator[list[Record]]:
        """The records in order of id, about a megabyte at a time."""
        for part in self._parts:
            if self._range.covers(part.first, part.last):
                for data, offset in read_part(self._backend, part):
                    yield decode_records(data, part.path, offset)
            else:
                yield from self._some(part)

    def records(self) -> Iterator[Record]:
        for records in self.chunks():
            yield from records

    def _some(self, part: Part) -> Iterator[list[Record]]:
        blocks = self._range.blocks(read_index(self._backend, part).blocks)
        for rows in read_blocks(self._backend, part.path, blocks):
            yield [row.record for row in rows if row.id in self._range]
