"""HTTP/1.1 connections: those of uvicorn with httptools, with limits for clients that behave badly.

uvicorn limits the head of a request only with h11 (`h11_max_incomplete_event_size`), and h11 is several times slower.
With httptools, a head can grow without end, each read of a request line copies the whole line so far, trailers end up
among the headers, and every pipelined request becomes a request object at once. This class adds:

- A head is limited to `Limits.head_bytes` and `HEAD_FIELDS_MAX` fields, and so are the trailers of a body and the
  extensions of a chunk. A larger one is answered with 431 before the application sees the request or its token.
  Trailers are dropped, so that none of them can pass for a header.
- A pipelined request is parsed when the one before it has been answered. Until then its bytes are held, and reading
  pauses.
- Incomplete heads and held bytes count towards the budget of all unfinished requests.
- Every state has a time limit: an incomplete head, the rest of a body that nobody reads, an idle connection. While the
  application reads a body, the application's own limit applies. The system (TCP_USER_TIMEOUT) ends a connection whose
  client does not take what was sent to it.
- A connection that is closed before its client has sent everything lingers: the server shuts down its sending side and
  discards what still arrives, within limits. Closing at once would make the client's system drop the answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from opslog.doors.access import HEADER, Receive, Scope, Send
from opslog.server.http.budget import Budget
from opslog.server.http.replies import refusal, refuse
from opslog.server.protocol.refusals import Refused

# Without this limit, a head full of empty fields would take 40 times its size in memory.
HEAD_FIELDS_MAX = 256

# How much of a chunked body is parsed at once. Only the parser knows where such a body ends, so up to this much of the
# requests behind it is parsed too early.
_CHUNKED_BYTES = 4096

# How much is discarded of what a client sends after it was answered.
_DRAIN_BYTES = 64 * 1024 * 1024

_END_OF_HEAD = b"\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Limits:
    """:ivar connections: further ones are answered with 503.
    :ivar head_bytes: of the head of a request.
    :ivar seconds: how long a client may take to send the head of a request, and the rest of a body that nobody reads,
        and how long what was sent to it may stay unread.
    """

    connections: int = 10_000
    head_bytes: int = 64 * 1024
    seconds: float = 30.0


class _Part(Enum):
    """What the parser expects next."""

    START = "the first byte of a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body, and trailers"


class _Flow(FlowControl):
    """Does not resume reading while bytes are held: the application resumes it whenever it asks for a body, and would
    bring more pipelined requests into memory."""

    waiting = False

    def resume_reading(self) -> None:
        if not self.waiting:
            super().resume_reading()


class Connection(HttpToolsProtocol):
    """:param refused: called with the status of each answer that is sent here instead of by the application; returns
    the id of the request."""

    def __init__(self, *, limits: Limits, budget: Budget, refused: Callable[[int], bytes], **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._holding = budget.holding()
        self._refused = refused
        self._part = _Part.START
        self._framing = 0  # bytes read so far of a head, of trailers or of a chunk's header
        self._last = b""  # the last three bytes of an incomplete head: the end of the head may begin there
        self._left: int | None = 0  # bytes of the body that are still to come; None if it is chunked
        self._held, self._at = b"", 0  # received and not parsed yet: `_held` from `_at` on
        self._drained: int | None = None  # bytes discarded since the connection began to linger
        self._timer: asyncio.TimerHandle | None = None
        self._transport: Any = None
        self._flow: _Flow

    # What the transport calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        super().connection_made(_Lingering(transport, self))  # type: ignore[arg-type]
        self.flow = self._flow = _Flow(transport)
        if len(self.connections) > self._limits.connections:
            self.app: Any = self._refuse_connection
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in {socket.AF_INET, socket.AF_INET6}:
            milliseconds = int(self._limits.seconds * 1000)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._start_timer()

    def data_received(self, data: bytes) -> None:
        if self._drained is not None:
            self._drain(len(data))
            return
        self._unset_keepalive_if_required()
        self._held, self._at = self._held[self._at :] + data if self._held else data, 0
        self._read_held()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._held, self._at = b"", 0
        self._holding.release()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server stops: end when the request that is being answered is."""
        if self._answering and self._drained is None:
            self.cycle.keep_alive = False
        else:
            self._transport.close()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._part = _Part.HEAD
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is _Part.BODY:
            return  # of trailers
        if len(self.headers) == HEAD_FIELDS_MAX:
            raise self._too_large()
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._part, self._framing, self._last = _Part.BODY, 0, b""
        self._left = _content_length(self.headers)
        if self.parser.should_upgrade() and self._left != 0:
            # The parser would leave the body to the other protocol, and then read requests out of it.
            raise Refused(400, "this server does not upgrade: send a body without Upgrade")
        super().on_headers_complete()
        if self.parser.should_upgrade():
            self.cycle.keep_alive = False  # Upgrade is ignored; the parser cannot go on after it

    def on_chunk_header(self) -> None:
        self._framing = 0

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._part, self._framing = _Part.START, 0
        self._stop_timer()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._held or self._part is not _Part.START:
            self.loop.call_soon(self._read_held)

    # Inside

    @property
    def _answering(self) -> bool:
        cycle: RequestResponseCycle | None = self.cycle  # uvicorn declares it as never None, which it is at first
        return cycle is not None and not cycle.response_complete

    def _read_held(self) -> None:
        """Parse what was received, head by head and body by body, up to the first request that has to wait."""
        if self.ending:
            return
        data, position = self._held, self._at
        while position < len(data) and not (self._answering and self._part is not _Part.BODY):
            if self._part is _Part.START and data[position] in b"\r\n":
                stop = position + 1  # a blank line before a request is ignored, but counts
            else:
                stop = self._end_of_part(data, position)
            if not self._take(data[position:stop]):
                return
            position = stop
        self._held, self._at = (data, position) if position < len(data) else (b"", 0)
        if self._held:
            self._flow.waiting = True
            self.flow.pause_reading()
        elif self._flow.waiting:
            self._flow.waiting = False
            self.flow.resume_reading()
        self._account()

    def _end_of_part(self, data: bytes, position: int) -> int:
        """Where the next bytes for the parser end: at the latest where the head or body ends that it begins in."""
        if self._part is _Part.BODY:
            if self._left is None:
                return min(len(data), position + _CHUNKED_BYTES)
            rest = len(data) - position
            size = min(rest, self._left or rest)
            self._left -= size
            return position + size
        across = (self._last + data[position : position + 3]).find(_END_OF_HEAD)
        if across >= 0:
            return position + across + len(_END_OF_HEAD) - len(self._last)
        end = data.find(_END_OF_HEAD, position)
        if end >= 0:
            return end + len(_END_OF_HEAD)
        self._last = (self._last + data[position:])[-3:]
        return len(data)

    def _take(self, data: bytes) -> bool:
        """Parse some bytes, unless the head would become too large. Returns whether the connection goes on."""
        in_body = self._part is _Part.BODY
        if not in_body or self._left is None:
            self._framing += len(data)
        if not in_body and self._framing > self._limits.head_bytes:
            self._refuse(self._too_large())
            return False
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return True
        except httptools.HttpParserError as error:
            raised = error.__context__
            self._refuse(raised if isinstance(raised, Refused) else Refused(400, "this is not a request of HTTP/1.1"))
            return False
        if self._framing > self._limits.head_bytes:  # trailers or a chunk's extension: nothing of the body came
            self._refuse(self._too_large())
            return False
        return True

    def _too_large(self) -> Refused:
        most = f"{self._limits.head_bytes} bytes and {HEAD_FIELDS_MAX} fields"
        return Refused(431, f"the head of a request, and the trailers of its body, have at most {most}")

    def _refuse(self, refused: Refused) -> None:
        """Answer instead of the application, and end the connection."""
        self._held, self._at = b"", 0
        cycle = self.cycle
        if self._answering:
            if not cycle.more_body:  # the request itself is in order; what follows it is not
                cycle.keep_alive = False
                return
            cycle.disconnected = True
            cycle.message_event.set()
            if cycle.response_started:
                self._linger()
                return
        status, headers, body = refusal(refused)
        headers.append((HEADER, self._refused(status)))
        lines = [b"%b: %b\r\n" % header for header in (*self.server_state.default_headers, *headers)]
        lines.append(b"connection: close\r\n\r\n")
        self._transport.write(b"".join([STATUS_LINE[status], *lines, body]))
        self._linger()

    async def _refuse_connection(self, scope: Scope, receive: Receive, send: Send) -> None:
        """In place of the application, where there are too many connections."""
        headers = [(b"retry-after", b"1"), (b"connection", b"close"), (HEADER, self._refused(503))]
        refused = Refused(503, "there are too many connections: try again", headers)
        await refuse(send, refused, head=scope["method"] == "HEAD")

    def _account(self) -> None:
        """Report the bytes kept here to the budget, and make sure that a timer limits the state we are in."""
        kept = len(self._held) - self._at + (self._framing if self._part is not _Part.BODY else 0)
        if kept != self._holding.count:
            try:
                self._holding.hold(kept)
            except Refused as refused:
                self._refuse(refused)
                return
        if self._answering:
            self._stop_timer()
        elif self._part is _Part.START and not self._framing:
            self._stop_timer()
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )
        elif self._timer is None:
            self._start_timer()

    def _start_timer(self) -> None:
        self._timer = self.loop.call_later(self._limits.seconds, self._transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def ending(self) -> bool:
        """Whether no further request is taken."""
        return self._drained is not None or self._transport.is_closing()

    def end(self) -> None:
        """Close once everything written is sent; linger first if the client is still sending."""
        if self._part is _Part.START and not self._held:
            self._transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        if self.ending:
            return
        self._drained = 0
        self._held, self._at = b"", 0
        self._holding.release()
        self._unset_keepalive_if_required()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._flow.waiting = False
        self.flow.resume_reading()
        self._stop_timer()
        self._start_timer()

    def _drain(self, count: int) -> None:
        assert self._drained is not None
        self._drained += count
        if self._drained > _DRAIN_BYTES:
            self._transport.close()


class _Lingering:
    """The transport as uvicorn sees it: closing it asks the connection, which may linger first."""

    def __init__(self, transport: Any, connection: Connection) -> None:
        self._transport = transport
        self.close = connection.end
        self._connection = connection

    def is_closing(self) -> bool:
        return self._connection.ending

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


def _content_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    """Of the body; None if it is chunked. The parser has refused contradictory headers."""
    for name, value in headers:
        if name == b"content-length":
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0
