"""HTTP/1.1 connections on httptools, for uvicorn's server, with limits for clients that behave badly.

uvicorn's own protocol on httptools takes twice as long for a small request as this one, and lacks most of these limits:

- A head has at most `Limits.head_bytes` bytes and `HEAD_FIELDS_MAX` fields. A larger head is answered with 431 before
  the application sees the request or its token.
- The trailers of a body, and the header of each chunk with its extensions, have at most `Limits.head_bytes` bytes, too.
  Larger ones end the connection, with 431 unless a response is under way. The fields of trailers are not counted: they
  are dropped, so that none of them can pass for a header.
- A pipelined request is parsed once the request before it has been answered. Until then its bytes are held, and reading
  pauses. Reading also pauses while the application does not take a long body that has arrived.
- Incomplete heads and held bytes count towards the budget of all unfinished requests.
- Every state has a time limit: an incomplete head, the rest of a body that nobody reads, an idle connection. While the
  application reads a body, the application's own limit applies. If the client takes nothing of what was sent to it,
  the system ends the connection (TCP_USER_TIMEOUT).
- If the server closes a connection before the client has sent everything, the connection lingers: the server shuts down
  its sending side, and discards what still arrives, within limits. If it closed at once, the client's system would drop
  the answer.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any
from urllib.parse import unquote

import httptools
import uvicorn
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from uvicorn.protocols.utils import get_local_addr, get_remote_addr, is_ssl
from uvicorn.server import ServerState

from opslog.doors.access import HEADER, Receive, Scope, Send
from opslog.server.http.budget import Budget
from opslog.server.http.exchange import ASGI, Exchange
from opslog.server.http.replies import refusal, refuse
from opslog.server.protocol.refusals import Refused

# Without this limit, a head full of empty fields would take 40 times its size in memory.
HEAD_FIELDS_MAX = 256

# How much of a chunked body is parsed at once. Only the parser knows where such a body ends. So up to this much of the
# requests behind the body is parsed too early.
_CHUNKED_BYTES = 4096

# How much of a body waits for the application before reading pauses.
_BODY_BYTES = 64 * 1024

# If a client goes on sending after its answer, the server discards up to this much.
_DRAIN_BYTES = 64 * 1024 * 1024

_END_OF_HEAD = b"\r\n\r\n"
# How the names of the headers begin by which a proxy says for whom it asks.
_OF_PROXIES = (b"x-forwarded-", b"forwarded")


@dataclass(frozen=True, slots=True)
class Limits:
    """:ivar connections: the most open at once; requests on further ones are answered with 503.
    :ivar head_bytes: the most bytes in the head of a request.
    :ivar seconds: how long a client may take to send the head of a request, or the rest of a body that nobody reads;
        and how long it may take nothing of what was sent to it.
    """

    connections: int = 10_000
    head_bytes: int = 64 * 1024
    seconds: float = 30.0


class _Part(Enum):
    """What the parser expects next."""

    START = "the first byte of a request"
    HEAD = "the rest of a head"
    BODY = "the rest of a body, and trailers"


# Members of an `Enum` are looked up in Python, several times for each request.
_START, _HEAD, _BODY = _Part


class Connection(asyncio.Protocol):
    """Made by uvicorn's server, with `config`, `server_state`, `app_state` and `_loop`.

    :param refused: called when the connection answers a request in place of the application, with the status of the
        answer; returns the id of the request.
    :ivar loop: its event loop.
    :ivar exchange: the newest request and its response; None before the first.
    :ivar write_paused: the client has not yet taken what was written.
    """

    def __init__(
        self,
        *,
        limits: Limits,
        budget: Budget,
        refused: Callable[[int], bytes],
        config: uvicorn.Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.loop = _loop or asyncio.get_running_loop()
        self.exchange: Exchange | None = None
        self.write_paused = False
        self._unanswered: deque[Exchange] = deque()  # being answered, and those that were parsed too early
        # uvicorn wraps the application for the headers of proxies. Requests without such a header go around the
        # wrapper, which takes a thirtieth of the time of an append.
        self._proxied: Any = config.loaded_app
        wrapped = isinstance(self._proxied, ProxyHeadersMiddleware)
        self._application: Any = self._proxied.app if wrapped else self._proxied
        self._idle_seconds = config.timeout_keep_alive
        self._state = server_state
        self._limits = limits
        self._holding = budget.holding()
        self._refused = refused
        self._transport: Any = None
        self._scope: Scope = {}  # of every request of this connection
        # A client may send more after it has asked to close. That is no error; it is discarded.
        self._parser: Any = httptools.HttpRequestParser(self)
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._part = _START
        self._framing = 0  # bytes read so far of a head, of trailers or of a chunk's header
        self._last = b""  # the last three bytes of an incomplete head: the end of the head may begin there
        self._left: int | None = 0  # bytes of the body that are still to come; None if it is chunked
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._held, self._at = b"", 0  # received and not parsed yet: `_held` from `_at` on
        self._crowded = False  # the application has not taken the body that came
        self._read_paused = False
        self._writable: asyncio.Event | None = None  # while `write_paused`
        self._drained: int | None = None  # bytes discarded since the connection began to linger
        self._timer: asyncio.TimerHandle | None = None
        self._end_at: float | None = None  # when the time limit of the present state ends
        self._idle = False  # whether that is the limit of an idle connection

    # What the transport calls

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._state.connections.add(self)  # type: ignore[arg-type]
        self._scope = {
            "type": "http",
            "asgi": ASGI,
            "http_version": "1.1",
            "server": get_local_addr(transport),
            "client": get_remote_addr(transport),
            "scheme": "https" if is_ssl(transport) else "http",
            "root_path": "",
        }
        if len(self._state.connections) > self._limits.connections:
            self._application = self._proxied = self._refuse_connection
        connected = transport.get_extra_info("socket")
        if connected is not None and connected.family in {socket.AF_INET, socket.AF_INET6}:
            milliseconds = int(self._limits.seconds * 1000)
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        self._limit_time(self._limits.seconds)

    def data_received(self, data: bytes) -> None:
        if self._drained is not None:
            self._drain(len(data))
            return
        if self._idle:
            self._end_at, self._idle = None, False
        self._held, self._at = self._held[self._at :] + data if self._held else data, 0
        self._read_held()

    def pause_writing(self) -> None:
        self.write_paused, self._writable = True, asyncio.Event()

    def resume_writing(self) -> None:
        self.write_paused = False
        if self._writable is not None:
            self._writable.set()
            self._writable = None

    def eof_received(self) -> None:
        """The client sends no more; the transport closes, as it does for None."""

    def connection_lost(self, exc: Exception | None) -> None:
        self._state.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._held, self._at = b"", 0
        self._holding.release()
        for exchange in self._unanswered:
            exchange.on_disconnect()
        self._unanswered.clear()
        self.exchange = None  # it refers to this object
        self.resume_writing()
        self._parser = None

    def shutdown(self) -> None:
        """Called when the server stops: close after the request that is being answered."""
        if self.exchange is not None and not self.exchange.complete and self._drained is None:
            self.exchange.keep_alive = False
        else:
            self._transport.close()

    # What the parser calls

    def on_message_begin(self) -> None:
        self._part, self._url, self._headers = _HEAD, b"", []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._part is _BODY:
            return  # of trailers
        if len(self._headers) == HEAD_FIELDS_MAX:
            raise self._too_large()
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        is_old = parser.get_http_version() == "1.0"
        self._part, self._framing, self._last = _BODY, 0, b""
        self._left, expects_continue, application = 0, False, self._application
        for name, value in headers:  # the parser has refused contradictory headers
            if name == b"content-length":
                self._left = int(value)
            elif name == b"transfer-encoding":
                self._left = None
                if value.strip().lower() != b"chunked":
                    raise Refused(501, "the only Transfer-Encoding is chunked: send the body without another one")
            elif name == b"expect":
                expects_continue = not is_old and value.lower() == b"100-continue"
            elif name.startswith(_OF_PROXIES):
                application = self._proxied
        keep_alive = parser.should_keep_alive() and not is_old
        if parser.should_upgrade():
            if self._left != 0:
                # The parser would leave the body to the other protocol, and then read requests out of it.
                raise Refused(400, "this server does not upgrade: send a body without Upgrade")
            keep_alive = False  # Upgrade is ignored; the parser cannot go on after it
        url = httptools.parse_url(self._url)
        path = url.path.decode("ascii")
        scope = {
            **self._scope,
            "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path,
            "raw_path": url.path,
            "query_string": url.query or b"",
            "headers": headers,
        }
        if is_old:
            scope["http_version"] = "1.0"
        self.exchange = Exchange(scope, self, application, keep_alive=keep_alive, expects_continue=expects_continue)
        self._unanswered.append(self.exchange)
        if len(self._unanswered) == 1:
            self._begin(self.exchange)

    def on_chunk_header(self) -> None:
        self._framing = 0

    def on_body(self, body: bytes) -> None:
        self._framing = 0
        exchange = self.exchange
        if exchange is not None and not exchange.complete:
            exchange.on_body(body)
            if len(exchange.unread) > _BODY_BYTES:
                self._crowded = True
                self._pace_reading()

    def on_message_complete(self) -> None:
        self._part, self._framing = _START, 0
        self._end_at = None
        if self.exchange is not None and not self.exchange.complete:
            self.exchange.on_end_of_body()

    # What an exchange calls

    @property
    def default_headers(self) -> list[tuple[bytes, bytes]]:
        return self._state.default_headers

    def write(self, data: bytes) -> None:
        self._transport.write(data)

    async def drain(self) -> None:
        if self._writable is not None:
            await self._writable.wait()

    def body_wanted(self) -> None:
        if self._crowded:
            self._crowded = False
            self._pace_reading()

    def answered(self) -> None:
        self._state.total_requests += 1
        self._unanswered.popleft()
        if self.ending:
            return
        self.body_wanted()
        if self._unanswered:
            self._begin(self._unanswered[0])
        elif self._held or self._part is not _START:
            self.loop.call_soon(self._read_held)
        else:
            self._account()

    # Inside

    def _begin(self, exchange: Exchange) -> None:
        task = self.loop.create_task(exchange.run())
        self._state.tasks.add(task)
        task.add_done_callback(self._state.tasks.discard)

    @property
    def _answering(self) -> bool:
        return self.exchange is not None and not self.exchange.complete

    def _pace_reading(self) -> None:
        """Pause or resume reading, as the bytes that wait here require."""
        pause = self._crowded or bool(self._held)
        if pause != self._read_paused:
            self._read_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def _read_held(self) -> None:
        """Parse the received bytes, head by head and body by body, up to the first request that has to wait."""
        if self.ending:
            return
        data, position = self._held, self._at
        while position < len(data) and (self._part is _BODY or not self._answering):
            if self._part is _START and data[position] in b"\r\n":
                stop = position + 1  # a blank line before a request is ignored, but counts
            else:
                stop = self._end_of_part(data, position)
            if not self._take(data[position:stop]):
                return
            position = stop
        self._held, self._at = (data, position) if position < len(data) else (b"", 0)
        self._pace_reading()
        self._account()

    def _end_of_part(self, data: bytes, position: int) -> int:
        """The end of the next bytes for the parser. Except in a chunked body, they stay within one head or one body."""
        if self._part is _BODY:
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
        in_body = self._part is _BODY
        if not in_body or self._left is None:
            self._framing += len(data)
        if not in_body and self._framing > self._limits.head_bytes:
            self._refuse(self._too_large())
            return False
        try:
            self._parser.feed_data(data)
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
        exchange = self.exchange
        if exchange is not None and not exchange.complete:
            if exchange.more_body and len(self._unanswered) > 1:
                # This request was parsed too early, and the application has not begun it. The client would take an
                # answer to it for the answer to the request before, which is the last one to be answered.
                self._unanswered.pop()
                self.exchange = exchange = self._unanswered[-1]
            if not exchange.more_body:  # the request itself is in order; what follows it is not
                exchange.keep_alive = False
                return
            exchange.on_disconnect()
            if exchange.started:
                self._linger()
                return
        status, headers, body = refusal(refused)
        headers.append((HEADER, self._refused(status)))
        lines = [b"%b: %b\r\n" % header for header in (*self.default_headers, *headers)]
        lines.append(b"connection: close\r\n\r\n")
        self._transport.write(b"".join([STATUS_LINE[status], *lines, body]))
        self._linger()

    async def _refuse_connection(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers in place of the application if there are too many connections."""
        headers = [(b"retry-after", b"1"), (b"connection", b"close"), (HEADER, self._refused(503))]
        refused = Refused(503, "there are too many connections: try again", headers)
        await refuse(send, refused, head=scope["method"] == "HEAD")

    def _account(self) -> None:
        """Report the bytes kept here to the budget, and make sure that the time in this state is limited."""
        kept = len(self._held) - self._at + (self._framing if self._part is not _BODY else 0)
        if kept != self._holding.count:
            try:
                self._holding.hold(kept)
            except Refused as refused:
                self._refuse(refused)
                return
        if self._answering:
            self._end_at = None
        elif self._part is _START and not self._framing:
            if not self._idle:
                self._limit_time(self._idle_seconds)
                self._idle = True
        elif self._end_at is None:
            self._limit_time(self._limits.seconds)

    def _limit_time(self, seconds: float) -> None:
        """Close the connection if it is still in its present state after so many seconds.

        Most states end sooner than it takes to set a timer and cancel it. So one timer is left alone until it fires,
        and then set again for the time that is left.
        """
        self._end_at = self.loop.time() + seconds
        if self._timer is not None and self._timer.when() <= self._end_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._end_at, self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        if self._end_at is None:
            return
        if self._end_at <= self.loop.time():
            self._transport.close()
        else:
            self._timer = self.loop.call_at(self._end_at, self._check_time)

    @property
    def ending(self) -> bool:
        """Whether no further request is taken."""
        return self._drained is not None or self._transport.is_closing()

    def end(self) -> None:
        """Close once everything written is sent; linger first if the client is still sending."""
        if self._part is _START and not self._held:
            self._transport.close()
        else:
            self._linger()

    def _linger(self) -> None:
        if self.ending:
            return
        self._drained = 0
        self._held, self._at = b"", 0
        self._holding.release()
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._crowded = False
        self._pace_reading()
        self._limit_time(self._limits.seconds)

    def _drain(self, count: int) -> None:
        assert self._drained is not None
        self._drained += count
        if self._drained > _DRAIN_BYTES:
            self._transport.close()
