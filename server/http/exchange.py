"""One request on a connection and its response, as an ASGI server runs them.

The head of a response is sent with the first bytes of its body, as ASGI allows: one write for most responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from opslog.doors.access import Message, Scope

ASGI = {"version": "3.0", "spec_version": "2.3"}
# Key in the scope of a request: the body, if the whole body arrived before the application took any of it. Then the
# application need not call `receive`, nor limit the time for it.
WHOLE_BODY = "opslog.body"
# Key in the scope: a future that is done when the client has gone. To wait for that, nobody need call `receive`.
GONE = "opslog.gone"

# The head and the first part of a body are joined into one write, unless that part is larger than this.
_COPIED_BYTES = 64 * 1024
# A body with one of these means nothing (RFC 9110, section 9.3). It is dropped: a live read would keep it in memory.
_NO_BODY = frozenset({"GET", "HEAD"})
_CONTROLS = bytes([*range(0x20), 0x7F])
_NO_CONTROLS = bytes(byte for byte in range(256) if byte not in _CONTROLS or byte == 0x09)
_log = logging.getLogger("uvicorn.error")

Run = Callable[
    [Scope, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class Wire(Protocol):
    """What an exchange needs of its connection."""

    loop: asyncio.AbstractEventLoop
    write_paused: bool

    def write(self, data: bytes) -> None: ...
    async def drain(self) -> None:
        """Wait until the client has taken enough of what was written, or has gone."""

    def body_wanted(self) -> None:
        """Resume reading, if it was paused because nobody took the body."""

    def answered(self) -> None:
        """The response is complete."""

    def end(self) -> None:
        """Close the connection once everything is sent."""

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]: ...


class Exchange:
    """:ivar keep_alive: whether the connection goes on after this.
    :ivar started: the application began a response.
    :ivar complete: the response is complete.
    :ivar disconnected: the client has gone, so there is nobody to answer.
    :ivar more_body: a part of the request's body has not arrived yet.
    :ivar unread: the bytes of the body that have arrived and were not taken.
    """

    __slots__ = (
        "_application",
        "_chunked",
        "_continue",
        "_event",
        "_gone",
        "_head",
        "_left",
        "_news",
        "_taken",
        "_wire",
        "complete",
        "disconnected",
        "keep_alive",
        "more_body",
        "scope",
        "started",
        "unread",
    )

    def __init__(self, scope: Scope, wire: Wire, application: Run, *, keep_alive: bool, expects_continue: bool) -> None:
        self.scope = scope
        scope[GONE] = self._gone = wire.loop.create_future()
        self.keep_alive = keep_alive
        self.started = self.complete = self.disconnected = False
        self.more_body = True
        self.unread: bytes | bytearray = b""
        self._wire = wire
        self._application = application
        self._continue = expects_continue
        self._news = False  # something has happened since the last `receive`
        self._event: asyncio.Event | None = None
        self._taken = False
        self._head = b""  # of the response, not written yet
        self._chunked = False
        self._left: int | None = 0  # bytes of the response's body that are to come; None: not known

    # What the connection calls

    def on_body(self, data: bytes) -> None:
        if self.scope["method"] in _NO_BODY:
            return
        if not self.unread:
            self.unread = data
        else:
            if isinstance(self.unread, bytes):
                self.unread = bytearray(self.unread)
            self.unread += data
        self._notify()

    def on_end_of_body(self) -> None:
        self.more_body = False
        if not self._taken:
            self.scope[WHOLE_BODY] = bytes(self.unread)
        self._notify()

    def on_disconnect(self) -> None:
        if not self.complete:
            self.disconnected = True
            if not self._gone.done():
                self._gone.set_result(None)
        self._notify()

    async def run(self) -> None:
        try:
            await self._application(self.scope, self.receive, self.send)
        except BaseException as error:  # noqa: BLE001  (as any ASGI server does: the connection ends with it)
            _log.error("Exception in ASGI application\n", exc_info=error)
        if self.disconnected or self.complete:
            return
        # The application failed, or returned before its response was complete.
        if not self.started:
            headers = [(b"content-type", b"text/plain"), (b"content-length", b"21"), (b"connection", b"close")]
            await self.send({"type": "http.response.start", "status": 500, "headers": headers})
            await self.send({"type": "http.response.body", "body": b"Internal Server Error"})
        else:
            self._write(b"")
            self._wire.end()

    # What the application calls

    async def receive(self) -> Message:
        if self._continue:
            self._continue = False
            self._wire.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if not self.disconnected and not self.complete:
            self._wire.body_wanted()
            if not self._news:
                if self._event is None:
                    self._event = asyncio.Event()
                await self._event.wait()
                self._event.clear()
            self._news = False
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self.unread, self._taken = bytes(self.unread), b"", True
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        if self._wire.write_paused and not self.disconnected:
            await self._wire.drain()
        if self.disconnected:
            return
        if message["type"] == "http.response.start":
            if self.started:
                raise RuntimeError("this response was started before")
            self._start(message["status"], [*self._wire.default_headers, *message["headers"]])
        elif self.complete or not self.started:
            raise RuntimeError("a part of a body came before its response, or behind its end")
        else:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))

    # Inside

    def _notify(self) -> None:
        self._news = True
        if self._event is not None:
            self._event.set()

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.started = True
        self._continue = False
        fields = dict(headers)
        if b"close" in fields.get(b"connection", b"").lower():
            self.keep_alive = False
        elif not self.keep_alive:
            headers.append((b"connection", b"close"))
        if self.scope["method"] == "HEAD" or status in {204, 304}:
            self._left = 0
        elif (length := fields.get(b"content-length")) is not None:
            self._left = int(length)
        else:
            self._left = None
            # HTTP/1.0 has no chunks: there, the end of the connection ends the response.
            self._chunked = self.scope["http_version"] != "1.0"
            if self._chunked:
                headers.append((b"transfer-encoding", b"chunked"))
        head = b"\r\n".join([*map(b": ".join, headers), b"\r\n"])
        # Headers may hold text that a client sent. No control character in it may end a line.
        if head.translate(None, _NO_CONTROLS) != b"\r\n" * (len(headers) + 1):
            raise RuntimeError("a header of a response has control characters")
        self._head = STATUS_LINE[status] + head

    def _send_body(self, body: bytes, *, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        if self._chunked:
            if body:
                body = b"%x\r\n%b\r\n" % (len(body), body)
            if not more:
                body += b"0\r\n\r\n"
        elif self._left is not None:
            self._left -= len(body)
            if self._left < 0 or (self._left and not more):
                raise RuntimeError("a response is not as long as its Content-Length says")
        self._write(body)
        if not more:
            self.complete = True
            # An idle connection keeps its last exchange. It must not keep the body, which no budget counts any more.
            self.unread = b""
            self.scope.pop(WHOLE_BODY, None)
            self._notify()
            if not self.keep_alive:
                self._wire.end()
            self._wire.answered()

    def _write(self, data: bytes) -> None:
        if self._head:
            head, self._head = self._head, b""
            if len(data) <= _COPIED_BYTES:
                data = head + data
            else:
                self._wire.write(head)
        if data:
            self._wire.write(data)
