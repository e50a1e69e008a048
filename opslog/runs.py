"""Reading runs from storage: whole into memory, or block by block on demand. Both give the same answers.

`LoadedRun` holds each record as its line, undecoded: one dictionary entry and one bytes object per document.
`BlockRun` holds the block indexes and one block per part: what compaction uses, whose cost must not be that of the
store. Every block is verified against its checksum when it is read.
"""

from __future__ import annotations

import hashlib
import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from opslog.backends import Backend
from opslog.commits import Record, decode_record
from opslog.errors import CorruptError
from opslog.layout import index_path
from opslog.manifest import Part, Run
from opslog.snapshot import Block, Index, Row, decode_block, decode_index, decode_rows, newest_wins

_READ_BYTES = 1024 * 1024
"""How much of a part is read, or only decoded, at once when all of it is wanted: small enough to forget."""


def read_blocks(backend: Backend, path: str, blocks: Sequence[Block]) -> Iterator[list[Row]]:
    """The rows of neighbouring blocks of one file, block by block, verified. :raises CorruptError, MissingFileError:"""
    first = 0
    while first < len(blocks):
        start, stop = blocks[first].offset, blocks[first].offset
        end = first
        while end < len(blocks) and (end == first or blocks[end].offset + blocks[end].length - start <= _READ_BYTES):
            stop = blocks[end].offset + blocks[end].length
            end += 1
        data = backend.read(path, start, stop)
        for block in blocks[first:end]:
            yield decode_block(data[block.offset - start : block.offset - start + block.length], block, path)
        first = end


def read_part(backend: Backend, part: Part) -> Iterator[Row]:
    """The rows of a part, which is read whole, with one request, and verified.

    :raises CorruptError: names the block that is damaged. :raises MissingFileError:
    """
    data = backend.read(part.path)
    if hashlib.sha256(data).hexdigest() != part.sha256:
        for _ in read_blocks(backend, part.path, read_index(backend, part).blocks):
            """Raises at the first block that is damaged."""
        raise CorruptError(f"{part.path}: is another file than the manifest names", part.path, 0)
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start + _READ_BYTES) + 1 or len(data)
        yield from decode_rows(data[start:stop], part.path, start)
        start = stop


def read_index(backend: Backend, part: Part) -> Index:
    """The index of a part. :raises CorruptError: it is damaged, or not of this part. :raises MissingFileError:"""
    path = index_path(part.path)
    index = decode_index(backend.read(path), part.path)
    if index.sha256 != part.sha256:
        raise CorruptError(f"{path}: is the index of another file than the manifest names", path, 0)
    return index


class StoredRun(Protocol):
    """What the layers above need of a run, however it is read."""

    run: Run

    def get(self, id: str) -> Record | None:
        """The record of a document in this run."""

    def rows(self) -> Iterator[Row]:
        """All rows in order of id."""


class BlockRun:
    """A run that stays on storage. Not thread-safe. Lookups in ascending order of id read each block once."""

    def __init__(self, backend: Backend, run: Run) -> None:
        self.run = run
        self._backend = backend
        self._indexes: dict[str, Index] = {}
        self._block: Block | None = None
        self._found: dict[str, Row] = {}

    def get(self, id: str) -> Record | None:
        for part in self.run.parts:
            if part.first <= id <= part.last:
                return self._get_from(part, id)
        return None

    def _get_from(self, part: Part, id: str) -> Record | None:
        block = self._index(part).find(id)
        if block is None:
            return None
        if block is not self._block:
            (rows,) = read_blocks(self._backend, part.path, [block])
            self._block, self._found = block, {row.id: row for row in rows}
        row = self._found.get(id)
        return None if row is None else row.record

    def rows(self) -> Iterator[Row]:
        for part in self.run.parts:
            for block in read_blocks(self._backend, part.path, self._index(part).blocks):
                yield from block

    def _index(self, part: Part) -> Index:
        index = self._indexes.get(part.path)
        if index is None:
            index = self._indexes[part.path] = read_index(self._backend, part)
        return index


class LoadedRun:
    """A run in memory.

    :ivar lines: per document its line; `dead`: the documents whose line is a tombstone.
    """

    def __init__(self, backend: Backend, run: Run) -> None:
        self.run = run
        self.lines: dict[str, bytes] = {}
        self.dead: set[str] = set()
        for part in run.parts:
            for id, line, deleted in read_part(backend, part):
                self.lines[id] = line
                if deleted is not None:
                    self.dead.add(id)

    def get(self, id: str) -> Record | None:
        line = self.lines.get(id)
        return None if line is None else decode_record(line)

    def rows(self) -> Iterator[Row]:
        for line in self.lines.values():
            yield Row.of(decode_record(line), line)


def merge_rows(sources: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """The rows of several sources, newest first, each in order of id, as one in order of id: the newest row of each
    id."""
    keyed = [_keyed(age, rows) for age, rows in enumerate(sources)]
    return newest_wins(heapq.merge(*keyed, key=lambda item: item[:2]))


def _keyed(age: int, rows: Iterable[Row]) -> Iterator[tuple[str, int, Row]]:
    return ((row.id, age, row) for row in rows)
