"""Reading runs from storage: whole into memory, or block by block on demand. Both give the same answers.

`LoadedRun` keeps each record as its undecoded line: one dictionary entry and one bytes object per document. `BlockRun`
leaves documents on storage, so a lookup costs the same however large the store is. Every block is verified against its
checksum when it is first read.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import orjson

from opslog.backends import Backend, Buffer, Range
from opslog.chunks import packed
from opslog.errors import CorruptError, MissingFileError
from opslog.format.checksum import sha256
from opslog.format.commits import Record, Set, decode_record, decode_records
from opslog.format.layout import SNAPSHOTS, index_path
from opslog.format.manifest import Part, Run
from opslog.format.snapshot import Block, Index, Row, check_block, decode_block, decode_index, decode_rows, newest_wins
from opslog.kernel import find_line

# How much of a part a pass over it reads or decodes at once: little enough that memory does not matter.
_READ_BYTES = 1024 * 1024
# A run of this size or more stays on storage.
LOADED_BYTES = 8 * 1024 * 1024
# How much memory a run on storage may take for blocks that were read.
_REMEMBERED_BYTES = 64 * 1024 * 1024
# A lookup in Python searches this many bytes of a block for a line.
_INDEXED_BYTES = 4096
# About how much memory a block takes besides its bytes.
_OPEN_BYTES = 2500

# How many lines of a run in memory are handled at once.
_LINES_AT_ONCE = 512

# A pass over a run decodes so many records in the time of one lookup.
_PASS = 8


def read_blocks(backend: Backend, path: str, blocks: Sequence[Block]) -> Iterator[list[Row]]:
    """The rows of neighbouring blocks of one file, block by block, verified.

    :raises CorruptError: a block is damaged; the error names file and offset.
    :raises MissingFileError: the file does not exist.
    """
    for block, data in block_bytes(backend.read, path, blocks):
        yield decode_block(data, block, path)


def block_bytes(
    read: Callable[[str, int, int], bytes], path: str, blocks: Iterable[Block]
) -> Iterator[tuple[Block, bytes]]:
    """Neighbouring blocks of one file, each with its bytes. The bytes are not verified, and they are too few if the
    file is too short. Reads about a megabyte at a time."""
    for some in packed(blocks, lambda block: block.length, _READ_BYTES):
        start = some[0].offset
        data = read(path, start, some[-1].offset + some[-1].length)
        for block in some:
            yield block, data[block.offset - start : block.offset - start + block.length]


def read_part(backend: Backend, part: Part) -> Iterator[tuple[bytes, int]]:
    """Read a part with one request, verify it, and return it in chunks of whole lines, each with its offset.

    :raises CorruptError: a block is damaged; the error names it.
    :raises MissingFileError: the part does not exist.
    """
    return _lines_of(backend, part, backend.read(part.path))


def _lines_of(backend: Backend, part: Part, data: bytes) -> Iterator[tuple[bytes, int]]:
    """Verify the bytes of a part and return its lines, as `read_part` does."""
    if sha256(data) != part.sha256:
        for _ in read_blocks(backend, part.path, read_index(backend, part).blocks):
            pass  # raises at the first damaged block
        raise CorruptError(f"{part.path}: this is not the file that the manifest names", part.path, 0)
    start = 0
    while start < len(data):
        stop = data.find(b"\n", start + _READ_BYTES) + 1 or len(data)
        yield data[start:stop], start
        start = stop


def read_index(backend: Backend, part: Part) -> Index:
    """The index of a part.

    :raises CorruptError: it is damaged, or belongs to another part.
    :raises MissingFileError: it does not exist.
    """
    path = index_path(part.path)
    index = decode_index(backend.read(path), part.path)
    if (index.bytes, index.records, index.sha256) != (part.bytes, part.records, part.sha256):
        raise CorruptError(f"{path}: this is the index of another file than the manifest names", path, 0)
    return index


T = TypeVar("T", Record, Row)


class SortedRecords(Protocol):
    """A run, or some records of one."""

    def records(self) -> Iterator[Record]:
        """All records in order of id."""


class StoredRun(SortedRecords, Protocol):
    """A run, whether it is in memory or stays on storage."""

    run: Run

    def lines(self) -> Iterator[bytes | memoryview]:
        """The whole run as it is stored, verified, tombstones included: some lines at a time, in order of id. The lines
        stay readable when the files are deleted."""

    def texts(self) -> Iterator[tuple[bytes, str, int]]:
        """The same bytes in smaller chunks of whole lines, each with its file and its offset there."""

    def get(self, id: str) -> Record | None:
        """The record of a document in this run; None if it has none."""

    def is_live(self, id: str) -> bool | None:
        """Whether that record is a set; None if there is no record."""

    def hold(self) -> None:
        """Make sure that all files of the run exist. If the storage can, also make sure that they stay readable after
        they are collected.

        :raises MissingFileError: a file was collected already.
        """


class LoadedRun:
    """A run in memory.

    :param parts: the bytes of its parts.
    :ivar by_id: the line of each document.
    :ivar dead: the documents whose line is a tombstone.
    """

    def __init__(self, backend: Backend, run: Run, parts: Iterable[bytes]) -> None:
        self.run = run
        self.by_id: dict[str, bytes] = {}
        self.dead: set[str] = set()
        for part, whole in zip(run.parts, parts, strict=True):
            for data, offset in _lines_of(backend, part, whole):
                for row in decode_rows(data, part.path, offset):
                    self.by_id[row.id] = row.line
                    if row.deleted is not None:
                        self.dead.add(row.id)

    def get(self, id: str) -> Record | None:
        line = self.by_id.get(id)
        return None if line is None else decode_record(line)

    def is_live(self, id: str) -> bool | None:
        return id not in self.dead if id in self.by_id else None

    def records(self) -> Iterator[Record]:
        return map(decode_record, self.by_id.values())

    def lines(self) -> Iterator[bytes]:
        yield b"".join(self.by_id.values())

    def texts(self) -> Iterator[tuple[bytes, str, int]]:
        lines = iter(self.by_id.values())
        while text := b"".join(itertools.islice(lines, _LINES_AT_ONCE)):
            yield text, f"{SNAPSHOTS}{self.run.name}/ in memory", 0

    def hold(self) -> None:
        """It is in memory."""


class BlockRun:
    """A run that stays on storage. It keeps up to `_REMEMBERED_BYTES` of the blocks that were read. Not thread-safe.

    A lookup searches in memory and decodes one line or a few. The first lookup in a block also reads and verifies the
    block; the first one in a part also reads the part's index.
    """

    def __init__(self, backend: Backend, run: Run) -> None:
        self.run = run
        self._backend = backend
        self._firsts = [part.first for part in run.parts]
        # Each part is made when it is first used. Opening a store would otherwise wait for very many parts, of which
        # few are used.
        self._parts: list[_StoredPart | None] = [None] * len(run.parts)
        self._opened: dict[tuple[int, int], _OpenBlock] = {}
        self._remembered = 0

    def get(self, id: str) -> Record | None:
        place = self.place_of(id)
        return None if place is None else (self._opened.get(place) or self._open(*place)).find(id)

    def ascending(self, count: int) -> Callable[[str], Record | None]:
        """`get`, for `count` ids in ascending order. It makes one pass over the run if that costs less than lookups."""
        if self.is_worth_lookups(count):
            return self.get
        records = self.records()
        current = next(records, None)

        def get(id: str) -> Record | None:
            nonlocal current
            while current is not None and current.id < id:
                current = next(records, None)
            return current if current is not None and current.id == id else None

        return get

    def is_worth_lookups(self, count: int) -> bool:
        """Whether `count` lookups cost less than a pass over the run."""
        return self.run.records > _PASS * count

    def place_of(self, id: str) -> tuple[int, int] | None:
        """The numbers of the part and the block that may have a document; None if none can have it."""
        number = bisect.bisect_right(self._firsts, id) - 1
        if number < 0 or id > self.run.parts[number].last:
            return None
        return number, self._part(number).block_of(id)

    def block_at(self, place: tuple[int, int]) -> tuple[bytes, str, int]:
        """The lines of a block, verified; its file; and its offset there."""
        number, block_number = place
        return self._part(number).block(block_number)

    def is_live(self, id: str) -> bool | None:
        record = self.get(id)
        return None if record is None else isinstance(record, Set)

    def records(self) -> Iterator[Record]:
        for data, path, offset in self.texts():
            yield from decode_records(data, path, offset)

    def lines(self) -> Iterator[bytes | memoryview]:
        return (part.text() for part in self._all_parts())

    def rows(self) -> Iterator[Row]:
        """All records as rows, in order of id."""
        for data, path, offset in self.texts():
            yield from decode_rows(data, path, offset)

    def hold(self) -> None:
        if all(part.hold() for part in self._all_parts()):
            return
        there = {entry.path for entry in self._backend.list(f"{SNAPSHOTS}{self.run.name}/")}
        for part in self.run.parts:
            if part.path not in there:
                raise MissingFileError(f"no file {part.path} in {self._backend.url}", part.path)

    def texts(self) -> Iterator[tuple[bytes, str, int]]:
        for part in self._all_parts():
            for data, offset in part.data():
                yield data, part.part.path, offset

    def _part(self, number: int) -> _StoredPart:
        part = self._parts[number]
        if part is None:
            part = self._parts[number] = _StoredPart(self._backend, self.run.parts[number])
        return part

    def _all_parts(self) -> Iterator[_StoredPart]:
        return map(self._part, range(len(self._parts)))

    def _open(self, number: int, block_number: int) -> _OpenBlock:
        block = self._opened[number, block_number] = self._part(number).open(block_number)
        self._remembered += block.size
        while self._remembered > _REMEMBERED_BYTES and len(self._opened) > 1:
            oldest = next(iter(self._opened))
            self._remembered -= self._opened.pop(oldest).size
        return block


class _StoredPart:
    """A part of a run that stays on storage."""

    def __init__(self, backend: Backend, part: Part) -> None:
        self.part = part
        self._backend = backend
        self._blocks: list[Block] = []
        self._firsts: list[str] = []
        self._mapped: Buffer | None = None
        self._maps = True

    def block_of(self, id: str) -> int:
        """The number of the only block that may have this id."""
        if not self._firsts:
            self._read_index()
        return max(0, bisect.bisect_right(self._firsts, id) - 1)

    def open(self, block_number: int) -> _OpenBlock:
        data, path, offset = self.block(block_number)
        buffer = self.mapped()
        if buffer is None:
            return _OpenBlock(data, 0, len(data), path=path, offset=offset, size=_OPEN_BYTES + len(data))
        return _OpenBlock(buffer, offset, offset + len(data), path=path, offset=offset, size=_OPEN_BYTES)

    def block(self, block_number: int) -> tuple[bytes, str, int]:
        """The lines of a block, verified; the file; and their offset there. The number comes from `block_of`."""
        block, path, buffer = self._blocks[block_number], self.part.path, self.mapped()
        stop = block.offset + block.length
        data = self._backend.read(path, block.offset, stop) if buffer is None else buffer[block.offset : stop]
        check_block(data, block, path)
        return data, path, block.offset

    def data(self) -> Iterator[tuple[bytes, int]]:
        """The whole part, verified, in chunks of whole lines, each with its offset."""
        buffer = self.mapped()
        if buffer is None:
            yield from read_part(self._backend, self.part)
            return
        if not self._firsts:
            self._read_index()
        for block in self._blocks:
            data = buffer[block.offset : block.offset + block.length]
            check_block(data, block, self.part.path)
            yield data, block.offset
        if isinstance(buffer, mmap.mmap):
            # Otherwise the system would count the whole store as memory of this process after a scan.
            buffer.madvise(mmap.MADV_DONTNEED)

    def text(self) -> bytes | memoryview:
        """The whole part, verified. A mapped part is not copied."""
        buffer = self.mapped()
        if buffer is None:
            return b"".join(data for data, _ in self.data())
        if not self._firsts:
            self._read_index()
        text = memoryview(buffer)[: self.part.bytes]
        for block in self._blocks:
            check_block(text[block.offset : block.offset + block.length], block, self.part.path)
        return text

    def mapped(self) -> Buffer | None:
        """The part mapped into memory, without reading it; None if the storage cannot do that."""
        if self._mapped is None and self._maps:
            self._mapped = self._backend.map(self.part.path)
            self._maps = self._mapped is not None
        return self._mapped

    def hold(self) -> bool:
        """Make the part readable from now on, even if its files are deleted. Returns whether the storage can do
        that."""
        if self.mapped() is None:
            return False
        if not self._firsts:
            self._read_index()
        return True

    def _read_index(self) -> None:
        self._blocks = read_index(self._backend, self.part).blocks
        self._firsts = [block.first for block in self._blocks]


class _OpenBlock:
    """A verified block.

    The kernel finds a line by a binary search over the bytes. Python decodes one line of each 4 KiB at the first
    lookup. By their ids later lookups find the right 4 KiB.

    :param buffer: has the bytes of the block from `start` to `stop`.
    :param offset: the offset of the block in the file `path`.
    :ivar size: about how many bytes of memory the block takes.
    """

    __slots__ = ("_buffer", "_ids", "_offset", "_path", "_start", "_starts", "_stop", "size")

    def __init__(self, buffer: Buffer, start: int, stop: int, *, path: str, offset: int, size: int) -> None:
        self._buffer, self._start, self._stop = buffer, start, stop
        self._path, self._offset = path, offset - start
        self.size = size
        self._ids: list[str] = []
        self._starts: list[int] = []

    def find(self, id: str) -> Record | None:
        line = None if find_line is None else find_line(self._buffer, self._start, self._stop, id)
        try:
            if line is not None:
                return decode_record(line) if line else None
            return self._search(id)
        except CorruptError:
            self._decode(self._buffer[self._start : self._stop], self._start)  # raises an error with the right offset
            raise

    def _search(self, id: str) -> Record | None:
        if not self._ids:
            self._read_ids()
        index = bisect.bisect_right(self._ids, id) - 1
        if index < 0:
            return None
        start, stop = self._starts[index : index + 2]
        buffer = self._buffer
        # Most likely it is the line with the id in the form that we write. Its record shows whether it is.
        found = buffer.find(b'"id":' + orjson.dumps(id), start, stop)
        if found >= 0:
            first = buffer.rfind(b"\n", start, found) + 1 or start
            record = decode_record(buffer[first : buffer.find(b"\n", found)])
            if record.id == id:
                return record
        lines = buffer[start:stop].split(b"\n")[:-1]
        index = bisect.bisect_left(lines, id, key=lambda line: decode_record(line).id)
        record = decode_record(lines[min(index, len(lines) - 1)])
        return record if record.id == id else None

    def _read_ids(self) -> None:
        data, start = self._buffer[self._start : self._stop], self._start
        ends = (data.find(b"\n", at) + 1 for at in range(_INDEXED_BYTES, len(data), _INDEXED_BYTES))
        places = sorted({0, *ends} - {len(data)})
        firsts = [data[at : data.find(b"\n", at) + 1] for at in places]
        self._starts = [start + at for at in (*places, len(data))]
        # All at once: one by one takes several times as long.
        self._ids = [record.id for record in self._decode(b"".join(firsts), start)]

    def _decode(self, lines: bytes, start: int) -> list[Record]:
        return decode_records(lines, self._path, self._offset + start)


def load_runs(backend: Backend, runs: Sequence[Run]) -> dict[str, StoredRun]:
    """Load the small runs into memory and leave the large ones on storage. All parts of the small runs are requested at
    once.

    :returns: the runs by their names.
    :raises CorruptError: a block is damaged; the error names it.
    :raises MissingFileError: a part does not exist.
    """
    small = [run for run in runs if run.bytes < LOADED_BYTES]
    parts = _read_all(backend, small)
    loaded = {run.name: LoadedRun(backend, run, itertools.islice(parts, len(run.parts))) for run in small}
    return {run.name: loaded.get(run.name) or BlockRun(backend, run) for run in runs}


def _read_all(backend: Backend, runs: Iterable[Run]) -> Iterator[bytes]:
    """Read all parts of some runs, and return their bytes in order. The bytes of a part are kept until they are taken.

    :raises MissingFileError: a part does not exist.
    """
    paths = [part.path for run in runs for part in run.parts]
    found = deque(backend.read_many([Range(path) for path in paths]))
    for path in paths:
        data = found.popleft()
        if data is None:
            raise MissingFileError(f"no file {path} in {backend.url}", path)
        yield data


def newest_records(runs: Sequence[SortedRecords]) -> Iterator[Record]:
    """The newest record of each id in several runs, in order of id. The newest run comes first in `runs`."""
    if len(runs) == 1:
        return runs[0].records()
    return newest_wins(_merged(run.records() for run in runs))


def merge_rows(sources: Iterable[Iterable[Row]]) -> Iterator[Row]:
    """The newest row of each id in several sources, in order of id. Each source is in order of id, and the newest
    source comes first."""
    sources = list(sources)
    return iter(sources[0]) if len(sources) == 1 else newest_wins(_merged(sources))


def _merged(sources: Iterable[Iterable[T]]) -> Iterator[tuple[str, int, T]]:
    """Records or rows, sorted by their id and then by the age of their source."""
    keyed = [_keyed(age, source) for age, source in enumerate(sources)]
    return heapq.merge(*keyed, key=lambda item: item[:2])


def _keyed(age: int, source: Iterable[T]) -> Iterator[tuple[str, int, T]]:
    return ((item.id, age, item) for item in source)
