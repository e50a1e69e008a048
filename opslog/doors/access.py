"""Requests over HTTP, as the operator of a server sees them: each has an id and one line in the log.

The id is in that line, in every other line that is logged while the request is answered, in the response, and in its
problem document. A client may choose it, in ``X-Request-Id`` or as the trace id of a ``traceparent`` (W3C Trace
Context). The server uses such an id only if it is short and has plain characters alone, because it goes into logs and
headers as it is.

The line of a request has the level debug. It costs 13 µs, a fifth of an append to a stream when many come at once, and
programs that start a server do not always read its log.

This module knows nothing but ASGI, so all doors share it.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from opslog.environment import REAL, DrawnNonces
from opslog.logs import logger

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER = b"x-request-id"
_ID = re.compile(rb"[A-Za-z0-9._+/=:-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?")
_NO_TRACE = b"0" * 32

# How much of a path is logged.
_PATH_CHARACTERS = 500

_log = logger("access")
_current: ContextVar[Request | None] = ContextVar("opslog.request", default=None)
_new_ids = DrawnNonces()


class Asked(NamedTuple):
    """What an admitted request asks of a store.

    :ivar door: ``http``, ``feed``, ``remote`` (agents with a replica of their own) or ``mcp``.
    :ivar store: by the name that clients know.
    """

    door: str
    store: str
    operation: str


class Request:
    """A request that is being answered.

    :ivar id: 1 to 128 printable characters of ASCII, without spaces and quotes.
    :ivar token: the name of the token that it carries.
    :ivar asked: what it asks of a store, if it was admitted.
    :ivar status: of the answer; None: it has not begun.
    """

    __slots__ = ("_before", "_began", "_bytes", "_scope", "_send", "asked", "id", "status", "token")

    def __init__(self, scope: Scope, send: Send) -> None:
        """To be called when the head of the request is there. From then on, all lines logged by this task, and by
        threads with its context, have its id."""
        self.id = _id_of(scope)
        self.token: str | None = None
        self.asked: Asked | None = None
        self.status: int | None = None
        self._bytes = 0
        self._scope = scope
        self._send = send
        self._began = REAL.monotonic()
        self._before = _current.set(self)
        scope["opslog.request"] = self

    async def send(self, message: Message) -> None:
        """Send a part of the answer, with the id in its head."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message = {**message, "headers": [*message["headers"], (HEADER, self.id.encode())]}
        else:
            self._bytes += len(message.get("body", b""))
        await self._send(message)

    def end(self, *, raised: bool = False) -> float:
        """Log its outcome. Returns how many seconds it took.

        :param raised: an exception is on its way to the server that runs the application. The server logs it, and that
            line has the id, too.
        """
        if not raised:
            _current.reset(self._before)
        # The scope and this object refer to each other: left alone, each request would be garbage that only Python's
        # collector finds, and finding it costs a fifth of what an append takes.
        self._scope.pop("opslog.request", None)
        seconds = REAL.monotonic() - self._began
        if _log.isEnabledFor(logging.DEBUG):
            extra = {
                "request_id": self.id,
                "method": self._scope["method"],
                "path": _path_of(self._scope),
                "status": self.status,
                "ms": round(seconds * 1000, 3),
                "bytes": self._bytes,
                **({} if self.token is None else {"token": self.token}),
                **({} if self.asked is None else self.asked._asdict()),
            }
            _log.debug("request", extra=extra)
        return seconds


def accounted(application: App) -> App:
    """An application whose requests are all `Request`s."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        request = Request(scope, send)
        try:
            await application(scope, receive, request.send)
        except BaseException:
            request.end(raised=True)
            raise
        request.end()

    return answer


@contextmanager
def working_for(request: Request) -> Iterator[None]:
    """A block in which logged lines have the id of this request. For tasks other than its own."""
    before = _current.set(request)
    try:
        yield
    finally:
        _current.reset(before)


def request_of(scope: Scope) -> Request:
    """The request of a scope that a `Request` was made of."""
    found: Request = scope["opslog.request"]
    return found


def unread(status: int) -> bytes:
    """Log a request that was refused before its head was read. Returns its id."""
    id = _new_ids.next()
    _log.debug("request", extra={"request_id": id, "method": "-", "path": "-", "status": status})
    return id.encode()


def named(record: logging.LogRecord) -> bool:
    """A filter for log handlers. Gives a record the id of the request that was being answered when it was logged."""
    if (request := _current.get()) is not None and not hasattr(record, "request_id"):
        record.request_id = request.id
    return True


def _id_of(scope: Scope) -> str:
    """The client's id of the request, or a new one. A header that comes twice does not count."""
    given, traces = [], []
    for name, value in scope["headers"]:
        if name == HEADER:
            given.append(value)
        elif name == b"traceparent":
            traces.append(value)
    if len(given) == 1 and _ID.fullmatch(given[0]):
        return str(given[0], "ascii")
    if len(traces) == 1 and (found := _TRACEPARENT.fullmatch(traces[0])) and found[1] != _NO_TRACE:
        return str(found[1], "ascii")
    return _new_ids.next()


def _path_of(scope: Scope) -> str:
    """The path as it was sent. Queries are not logged: clients may have put secrets into them."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "surrogateescape")
    path = raw.partition(b"?")[0].decode("latin-1")
    return path if len(path) <= _PATH_CHARACTERS else f"{path[:_PATH_CHARACTERS]}…"
