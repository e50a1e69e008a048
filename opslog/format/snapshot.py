"""The snapshot format: runs in parts, parts in blocks, and the index of blocks that lies beside each. Pure.

A part consists of lines of records sorted by id. It is divided into blocks of whole lines, of about 64 KiB. For each
block, its index has the offset, the first id and the CRC-32. That is enough to find and verify one document with one
read. An archive has the same two files.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from typing import Protocol, TypeVar

import msgspec

from opslog.errors import CorruptError
from opslog.format.checksum import crc32, decode_checked, encode_checked, sha256
from opslog.format.commits import Delete, Record, Set, decode_record, decode_records, encode_commit
from opslog.format.hashes import encode_hashes, id_hash
from opslog.format.layout import TRANSACTIONS, index_path, part_path
from opslog.format.manifest import Part
from opslog.format.prepared import prepare

T = TypeVar("T")
L = TypeVar("L", bound="SortedLines")

# A block ends with the line that reaches this size: one lookup reads it, and one checksum covers it.
BLOCK_BYTES = 64 * 1024

# A part ends with the block that reaches this size: a writer holds it in memory, and one upload transfers it.
PART_BYTES = 4 * 1024 * 1024

# A part with more records than this from the shared log does not list their ids: each takes more than 5 bytes of the
# manifest, which every process reads.
SHARED_MAX = 1024


# gc=False, as of commits: a merge holds a million of them.
class Row(msgspec.Struct, frozen=True, gc=False):
    """A record as its line, with the fields that sorting and copying need, so copying never decodes or encodes.

    :ivar deleted: for a tombstone, when it first came into a snapshot; empty if it is about to come into one, or if an
        older program did not store the time. None for a set.
    :ivar shared: whether it is from the shared log.
    """

    id: str
    line: bytes
    deleted: str | None
    shared: bool

    @classmethod
    def of(cls, record: Record, line: bytes) -> Row:
        """:param record: from a snapshot."""
        deleted = (record.folded or "") if isinstance(record, Delete) else None
        return cls(record.id, line, deleted, record.agent == TRANSACTIONS)

    @classmethod
    def new(cls, record: Record) -> Row:
        """The row of a record from a log; the record's own `folded` is ignored."""
        if type(record) is Set:  # nearly all are; this saves a tenth of a compaction without the kernel
            return cls(record.id, encode_commit(record), None, record.agent == TRANSACTIONS)
        if isinstance(record, Delete) and record.folded is not None:
            record = msgspec.structs.replace(record, folded=None)
        return cls.of(record, encode_commit(record))

    def stamped(self, folded: str) -> Row:
        """A tombstone with the time when it first came into a snapshot: `folded`, if it has none yet."""
        if self.deleted:
            return self
        record = self.record
        assert isinstance(record, Delete)
        return Row(self.id, encode_commit(msgspec.structs.replace(record, folded=folded)), folded, self.shared)

    @property
    def record(self) -> Record:
        """The record, decoded anew."""
        return decode_record(self.line)


