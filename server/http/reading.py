"""GET and HEAD of a stream: reading the data that is there, and waiting for more by long-poll."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from msgspec.structs import replace

from opslog.doors.access import Receive, Scope, Send
from opslog.server.followers import Answer
from opslog.server.http import live, requests
from opslog.server.http.live import Live
from opslog.server.http.replies import NO_STORE, begin, reply
from opslog.server.http.requests import DisconnectedError, Fields, Read
from opslog.server.options import Options
from opslog.server.protocol import compression, conditional, json_mode
from opslog.server.protocol.model import Stream, media_type
from opslog.server.protocol.offsets import BEGINNING, NOW, format_offset
from opslog.server.protocol.ranges import Range, check_position
from opslog.server.protocol.refusals import Headers
from opslog.server.streams import Streams

_CLOSED = (b"stream-closed", b"true")
_UP_TO_DATE = (b"stream-up-to-date", b"true")


class Reading:
    """The handlers of requests that read.

    :param private: whether the answer depends on who asks, so that shared caches must not keep it.
    """

    def __init__(self, streams: Streams, options: Options, random: Callable[[int], int], *, private: bool) -> None:
        self._streams = streams
        self._options = options
        self._random = random
        self._private = private
        self._live = Live(streams, options, self._cursor)

    async def head(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        stream = self._streams.stream(path)
        headers: Headers = [
            (b"content-type", stream.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(stream.tail).encode()),
            (b"etag", conditional.encoded_tag(self._tag(stream, -1, stream.tail, closed=stream.closed), None).encode()),
            NO_STORE,
        ]
        if stream.closed:
            headers.append(_CLOSED)
        if stream.ttl is not None:
            headers.append((b"stream-ttl", b"%d" % stream.ttl))
        if stream.expires_at is not None:
            headers.append((b"stream-expires-at", stream.expires_at.encode()))
        if stream.earliest:
            headers.append((b"stream-earliest-offset", format_offset(stream.earliest).encode()))
        # No Content-Length: the length of a GET's answer depends on its offset, and HEAD does not read the data.
        await begin(send, 200, headers)
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def get(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        stream = self._streams.stream(path)
        asked = requests.read_of(scope["query_string"])
        position = self._begin(stream, asked)
        self._streams.touch(stream)
        if asked.live == "sse":
            return await self._live.follow(stream, replace(asked, position=position), scope, receive, send)
        if asked.live is None and asked.offset == NOW:
            return await self._nothing_yet(stream, send)
        if asked.live is not None:
            if position == stream.tail and not stream.closed:
                stream = await self._wait(stream, position, scope, receive)
            if position == stream.tail:
                return await self._nothing_came(stream, asked, send)
        return await self._answer(stream, replace(asked, position=position), requests.fields(scope["headers"]), send)

    async def _wait(self, stream: Stream, position: int, scope: Scope, receive: Receive) -> Stream:
        """Wait until the stream changes, or for the time of a long-poll. Returns the stream in its present state."""
        streams, followers = self._streams, self._streams.followers
        reading = followers.reading(stream.path, "long-poll", position)
        async with live.watching(receive, scope) as gone:
            with reading, followers.following(stream.path, gone) as follower:
                await streams.wait(stream, follower, self._options.long_poll_seconds)
                if gone.done():
                    raise DisconnectedError
                return streams.again(stream)

    def _begin(self, stream: Stream, asked: Read) -> int:
        if asked.position is None:
            return stream.tail
        if asked.offset == BEGINNING:
            return stream.earliest
        check_position(stream, asked.position)
        return asked.position

    async def _nothing_yet(self, stream: Stream, send: Send) -> int:
        """The answer to ``offset=now``: the offset of the end, without data."""
        headers: Headers = [
            (b"content-type", stream.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(stream.tail).encode()),
            _UP_TO_DATE,
            NO_STORE,
        ]
        if stream.closed:
            headers.append(_CLOSED)
        return await reply(send, 200, headers, b"[]" if stream.is_json else b"")

    async def _nothing_came(self, stream: Stream, asked: Read, send: Send) -> int:
        """The answer to a long-poll at the end of a stream."""
        headers: Headers = [(b"stream-next-offset", format_offset(stream.tail).encode()), _UP_TO_DATE, NO_STORE]
        headers.append(_CLOSED if stream.closed else (b"stream-cursor", self._cursor(asked.cursor).encode()))
        return await reply(send, 204, headers)

    async def _answer(self, stream: Stream, asked: Read, given: Fields, send: Send) -> int:
        """Send the data from `asked.position` on."""
        position = asked.position or 0
        found = self._found(stream, position, live=asked.live is not None)
        up_to_date = found.stop == stream.tail
        closed = up_to_date and stream.closed
        tag = self._tag(stream, position, found.stop, closed=closed)
        kept = self._cache_control(stream, at_end=found.stop == position and not closed)
        headers: Headers = [(b"cache-control", kept), (b"vary", b"Accept-Encoding")]
        if b"if-none-match" in given and conditional.matches(given[b"if-none-match"], tag):
            return await reply(send, 304, [(b"etag", conditional.encoded_tag(tag, None).encode()), *headers])
        headers += [
            (b"content-type", stream.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(found.stop).encode()),
        ]
        if asked.live and not closed:
            headers.append((b"stream-cursor", self._cursor(asked.cursor).encode()))
        if up_to_date:
            headers.append(_UP_TO_DATE)
        if closed:
            headers.append(_CLOSED)
        body = found.data
        encoding = self._encoding(stream, given, body)
        headers.append((b"etag", conditional.encoded_tag(tag, encoding).encode()))
        if encoding is not None:
            headers.append((b"content-encoding", encoding.encode()))
            body = await _compressed(body, encoding)
        return await reply(send, 200, headers, body)

    def _found(self, stream: Stream, position: int, *, live: bool) -> Answer:
        def read() -> Answer:
            found = self._streams.read(stream, position, self._options.chunk_bytes)
            return Answer(_content(stream, found), found.stop)

        return self._streams.followers.shared(stream, position, "plain", read) if live else read()

    def _encoding(self, stream: Stream, given: Fields, body: bytes) -> str | None:
        if not self._options.compression or len(body) < compression.MIN_BYTES:
            return None
        return compression.choose(given.get(b"accept-encoding"), media_type(stream.content_type))

    def _cache_control(self, stream: Stream, *, at_end: bool) -> bytes:
        if at_end:  # new data may come at any time, so caches must ask again, with the tag
            return b"no-cache"
        return conditional.cache_control(self._streams.expires_in(stream), private=self._private)

    def _tag(self, stream: Stream, start: int, stop: int, *, closed: bool) -> str:
        return conditional.entity_tag(self._streams.storage.name, stream.id, start, stop, closed=closed)

    def _cursor(self, given: str | None) -> str:
        return self._options.cursors.next(given, self._streams.environment.time(), self._random)


def _content(stream: Stream, found: Range) -> bytes:
    if stream.is_json:
        return json_mode.array(found.chunks)
    return found.chunks[0] if len(found.chunks) == 1 else b"".join(found.chunks)


async def _compressed(body: bytes, encoding: str) -> bytes:
    if len(body) < compression.IN_THREAD_BYTES:
        return compression.compress(body, encoding)
    return await asyncio.to_thread(compression.compress, body, encoding)
