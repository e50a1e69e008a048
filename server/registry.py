"""The registry: a stream that announces every creation and deletion of a stream, in the form of the State protocol.

Its messages are JSON: ``{"type":"stream","key":PATH,"value":{"path":…,"contentType":…,"createdAt":MILLISECONDS},
"headers":{"operation":"insert"}}``, and with the operation ``delete`` and no value. A reader that applies them in order
knows all streams.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import msgspec
import orjson

from opslog.server.background import happens, log_failure
from opslog.server.protocol import json_mode
from opslog.server.protocol.appending import Append
from opslog.server.protocol.creation import Create
from opslog.server.protocol.model import JSON, Stream
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Events
from opslog.server.streams import Streams

PATH = "__registry__"
# How long to wait before writing again what the storage did not take.
_RETRY_SECONDS = 1.0
_log = logging.getLogger("opslog.server")
_CHUNK_BYTES = 1024 * 1024


class _Message(msgspec.Struct):
    key: str
    headers: dict[str, str]


_messages = msgspec.json.Decoder(list[_Message])


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
        all streams."""
        await self._streams.create(Create(PATH, content_type=JSON))
        announced = self._announced()
        self._streams.observers.append(self._notice)
        for stream in self._streams.list():
            if stream.path not in announced and stream.path != PATH:
                self._queue.put_nowait(_inserted(stream))
            announced.discard(stream.path)
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

    def _announced(self) -> set[str]:
        known: set[str] = set()
        stream, position = self._streams.stream(PATH), 0
        while position < stream.tail:
            found = self._streams.read(stream, position, _CHUNK_BYTES)
            for message in _messages.decode(json_mode.array(found.chunks)):
                (known.add if message.headers.get("operation") == "insert" else known.discard)(message.key)
            position = found.stop
        return known

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
            await self._streams.append(Append(PATH, JSON, b"".join(b"%b," % message for message in messages)))
        except Refused as error:  # the registry was deleted; the next start makes another, with all streams
            _log.warning("the registry could not be written", extra={"error": str(error)})
        except Exception as error:  # noqa: BLE001  (a full disk, for example: these messages are written later)
            log_failure(_log, "the registry could not be written", error)
            return False
        return True


def _messages_of(events: Events) -> Iterator[bytes]:
    for stream in events.deleted:
        if stream.path != PATH:
            yield _deleted(stream.path)
    for stream in events.created:
        if stream.path != PATH:
            yield _inserted(stream)


def _inserted(stream: Stream) -> bytes:
    value = {"path": stream.path, "contentType": stream.content_type, "createdAt": int(stream.created * 1000)}
    return orjson.dumps({"type": "stream", "key": stream.path, "value": value, "headers": {"operation": "insert"}})


def _deleted(path: str) -> bytes:
    return orjson.dumps({"type": "stream", "key": path, "headers": {"operation": "delete"}})