class Block(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One block: ``[first id, offset, length, crc32]``, offset and length in bytes."""

    first: str
    offset: int
    length: int
    crc32: str


class Index(msgspec.Struct, frozen=True):
    """The index of one part or archive."""

    bytes: int
    records: int
    sha256: str
    blocks: list[Block]


prepare(Index)


class File(msgspec.Struct, frozen=True):
    """A part or an archive ready to be written: first the data, then its index. If the index exists, both are whole."""

    part: Part
    data: bytes
    index: bytes


class SomeLines(msgspec.Struct, frozen=True):
    """Lines of sets in order of id, with their number, and the first and the last id. No set is from the shared log."""

    text: bytes
    records: int
    first: str
    last: str


class SortedLines(Protocol):
    """Rows of sets as lines that are not held individually. No set is from the shared log."""

    def take(self, room: int) -> SomeLines | None:
        """The next lines, ending with the line that reaches `room` bytes; None: there are no more."""


class _Builder:
    """Collects the rows of one file."""

    def __init__(self) -> None:
        self.lines: list[bytes] = []
        self.blocks: list[Block] = []
        self.pending: list[bytes] = []
        self.pending_bytes = 0
        self.pending_first = ""
        self.bytes = self.live = self.records = 0
        self.first = self.last = ""
        self.shared: list[int] = []

    def add(self, row: Row) -> None:
        id = row.id
        if not self.records:
            self.first = id
        if not self.pending:
            self.pending_first = id
        self.pending.append(row.line)
        self.pending_bytes += len(row.line)
        self.records += 1
        self.live += row.deleted is None
        self.last = id
        if row.shared and len(self.shared) <= SHARED_MAX:
            self.shared.append(id_hash(id))
        if self.pending_bytes >= BLOCK_BYTES:
            self.end_block()

    def add_from(self, lines: SortedLines) -> bool:
        """Add lines up to the end of a block; returns whether there were any."""
        some = lines.take(BLOCK_BYTES - self.pending_bytes)
        if some is None:
            return False
        if not self.records:
            self.first = some.first
        if not self.pending:
            self.pending_first = some.first
        self.pending.append(some.text)
        self.pending_bytes += len(some.text)
        self.records += some.records
        self.live += some.records
        self.last = some.last
        if self.pending_bytes >= BLOCK_BYTES:
            self.end_block()
        return True

    def end_block(self) -> None:
        if self.pending:
            block = b"".join(self.pending)
            self.blocks.append(Block(self.pending_first, self.bytes, len(block), crc32(block)))
            self.lines.append(block)
            self.bytes += len(block)
            self.pending, self.pending_bytes = [], 0

    def finish(self, path: str) -> File:
        self.end_block()
        data = b"".join(self.lines)
        digest = sha256(data)
        shared = encode_hashes(self.shared) if len(self.shared) <= SHARED_MAX else None
        part = Part(path, self.records, self.live, self.bytes, self.first, self.last, digest, shared)
        index = Index(self.bytes, self.records, digest, self.blocks)
        return File(part, data, encode_checked(index))


def build_parts(run: str, rows: Iterable[Row | SortedLines]) -> Iterator[File]:
    """The parts of a run, from its rows in order of id. Holds one part in memory, besides those that it has yielded."""
    builder, number = _Builder(), 0
    for row in rows:
        more = True
        while more:
            if isinstance(row, Row):
                builder.add(row)
                more = False
            else:
                more = builder.add_from(row)
            if builder.bytes >= PART_BYTES:
                yield builder.finish(part_path(run, number))
                builder, number = _Builder(), number + 1
    if builder.records:
        yield builder.finish(part_path(run, number))


def may_be_last(file: File) -> bool:
    """Whether this is most likely the last part of a run: it is smaller than the size at which a part ends."""
    return file.part.bytes < PART_BYTES


class PartEnds:
    """Finds where the parts that `build_parts` makes end, from only the lengths of the lines; for building them
    elsewhere."""

    def __init__(self) -> None:
        self._block = self._part = 0

    def add(self, length: int) -> bool:
        """Add the next line. Returns whether a part ends with it."""
        self._block += length
        if self._block < BLOCK_BYTES:
            return False
        self._part, self._block = self._part + self._block, 0
        if self._part < PART_BYTES:
            return False
        self._part = 0
        return True


def build_archive(path: str, rows: Iterable[Row]) -> File:
    """One archive, or one part, from rows in order of id."""
    builder = _Builder()
    for row in rows:
        builder.add(row)
    return builder.finish(path)


def decode_index(data: bytes, data_path: str) -> Index:
    """The index beside the part or archive `data_path`.

    :raises CorruptError: it is damaged, or its blocks are impossible.
    """
    path = index_path(data_path)
    index = decode_checked(data, Index, path)
    offset = 0
    for block in index.blocks:
        if block.offset != offset or block.length < 1:
            raise CorruptError(f"{path}: its blocks have a gap or an overlap at byte {offset} of the data", path, 0)
        offset += block.length
    if offset != index.bytes:
        raise CorruptError(f"{path}: its blocks cover {offset} bytes of {index.bytes}", path, 0)
    if any(earlier.first >= later.first for earlier, later in pairwise(index.blocks)):
        raise CorruptError(f"{path}: the first ids of its blocks do not ascend", path, 0)
    return index


def check_block(data: bytes | memoryview, block: Block, path: str) -> None:
    """:raises CorruptError: the file `path` was written with other bytes in this block."""
    if len(data) != block.length or crc32(data) != block.crc32:
        raise CorruptError(
            f"{path}: the {block.length} bytes from {block.offset} on do not fit their checksum: the file was damaged. "
            "Restore it from a copy; `opslog verify` lists all damage",
            path,
            block.offset,
        )


def decode_block(data: bytes, block: Block, path: str) -> list[Row]:
    """The rows of one block of the file `path`.

    :raises CorruptError: its bytes are not the ones that were written.
    """
    check_block(data, block, path)
    return decode_rows(data, path, block.offset)


def decode_rows(data: bytes, path: str, offset: int) -> list[Row]:
    """The rows of whole lines from byte `offset` of the file `path` on.

    :raises CorruptError: one is no record.
    """
    lines = data.split(b"\n")
    return [
        Row.of(record, line + b"\n") for record, line in zip(decode_records(data, path, offset), lines, strict=False)
    ]


def tier(size: int) -> int:
    """The size tier of a run: 0 up to one block, and one more for each factor of 4."""
    return max(0, (max(size, 1) - 1).bit_length() - BLOCK_BYTES.bit_length() + 2) // 2


def runs_to_merge(sizes: list[int]) -> int:
    """How many of the newest runs to merge into one. 1: the newest stays a run of its own.

    Four neighbouring runs of one tier (or below) become one run of the next tier. So a record is rewritten once per
    tier. The number of tiers is the logarithm to base 4 of the store's size, and there are at most three runs per tier.
    Merging two runs as soon as they have a similar size would keep fewer runs, but rewrite each record about four times
    per tier.

    :param sizes: the sizes of all runs in bytes, newest first.
    """
    merging, merged_bytes = 1, sizes[0]
    while True:
        level, end = tier(merged_bytes), merging
        while end < len(sizes) and tier(sizes[end]) <= level:
            end += 1
        if end - merging < 3:
            return merging
        merged_bytes += sum(sizes[merging:end])
        merging = end


def newest_wins(rows: Iterable[tuple[str, int, T]]) -> Iterator[T]:
    """The newest row or record of each id. The input is sorted by id, and within an id from the newest run to the
    oldest."""
    previous: str | None = None
    for id, _, row in rows:
        if id != previous:
            yield row
        previous = id


class Ages(msgspec.Struct, frozen=True):
    """How old tombstones are, by the storage's clock. Their age counts from when they first came into a snapshot: by
    then, every process could read them. Their `ts` does not help, since it may be any time, as after an import.

    :ivar now: the time of this compaction.
    :ivar expired: tombstones from this time or before may be removed. Empty: none may be, since an older run may have a
        document that a tombstone must go on hiding.
    """

    now: str
    expired: str

    def of(self, rows: Iterable[Row | L], uncompacted: Container[str]) -> Iterator[Row | L]:
        """The rows without expired tombstones. All other tombstones get the time when they first came into a snapshot.

        :param uncompacted: the documents of commits that are not compacted. Their tombstones stay, since one of these
            commits may be an older set, which must stay hidden.
        """
        for row in rows:
            if not isinstance(row, Row) or row.deleted is None:
                yield row
            elif row.id in uncompacted or not (row.deleted or self.now) <= self.expired:
                yield row.stamped(self.now)
