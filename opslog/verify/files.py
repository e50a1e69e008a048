"""Verifying one file after the other: lines, and parts and archives with their indexes. Problems go into a `Report`.

Files are read in bodies of about 1 MiB, so memory is bounded by that and by the longest line. A damaged line or block
does not end the check of its file: the rest is still read.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Literal, TypeVar

from opslog.backends import Backend
from opslog.environment import parse_ts
from opslog.errors import CorruptError, InvalidNameError, MissingFileError, RetryError
from opslog.format.checksum import crc32
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Record, Set, SetOp, decode_records, encode_commit
from opslog.format.exact import InexactError, load_document, loads
from opslog.format.hashes import encode_hashes, id_hash
from opslog.format.layout import TRANSACTIONS, archive_of, check_name, index_path
from opslog.format.manifest import Manifest, Part
from opslog.format.snapshot import Block, Index, decode_index
from opslog.log.reader import LogSource, read_lines
from opslog.merge.rules import author_faults
from opslog.snapshot.runs import block_bytes

T = TypeVar("T", bound=Commit)

_TS = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{6}Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Problem:
    """A violation of the format's rules.

    :ivar severity: "error": the store is damaged there. "note": normal after a crash, or harmless; nothing is lost.
    :ivar path: the file, relative to the store's root; for a whole run its folder, with a slash at the end.
    :ivar offset: the first wrong byte in it, None if it concerns the whole file.
    """

    severity: Literal["error", "note"]
    path: str
    offset: int | None
    message: str

    def __str__(self) -> str:
        place = self.path if self.offset is None else f"{self.path}: byte {self.offset}"
        return f"{place}: {self.message}"


@dataclass(slots=True)
class Report:
    """The problems that `verify` found, and how much it checked.

    :ivar repaired: the actions of a repair, one sentence each. `problems` are those that are left after it.
    :ivar bytes: how many bytes were read; the other figures count the checked files and records.
    """

    problems: list[Problem] = field(default_factory=list)
    repaired: list[str] = field(default_factory=list)
    manifests: int = 0
    runs: int = 0
    parts: int = 0
    blocks: int = 0
    records: int = 0
    segments: int = 0
    commits: int = 0
    archives: int = 0
    bytes: int = 0

    @property
    def ok(self) -> bool:
        """Whether there is no error; notes may be."""
        return not any(problem.severity == "error" for problem in self.problems)

    def error(self, path: str, offset: int | None, message: str) -> None:
        self.problems.append(Problem("error", path, offset, message))

    def note(self, path: str, offset: int | None, message: str) -> None:
        self.problems.append(Problem("note", path, offset, message))

    def add(self, other: Report) -> None:
        """Add the contents of another report, about other files."""
        for name in (item.name for item in fields(self)):
            setattr(self, name, getattr(self, name) + getattr(other, name))


class Reader:
    """Reads files of a backend and reports its progress.

    :param progress: called with (bytes read, bytes to read); the latter grows when the store does.
    """

    def __init__(self, backend: Backend, total: int, progress: Callable[[int, int], None] | None) -> None:
        self.backend = backend
        self.bytes = 0
        self._total = total
        self._progress = progress

    def read(self, path: str, start: int = 0, stop: int | None = None, source: LogSource | None = None) -> bytes:
        """:raises MissingFileError: there is no such file.
        :raises CorruptError: the storage cannot read it.

        :param source: the source to read from, if not the backend itself.
        """
        try:
            data = (source or self.backend).read(path, start, stop)
        except RetryError as error:
            raise CorruptError(f"the storage cannot read this: {error}", path, start) from error
        self.bytes += len(data)
        if self._progress:
            self._progress(self.bytes, max(self._total, self.bytes))
        return data


def decode_each(
    decode: Callable[[bytes, str, int], list[T]], lines: bytes, path: str, offset: int, report: Report
) -> Iterator[tuple[int, int, T | None]]:
    """(offset, offset of the next line, commit or None) of each of some whole lines, their documents included.
    Reports each line that cannot be read, and every violation in it."""
    bodies = lines.split(b"\n")[:-1]
    try:
        decoded: Sequence[T | None] = decode(lines, path, offset)
    except CorruptError:
        decoded = [
            _decode_one(decode, body + b"\n", path, offset_, report) for offset_, body in _offsets(bodies, offset)
        ]
    for (start, body), item in zip(_offsets(bodies, offset), decoded, strict=True):
        if item is not None:
            for fault in line_faults(item, body):
                report.error(path, start, fault)
        yield start, start + len(body) + 1, item


def _offsets(bodies: list[bytes], offset: int) -> Iterator[tuple[int, bytes]]:
    for body in bodies:
        yield offset, body
        offset += len(body) + 1


def _decode_one(
    decode: Callable[[bytes, str, int], list[T]], line: bytes, path: str, offset: int, report: Report
) -> T | None:
    try:
        return decode(line, path, offset)[0]
    except CorruptError as error:
        report.error(
            path, offset, f"this line cannot be read ({error.__cause__}): {line[:80]!r}. Restore it from a copy"
        )
        return None


def line_faults(commit: Commit, line: bytes) -> Iterator[str]:
    """The violations in a line that can be read.

    :param line: without its newline.
    """
    if encode_commit(commit) != line + b"\n" and (inexact := _fault(loads, line)):
        yield f"this line can be read in more than one way ({inexact}): {line[:80]!r}. Restore it from a copy"
    if not _is_ts(commit.ts):
        yield f"ts is {commit.ts!r}, not a time in the form 2026-11-20T12:00:00.123456Z"
    for op in commit.ops if isinstance(commit, Batch) else (commit,):
        if isinstance(op, Set | SetOp):
            fault = _fault(load_document, bytes(op.data))
            if fault:
                yield f"the document {op.id!r} cannot be read: {fault}. Restore it from a copy, or set it again"
        elif isinstance(op, Delete | DeleteOp) and op.archived is not None:
            try:
                check_name(op.archived, "period")
            except InvalidNameError as error:
                yield str(error)
    if isinstance(commit, Delete) and commit.folded is not None and not _is_ts(commit.folded):
        yield f"folded is {commit.folded!r}, not a time in the form 2026-11-20T12:00:00.123456Z"


def _fault(load: Callable[[bytes], object], data: bytes) -> str | None:
    """The reason why these bytes cannot be loaded; None if they can."""
    try:
        load(data)
    except InexactError as error:
        return str(error)
    return None


def _is_ts(ts: str) -> bool:
    if not _TS.fullmatch(ts):
        return False
    try:
        parse_ts(ts)
    except ValueError:
        return False
    return True


class FileCheck:
    """The check of one part or archive together with its index.

    :ivar report: the problems found.
    :ivar missing: which of the two files are missing. That may be no error.
    :ivar index: the index, if it is usable.
    :ivar periods: the periods of the archives to which documents of a part went.
    """

    def __init__(self, reader: Reader, path: str) -> None:
        self.path = path
        self.report = Report()
        self.missing: list[str] = []
        self.index: Index | None = None
        self.periods: set[str] = set()
        self._reader = reader
        self._digest = hashlib.sha256()
        self._records = self._live = self._bytes = 0
        self._first = self._last = ""
        self._shared: set[int] = set()

    @property
    def rebuildable(self) -> bool:
        """Whether only the index is wrong, and the data is undamaged."""
        return self.index is None and self.path not in self.missing and not self._is_damaged

    @property
    def _is_damaged(self) -> bool:
        return any(problem.path == self.path for problem in self.report.problems)

    def check_part(self, part: Part, manifest: Manifest, after: str | None) -> None:
        """Check a part.

        :param manifest: the oldest manifest that names it.
        :param after: the last id of the part before it in its run.
        """
        self._read_index()
        if self.index and (self.index.bytes, self.index.records, self.index.sha256) != (
            part.bytes,
            part.records,
            part.sha256,
        ):
            self._bad_index(f"is the index of another file than manifest {manifest.number} names")
        self._check_data(part.bytes, after, manifest)
        found = (self._bytes, self._records, self._live, self._first, self._last, self._digest.hexdigest())
        expected = (part.bytes, part.records, part.live, part.first, part.last, part.sha256)
        if self.path not in self.missing and not self._is_damaged and found != expected:
            self.report.error(
                self.path,
                None,
                f"(bytes, records, live, first, last, sha256) is {found}, and manifest {manifest.number} says "
                f"{expected}: it was damaged or replaced. Restore it from a copy",
            )

    @property
    def shared(self) -> bytes | None:
        """The ids whose record is from the shared log, as a manifest lists them; None if the part is damaged or
        missing."""
        return None if self.path in self.missing or self._is_damaged else encode_hashes(self._shared)

    def check_archive(self) -> None:
        """Check the data against the index; without an index, only its lines."""
        self._read_index()
        self._check_data(self.index.bytes if self.index else None, None, None)
        if self.index is None or self.path in self.missing or self._is_damaged:
            return
        if (self._records, self._digest.hexdigest()) != (self.index.records, self.index.sha256):
            self.report.error(self.path, None, "its records or its SHA-256 are not what its index says. Restore both")

    def _read_index(self) -> None:
        path = index_path(self.path)
        try:
            self.index = decode_index(self._reader.read(path), self.path)
        except MissingFileError:
            self.missing.append(path)
        except CorruptError as error:
            self._bad_index(str(error).removeprefix(f"{path}: "))

    def _bad_index(self, message: str) -> None:
        self.index = None
        if archive_of(self.path):
            # A manifest has the checksum of a part. That of an archive is in the index alone, so an index made anew
            # would vouch for whatever the data is now.
            advice = f"Restore it and {self.path} from a copy: without it nothing shows whether the data is whole"
        else:
            advice = "If the data beside it is whole, `opslog verify --repair` rebuilds it"
        self.report.error(index_path(self.path), 0, f"{message}. {advice}")

    def _check_data(self, size: int | None, after: str | None, manifest: Manifest | None) -> None:
        try:
            if self.index:
                self._check_blocks(self.index.blocks, after, manifest)
            else:
                for offset, lines in read_lines(self._reader.read, self.path):
                    after = self._check_lines(lines, offset, after, manifest)
            if size is not None and self._bytes < size:
                self.report.error(
                    self.path, self._bytes, f"it ends here and should have {size} bytes. Restore it from a copy"
                )
            elif size is not None and (self._bytes > size or self._reader.read(self.path, size, size + 1)):
                self.report.error(self.path, size, f"it should end here, at {size} bytes. Restore it from a copy")
        except MissingFileError:
            self.missing.append(self.path)
        except CorruptError as error:
            self.report.error(self.path, error.offset, str(error))

    def _check_blocks(self, blocks: Sequence[Block], after: str | None, manifest: Manifest | None) -> None:
        for block, data in block_bytes(self._reader.read, self.path, blocks):
            if len(data) < block.length:
                self._bytes += len(data)
                return
            self.report.blocks += 1
            if crc32(data) != block.crc32:
                self.report.error(
                    self.path,
                    block.offset,
                    f"the {block.length} bytes from here on do not fit their checksum: they were damaged. Restore the "
                    "file from a copy",
                )
            records = self._records
            after = self._check_lines(data, block.offset, after, manifest, block)
            if records == self._records and not self._is_damaged:
                self._bad_index(f"its block at byte {block.offset} of the data holds no record")

    def _check_lines(
        self, data: bytes, offset: int, after: str | None, manifest: Manifest | None, block: Block | None = None
    ) -> str | None:
        """Check some lines, and return the last id among them."""
        self._bytes += len(data)
        self._digest.update(data)
        if not data.endswith(b"\n"):
            end = data.rfind(b"\n") + 1
            self.report.error(
                self.path, offset + end, f"this line has no end: {data[end:][:80]!r}. Restore the file from a copy"
            )
            data = data[:end]
        for start, _, record in decode_each(decode_records, data, self.path, offset, self.report):
            if record is None:
                continue
            for fault in _misplacements(record, after, manifest):
                self.report.error(self.path, start, fault)
            if block and start == block.offset and record.id != block.first and not self._is_damaged:
                self._bad_index(
                    f"says that {block.first!r} is the first id at byte {start} of the data; it is {record.id!r}"
                )
            self._first = record.id if not self._records else self._first
            self._last = after = record.id
            self._records += 1
            self._live += isinstance(record, Set)
            if isinstance(record, Delete) and record.archived is not None:
                self.periods.add(record.archived)
            if record.agent == TRANSACTIONS:
                self._shared.add(id_hash(record.id))
            self.report.records += 1
        return after


def _misplacements(record: Record, after: str | None, manifest: Manifest | None) -> Iterator[str]:
    """The reasons why a record cannot be at its position."""
    if after is not None and record.id <= after:
        yield f"id {record.id!r} comes after {after!r}: ids must increase within a run. Restore the file from a copy"
    if manifest and (record.clock > manifest.clock or record.ts > manifest.ts):
        yield (
            f"{record.id!r} was written at clock {record.clock}, {record.ts}, after all that manifest "
            f"{manifest.number} knows of (clock {manifest.clock}, {manifest.ts}). Restore the file from a copy"
        )
    yield from author_faults(record)
    try:
        check_name(record.agent, "agent")
    except InvalidNameError as error:
        yield str(error)
