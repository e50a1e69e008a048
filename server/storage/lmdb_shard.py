"""Streams in LMDB: one database file per shard, in which related changes commit together.

Five tables. `streams`: path to metadata. `records`: stream id and position (both 8 bytes, big-endian, so that they
sort) to the bytes of an append. `producers`: stream id and producer id to epoch and sequence number. `values`: the
free key space. `shard`: data about the whole: the next stream id, the bytes of content, under ``doomed`` and a stream
id, the position up to which data is still to be removed, and ``leaks`` once the data of deleted streams that earlier
versions left behind was looked for.

LMDB writes changed pages to new places and then switches to them, so the last commit survives a crash. A commit returns
after two calls of fdatasync. A reader sees the state of one commit, and waits for nobody.

LMDB maps its two files, and an access to a truncated part would end the process with SIGBUS. So the lengths of both
files are checked before each transaction. Once one is too short, nothing is read any more. A truncation during a
transaction is not noticed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from struct import Struct
from struct import error as struct_error
from typing import Any

import lmdb
import msgspec

from opslog.errors import CommitUnknownError, CorruptError, OpslogError, ReopenError, WriteFailedError
from opslog.server.protocol.model import Producer, Stream
from opslog.server.protocol.storage import Changes, Record, Usage
from opslog.server.storage.lmdb_file import missing_page
from opslog.server.storage.opened_files import Length, OpenedFiles

_log = logging.getLogger("opslog.server")
# The most that one step removes. Commits wait for the step.
_TIDY_RECORDS, _TIDY_BYTES = 5_000, 16 * 1024 * 1024

_PAGE_STREAMS = 256
# For this many streams the metadata of the last commit is kept in memory: some hundred bytes each.
_KNOWN_STREAMS = 4096
_RESTORE = "restore the directory from a backup"
_EVERYTHING = 2**64 - 1
_KEY_BYTES_MAX = 511
_number = Struct(">Q")
_record_key = Struct(">QQ")
_encode = msgspec.msgpack.Encoder().encode
_stream = msgspec.msgpack.Decoder(Stream)
_producer = msgspec.msgpack.Decoder(Producer)


class LmdbShard:
    """A shard in the directory `path`, which exists.

    :param map_bytes: the most bytes that the file may grow to. This takes address space, not memory.
    :param lock: the lock file of the whole storage, which has to stay in place, too.
    :raises CorruptError: the file is not a database, or is shorter than its contents require.
    """

    durable = True

    def __init__(self, path: Path, map_bytes: int, lock: Path | None = None) -> None:
        self.path = path
        try:
            self._environment = lmdb.open(str(path), map_size=map_bytes, max_dbs=8, max_readers=512, meminit=False)
        except lmdb.Error as error:
            raise _unreadable(path, error) from error
        self._check_length()
        files = [path / "data.mdb", path / "lock.mdb"]
        self._opened_files = OpenedFiles(files if lock is None else [*files, lock])
        self._data, self._locks = map(Length, files)
        opened = {name: self._environment.open_db(name) for name in (b"streams", b"records", b"producers", b"values")}
        self._streams, self._records = opened[b"streams"], opened[b"records"]
        self._producers, self._values = opened[b"producers"], opened[b"values"]
        self._shard = self._environment.open_db(b"shard")
        # The last committed metadata, so that not every append and follower has to read and decode it. Only commits add
        # to it, in their order. What a reader has read could be older than a commit that ended meanwhile.
        self._known: dict[str, Stream] = {}
        self._doom_leaks()
        self._note_lengths()

    def stream(self, path: str, *, is_checked: bool = False) -> Stream | None:
        known = self._known.get(path)
        if known is not None:
            if not is_checked:
                self._check_readable()
            return known
        if not path:
            return None  # LMDB takes no empty key
        with self._reading() as txn:
            found = txn.get(path.encode(), db=self._streams)
        return None if found is None else self._decoded(_stream, found, path)

    def streams(self, after: str = "") -> Iterator[Stream]:
        # Some streams at a time, in one transaction each. The caller may be slow, and as long as a transaction reads an
        # old state, LMDB cannot use its pages again.
        key = after.encode()
        while True:
            page: list[tuple[bytes, bytes]] = []
            with self._reading() as txn, txn.cursor(self._streams) as cursor:
                if not cursor.set_range(key + b"\0"):
                    return
                for item in cursor.iternext():
                    page.append(item)
                    if len(page) == _PAGE_STREAMS:
                        break
            for key, value in page:
                yield self._decoded(_stream, value, key.decode())

    def producer(self, stream_id: int, producer_id: str) -> Producer | None:
        with self._reading() as txn:
            found = txn.get(_producer_key(stream_id, producer_id), db=self._producers)
        return None if found is None else self._decoded(_producer, found, producer_id)

    def producers(self, stream_id: int, limit: int) -> Sequence[tuple[str, Producer]]:
        found: list[tuple[str, Producer]] = []
        with self._reading() as txn, txn.cursor(self._producers) as cursor:
            there = cursor.set_range(_number.pack(stream_id))
            while there and len(found) < limit and cursor.key()[:8] == _number.pack(stream_id):
                id, hashed = cursor.key()[8:], cursor.key()[8:].startswith(b"sha256:") and len(cursor.key()) == 47
                name = f"sha256:{id[7:].hex()}" if hashed else id.decode()
                found.append((name, self._decoded(_producer, cursor.value(), name)))
                there = cursor.next()
        return found

    def records(self, stream_id: int, start: int, stop: int, limit: int) -> Sequence[Record]:
        found: list[Record] = []
        with self._reading() as txn, txn.cursor(self._records) as cursor:
            there = _seek(cursor, stream_id, start)
            while there and limit > 0:
                id, position = _record_key.unpack(cursor.key())
                if id != stream_id or position >= stop:
                    break
                data: bytes = cursor.value()
                if position + len(data) > start:
                    found.append((position, data))
                    limit -= len(data) - max(0, start - position)
                there = cursor.next()
        return found

    def value(self, key: bytes) -> bytes | None:
        with self._reading() as txn:
            found: bytes | None = txn.get(key, db=self._values)
        return found

    def values(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        found: list[tuple[bytes, bytes]] = []
        with self._reading() as txn, txn.cursor(self._values) as cursor:
            if cursor.set_range(prefix):
                for key, value in cursor.iternext():
                    if not key.startswith(prefix):
                        break
                    found.append((key, value))
        yield from found

    def next_id(self) -> int:
        with self._reading() as txn:
            return self._count(txn, b"next id", 1)

    def problem(self) -> str | None:
        return self._truncation() or self._opened_files.problem()

    def _truncation(self) -> str | None:
        """The mapped file that was truncated, if one was. Called before each access to the files."""
        return self._data.problem() or self._locks.problem()

    def _note_lengths(self) -> None:
        self._data.note()
        self._locks.note()

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        problem = self.problem()
        if problem is not None:
            raise WriteFailedError(f"nothing was changed: {problem}")
        try:
            self._commit(changes, applied)
        except BaseException:
            self._known.clear()  # the changes may have happened
            raise
        self._note_streams(changes.streams)
        self._note_lengths()
        problem = self.problem()
        if problem is not None:
            raise CommitUnknownError(
                f"it is unknown whether the last changes were written to what was opened: {problem}"
            )

    def _note_streams(self, streams: dict[str, Stream | None]) -> None:
        known = self._known
        for path, stream in streams.items():
            known.pop(path, None)  # removed first, so that the newest are at the end
            if stream is not None:
                known[path] = stream
        while len(known) > _KNOWN_STREAMS:
            del known[next(iter(known))]

    def _commit(self, changes: Changes, applied: Callable[[], None] | None) -> None:
        try:
            txn = self._environment.begin(write=True)
        except Exception as error:
            raise self._failed(error) from error
        try:
            self._apply(changes, txn)
            if applied is not None:
                applied()
        except BaseException as error:
            txn.abort()  # an open one would keep every later one from beginning
            if isinstance(error, Exception):
                raise self._failed(error) from error
            raise
        try:
            txn.commit()
        except lmdb.Error as error:
            # The new state is written last. LMDB refuses further transactions only if that step failed.
            if not self._writes():
                message = f"{self.path}: writing failed: {error}; start the server again"
                raise CommitUnknownError(message) from error
            raise self._failed(error) from error

    def _apply(self, changes: Changes, txn: Any) -> None:
        put = [(path.encode(), _encode(stream)) for path, stream in changes.streams.items() if stream is not None]
        self._put(txn, self._streams, put)
        for path, stream in changes.streams.items():
            if stream is None:
                txn.delete(path.encode(), db=self._streams)
        self._put(
            txn, self._records, [(_record_key.pack(id, position), data) for id, position, data in changes.records]
        )
        producers = [(_producer_key(*key), _encode(producer)) for key, producer in changes.producers.items()]
        self._put(txn, self._producers, producers)
        self._put(txn, self._values, [(key, value) for key, value in changes.values.items() if value is not None])
        for key, value in changes.values.items():
            if value is None:
                txn.delete(key, db=self._values)
        doomed = {**changes.trimmed, **dict.fromkeys(changes.dropped, _EVERYTHING)}  # a stream may be among both
        counts = [(b"doomed" + _number.pack(id), _number.pack(stop)) for id, stop in doomed.items()]
        if changes.next_id:
            counts.append((b"next id", _number.pack(changes.next_id)))
        if changes.records:
            counts.append((b"bytes", _number.pack(self._count(txn, b"bytes", 0) + changes.bytes)))
        self._put(txn, self._shard, counts)

    def _put(self, txn: Any, table: Any, items: list[tuple[bytes, bytes]]) -> None:
        if items:
            with txn.cursor(table) as cursor:
                cursor.putmulti(items)

    def tidy(self) -> bool:
        self._check_readable()
        try:
            with self._environment.begin(write=True) as txn, txn.cursor(self._shard) as cursor:
                if not cursor.set_range(b"doomed") or not cursor.key().startswith(b"doomed"):
                    return False
                key = bytes(cursor.key())
                (stop,) = _number.unpack(cursor.value())
                if self._remove_records(txn, key[6:], stop) and self._remove_producers(txn, key[6:], stop):
                    cursor.set_key(key)
                    cursor.delete()
        except lmdb.Error as error:
            raise self._failed(error) from error
        self._note_lengths()
        return True

    def _remove_records(self, txn: Any, id: bytes, stop: int) -> bool:
        """Remove some of the records that end at `stop` or before; returns whether these were the last."""
        removed = count = 0
        done = True
        with txn.cursor(self._records) as cursor:
            there = cursor.set_range(id)
            while there and cursor.key().startswith(id):
                (position,) = _number.unpack_from(cursor.key(), 8)
                size = len(cursor.value())
                if position + size > stop:
                    break
                if count == _TIDY_RECORDS or removed > _TIDY_BYTES:
                    done = False
                    break
                removed += size
                count += 1
                there = cursor.delete()
        left = self._count(txn, b"bytes", 0) - removed
        txn.put(b"bytes", _number.pack(left), db=self._shard)
        return done

    def _remove_producers(self, txn: Any, id: bytes, stop: int) -> bool:
        if stop != _EVERYTHING:
            return True
        with txn.cursor(self._producers) as cursor:
            there = cursor.set_range(id)
            for _ in range(_TIDY_RECORDS):
                if not there or not cursor.key().startswith(id):
                    return True
                there = cursor.delete()
        return False

    def _doom_leaks(self) -> None:
        """Have `tidy` remove the records of no stream. Version 0.2 left them behind if a stream was trimmed and deleted
        in one commit. Reads the metadata of all streams, once for each database."""
        try:
            with self._environment.begin(write=True) as txn:
                if txn.get(b"leaks", db=self._shard) is None:
                    leaks = [(b"doomed" + id, _number.pack(_EVERYTHING)) for id in self._leaks(txn)]
                    self._put(txn, self._shard, [*leaks, (b"leaks", _number.pack(len(leaks)))])
        except (lmdb.Error, msgspec.DecodeError) as error:  # a full disk, say: the next start tries again
            _log.warning("%s was not searched for data of deleted streams", self.path, extra={"error": str(error)})

    def _leaks(self, txn: Any) -> Iterator[bytes]:
        """The ids under which there are records, but that no stream has or inherits from."""
        needed: set[bytes] = set()
        with txn.cursor(self._streams) as cursor:
            for value in cursor.iternext(keys=False):
                stream = _stream.decode(value)
                needed.update(_number.pack(segment.id) for segment in stream.segments())
        with txn.cursor(self._records) as cursor:
            there = cursor.first()
            while there:
                id = bytes(cursor.key()[:8])
                if id not in needed:
                    yield id
                there = cursor.set_range(id + _number.pack(_EVERYTHING))

    def usage(self) -> Usage:
        with self._reading() as txn:
            info = self._environment.info()
            streams: int = txn.stat(self._streams)["entries"]
            size = self._count(txn, b"bytes", 0)
        return Usage(streams, size, (info["last_pgno"] + 1) * self._environment.stat()["psize"])

    def close(self) -> None:
        self._locks.restore()  # LMDB writes into it when it closes
        self._environment.close()
        # Not before: when a process closes any descriptor of a file, it loses all its record locks on the file.
        self._locks.close()
        self._data.close()

    def _check_length(self) -> None:
        """Check that the file has all its pages: reading a missing one would end the process."""
        path = self.path / "data.mdb"
        last, page_bytes = self._environment.info()["last_pgno"], self._environment.stat()["psize"]
        try:
            missing = missing_page(str(path), page_bytes, last)
        except (ValueError, struct_error) as error:
            self._environment.close()
            raise CorruptError(f"{path} was truncated and cannot be read: {error}; {_RESTORE}", str(path)) from error
        if missing is not None:
            self._environment.close()
            offset = missing * page_bytes
            raise CorruptError(
                f"{path} was truncated: it has {path.stat().st_size} bytes, and its newest commit needs those at "
                f"{offset}; {_RESTORE}",
                str(path),
                offset,
            )

    def _check_readable(self) -> None:
        """:raises ReopenError: one of the mapped files was truncated."""
        problem = self._truncation()
        if problem is not None:
            raise ReopenError(f"nothing can be read: {problem}")

    def _reading(self) -> Any:
        self._check_readable()
        try:
            return self._environment.begin()
        except lmdb.Error as error:
            raise _unreadable(self.path, error) from error

    def _count(self, txn: Any, name: bytes, default: int) -> int:
        found = txn.get(name, db=self._shard)
        if found is None:
            return default
        (count,) = _number.unpack(found)
        assert isinstance(count, int)
        return count

    def _decoded(self, decoder: msgspec.msgpack.Decoder[Any], value: bytes, name: str) -> Any:
        try:
            return decoder.decode(value)
        except msgspec.DecodeError as error:
            raise CorruptError(
                f"{self.path}: what is stored of {name!r} cannot be read: {error}", str(self.path)
            ) from error

    def _writes(self) -> bool:
        try:
            self._environment.begin(write=True).abort()
        except lmdb.Error:
            return False
        return True

    def _failed(self, error: Exception) -> OpslogError:
        if not isinstance(error, lmdb.Error):
            return WriteFailedError(f"{self.path}: nothing was changed, writing failed: {error!r}")
        if isinstance(error, lmdb.MapFullError):
            size = self._environment.info()["map_size"]
            return WriteFailedError(f"{self.path} has reached its greatest size, {size} bytes: delete streams")
        return WriteFailedError(f"{self.path}: nothing was changed, writing failed: {error}; is the disk full?")


def _seek(cursor: Any, stream_id: int, start: int) -> bool:
    """Move the cursor to the record that contains `start`, or else to the stream's first one after it."""
    key = _record_key.pack(stream_id, start)
    if cursor.set_range(key):
        if cursor.key() == key:
            return True
        before = cursor.prev()
    else:
        before = cursor.last()
    if before and cursor.key()[:8] == key[:8]:
        return True  # it may end before `start`
    return bool(cursor.set_range(key))


def _producer_key(stream_id: int, producer_id: str) -> bytes:
    name = producer_id.encode()
    if len(name) > _KEY_BYTES_MAX - 8:
        name = b"sha256:" + sha256(name).digest()
    return _number.pack(stream_id) + name


def _unreadable(path: Path, error: lmdb.Error) -> OpslogError:
    if isinstance(error, lmdb.CorruptedError | lmdb.InvalidError | lmdb.VersionMismatchError):
        return CorruptError(f"{path} cannot be read: {error}; {_RESTORE}", str(path))
    return ReopenError(f"{path} cannot be read: {error}")
