"""The feed of a store: an ordinary stream of State Protocol messages, made from `Store.changes`.

The feed is the only writer of its stream. Invariants:

1. *Exactly once.* One transaction of the storage commits the messages and the token after them. After a crash the feed
   continues from the stored token.
2. *A reader that reads all messages from any snapshot on has the documents of the store* as they were at the token. A
   snapshot is made from the messages before it, and has the same content.
3. *If changes were collected before the feed read them*, or another store was served under this name before, the next
   messages turn the documents that readers have into those of the store.

Readers begin at a snapshot. The feed writes a new one when the messages after the last one have become more than twice
as long as that snapshot. Then it trims the stream to the snapshot before the new one. So a reader that was away for a
moment, or is still catching up, can continue until the snapshot after that. Forks read the whole stream. As long as the
stream has forks, the feed writes no new snapshots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from opslog.doors.tokens import STORES
from opslog.errors import ClosedError, UsageError
from opslog.format.commits import Set
from opslog.format.prepared import prepare
from opslog.replica.feed import Changes
from opslog.server.background import Background, happens, log_failure
from opslog.server.protocol.model import JSON, Stream
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Transaction
from opslog.server.stores.messages import Messages, chunks
from opslog.server.streams import Streams

R = TypeVar("R")
_log = logging.getLogger("opslog.server")

# The folder of the feeds among the streams.
FOLDER = STORES
# The most commits that one step, and so one transaction, reads.
_COMMITS = 1000
# The size of one record of a stream. Reads return whole records.
_CHUNK_BYTES = 256 * 1024
# A snapshot is due when the messages after the last one are this many times as long as that snapshot.
_SNAPSHOT_TIMES = 2
# How long to collect writes after a step, so that many of them take one step. A step for each write would take as
# much of the server's time as the write. A request for the feed ends this wait.
_COLLECT_SECONDS = 0.01
# How long to wait before retrying a failed step.
_RETRY_SECONDS = 5.0


def _key(path: str) -> bytes:
    return b"stores/feed/" + path.encode()


def is_feed(streams: Streams, path: str) -> bool:
    """Whether the stream at this path is the feed of a store, whether or not that store is served now."""
    if not path.startswith(FOLDER):
        return False
    kept, stream = _kept(streams, path), _stream(streams, path)
    return kept is not None and stream is not None and kept.stream == stream.id  # it may be another one by now


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is stored beside the stream, and commits with it.

    :ivar token: the messages contain all changes up to this token.
    :ivar stream: the id of the stream. A stream with another id at the same path is no feed.
    :ivar start: the offset at which its newest snapshot begins.
    :ivar stop: the offset at which that snapshot ends.
    """

    token: str
    stream: int
    start: int = 0
    stop: int = 0


prepare(Kept)


def _kept(streams: Streams, path: str) -> Kept | None:
    value = streams.value(path, _key(path))
    return None if value is None else msgspec.json.decode(value, type=Kept)


def _stream(streams: Streams, path: str) -> Stream | None:
    try:
        return streams.stream(path)
    except Refused:
        return None


class _Step(msgspec.Struct):
    """What one step appends, in one transaction.

    :ivar rest: the stored state that the step was made from. If that has changed, the step is dropped.
    :ivar token: the token after this step.
    :ivar records: the records to append.
    :ivar is_snapshot: whether the records are a snapshot. If so, the stream is trimmed to the snapshot before it.
    :ivar is_all: whether the token is at the end of what the store had.
    """

    rest: Kept | None
    token: str
    records: list[bytes]
    is_snapshot: bool = False
    is_all: bool = False


