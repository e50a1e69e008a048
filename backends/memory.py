"""A storage inside this process: for tests, for simulations, and for stores that need not survive.

``memory://name`` is one storage per name, shared by everybody in the process and kept until it ends; ``memory://`` and
`MemoryBackend()` are private to the handle. Everything the contract says holds, with "durable" meaning "as long as the
process lives". One lock serialises all calls of one storage.
"""

from __future__ import annotations

import builtins
import os
import threading
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice

from opslog.backends import forking
from opslog.backends.contract import Buffer, Entry, Position, Range
from opslog.backends.names import check_path, check_prefix
from opslog.environment import REAL
from opslog.errors import (
    AgentBusyError,
    AlreadyExistsError,
    ClosedError,
    LockedError,
    MissingFileError,
    NotFoundError,
)
from opslog.layout import OPS, check_name, segment_of, segment_path

SEGMENT_BYTES = 64 * 1024 * 1024


class _Storage:
    """What all handles on one store share. `mutex` guards every other attribute."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.mutex = threading.Lock()
        self.now = now
        self.files: dict[str, bytes | bytearray] = {}
        self.modified: dict[str, float] = {}
        self.paths: list[str] = []
        """The keys of `files`, sorted, so that a listing costs what it returns."""
        self.agents: set[str] = set()
        self.locks: set[str] = set()

    def add(self, path: str, data: bytes | bytearray) -> None:
        self.files[path] = data
        self.modified[path] = self.now()
        insort(self.paths, path)

    def remove(self, path: str) -> None:
        if self.files.pop(path, None) is not None:
            del self.modified[path]
            del self.paths[bisect_left(self.paths, path)]

    def below(self, prefix: str) -> Iterator[str]:
        for path in islice(self.paths, bisect_left(self.paths, prefix), None):
            if not path.startswith(prefix):
                return
            yield path


_shared: dict[str, _Storage] = {}
_shared_mutex = threading.Lock()


class MemoryBackend:
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
        self._generation = forking.generation
        self._closed = False
        with _shared_mutex:
            storage = _shared.get(name) if name else None
            if storage is None:
                if not create:
                    raise NotFoundError(f"no store at {self.url}: nothing in this process has created it")
                storage = _Storage(now)
                if name:
                    _shared[name] = storage
        self._storage = storage

    requests = 0
    """There is no server."""
    segments_grow = True

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        self._check_open()
        check_prefix(prefix)
        storage = self._storage
        with storage.mutex:
            return [
                Entry(path, len(storage.files[path]), storage.modified[path])
                for path in storage.below(prefix)
                if path > after
            ]

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
            data = self._storage.files.get(path)
        if data is None:
            raise MissingFileError(f"no file {path} in {self.url}", path)
        return bytes(data)

    def _slice(self, part: Range) -> bytes | None:
        data = self._storage.files.get(part.path)
        return None if data is None else bytes(data[part.start : part.stop])

    def create(self, path: str, data: bytes) -> None:
        self._check_open()
        check_path(path)
        with self._storage.mutex:
            if path in self._storage.files:
                raise AlreadyExistsError(f"{path} exists already in {self.url}", path)
            self._storage.add(path, bytes(data))

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
        with self._storage.mutex:
            if agent in self._storage.agents:
                raise AgentBusyError(
                    f"agent {agent!r} of {self.url} is in use by {_this_process()}: close the store that uses it, "
                    "or open under another agent name",
                    agent,
                    _this_process(),
                )
            self._storage.agents.add(agent)
        return MemoryAppender(self._storage, agent, self.url, self._segment_bytes)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_open()
        check_name(name, "lock")
        storage = self._storage
        with storage.mutex:
            if name in storage.locks:
                raise LockedError(
                    f"the lock {name!r} of {self.url} is held by {_this_process()}: try again when it is done",
                    name,
                    _this_process(),
                )
            storage.locks.add(name)
        try:
            yield
        finally:
            if self._generation == forking.generation:
                with storage.mutex:
                    storage.locks.discard(name)

    def now(self) -> float:
        self._check_open()
        return self._storage.now()

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._generation != forking.generation:
            raise ClosedError(f"{self.url} was opened by the parent of this process: open it again after the fork")
        if self._closed:
            raise ClosedError(f"{self.url} is closed: open it again")


class MemoryAppender:
    """The appender of `MemoryBackend`. An append either happens whole or not at all."""

    def __init__(self, storage: _Storage, agent: str, url: str, segment_bytes: int) -> None:
        self._storage = storage
        self._agent = agent
        self._url = url
        self._segment_bytes = segment_bytes
        self._generation = forking.generation
        self._closed = False
        self._floor = 0
        self._number = 0
        self._path = ""
        """Of the current segment; empty before the first append."""

    def append(self, data: bytes) -> Position:
        self._check_open()
        storage = self._storage
        with storage.mutex:
            segment = storage.files.get(self._path)
            if not isinstance(segment, bytearray) or len(segment) >= self._segment_bytes:
                segment = self._begin_segment()
            position = Position(self._number, len(segment))
            segment += data
            storage.modified[self._path] = storage.now()
            return position

    def _begin_segment(self) -> bytearray:
        storage = self._storage
        existing = (segment_of(path) for path in storage.below(f"{OPS}{self._agent}/"))
        highest = max((found[1] for found in existing if found), default=0)
        number = max(self._number, self._floor, highest) + 1
        segment = bytearray()
        storage.add(segment_path(self._agent, number), segment)
        self._number, self._path = number, segment_path(self._agent, number)
        return segment

    def advance(self, segment: int) -> None:
        self._check_open()
        self._floor = max(self._floor, segment)

    def close(self) -> None:
        if self._closed or self._generation != forking.generation:
            return
        self._closed = True
        with self._storage.mutex:
            self._storage.agents.discard(self._agent)

    def _check_open(self) -> None:
        if self._generation != forking.generation:
            raise ClosedError(f"{self._url} was opened by the parent of this process: open it again after the fork")
        if self._closed:
            raise ClosedError(f"the log of agent {self._agent!r} is closed: open the store again")


def open_url(url: str, *, create: bool = True, now: Callable[[], float] = REAL.time) -> MemoryBackend:
    """The backend of ``memory://name`` or ``memory://``; parameters as of `MemoryBackend`."""
    return MemoryBackend(url.removeprefix("memory://"), create=create, now=now)


def _this_process() -> str:
    return f"pid {os.getpid()} (this process)"
