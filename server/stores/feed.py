"""The feed of a store: an ordinary stream of State Protocol messages, made of what `Store.changes` gives.

The feed is the one writer of its stream. What holds:

1. *Exactly once.* The token up to which changes were taken commits with the messages made of them, in one transaction
   of the storage. After a crash the feed goes on from the token that is there.
2. *Whoever reads all messages from any snapshot on has the documents of the store* as they were at the token. A
   snapshot says what the messages before it say, and was made of them.
3. *Where changes were collected before they were taken*, and where the stream is of another store than now, the
   messages lead from what readers have to what is there.

Readers begin at a snapshot. A new one is written when the messages behind the last one have become longer than twice
that. Then the stream is trimmed to the last one: a reader that was away for a moment, or is still catching up, can go
on until the snapshot after that. Forks read all of it: while there are some, there are no new snapshots.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from opslog.errors import ClosedError, OpslogError, UsageError
from opslog.format.commits import Set
from opslog.format.prepared import prepare
from opslog.replica.feed import Changes
from opslog.server.background import Background
from opslog.server.protocol.model import JSON, Stream
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Transaction
from opslog.server.stores.messages import Messages, chunks
from opslog.server.streams import Streams

R = TypeVar("R")
_log = logging.getLogger("opslog.server")

# Where feeds are among streams.
FOLDER = "stores/"
# How many commits one token is moved on by, at most: what one transaction holds.
_COMMITS = 1000
# How much one record of a stream holds; answers of reads are made of whole records.
_CHUNK_BYTES = 256 * 1024
# A snapshot is written when the messages behind the last one have become so many times as long as that.
_SNAPSHOT_TIMES = 2
# How long to wait before a step that failed is tried again.
_RETRY_SECONDS = 5.0


def _key(path: str) -> bytes:
    return b"stores/feed/" + path.encode()


def is_feed(streams: Streams, path: str) -> bool:
    """Whether the stream at this path is the feed of a store, served now or not."""
    return path.startswith(FOLDER) and streams.value(path, _key(path)) is not None


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """What is kept beside the stream, and commits with it.

    :ivar token: up to which the messages say everything.
    :ivar stream: the id of the stream; another one under its path is no feed.
    :ivar start: where its newest snapshot begins.
    :ivar stop: where that ends.
    """

    token: str
    stream: int
    start: int = 0
    stop: int = 0


prepare(Kept)


class _Step(msgspec.Struct):
    """What one transaction appends.

    :ivar rest: what it was made of; it counts only while that is still so.
    :ivar token: the token afterwards.
    :ivar records: what is appended.
    :ivar is_snapshot: whether that is a snapshot; the stream is trimmed to the one before it.
    :ivar is_all: whether the token is at the end of the store.
    """

    rest: Kept | None
    token: str
    records: list[bytes]
    is_snapshot: bool = False
    is_all: bool = False


class Feed:
    """Writes the feed of one store.

    :param changes: the store's, for whoever asks from one token to the next; blocks.
    :param in_thread: calls something that blocks.
    :param poll_seconds: how often the store is asked for what others have written.
    :param snapshot_bytes: no snapshot is written before the messages behind the last one are so long.
    :ivar path: of the stream.
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
        # How often it was woken, the start included; up to which of these it has come; and the end of a step.
        self._wanted, self._reached = 1, 0
        self._woken = asyncio.Event()
        self._stepped = asyncio.Event()
        self._has_ended = False
        self._background = Background(_log, f"the feed {self.path} has ended by a fault of the server")

    def start(self) -> None:
        """Begin to write.

        :raises UsageError: there is a stream at this path that is no feed.
        """
        stream, kept = self._stream(), self._kept()
        if stream is not None and (kept is None or kept.stream != stream.id or stream.closed):
            raise UsageError(
                f"there is a stream {self.path!r} that is not the feed of a store: delete it, or serve the store under "
                "another name"
            )
        self._background.spawn(self._run())

    async def stop(self) -> None:
        """End. What was being written is finished, or is written after the next start."""
        await self._background.stop()

    def wake(self) -> None:
        """Something was written: do not wait for the next poll."""
        self._wanted += 1
        self._woken.set()

    async def current(self) -> None:
        """Return when the stream has all that was written before the last `wake`, or cannot have it now."""
        wanted = self._wanted
        while self._reached < wanted and not self._has_ended:
            await self._stepped.wait()

    def _reach(self, wanted: int) -> None:
        self._reached = max(self._reached, wanted)
        stepped, self._stepped = self._stepped, asyncio.Event()
        stepped.set()

    def _stream(self) -> Stream | None:
        try:
            return self._streams.stream(self.path)
        except Refused:
            return None

    def _kept(self) -> Kept | None:
        value = self._streams.value(self.path, self._key)
        return None if value is None else msgspec.json.decode(value, type=Kept)

    async def _run(self) -> None:
        try:
            await self._follow()
        finally:
            self._has_ended = True
            self._reach(self._wanted)

    async def _follow(self) -> None:
        while True:
            wait = self._poll_seconds
            try:
                while await self.step():
                    pass
            except ClosedError:
                return
            except OpslogError as error:  # a full disk, say: the next step begins where this one did
                wait = max(wait, _RETRY_SECONDS)
                self._reach(self._wanted)
                _log.warning("a feed could not be written", extra={"store": self._name, "error": str(error)})
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._woken.wait()
            self._woken.clear()

    async def step(self) -> bool:
        """Append what came since the last step, or a snapshot if it is time. Returns whether there was anything."""
        wanted = self._wanted
        kept, stream = self._kept(), self._stream()
        if kept is not None and (stream is None or stream.id != kept.stream):
            kept = None
        made = await self._in_thread(partial(self._make, kept, stream))
        if made is not None:
            await asyncio.shield(self._streams.work_on(self.path, partial(self._commit, made)))
        if made is None or made.is_all:
            self._reach(wanted)
        return made is not None

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
        except UsageError:  # of another store that was served under this name
            found = self._changes(None, _COMMITS)
        if found.reset:
            messages = self._messages.difference(self._documents(kept, stream), found.records())
            return _Step(kept, found.token, _records(messages), is_all=True)
        if found.token == kept.token:
            return None
        is_all = len(found.commits) < _COMMITS
        return _Step(kept, found.token, _records(self._messages.changes(found)), is_all=is_all)

    def _needs_snapshot(self, kept: Kept, stream: Stream) -> bool:
        since, last = stream.tail - kept.stop, kept.stop - kept.start
        return not stream.forks and since > max(self._snapshot_bytes, _SNAPSHOT_TIMES * last)

    def _documents(self, kept: Kept, stream: Stream) -> dict[str, bytes]:
        """What a reader of the whole stream has: of the newest snapshot, and what follows."""
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
            stream = Stream(transaction.new_id(), self.path, JSON, transaction.now, transaction.now)
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


def _records(messages: Iterable[bytes]) -> list[bytes]:
    return list(chunks(messages, _CHUNK_BYTES))
