"""PUT, POST and DELETE of a stream."""

from __future__ import annotations

from opslog.doors.access import Receive, Scope, Send
from opslog.doors.tokens import Token
from opslog.server.http import requests
from opslog.server.http.admission import check
from opslog.server.http.budget import Budget, Holding
from opslog.server.http.replies import reply
from opslog.server.metrics import Metrics
from opslog.server.options import Options
from opslog.server.protocol.creation import DEFAULT_CONTENT_TYPE, Create, Created
from opslog.server.protocol.offsets import format_offset
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.stores.feed import is_feed
from opslog.server.streams import REGISTRY, Streams

_CLOSED = (b"stream-closed", b"true")


class Writing:
    """The handlers of requests that change streams."""

    def __init__(self, streams: Streams, options: Options, metrics: Metrics, budget: Budget) -> None:
        self._streams = streams
        self._budget = budget
        self._metrics = metrics
        self._options = options

    async def append(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        self._check_not_registry(path)
        given = requests.fields(scope["headers"])
        with self._budget.holding() as holding:
            request = requests.append_of(path, given, await self._body(scope, given, receive, holding))
            began = self._streams.environment.monotonic()
            appended = await self._streams.append(request)
        self._metrics.appends.observe(self._streams.environment.monotonic() - began)
        stream, stamp = appended.stream, appended.stamp
        headers: Headers = [(b"stream-next-offset", format_offset(stream.tail).encode())]
        if stream.closed:
            headers.append(_CLOSED)
        if stamp is not None:
            headers.append((b"producer-epoch", b"%d" % stamp.epoch))
            headers.append((b"producer-seq", b"%d" % stamp.seq))
        new_data = stamp is not None and request.data and not appended.duplicate
        self._metrics.appended_bytes += 0 if appended.duplicate else len(request.data)
        return await reply(send, 200 if new_data else 204, headers)

    async def create(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        self._check_not_registry(path)
        given = requests.fields(scope["headers"])
        with self._budget.holding() as holding:
            request = requests.create_of(path, given, await self._body(scope, given, receive, holding), self._source)
            created = await self._create(scope, request)
        stream = created.stream
        headers: Headers = [
            (b"content-type", stream.content_type.encode("latin-1")),
            (b"stream-next-offset", format_offset(stream.tail).encode()),
        ]
        if created.new:
            headers.append((b"location", _location(scope, given)))
        if stream.closed:
            headers.append(_CLOSED)
        return await reply(send, 201 if created.new else 200, headers)

    async def _create(self, scope: Scope, request: Create) -> Created:
        token: Token | None = scope.get("opslog.token")
        if token is not None and request.fork is not None:
            check(token, request.fork.source, "read")
        if request.fork is not None and is_feed(self._streams, request.fork.source):
            raise Refused(403, "this stream is the feed of a store, and cannot be forked: a fork would keep all of it")
        if request.fork is not None and request.fork.source == REGISTRY and self._options.registry:
            raise Refused(403, "this stream is the registry of all streams, and cannot be forked: read it where it is")
        content_type = request.content_type or DEFAULT_CONTENT_TYPE
        if request.fork is not None and request.content_type is None:
            content_type = self._streams.content_type(request.fork.source) or DEFAULT_CONTENT_TYPE
        return await self._streams.create(requests.with_json(request, content_type))

    async def _body(self, scope: Scope, given: requests.Fields, receive: Receive, holding: Holding) -> bytes:
        options = self._options
        found = requests.arrived(scope, given, options.max_body_bytes, holding)
        if found is not None:
            return found
        return await requests.body(receive, given, options.max_body_bytes, options.body_seconds, holding)

    async def delete(self, path: str, scope: Scope, receive: Receive, send: Send) -> int:
        self._check_not_registry(path)
        await self._streams.delete(path)
        return await reply(send, 204, [])

    def _check_not_registry(self, path: str) -> None:
        """:raises Refused: 405, only the server writes the registry while it keeps one."""
        if path == REGISTRY and self._options.registry:
            allowed = [(b"allow", b"GET, HEAD, OPTIONS")]
            raise Refused(405, "this stream is the registry of all streams, and read-only", allowed)

    def _source(self, path: str) -> str:
        """The stream that the path of a URL names."""
        root = self._options.root
        if not path.startswith(root):
            raise Refused(404, f"the stream to fork from does not exist: streams are below {root}")
        return requests.check_path(path.removeprefix(root))


def _location(scope: Scope, given: requests.Fields) -> bytes:
    target: bytes = scope.get("raw_path") or scope["path"].encode()
    host = given.get(b"host")
    return target if host is None else f"{scope.get('scheme', 'http')}://{host}".encode("latin-1") + target
