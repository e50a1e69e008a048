"""The page for people, at ``/``: its files, and what it asks beside the protocol.

The page reads streams as every other client does. Three things the protocol has no words for: which streams there are,
who produces into one, and what happens anywhere; they are here, below ``/page/``, and may change with the page.
"""

from __future__ import annotations

import asyncio
import heapq
from importlib.resources import files
from itertools import islice
from typing import Any
from urllib.parse import parse_qs

import msgspec

from opslog.environment import format_ts
from opslog.server.http.live import Patience, watching
from opslog.server.http.replies import NO_STORE, begin, reply
from opslog.server.http.requests import Receive, Scope, Send
from opslog.server.options import Options
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.protocol.transaction import Events
from opslog.server.streams import Streams

_FILES = {
    "/": ("index.html", b"text/html; charset=utf-8"),
    "/page/script.js": ("script.js", b"text/javascript; charset=utf-8"),
    "/page/style.css": ("style.css", b"text/css; charset=utf-8"),
}
# Whatever a stream holds or is called, nothing but these files runs, and nothing is fetched from elsewhere.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)

# How many streams one answer names.
_STREAMS = 500

_PRODUCERS = 100
# What happens within this time is one event: a busy server does not make a busy page.
_EVENT_SECONDS = 0.25

# When more streams changed within that time, the page is asked to fetch all again.
_PATHS_MAX = 1000


class Watcher:
    """What happened since a page was sent an update."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.woken = asyncio.Event()


class PageRoutes:
    """Answers requests for the page.

    :ivar paths: that it answers.
    :ivar public: those of them without anything of the streams in it.
    """

    paths = frozenset({*_FILES, "/page/streams", "/page/stream", "/page/events"})
    public = frozenset(_FILES)

    def __init__(self, streams: Streams, options: Options) -> None:
        self._streams = streams
        self._options = options
        self._watchers: set[Watcher] = set()
        streams.observers.append(self._observe)

    async def answer(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        """:raises Refused: there is no such stream, or the method is not possible."""
        head = scope["method"] == "HEAD"
        if path in _FILES:
            name, kind = _FILES[path]
            headers: Headers = [
                (b"content-type", kind),
                (b"content-security-policy", _POLICY),
                (b"referrer-policy", b"no-referrer"),
                (b"cache-control", b"no-cache"),
            ]
            return await reply(send, 200, headers, files("opslog.server.page").joinpath(name).read_bytes(), head=head)
        given = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        if path == "/page/streams":
            return await _json(send, self._list(given.get("after", "")), head=head)
        if path == "/page/stream":
            return await _json(send, self._one(given.get("path", "")), head=head)
        if head:
            raise Refused(405, "events have no head", [(b"allow", b"GET")])
        return await self._events(receive, send)

    def _list(self, after: str) -> dict[str, Any]:
        """Streams by path, behind `after`; the deleted ones that forks need, too."""
        shards = self._streams.storage.shards
        merged = heapq.merge(*(shard.streams(after) for shard in shards), key=lambda stream: stream.path.encode())
        found = list(islice(merged, _STREAMS + 1))
        more = len(found) > _STREAMS
        shown = [described for stream in found[:_STREAMS] if (described := self._described(stream)) is not None]
        return {"root": self._options.root, "streams": shown, "after": found[_STREAMS - 1].path if more else None}

    def _one(self, path: str) -> dict[str, Any]:
        shard = self._streams.storage.shards[self._streams.shard_number(path)]
        stream = shard.stream(path)
        described = None if stream is None else self._described(stream)
        if stream is None or described is None:
            raise Refused(404, "there is no such stream")
        producers = [
            {"id": id, "epoch": producer.epoch, "seq": producer.seq}
            for id, producer in shard.producers(stream.id, _PRODUCERS)
        ]
        return {**described, "producers": producers}

    def _described(self, stream: Stream) -> dict[str, Any] | None:
        try:
            self._streams.stream(stream.path)
        except Refused:
            if not stream.deleted:
                return None  # its time is over
        return {
            "path": stream.path,
            "content_type": stream.content_type,
            "bytes": stream.tail,
            "tail": format_offset(stream.tail),
            "closed": stream.closed,
            "deleted": stream.deleted,
            "created": format_ts(stream.created),
            "ttl": stream.ttl,
            "expires_at": stream.expires_at,
            "source": stream.fork.source if stream.fork else None,
            "forked_at": format_offset(stream.base) if stream.fork else None,
            "forks": stream.forks,
        }

    def _observe(self, events: Events) -> None:
        for watcher in self._watchers:
            watcher.paths.update(events.appended, (stream.path for stream in (*events.created, *events.deleted)))
            watcher.woken.set()

    def stop(self) -> None:
        """End all events; `Streams.followers` is stopped already."""
        for watcher in self._watchers:
            watcher.woken.set()

    async def _events(self, receive: Receive, send: Send) -> int:
        headers: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        await begin(send, 200, headers)
        watcher = Watcher()
        self._watchers.add(watcher)
        try:
            async with watching(receive) as gone, Patience(send, self._options.send_seconds) as patient:
                gone.add_done_callback(lambda _: watcher.woken.set())
                await self._send_changes(watcher, patient.send, gone)
        finally:
            self._watchers.discard(watcher)
        await send({"type": "http.response.body", "body": b""})
        return 200

    async def _send_changes(self, watcher: Watcher, send: Send, gone: asyncio.Future[object]) -> None:
        event = b": hello\n\n"
        while True:
            await send({"type": "http.response.body", "body": event, "more_body": True})
            event = b": still here\n\n"
            try:
                async with asyncio.timeout(self._options.long_poll_seconds):
                    await watcher.woken.wait()
                await asyncio.sleep(0 if gone.done() else _EVENT_SECONDS)
            except TimeoutError:
                continue
            if gone.done() or self._streams.followers.stopped:
                return
            watcher.woken.clear()
            paths, watcher.paths = watcher.paths, set()
            event = b"data: " + msgspec.json.encode(self._changed(paths)) + b"\n\n"

    def _changed(self, paths: set[str]) -> dict[str, Any]:
        """What became of these streams; None for those that are no more."""
        if len(paths) > _PATHS_MAX:
            return {"again": True}
        found = {path: self._streams.storage.shards[self._streams.shard_number(path)].stream(path) for path in paths}
        return {"streams": {path: stream and self._described(stream) for path, stream in found.items()}}


async def _json(send: Send, value: dict[str, Any], *, head: bool) -> int:
    headers: Headers = [(b"content-type", b"application/json"), NO_STORE]
    return await reply(send, 200, headers, msgspec.json.encode(value), head=head)