class Feed:
    """Writes the feed of one store.

    :param changes: returns the store's changes since a token, and the next token. Blocks.
    :param in_thread: runs a blocking call in a thread.
    :param poll_seconds: how often to check the store for what others have written.
    :param snapshot_bytes: write no snapshot before the messages after the last one are this long.
    :ivar path: the path of the stream.
    :ivar has_ended: it writes nothing more. It ends when the store is closed, or by a fault of the server.
    """

    def __init__(
        self,
        name: str,
        streams: Streams,
        *,
        changes: Callable[[str | None, int], Changes[Any]],
        in_thread: Callable[[Callable[[], Any]], Awaitable[Any]],
        poll_seconds: float,
        snapshot_bytes: int,
    ) -> None:
        self.path = f"{FOLDER}{name}"
        self._name = name
        self._streams = streams
        self._changes = changes
        self._in_thread = in_thread
        self._poll_seconds = poll_seconds
        self._snapshot_bytes = snapshot_bytes
        self._messages = Messages(name)
        self._key = _key(self.path)
        # How many times the feed was woken, counting the start; how many of these wake-ups it has handled; and events:
        # for a wake-up, for a request that waits for the next step, and for the end of a step.
        self._wanted, self._reached = 1, 0
        self._woken = asyncio.Event()
        self._hurried = asyncio.Event()
        self._stepped = asyncio.Event()
        self.has_ended = False
        self._background = Background(_log, f"the feed {self.path} has ended by a fault of the server")

    def start(self) -> None:
        """Start writing.

        :raises UsageError: the stream at this path is not a feed.
        """
        stream, kept = self._stream(), self._kept()
        if stream is not None and (kept is None or kept.stream != stream.id or stream.closed):
            raise UsageError(
                f"there is a stream {self.path!r} that is not the feed of a store: delete it, or serve the store under "
                "another name"
            )
        self._background.spawn(self._run())

    async def stop(self) -> None:
        """Stop. A step under way is finished, or is made again after the next start."""
        await self._background.stop()

    def wake(self) -> None:
        """Something was written: make the next step now, without waiting for the poll."""
        self._wanted += 1
        self._woken.set()

    async def current(self) -> None:
        """Return when the stream has everything written before the last `wake`, or when a step has failed or the feed
        has ended."""
        wanted = self._wanted
        while self._reached < wanted and not self.has_ended:
            self._hurried.set()
            await self._stepped.wait()

    def _reach(self, wanted: int) -> None:
        self._reached = max(self._reached, wanted)
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()

    def _stream(self) -> Stream | None:
        return _stream(self._streams, self.path)

    def _kept(self) -> Kept | None:
        return _kept(self._streams, self.path)

    async def _run(self) -> None:
        try:
            await self._follow()
        finally:
            self.has_ended = True
            self._reach(self._wanted)

    async def _follow(self) -> None:
        while True:
            self._hurried.clear()
            wait = self._poll_seconds
            try:
                while await self.step():
                    pass
            except ClosedError:
                return
            # A full disk, for example. The next step starts where this one did.
            except Exception as error:  # noqa: BLE001  (nobody else would see it)
                wait = max(wait, _RETRY_SECONDS)
                self._reach(self._wanted)
                log_failure(_log, "a feed could not be written", error, store=self._name)
            await happens(self._hurried, _COLLECT_SECONDS)
            await happens(self._woken, wait)
            self._woken.clear()

    async def step(self) -> bool:
        """Append the changes since the last step, or a snapshot if one is due. Returns whether more was there to append
        already."""
        wanted = self._wanted
        kept, stream = self._kept(), self._stream()
        if kept is not None and (stream is None or stream.id != kept.stream):
            kept = None
        made = await self._in_thread(partial(self._make, kept, stream))
        if made is not None:
            await asyncio.shield(self._streams.work_on(self.path, partial(self._commit, made)))
        if made is not None and not made.is_all:
            return True
        self._reach(wanted)
        kept, stream = self._kept(), self._stream()
        return kept is not None and stream is not None and self._needs_snapshot(kept, stream)

    # In a thread

    def _make(self, kept: Kept | None, stream: Stream | None) -> _Step | None:
        if kept is None or stream is None:
            found = self._changes(None, _COMMITS)
            whole = ((id, bytes(record.data)) for id, record in found.records() if isinstance(record, Set))
            messages = self._messages.snapshot(whole, is_first=True)
            return _Step(None, found.token, _records(messages), is_snapshot=True, is_all=True)
        if self._needs_snapshot(kept, stream):
            documents = sorted(self._documents(kept, stream).items())
            messages = self._messages.snapshot(documents, is_first=False)
            return _Step(kept, kept.token, _records(messages), is_snapshot=True)
        try:
            found = self._changes(kept.token, _COMMITS)
        except ClosedError:
            raise
        except UsageError:  # the token is that of another store, which was served under this name before
            found = self._changes(None, _COMMITS)
        if found.reset:
            messages = self._messages.difference(self._documents(kept, stream), found.records())
            return _Step(kept, found.token, _records(messages), is_all=True)
        if found.token == kept.token:
            return None
        return _Step(kept, found.token, _records(self._messages.changes(found)), is_all=not found.has_more)

    def _needs_snapshot(self, kept: Kept, stream: Stream) -> bool:
        since, last = stream.tail - kept.stop, kept.stop - kept.start
        return not stream.forks and since > max(self._snapshot_bytes, _SNAPSHOT_TIMES * last)

    def _documents(self, kept: Kept, stream: Stream) -> dict[str, bytes]:
        """The documents of a reader of the whole stream: those of the newest snapshot, changed by the messages after
        it."""
        known: dict[str, bytes] = {}
        position = kept.start
        while position < stream.tail:
            found = self._streams.read(stream, position, _CHUNK_BYTES)
            self._messages.read(known, found.chunks)
            position = found.stop
        return known

    # On the event loop

    def _commit(self, made: _Step, transaction: Transaction) -> None:
        now = transaction.value(self._key)
        rest = None if now is None else msgspec.json.decode(now, type=Kept)
        stream = transaction.stream(self.path)
        if made.rest is None:
            if stream is not None:
                raise Refused(409, f"there is another stream {self.path!r}: delete it, and the streams forked from it")
            base = _base(transaction.now)
            stream = Stream(
                transaction.new_id(), self.path, JSON, transaction.now, transaction.now, tail=base, earliest=base
            )
            transaction.events.created.append(stream)
        elif rest != made.rest or stream is None:
            return
        start = stream.tail
        for record in made.records:
            transaction.append(stream.id, stream.tail, record)
            stream = replace(stream, tail=stream.tail + len(record), accessed=transaction.now)
        kept = Kept(made.token, stream.id, *((made.rest.start, made.rest.stop) if made.rest else (0, 0)))
        if made.is_snapshot:
            kept = Kept(made.token, stream.id, start, stream.tail)
            if made.rest is not None and made.rest.start > stream.earliest and not stream.forks:
                stream = replace(stream, earliest=made.rest.start)
                transaction.changes.trimmed[stream.id] = made.rest.start
        transaction.put(stream)
        transaction.put_value(self._key, msgspec.json.encode(kept))
        if made.records:
            transaction.events.appended[self.path] = stream


def _base(now: float) -> int:
    """The position at which a new feed begins: the microseconds since 1970. Readers may have offsets of an earlier feed
    at the same path, which was in memory or was deleted. That one ended before this position, unless it has grown by
    more than a megabyte in each second. So these readers have to begin again, and miss nothing."""
    return int(now * 1e6)


def _records(messages: Iterable[bytes]) -> list[bytes]:
    return list(chunks(messages, _CHUNK_BYTES))
