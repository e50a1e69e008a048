"""What one request and its response are to the application, and to the client."""

from __future__ import annotations

import asyncio
import gc

import pytest

from opslog.doors.access import Receive, Scope, Send
from opslog.server.http.exchange import WHOLE_BODY
from opslog.server.protocol.creation import Create
from tests.server.test_connections import ROOT, TEXT, World, request, scenario, settled


def test_a_response_is_one_write() -> None:
    async def run(world: World) -> None:
        side = world.open()
        for number, one in enumerate([request(b"POST", ROOT + b"a", TEXT, body=b"x"), request(b"GET", ROOT + b"a")]):
            side.give(one)
            await settled(lambda number=number: side.wire.writes > number)  # type: ignore[misc]
        assert (side.statuses, side.wire.writes) == ([204, 200], 2)

    scenario(run)


def test_requests_leave_no_garbage_in_cycles() -> None:
    """The collector would need a fifth of the time of an append to find it."""

    async def run(world: World) -> None:
        side = world.open()

        async def append(count: int) -> None:
            for _ in range(count):
                before = side.wire.writes
                side.give(request(b"POST", ROOT + b"a", TEXT, body=b"x"))
                await settled(lambda before=before: side.wire.writes > before)  # type: ignore[misc]
                await asyncio.sleep(0)

        await append(3)
        gc.collect()
        gc.disable()
        try:
            await append(100)
            assert gc.collect() < 100
        finally:
            gc.enable()

    scenario(run)


@pytest.mark.parametrize(
    ("one", "status"),
    [
        (request(b"POST", ROOT + b"a", b"Content-Type: image/png", body=b"x"), 409),
        (request(b"POST", ROOT + b"j", b"Content-Type: application/json", body=b'["x"'), 400),
        (request(b"POST", ROOT + b"a", b"Content-Type: application/json", body=b'["x"'), 409),
        (request(b"PUT", ROOT + b"a", b"Content-Type: application/json", body=b'["x"'), 409),
        (request(b"PUT", ROOT + b"b", b"Content-Type: application/json", body=b'["x"'), 400),
        (request(b"POST", ROOT + b"none", TEXT, body=b"x"), 404),
    ],
)
def test_refused_requests_leave_no_garbage_in_cycles(one: bytes, status: int) -> None:
    """It would have the bodies, of which the collector does not know how large they are."""

    async def run(world: World) -> None:
        await world.application.streams.create(Create("j", content_type="application/json"))
        side = world.open()

        async def ask(count: int) -> None:
            for _ in range(count):
                before = side.wire.writes
                side.give(one)
                await settled(lambda before=before: side.wire.writes > before)  # type: ignore[misc]
                await asyncio.sleep(0)

        await ask(3)
        gc.collect()
        gc.disable()
        try:
            await ask(100)
            assert gc.collect() < 100
        finally:
            gc.enable()
        assert set(side.statuses) == {status}

    scenario(run)


def test_an_idle_connection_does_not_keep_the_last_body() -> None:
    async def run(world: World) -> None:
        side = world.open()
        for one in (request(b"POST", ROOT + b"none", TEXT, body=b"x" * 1000), request(b"POST", body=b"x" * 1000)):
            before = side.wire.writes
            side.give(one)
            await settled(lambda before=before: side.wire.writes > before)  # type: ignore[misc]
            exchange = side.connection.exchange
            assert exchange is not None
            assert not exchange.unread
            assert WHOLE_BODY not in exchange.scope

    scenario(run)


def test_a_live_read_does_not_keep_a_body() -> None:
    async def run(world: World) -> None:
        for path in (ROOT + b"a?offset=now&live=sse", ROOT + b"a?offset=now&live=long-poll"):
            side = world.open()
            side.give(request(b"GET", path, body=b"x" * 1000))
            await settled(lambda: world.application.streams.followers.count > 0)
            exchange = side.connection.exchange
            assert exchange is not None
            assert not exchange.complete
            assert not exchange.unread
            assert not exchange.scope[WHOLE_BODY]
            side.lose()
            await settled(lambda: not world.state.tasks)

    scenario(run)


def test_a_client_of_http_1_0_gets_no_chunks_and_no_100() -> None:
    async def run(world: World) -> None:
        async def application(scope: Scope, receive: Receive, send: Send) -> None:
            await receive()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await send({"type": "http.response.body", "body": b"b"})

        side = world.open()
        side.connection._application = application
        given = request(b"POST", ROOT + b"a", b"Expect: 100-continue", b"Connection: keep-alive", body=b"x")
        side.give(given.replace(b"HTTP/1.1", b"HTTP/1.0"))
        await settled(lambda: not world.state.tasks)
        head, _, body = side.wire.written.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 ")
        assert b"transfer-encoding" not in head
        assert body == b"ab"
        assert side.wire.closed

    scenario(run)


def test_a_header_cannot_begin_another_line() -> None:
    """Some hold what a client sent."""

    async def run(world: World) -> None:
        for value in (b"a\r\nset-cookie: b", b"a\n", b"\0", b"a\x7f", b"\r"):
            side = world.open()

            async def application(scope: Scope, receive: Receive, send: Send, value: bytes = value) -> None:
                await send({"type": "http.response.start", "status": 200, "headers": [(b"etag", value)]})

            side.connection._application = application
            side.give(request(b"GET"))
            await settled(lambda: not world.state.tasks)
            assert b"set-cookie" not in side.wire.written
            assert side.wire.closed
            side.lose()

    scenario(run)
