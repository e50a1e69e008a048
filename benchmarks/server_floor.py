"""The floors that stream servers are measured over: the least that a server of this kind does, in Python.

    python -m benchmarks.server_floor (uvicorn | httptools) FILE

Both append each body to one file and answer when fdatasync has returned, one for all that came while the one before
ran. They pass each body on to everybody who follows, by SSE or long-poll. There are no streams, no checks and no
limits: every path is the same log, and its offsets count appends. One is an application for uvicorn. The other is a
protocol of asyncio with httptools as its parser, and nothing in between.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httptools
import uvicorn
import uvloop

Message = MutableMapping[str, Any]
# Called with the next append and the offset behind it.
Listener = Callable[[bytes, int], None]

_CONTROL = b"event: control\ndata:{}\n\n"


def _event(body: bytes) -> bytes:
    return b"event: data\ndata:%b\n\n%b" % (body, _CONTROL)


class Log:
    """One file, and those who wait for it to grow."""

    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._waiting: list[tuple[bytes, Callable[[], None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self._listeners: list[Listener] = []
        self.bodies: list[bytes] = []

    def append(self, body: bytes, durable: Callable[[], None]) -> None:
        """Call `durable` when the body is on disk."""
        self._waiting.append((body, durable))
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write())

    def next(self, offset: int, listener: Listener) -> None:
        """Call with the first append behind `offset`: now if there is one."""
        if offset < len(self.bodies):
            listener(self.bodies[offset], offset + 1)
        else:
            self._listeners.append(listener)

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self._append, b"".join([body for body, _ in waiting]))
            for body, durable in waiting:
                durable()
                self.bodies.append(body)
                listeners, self._listeners = self._listeners, []
                for listener in listeners:
                    listener(body, len(self.bodies))

    def _append(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)


def _offset(query: bytes, log: Log) -> int:
    given = query.rpartition(b"offset=")[2]
    return int(given) if given.isdigit() else len(log.bodies)


class Application:
    """For uvicorn."""

    def __init__(self, file: Path) -> None:
        self._log = Log(file)

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        query: bytes = scope["query_string"]
        if scope["method"] == "GET":
            await self._read(query, send)
            return
        body = bytes((await receive()).get("body", b""))
        if body:
            durable: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._log.append(body, lambda: durable.set_result(None))
            await durable
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _read(self, query: bytes, send: Callable[[Message], Awaitable[None]]) -> None:
        offset, body = _offset(query, self._log), b"[]"
        if b"live=sse" in query:
            headers = [(b"content-type", b"text/event-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await send({"type": "http.response.body", "body": _CONTROL, "more_body": True})
            while True:
                body, offset = await self._next(offset)
                await send({"type": "http.response.body", "body": _event(body), "more_body": True})
        if b"live=long-poll" in query:
            body, offset = await self._next(offset)
        headers = [(b"content-length", b"%d" % len(body)), (b"stream-next-offset", b"%d" % offset)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _next(self, offset: int) -> tuple[bytes, int]:
        found: asyncio.Future[tuple[bytes, int]] = asyncio.get_running_loop().create_future()

        def came(body: bytes, stop: int) -> None:
            if not found.done():
                found.set_result((body, stop))

        self._log.next(offset, came)
        return await found


class Connection(asyncio.Protocol):
    """For httptools."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._parser = httptools.HttpRequestParser(self)
        self._transport: Any = None
        self._url = self._body = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._url = self._body = b""

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        log = self._log
        if self._parser.get_method() == b"GET":
            self._read(httptools.parse_url(self._url).query or b"")
        elif self._body:
            log.append(self._body, self._answer_append)
        else:
            self._answer_append()

    def _answer_append(self) -> None:
        self._transport.write(b"HTTP/1.1 204 No Content\r\n\r\n")

    def _read(self, query: bytes) -> None:
        offset = _offset(query, self._log)
        if b"live=sse" in query:
            head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            self._transport.write(head + _chunk(_CONTROL))
            self._log.next(offset, self._send_event)
        elif b"live=long-poll" in query:
            self._log.next(offset, self._answer_read)
        else:
            self._answer_read(b"[]", offset)

    def _send_event(self, body: bytes, offset: int) -> None:
        if not self._transport.is_closing():
            self._transport.write(_chunk(_event(body)))
            self._log.next(offset, self._send_event)

    def _answer_read(self, body: bytes, offset: int) -> None:
        head = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nstream-next-offset: %d\r\n\r\n" % (len(body), offset)
        self._transport.write(head + body)


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def _serve(listening: socket.socket, file: Path) -> None:
    log = Log(file)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(log), sock=listening)
    await server.serve_forever()


def main(kind: str, file: Path) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=2048)
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    if kind == "httptools":
        uvloop.run(_serve(listening, file))
    else:
        config = uvicorn.Config(
            Application(file),
            loop="uvloop",
            http="httptools",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=1,  # followers never end
        )
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
