"""Following a stream by server-sent events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Self

from opslog.doors.access import Message, Receive, Scope, Send
from opslog.errors import OpslogError
from opslog.server.followers import Answer, Follower, LiveReader
from opslog.server.http.exchange import GONE
from opslog.server.http.replies import begin
from opslog.server.http.requests import DisconnectedError, Read
from opslog.server.options import Options
from opslog.server.protocol import sse
from opslog.server.protocol.model import Stream
from opslog.server.protocol.ranges import Range
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.streams import Streams

_log = logging.getLogger("opslog.server")

# About how much one data event holds.
_EVENT_BYTES = 256 * 1024


@asynccontextmanager
async def watching(receive: Receive, scope: Scope | None = None) -> AsyncIterator[asyncio.Future[object]]:
    """A future that is done when the client has gone.

    :param scope: the scope of the request; our own connections put such a future there.
    """
    found: asyncio.Future[object] | None = None if scope is None else scope.get(GONE)
    if found is not None:
        yield found
        return

    async def until_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    gone: asyncio.Task[object] = asyncio.get_running_loop().create_task(until_gone())
    try:
        yield gone
    finally:
        gone.cancel()


class Patience:
    """Ends the current task when one of its sends takes too long.

    One timer checks all sends. Sends hardly ever wait, so a timer for each would cost more than the send itself.

    :param seconds: how long one send may take.
    :raises DisconnectedError: (at the end of the block) a send took longer.
    """

    def __init__(self, send: Send, seconds: float) -> None:
        self._send = send
        self._seconds = seconds
        self._since: float | None = None
        self._late = False

    async def send(self, message: Message) -> None:
        self._since = self._loop.time()
        await self._send(message)
        self._since = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._timer = self._loop.call_later(self._seconds, self._check)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, at: object) -> None:
        self._timer.cancel()
        if self._late and kind is asyncio.CancelledError and self._task is not None and not self._task.uncancel():
            raise DisconnectedError from error

    def _check(self) -> None:
        now = self._loop.time()
        end = (now if self._since is None else self._since) + self._seconds
        if end > now:
            self._timer = self._loop.call_at(end, self._check)
        elif self._task is not None:
            self._late = True
            self._task.cancel()


class Live:
    """:param cursor: returns the next cursor for a client, given the client's last one, or None."""

    def __init__(self, streams: Streams, options: Options, cursor: Callable[[str | None], str]) -> None:
        self._streams = streams
        self._options = options
        self._cursor = cursor

    async def follow(self, stream: Stream, asked: Read, scope: Scope, receive: Receive, send: Send) -> int:
        """Send the data from `asked.position` on, and then new data as it comes. Ends with the stream, when the client
        goes, or after `Options.sse_seconds`.

        :raises Refused: 400, no message begins at this position; a read that is not live is refused in the same way.
            After an answer without events the client would come back with the same offset for ever.

        A client that takes nothing for too long is disconnected. It gets the rest when it comes back.
        """
        position, cursor = asked.position or 0, asked.cursor
        headers: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        if not sse.is_text(stream):
            headers.append((b"stream-sse-data-encoding", b"base64"))
        if position < stream.tail:
            self._next(stream, position, cursor)
        await begin(send, 200, headers)
        followers = self._streams.followers
        reading = followers.reading(stream.path, "sse", position)
        async with watching(receive, scope) as gone, Patience(send, self._options.send_seconds) as patient:
            try:
                with reading as reader, followers.following(stream.path, gone) as follower:
                    await self._send_events(stream, reader, follower, cursor, patient.send)
            except Refused:  # the stream was deleted or has expired, so the response just ends
                pass
            except OpslogError as error:  # the client comes back, and gets the error then
                _log.error("a live read failed", extra={"path": stream.path, "error": str(error)})
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def _send_events(
        self, stream: Stream, reader: LiveReader, follower: Follower, cursor: str | None, send: Send
    ) -> None:
        streams, gone, monotonic = self._streams, follower.gone, follower.gone.get_loop().time
        end = monotonic() + self._options.sse_seconds
        sent = False
        while not gone.done():
            if reader.position < stream.tail or stream.closed or not sent:
                events, position = self._next(stream, reader.position, cursor)
                sent = True
                await send({"type": "http.response.body", "body": events, "more_body": True})
                reader.position = position
                if stream.closed and position == stream.tail:
                    return
            else:
                left = end - monotonic()
                if left <= 0 or streams.followers.stopped:
                    return
                await streams.wait(stream, follower, min(left, self._options.long_poll_seconds))
                sent = False
            stream = streams.again(stream)

    def _next(self, stream: Stream, position: int, cursor: str | None) -> tuple[bytes, int]:
        """A data event, if there is data, and the control event behind it; and the position after both."""
        shared, following = self._streams.followers.shared, self._cursor(cursor)

        def events() -> Answer:
            data = Answer(b"", position)
            if position < stream.tail:
                data = shared(stream, position, "sse", lambda: self._data_event(stream, position))
            end = data.stop == stream.tail
            control = sse.control_event(data.stop, cursor=following, up_to_date=end, closed=end and stream.closed)
            return Answer(data.data + control, data.stop)

        if following != self._cursor(None):
            return events()  # this client has a cursor of its own, so no other can use the answer
        return shared(stream, position, f"sse {following}", events)

    def _data_event(self, stream: Stream, position: int) -> Answer:
        found = self._read(stream, position)
        return Answer(sse.data_event(stream, found.chunks), found.stop)

    def _read(self, stream: Stream, position: int) -> Range:
        found = self._streams.read(stream, position, _EVENT_BYTES)
        if stream.is_json or not sse.is_text(stream) or not found.chunks or found.stop == stream.tail:
            return found
        # A text must not be cut within a character, which may begin in one chunk and end in the next, nor within \r\n:
        # each half would be the end of a line.
        data = b"".join(found.chunks)
        extra = 1 if data.endswith(b"\r") else sse.incomplete_bytes(data)
        if not 0 < extra < len(data):
            return found
        return Range([data[:-extra]], found.stop - extra)
