"""A storage inside this process: for tests, for simulations, and for stores that need not survive.

``memory://name`` is one storage per name, shared by everybody in the process and kept until it ends; ``memory://`` and
`MemoryBackend()` are private to the handle. Everything the contract says holds, with "durable" meaning "as long as the
process lives". One lock serialises all calls of one storage.
"""

from __future__ import annotations

import builtins
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import NamedTuple

from opslog.backends import forking
from opslog.backends.contract import Buffer, Entry, Position, Range
from opslog.backends.holders import Holders, in_use_here, this_process
from opslog.backends.names import check_path, check_prefix
from opslog.backends.turns import append_once, in_turn
from opslog.environment import REAL
from opslog.errors import (
    AlreadyExistsError,
    LockedError,
    MissingFileError,
    MissingStoreError,
)
from opslog.format.layout import OPS, check_name, segment_of, segment_path
from opslog.format.torn import sound_length

SEGMENT_BYTES = 64 * 1024 * 1024


class _File(NamedTuple):
    """The content of a path, and the time of its last write."""

    data: bytes | bytearray
    modified: float


class _Lock:
    """The holder of a lock."""


class _Storage:
    """The state that all handles on one store share. `mutex` guards the files.

    A signal handler may run, and raise, between any two steps. So one operation on `files` adds or removes a file,
    and `paths` only says where to search: it may contain paths of files that do not exist, or one path twice.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self.mutex = threading.RLock()
        self.now = now
        self.files: dict[str, _File] = {}
        # Sorted, so that a listing costs what it returns.
        self.paths: list[str] = []
        self.agents = Holders()
        self.locks = Holders()

    def add(self, path: str, data: bytes | bytearray) -> bool:
        """Store a file; False where there is one of this path."""
        place = bisect_left(self.paths, path)
        if self.paths[place : place + 1] != [path]:
            insort(self.paths, path)  # searches again, since others may have added paths since
        file = _File(data, self.now())
        return self.files.setdefault(path, file) is file

    def remove(self, path: str) -> None:
        if self.files.pop(path, None) is not None:
            self.paths.remove(path)

    def below(self, prefix: str) -> Iterator[tuple[str, _File]]:
        """The files whose paths begin with `prefix`, in the order of those."""
        last = None
        for path in islice(self.paths, bisect_left(self.paths, prefix), None):
            if not path.startswith(prefix):
                return
            file = self.files.get(path)
            if file is not None and path != last:
                yield path, file
            last = path


_shared: dict[str, _Storage] = {}


class MemoryBackend(forking.ProcessBound):
    """See the module's docstring.

    :param name: the shared storage of that name; empty: a new private one.
    :param create: whether a storage that does not exist yet may be begun.
    :param now: the storage's clock, seconds since 1970. The first handle on a name decides for all.
    :param segment_bytes: a log begins a new segment once the current one has reached this size.
    :raises NotFoundError: no such storage, and `create` is false.
    """

    def __init__(
        self,
        name: str = "",
        *,
        create: bool = True,
        now: Callable[[], float] = REAL.time,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        self.url = f"memory://{name}"
        self._segment_bytes = segment_bytes
        super().__init__()
        storage = _shared.get(name) if name else None
        if storage is None:
            if not create:
                raise MissingStoreError(f"no store at {self.url}: nothing in this process has created it", self.url)
            storage = _Storage(now)
            if name:
                storage = _shared.setdefault(name, storage)
        self._storage = storage

    # There is no server.
    requests = 0
    segments_grow = True

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        self._check_open()
        check_prefix(prefix)
        storage = self._storage
        with storage.mutex:
            return [Entry(path, len(file.data), file.modified) for path, file in storage.below(prefix) if path > after]

    def list_logs(self, seen: Mapping[str, int]) -> builtins.list[Entry]:
        return self.list(OPS)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        data = self.read_many([Range(path, start, stop)])[0]
        if data is None:
            raise MissingFileError(f"no file {path} in {self.url}", path)
        return data

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        self._check_open()
        for part in ranges:
            check_path(part.path)
        with self._storage.mutex:
            return [self._slice(part) for part in ranges]

    def map(self, path: str) -> Buffer | None:
        self._check_open()
        check_path(path)
        with self._storage.mutex:
            file = self._storage.files.get(path)
            if file is None:
                raise MissingFileError(f"no file {path} in {self.url}", path)
            return bytes(file.data)

    def _slice(self, part: Range) -> bytes | None:
        file = self._storage.files.get(part.path)
        return None if file is None else bytes(file.data[part.start : part.stop])

    def create(self, path: str, data: bytes) -> None:
        self._check_open()
        check_path(path)
        with self._storage.mutex:
            if not self._storage.add(path, bytes(data)):
                raise AlreadyExistsError(f"{path} exists already in {self.url}", path)

    def delete(self, paths: Iterable[str]) -> None:
        self._check_open()
        for path in paths:
            check_path(path)
            with self._storage.mutex:
                self._storage.remove(path)

    def persist(self, paths: Iterable[str]) -> None:
        self._check_open()

    def appender(self, agent: str) -> MemoryAppender:
        self._check_open()
        check_name(agent, "agent")
        appender = MemoryAppender(self._storage, agent, self.url, self._segment_bytes)
        try:
            if not self._storage.agents.take(agent, appender):
                raise in_use_here(agent, self.url)
        except BaseException:
            appender.close()
            raise
        return appender

    def append_at(self, agent: str, end: Position, data: bytes) -> Position | None:
        self._check_open()
        check_name(agent, "agent")

        def attempt() -> Position | None:
            mine: list[MemoryAppender] = []

            def append() -> Position | None:
                mine.append(self.appender(agent))
                return mine[0].append_at(end, data)

            # Calls of this method wait for each other here, and so never find each other's names taken.
            with self._storage.mutex:
                return append_once(append, lambda: mine[0].close() if mine else None)

        return in_turn(attempt, lambda: False, REAL, agent, self.url)

    def is_free(self, agent: str) -> bool:
        self._check_open()
        check_name(agent, "agent")
        return self._storage.agents.is_free(agent)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_open()
        check_name(name, "lock")
        locks, holder = self._storage.locks, _Lock()
        try:
            if not locks.take(name, holder):
                raise LockedError(
                    f"the lock {name!r} of {self.url} is held by {this_process()} (this process): try again "
                    "when it is done",
                    name,
                    this_process(),
                )
            yield
        finally:
            if not self._is_forked:
                locks.release(name, holder)

    def now(self) -> float:
        self._check_open()
        return self._storage.now()

    def close(self) -> None:
        self._closed = True

    def _name(self) -> str:
        return self.url


class MemoryAppender(forking.BoundAppender):
    """The appender of `MemoryBackend`. An append either happens whole or not at all."""

    def __init__(self, storage: _Storage, agent: str, url: str, segment_bytes: int) -> None:
        self._storage = storage
        self._agent = agent
        self._url = url
        self._segment_bytes = segment_bytes
        super().__init__()
        self._floor = 0
        self._number = 0
        # Of the current segment; empty before the first append.
        self._path = ""

    def append(self, data: bytes) -> Position:
        self._check_open()
        storage = self._storage
        with storage.mutex:
            file = storage.files.get(self._path)
            segment = file.data if file is not None else b""
            if not isinstance(segment, bytearray) or len(segment) >= self._segment_bytes:
                segment = self._begin_segment()
            position = Position(self._number, len(segment))
            written = _File(segment, storage.now())
            segment += data
            storage.files[self._path] = written
            return position

    def append_at(self, end: Position, data: bytes) -> Position | None:
        """Does what `Backend.append_at` says, for an appender that has done nothing yet. The caller has the mutex."""
        highest = self._highest_number()
        if highest > end.segment or (highest < end.segment and end.offset):
            return None
        path = segment_path(self._agent, end.segment)
        file = self._storage.files.get(path)
        if file is not None:
            if len(file.data) < end.offset or sound_length(bytes(file.data[end.offset :])):
                return None
            if len(file.data) == end.offset:
                if not isinstance(file.data, bytearray):
                    self._storage.files[path] = _File(bytearray(file.data), file.modified)
                self._number, self._path = end.segment, path
        self.advance(end.segment - 1)
        return self.append(data)

    def _highest_number(self) -> int:
        existing = (segment_of(path) for path, _ in self._storage.below(f"{OPS}{self._agent}/"))
        return max((found[1] for found in existing if found), default=0)

    def _begin_segment(self) -> bytearray:
        storage = self._storage
        number = max(self._number, self._floor, self._highest_number()) + 1
        path, segment = segment_path(self._agent, number), bytearray()
        storage.add(path, segment)
        self._number, self._path = number, path
        return segment

    def check_name(self) -> None:
        self._check_open()

    def advance(self, segment: int) -> None:
        self._check_open()
        self._floor = max(self._floor, segment)

    def close(self) -> None:
        if not self._is_forked:
            self._closed = True
            self._storage.agents.release(self._agent, self)


def open_url(url: str, *, create: bool = True, now: Callable[[], float] = REAL.time) -> MemoryBackend:
    """The backend of ``memory://name`` or ``memory://``; parameters as of `MemoryBackend`."""
    return MemoryBackend(url.removeprefix("memory://"), create=create, now=now)
