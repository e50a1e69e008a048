"""The registry: a stream that announces every creation and deletion of a stream, in the form of the State protocol.

While it is kept, only the server writes it, and retention never applies to it.

Its messages are JSON: ``{"type":"stream","key":PATH,"value":{"path":…,"contentType":…,"createdAt":MILLISECONDS},
"headers":{"operation":"insert"}}``, and with the operation ``delete`` and no value. A reader that applies them in order
knows all streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from itertools import chain
from typing import Literal

import msgspec
import orjson

from opslog.server.background import happens, log_failure
from opslog.server.protocol import json_mode
from opslog.server.protocol.appending import Append
from opslog.server.protocol.creation import Create
from opslog.server.protocol.model import JSON, Stream
from opslog.server.protocol.offsets import format_offset
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Events
from opslog.server.streams import REGISTRY, Streams

# How long to wait before writing again what the storage did not take.
_RETRY_SECONDS = 1.0
_log = logging.getLogger("opslog.server")
_CHUNK_BYTES = 1024 * 1024


class _Headers(msgspec.Struct):
    operation: Literal["insert", "delete"]


class _Value(msgspec.Struct):
    path: str
    content_type: str = msgspec.field(name="contentType")


class _Message(msgspec.Struct):
    """A message that announces a stream. An insert has a value whose path is the key."""

    type: Literal["stream"]
    key: str
    headers: _Headers
    value: _Value | None = None

    @property
    def is_valid(self) -> bool:
        return self.headers.operation == "delete" or (self.value is not None and self.value.path == self.key)


_message = msgspec.json.Decoder(_Message)


class Registry:
    """Keeps the registry of some streams. If a crash kept changes from being announced, the next start announces
    them."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Announce the changes that are not announced yet, and all later ones. Reads the registry and the metadata of
        all streams.

        If the registry cannot be written, because a client has closed it while the server kept none, say, this is
        logged, and nothing is announced.
        """
        try:
            await self._streams.create(Create(REGISTRY, content_type=JSON))
        except Refused as error:
            _log.error(
                "created and deleted streams are not announced, because the stream %s cannot be written: start the "
                "server without --registry, delete that stream and its forks, and start it with --registry again",
                REGISTRY,
                extra={"error": str(error)},
            )
            return
        announced = self._announced()
        self._streams.observers.append(self._notice)
        for stream in self._streams.list():
            if announced.pop(stream.path, None) != stream.content_type and stream.path != REGISTRY:
                self._queue.put_nowait(_inserted(stream))
        for path in sorted(announced):
            self._queue.put_nowait(_deleted(path))
        self._task = asyncio.get_running_loop().create_task(self._write())

    async def stop(self) -> None:
        """Announce the remaining changes, then stop. If the storage does not take them, the next start announces
        them."""
        if self._task is not None:
            self._stopping.set()
            await self._queue.join()
            self._task.cancel()

    def _announced(self) -> dict[str, str | None]:
        """The streams that a reader of the whole registry knows: their content types, by path.

        A message of a client may mean something to a reader, which may forget or change any stream. So each stream that
        was announced before such a message has None, and is announced again.
        """
        known: dict[str, str | None] = {}
        doubtful: dict[str, None] = {}
        stream, foreign = self._streams.stream(REGISTRY), 0
        position = stream.earliest
        if position:
            _log.warning(
                "the registry begins at offset %s: an earlier version of the server has trimmed it; streams that it no "
                "longer names are announced again",
                format_offset(position),
            )
        while position < stream.tail:
            found = self._streams.read(stream, position, _CHUNK_BYTES)
            for text in chain.from_iterable(map(json_mode.messages, found.chunks)):
                try:
                    message = _message.decode(text)
                except (msgspec.DecodeError, RecursionError):
                    message = None
                if message is None or not message.is_valid:
                    foreign += 1
                    doubtful |= dict.fromkeys(known)
                    known.clear()
                    continue
                known.pop(message.key, None)
                doubtful.pop(message.key, None)
                if message.value is not None and message.headers.operation == "insert":
                    known[message.key] = message.value.content_type
            position = found.stop
        if foreign:
            _log.warning("the registry has %d messages that do not announce streams: they were skipped", foreign)
        return doubtful | known

    def _notice(self, events: Events) -> None:
        for message in _messages_of(events):
            self._queue.put_nowait(message)

    async def _write(self) -> None:
        while True:
            messages = [await self._queue.get()]
            while not self._queue.empty():
                messages.append(self._queue.get_nowait())
            while not await self._append(messages) and not self._stopping.is_set():
                await happens(self._stopping, _RETRY_SECONDS)
            for _ in messages:
                self._queue.task_done()

    async def _append(self, messages: list[bytes]) -> bool:
        """Returns whether to go on with the next messages."""
        try:
            await self._streams.append(Append(REGISTRY, JSON, b"".join(b"%b," % message for message in messages)))
        # The program that serves the application has deleted it; the next start makes another, with all streams.
        except Refused as error:
            _log.warning("the registry could not be written", extra={"error": str(error)})
        except Exception as error:  # noqa: BLE001  (a full disk, for example: these messages are written later)
            log_failure(_log, "the registry could not be written", error)
            return False
        return True


def _messages_of(events: Events) -> Iterator[bytes]:
    for stream in events.deleted:
        if stream.path != REGISTRY:
            yield _deleted(stream.path)
    for stream in events.created:
        if stream.path != REGISTRY:
            yield _inserted(stream)


def _inserted(stream: Stream) -> bytes:
    value = {"path": stream.path, "contentType": stream.content_type, "createdAt": int(stream.created * 1000)}
    return orjson.dumps({"type": "stream", "key": stream.path, "value": value, "headers": {"operation": "insert"}})


def _deleted(path: str) -> bytes:
    return orjson.dumps({"type": "stream", "key": path, "headers": {"operation": "delete"}})
