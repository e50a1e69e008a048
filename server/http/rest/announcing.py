"""Word of what is written to a store, for agents elsewhere that keep a request open.

Whoever writes, through this server or not, it comes into the store's feed. So those who listen wait for that stream to
grow, as its own readers do: they are followers, counted and ended as such, and none of them has a thread. They are
sent no data, only that there is something to read; what, they ask as ever.
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

# After so much silence the client is sent word that it is still connected. It waits for thrice as long.
_SILENCE_SECONDS = 10.0

# The second one keeps proxies from waiting for more of the answer before they hand it on.
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
        """Send an event now, and whenever something was written to the store of this name since; until the client goes,
        the server ends, or it has been as long as of other live reads. Returns the status.

        Whoever has read what there is after the last event has everything that was written before it.
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
            # Nothing comes between this and the beginning of the wait, so nothing is missed.
            if (tail := self._tail(path)) != known:
                known = tail
                yield _WRITTEN
            elif not await followers.wait(path, min(left, _SILENCE_SECONDS), gone):
                yield _SILENCE

    def _tail(self, path: str) -> tuple[int, int]:
        """Up to where a feed goes; zeros while it has not begun."""
        try:
            stream = self._streams.stream(path)
        except Refused:
            return 0, 0
        return stream.id, stream.tail
