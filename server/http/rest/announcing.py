"""Notice of writes to a store, for remote agents that keep a request open.

Every write comes into the store's feed, whether it was made through this server or not. So a listener waits for that
stream to grow, as readers of the feed do: it is a follower, is counted and ended as one, and has no thread. It gets no
data, only the notice that there is something to read, and then reads as usual.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from opslog.doors.access import Receive, Send
from opslog.server.http.live import Patience, watching
from opslog.server.http.replies import begin
from opslog.server.options import Options
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.stores.feed import FOLDER
from opslog.server.streams import Streams

# After this much silence the client gets a sign that it is still connected. It waits three times as long.
_SILENCE_SECONDS = 10.0

# The last one keeps proxies from buffering the response.
_HEADERS: Headers = [
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
_WRITTEN = b"event: written\ndata:\n\n"
_SILENCE = b":\n\n"


class Announcing:
    """Answers those who listen."""

    def __init__(self, streams: Streams, options: Options) -> None:
        self._streams = streams
        self._options = options

    async def answer(self, name: str, receive: Receive, send: Send) -> int:
        """Send an event now, and after each write to this store; until the client disconnects, the server stops, or the
        time of other live reads is over. Returns the status.

        A client that reads the store after an event gets everything that was written before the event.
        """
        await begin(send, 200, _HEADERS)
        async with watching(receive) as gone, Patience(send, self._options.send_seconds) as patient:
            async for event in self._events(f"{FOLDER}{name}", gone):
                await patient.send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def _events(self, path: str, gone: asyncio.Future[object]) -> AsyncIterator[bytes]:
        followers, monotonic = self._streams.followers, asyncio.get_running_loop().time
        end = monotonic() + self._options.sse_seconds
        known = self._tail(path)
        yield _WRITTEN
        while not gone.done() and not followers.stopped and (left := end - monotonic()) > 0:
            # Nothing can happen between this and the beginning of the wait, so no write is missed.
            if (tail := self._tail(path)) != known:
                known = tail
                yield _WRITTEN
            elif not await followers.wait(path, min(left, _SILENCE_SECONDS), gone):
                yield _SILENCE

    def _tail(self, path: str) -> tuple[int, int]:
        """Where a feed ends; zeros if it has not begun."""
        try:
            stream = self._streams.stream(path)
        except Refused:
            return 0, 0
        return stream.id, stream.tail
