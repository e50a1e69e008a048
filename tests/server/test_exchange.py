"""What one request and its response are to the application, and to the client."""

from __future__ import annotations

import asyncio
import gc

from opslog.doors.access import Receive, Scope, Send
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
