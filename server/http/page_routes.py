"""The page for people, at ``/``: its files, and three requests of its own that the protocol does not have.

The page reads streams and stores as every other client does. The protocol has no requests for three other things: the
list of all streams, the producers and followers of one stream, and the events of all streams. These requests are below
``/page/``, and may change with the page. Each shows only what the caller's token may read.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import Counter
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib.resources import files
from itertools import islice
from pathlib import PurePath
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import msgspec

from opslog.doors.access import Receive, Scope, Send
from opslog.doors.tokens import Token
from opslog.environment import format_ts
from opslog.server.http.admission import check
from opslog.server.http.live import Patience, watching
from opslog.server.http.replies import NO_STORE, begin, reply
from opslog.server.http.requests import fields
from opslog.server.options import Options
from opslog.server.protocol import conditional
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset, parse_offset
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.protocol.transaction import Events
from opslog.server.streams import Streams
from opslog.server.subscriptions.service import Subscriptions

_TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".svg": b"image/svg+xml",
}
# No content or name of a stream or document can make the browser run anything but these files, or fetch anything from
# elsewhere.
_POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    b"form-action 'none'; frame-ancestors 'none'"
)

# The most streams in one answer.
_STREAMS = 500

_PRODUCERS = _FOLLOWERS = 100
# A token must be allowed to read this path to see subscriptions.
SUBSCRIPTIONS = "__ds"
# All changes within this time after an event are sent as one event, so a busy server does not keep the page busy.
_EVENT_SECONDS = 0.25

# If more streams than this changed between two events, the page is asked to fetch everything again.
_PATHS_MAX = 1000


class _File(NamedTuple):
    """A file of the page.

    :ivar tag: changes with the content of the file.
    """

    data: bytes
    media_type: bytes
    tag: str


@cache
def _files() -> dict[str, _File]:
    """The files of the page, by path."""
    found = {}
    for entry in files("opslog.server.page").iterdir():
        media_type = _TYPES.get(PurePath(entry.name).suffix)
        if media_type is not None:
            data = entry.read_bytes()
            path = "/" if entry.name == "index.html" else f"/page/{entry.name}"
            found[path] = _File(data, media_type, sha256(data).hexdigest()[:32])
    return found


class Watcher:
    """The changes since the last event that a page was sent.

    :ivar token: the token of the page's request.
    """

    def __init__(self, token: Token | None) -> None:
        self.token = token
        self.paths: set[str] = set()
        self.woken = asyncio.Event()


class PageRoutes:
    """Answers requests for the page.

    :ivar paths: the paths that it answers.
    :ivar public: those that show nothing of the streams, so they need no token.
    """

    def __init__(self, streams: Streams, subscriptions: Subscriptions, options: Options) -> None:
        self.public = frozenset(_files())
        self.paths = self.public | {"/page/streams", "/page/stream", "/page/events"}
        self._streams = streams
        self._subscriptions = subscriptions
        self._options = options
        self._watchers: set[Watcher] = set()
        streams.observers.append(self._observe)

    async def answer(self, path: str, scope: Scope, receive: Receive, send: Send, token: Token | None) -> int:
        """
        :param token: the token of the request; None: the server requires none.
        :raises Refused: there is no such stream, the method is not possible, or the token does not allow the request.
        """
        head = scope["method"] == "HEAD"
        if path in self.public:
            return await _file(_files()[path], scope, send, head=head)
        given = {name: values[-1] for name, values in parse_qs(scope["query_string"].decode("latin-1")).items()}
        if path == "/page/streams":
            return await _json(send, self._list(given.get("after", ""), token), head=head)
        if path == "/page/stream":
            asked = given.get("path", "")
            if token is not None:
                check(token, asked, "read")
            return await _json(send, self._one(asked, token), head=head)
        if head:
            raise Refused(405, "events have no head", [(b"allow", b"GET")])
        return await self._events(receive, send, token)

    def _list(self, after: str, token: Token | None) -> dict[str, Any]:
        """The streams after the path `after`, in order of path, including deleted ones that forks need."""
        shards = self._streams.storage.shards
        merged = heapq.merge(*(shard.streams(after) for shard in shards), key=lambda stream: stream.path.encode())
        readable = (stream for stream in merged if _may_read(token, stream.path))
        found = list(islice(readable, _STREAMS + 1))
        more = len(found) > _STREAMS
        shown = [described for stream in found[:_STREAMS] if (described := self._described(stream, token)) is not None]
        return {"root": self._options.root, "streams": shown, "after": found[_STREAMS - 1].path if more else None}

    def _one(self, path: str, token: Token | None) -> dict[str, Any]:
        shard = self._streams.storage.shards[self._streams.shard_number(path)]
        stream = shard.stream(path)
        described = None if stream is None else self._described(stream, token)
        if stream is None or described is None:
            raise Refused(404, "there is no such stream")
        producers = [
            {"id": id, "epoch": producer.epoch, "seq": producer.seq}
            for id, producer in shard.producers(stream.id, _PRODUCERS)
        ]
        return {**described, "producers": producers, "followers": self._followers(stream, token)}

    def _followers(self, stream: Stream, token: Token | None) -> list[dict[str, Any]]:
        """The followers of a stream, and how far each is behind its end, the farthest first. Readers of one kind at the
        same position are one entry."""
        counts = Counter((reader.kind, reader.position) for reader in self._streams.followers.readers(stream.path))
        found: list[tuple[int, dict[str, Any]]] = [
            (max(0, stream.tail - position), {"kind": kind, "id": None, "readers": readers})
            for (kind, position), readers in counts.items()
        ]
        if token is None or token.covers(SUBSCRIPTIONS, "read"):
            for subscription, link in self._subscriptions.followers(stream.path):
                acked = parse_offset(link.acked_offset) if link.stream_id == stream.id else None
                lag = max(0, stream.tail - max(acked or 0, stream.earliest))
                found.append((lag, {"kind": subscription.config.type, "id": subscription.id, "readers": 1}))
        found.sort(key=lambda follower: -follower[0])
        return [{**follower, "lag_bytes": lag} for lag, follower in found[:_FOLLOWERS]]

    def _described(self, stream: Stream, token: Token | None) -> dict[str, Any] | None:
        try:
            self._streams.stream(stream.path)
        except Refused:
            if not stream.deleted:
                return None  # its lifetime is over
        return {
            "path": stream.path,
            "content_type": stream.content_type,
            "bytes": stream.tail - stream.earliest,
            "tail": format_offset(stream.tail),
            "closed": stream.closed,
            "deleted": stream.deleted,
            "created": format_ts(stream.created),
            "ttl": stream.ttl,
            "expires_at": stream.expires_at,
            "source": stream.fork.source if stream.fork and _may_read(token, stream.fork.source) else None,
            "forked_at": format_offset(stream.base) if stream.fork else None,
            "forks": stream.forks,
        }

    def _observe(self, events: Events) -> None:
        paths = {*events.appended, *(stream.path for stream in (*events.created, *events.deleted))}
        for watcher in self._watchers:
            seen = {path for path in paths if _may_read(watcher.token, path)}
            if seen:
                if len(watcher.paths) <= _PATHS_MAX:  # the page is not sent the names of more
                    watcher.paths |= seen
                watcher.woken.set()

    def stop(self) -> None:
        """End the response of every watcher; `Streams.followers` is stopped already."""
        for watcher in self._watchers:
            watcher.woken.set()

    async def _events(self, receive: Receive, send: Send, token: Token | None) -> int:
        headers: Headers = [(b"content-type", b"text/event-stream"), (b"cache-control", b"no-cache")]
        watcher = Watcher(token)
        # Register before the response begins. A page that fetches the streams once it has begun then misses no change.
        self._watchers.add(watcher)
        try:
            await begin(send, 200, headers)
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
            if event.startswith(b"data:"):
                with suppress(TimeoutError):
                    async with asyncio.timeout(_EVENT_SECONDS):
                        await asyncio.wait([gone])
            event = b": still here\n\n"
            if self._streams.followers.stopped:  # it may have stopped before this watcher was registered
                return
            try:
                async with asyncio.timeout(self._options.long_poll_seconds):
                    await watcher.woken.wait()
            except TimeoutError:
                continue
            if gone.done() or self._streams.followers.stopped:
                return
            watcher.woken.clear()
            paths, watcher.paths = watcher.paths, set()
            event = b"data: " + msgspec.json.encode(self._changed(paths, watcher.token)) + b"\n\n"

    def _changed(self, paths: set[str], token: Token | None) -> dict[str, Any]:
        """The present state of these streams; None for each that no longer exists."""
        if len(paths) > _PATHS_MAX:
            return {"again": True}
        found = {path: self._streams.storage.shards[self._streams.shard_number(path)].stream(path) for path in paths}
        return {"streams": {path: stream and self._described(stream, token) for path, stream in found.items()}}


def _may_read(token: Token | None, path: str) -> bool:
    return token is None or token.covers(path, "read")


async def _file(file: _File, scope: Scope, send: Send, *, head: bool) -> int:
    headers: Headers = [
        (b"referrer-policy", b"no-referrer"),
        (b"cache-control", b"no-cache"),
        (b"etag", f'"{file.tag}"'.encode()),
    ]
    known = fields(scope["headers"]).get(b"if-none-match")
    if known is not None and conditional.matches(known, file.tag):
        return await reply(send, 304, headers, policy=_POLICY)
    return await reply(send, 200, [(b"content-type", file.media_type), *headers], file.data, head=head, policy=_POLICY)


async def _json(send: Send, value: dict[str, Any], *, head: bool) -> int:
    headers: Headers = [(b"content-type", b"application/json"), NO_STORE]
    return await reply(send, 200, headers, msgspec.json.encode(value), head=head)
