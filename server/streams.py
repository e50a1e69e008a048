"""Streams as one service for one event loop: every operation of the protocol, without HTTP, on any storage."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from itertools import chain
from typing import TypeVar

from msgspec.structs import replace

from opslog.doors.tokens import STORES
from opslog.environment import REAL, Environment
from opslog.server.background import Background, log_failure
from opslog.server.followers import Follower, Followers
from opslog.server.metrics import Metrics
from opslog.server.protocol import appending, creation, lifetimes, ranges
from opslog.server.protocol.appending import Append, Appended
from opslog.server.protocol.creation import Create, Created
from opslog.server.protocol.model import Stream
from opslog.server.protocol.ranges import Range, VanishedError
from opslog.server.protocol.refusals import not_found
from opslog.server.protocol.storage import Shard, Storage, Usage
from opslog.server.protocol.transaction import Events, Transaction
from opslog.server.storage.writer import WAIT_SECONDS, Work, Writer

T = TypeVar("T")
_log = logging.getLogger("opslog.server")
# Called on the event loop with each commit that had an effect, before its callers resume.
Observer = Callable[[Events], None]

# The path of the registry, see `opslog.server.registry`.
REGISTRY = "__registry__"

_SWEEP_SECONDS = 60.0
# An access is stored once a fraction of the time to live, 1 / _RENEWALS, has passed since the stored one. So after a
# crash the stored access may be too old by that fraction; `Streams.start` makes up for it.
_RENEWALS = 8


class _Lock(asyncio.Lock):
    users = 0


class Streams:
    """All streams of a storage.

    One object, and so one process, serves a storage. Everything but construction is for one event loop, between
    `start` and `stop`.

    :param retain_bytes: how much of each stream is kept at least; None keeps everything. The registry and the feeds of
        stores are never trimmed by size: a reader of what is left would not know all streams, or all documents.
    :ivar observers: functions that are called with every change; add your own.
    :ivar followers: the readers that wait for more.
    """

    def __init__(
        self,
        storage: Storage,
        environment: Environment = REAL,
        metrics: Metrics | None = None,
        retain_bytes: int | None = None,
    ) -> None:
        self._retain_bytes = retain_bytes
        self.storage = storage
        self.environment = environment
        self.metrics = metrics or Metrics()
        self.followers = Followers()
        self.observers: list[Observer] = []
        self._accesses: dict[int, float] = {}
        self._away: dict[str, int] = {}
        self._recording: set[int] = set()
        self._untidy: set[int] = set()
        self._locks: dict[str, _Lock] = {}
        self._writers: list[Writer] = []
        self._background = Background(_log, "work on streams that no request waits for failed")

    async def start(self) -> None:
        """Begin to serve: find the forks that are not in the shard of their own path, end expired streams, and continue
        tidying. Reads each stream's metadata once."""
        now = self.environment.time()
        self._writers = [
            # Their groups may begin one after the other, so that the event loop waits for all of them.
            Writer(
                shard,
                self.environment,
                self.metrics,
                partial(self._committed, index),
                WAIT_SECONDS / len(self.storage.shards),
            )
            for index, shard in enumerate(self.storage.shards)
        ]
        for index, shard in enumerate(self.storage.shards):
            for stream in shard.streams():
                if self.storage.home(stream.path) != index:
                    self._away[stream.path] = index
                if stream.ttl is not None:
                    # The last access may be this much newer than the stored one.
                    self._accesses[stream.id] = min(now, stream.accessed + stream.ttl / _RENEWALS)
        await self.sweep()
        self._background.spawn(self._sweep_for_ever())

    async def stop(self) -> None:
        """Wake all followers, cancel background tasks, and finish requested changes. The storage stays open: it belongs
        to the caller."""
        self.followers.stop()
        await self._background.stop()
        for writer in self._writers:
            await writer.close()

    # Operations of clients

    async def create(self, request: Create) -> Created:
        """See `creation.create`."""
        path = request.path
        async with self._locked(path):
            if request.fork is not None:
                await self._end_expired(path)
            index = self._shard_number_of_new(request)
            created = await self._writers[index].run(lambda txn: creation.create(txn, request, self._accesses))
            if self.storage.home(path) != index:
                self._away[path] = index
            else:
                self._away.pop(path, None)
        return created

    async def append(self, request: Append) -> Appended:
        """See `appending.append`."""
        return await self.work_on(request.path, partial(self._append, request))

    async def delete(self, path: str) -> None:
        """See `lifetimes.delete`."""
        async with self._locked(path):
            writer = self._writers[self.shard_number(path)]
            await writer.run(lambda txn: lifetimes.delete(txn, path, self._accesses))

    def stream(self, path: str) -> Stream:
        """The stream in its committed state.

        :raises Refused: 404; or 410 if it has ended but forks still need it.
        """
        stream = self._shard(path).stream(path)
        return lifetimes.check(stream, self.environment.time(), self._accesses)

    def again(self, stream: Stream) -> Stream:
        """The same stream, in its present state.

        :raises Refused: it no longer exists, even if there is a new stream at its path.
        """
        newest = self.followers.newest(stream.path)
        if newest is None or newest.ttl is not None:  # followers are not notified of recorded accesses
            current = self.stream(stream.path)
        else:
            current = lifetimes.check(newest, self.environment.time(), self._accesses)
        if current.id != stream.id:
            raise not_found()
        return current

    def content_type(self, path: str) -> str | None:
        """The content type of the stream at this path, even if clients cannot use it; None: there is no stream."""
        stream = self._shard(path).stream(path)
        return None if stream is None else stream.content_type

    def has_data_of(self, path: str, source: str) -> bool:
        """Whether `path` is `source`, or the stream there has inherited data of `source`, at any depth of forks."""
        if path == source:
            return True
        stream = self._shard(path).stream(path)
        if stream is None or not stream.inherited:
            return False
        # No other stream gets the path of the source while a fork has its data.
        found = self._shard(source).stream(source)
        return found is not None and any(segment.id == found.id for segment in stream.inherited)

    def touch(self, stream: Stream) -> None:
        """Note a read of the stream: its time to live begins anew."""
        if stream.ttl is None:
            return
        now = self.environment.time()
        self._accesses[stream.id] = now
        if now - stream.accessed > stream.ttl / _RENEWALS and stream.id not in self._recording:
            self._recording.add(stream.id)
            self._background.spawn(self._record_access(stream.path, stream.id))

    async def wait(self, stream: Stream, follower: Follower, seconds: float) -> None:
        """Wait as `Follower.wait` does. A wait counts as a read, so the stream does not expire meanwhile."""
        if stream.ttl is None:
            await follower.wait(seconds)
            return
        self.touch(stream)
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            woken = await follower.wait(min(left, max(0.01, stream.ttl / 2)))
            current = self._shard(stream.path).stream(stream.path)
            if current is not None and current.id == stream.id and not current.deleted:
                self.touch(current)  # no commit would remove the access to a stream that has ended
            if woken:
                return

    def read(self, stream: Stream, position: int, limit: int) -> Range:
        """See `ranges.read`."""
        if position < stream.earliest:
            ranges.check_position(stream, position)
        try:
            return ranges.read(self._shard(stream.path).records, stream, position, limit)
        except VanishedError:
            self.again(stream)  # raises if the stream was deleted meanwhile; otherwise the storage is damaged
            raise

    def expires_in(self, stream: Stream) -> float | None:
        """Seconds until the stream ends if no client uses it; None: never."""
        end = lifetimes.deadline(stream, self._accesses)
        return None if end is None else end - self.environment.time()

    # Operations of other parts of the server

    async def transact(self, work: Work[T]) -> T:
        """Run a caller's work in a transaction of the first shard; see `Writer.run`."""
        return await self._writers[0].run(work)

    async def work_on(self, path: str, work: Work[T]) -> T:
        """Run a caller's work in a transaction of this stream's shard. The stream need not exist. See `Writer.run`."""
        index = self.shard_number(path)
        result = await self._writers[index].run(partial(self._noting_what_is_trimmed, index, work))
        while self._untidy:
            self._background.spawn(self._tidy(self._untidy.pop()))
        return result

    def value(self, path: str, key: bytes) -> bytes | None:
        """The value under a key in the free key space of this stream's shard."""
        return self._shard(path).value(key)

    def list(self, after: str = "") -> Iterator[Stream]:
        """All streams that clients can use, shard by shard; in each shard, those after the path `after`."""
        now = self.environment.time()
        for shard in self.storage.shards:
            for stream in shard.streams(after):
                if not stream.deleted and not lifetimes.is_over(stream, now, self._accesses):
                    yield stream

    def shard_number(self, path: str) -> int:
        """The index of the shard where the stream is, or would be."""
        number = self._away.get(path)
        return self.storage.home(path) if number is None else number

    def usage(self) -> Usage:
        usages = [shard.usage() for shard in self.storage.shards]
        return Usage(
            streams=sum(usage.streams for usage in usages),
            bytes=sum(usage.bytes for usage in usages),
            stored_bytes=sum(usage.stored_bytes for usage in usages),
        )

    @property
    def failure(self) -> str | None:
        """Why nothing can be written any more; None if writing is possible."""
        failures = (writer.failure for writer in self._writers)
        problems = (shard.problem() for shard in self.storage.shards)
        return next((text for text in chain(failures, problems) if text is not None), None)

    @property
    def waiting(self) -> int:
        """The number of changes that wait for a commit to begin."""
        return sum(writer.waiting for writer in self._writers)

    async def sweep(self) -> None:
        """End every stream whose lifetime is over, and remove the data that deletions left behind."""
        now = self.environment.time()
        for index, shard in enumerate(self.storage.shards):
            over = [stream.path for stream in shard.streams() if lifetimes.is_over(stream, now, self._accesses)]
            # All at once, so that they share commits.
            await asyncio.gather(*(self._writers[index].run(partial(self._end, path)) for path in over))
            await self._tidy(index)

    # Internal

    def _shard(self, path: str) -> Shard:
        return self.storage.shards[self.shard_number(path)]

    async def _end_expired(self, path: str) -> None:
        """End the stream at this path if its lifetime is over, before a sweep does. A fork is in the shard of its
        source, which may be another one, and no transaction spans two."""
        index = self.shard_number(path)
        stream = self.storage.shards[index].stream(path)
        if stream is not None and lifetimes.is_over(stream, self.environment.time(), self._accesses):
            await self._writers[index].run(partial(self._end, path))

    def _shard_number_of_new(self, request: Create) -> int:
        number = self.shard_number(request.path)
        if request.fork is None or self.storage.shards[number].stream(request.path) is not None:
            return number
        return self.shard_number(request.fork.source)  # a fork is in its source's shard: they share transactions

    @asynccontextmanager
    async def _locked(self, path: str) -> AsyncIterator[None]:
        """Keep others from creating or deleting a stream at this path, so that it is never in two shards."""
        lock = self._locks.setdefault(path, _Lock())
        lock.users += 1
        try:
            async with lock:
                yield
        finally:
            lock.users -= 1
            if not lock.users:
                del self._locks[path]

    def _committed(self, index: int, events: Events) -> None:
        for stream in events.deleted:
            self._accesses.pop(stream.id, None)
            self._background.spawn(self._forget(stream.path, index))
        ended = {stream.path for stream in events.deleted}
        for path in ended - events.appended.keys():
            self.followers.wake(path)
        for path, stream in events.appended.items():
            self.followers.wake(path, None if path in ended else stream)
        for observer in self.observers:
            try:
                observer(events)
            except Exception:  # noqa: BLE001  (a commit is answered even if an observer fails)
                _log.exception("an observer failed")

    async def _forget(self, path: str, index: int) -> None:
        """After a deletion in this shard: assign the path to the shard of its name again, and remove the stored
        data. By now a fork may be at this path, in another shard."""
        async with self._locked(path):
            if self._away.get(path) == index and self.storage.shards[index].stream(path) is None:
                del self._away[path]
        await self._tidy(index)

    async def _tidy(self, index: int) -> None:
        while await self._writers[index].in_thread(self.storage.shards[index].tidy):
            pass

    def _append(self, request: Append, transaction: Transaction) -> Appended:
        is_whole = request.path == REGISTRY or request.path.startswith(STORES)
        return appending.append(transaction, request, self._accesses, None if is_whole else self._retain_bytes)

    def _noting_what_is_trimmed(self, index: int, work: Work[T], transaction: Transaction) -> T:
        result = work(transaction)
        if transaction.changes.trimmed:
            self._untidy.add(index)
        return result

    async def _record_access(self, path: str, stream_id: int) -> None:
        def record(transaction: Transaction) -> None:
            stream = transaction.stream(path)
            accessed = self._accesses.get(stream_id, 0.0)
            if stream is not None and stream.id == stream_id and accessed > stream.accessed:
                transaction.put(replace(stream, accessed=accessed))

        try:
            await self._writers[self.shard_number(path)].run(record)
        finally:
            self._recording.discard(stream_id)

    def _end(self, path: str, transaction: Transaction) -> None:
        stream = transaction.stream(path)
        if stream is not None:
            lifetimes.end_if_over(transaction, stream, self._accesses)

    async def _sweep_for_ever(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            try:
                await self.sweep()
            except Exception as error:  # noqa: BLE001  (such as a full disk: the next sweep tries again)
                log_failure(_log, "a sweep failed", error)
