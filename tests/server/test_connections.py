"""A connection parses any incoming bytes, cut at any place."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import httptools
import pytest
import uvicorn
from uvicorn.server import ServerState

from opslog.server import Options, app
from opslog.server.http.asgi import App
from opslog.server.http.connections import HEAD_FIELDS_MAX, Connection, Limits
from opslog.server.protocol.creation import Create

LIMITS = Limits(connections=3, head_bytes=2000)
IMPATIENT = Limits(seconds=0.02)
ROOT = b"/v1/stream/"


class Wire:
    """A transport that keeps what is written, and counts what is still unsent."""

    def __init__(self) -> None:
        self.written = b""
        self.writes = 0
        self.closed = self.ended = self.paused = False

    def write(self, data: bytes) -> None:
        self.written += data
        self.writes += 1

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def get_extra_info(self, name: str) -> Any:
        return None


class Answers:
    """The parsed responses."""

    def __init__(self, written: bytes) -> None:
        self.statuses: list[int] = []
        self.bodies: list[bytes] = []
        self.headers: list[list[tuple[bytes, bytes]]] = []
        self._parser = httptools.HttpResponseParser(self)
        self._parser.feed_data(written)

    def on_message_begin(self) -> None:
        self.bodies.append(b"")
        self.headers.append([])

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[-1].append((name, value))

    def on_headers_complete(self) -> None:
        self.statuses.append(self._parser.get_status_code())

    def on_body(self, body: bytes) -> None:
        self.bodies[-1] += body


class Side:
    """The server's side of a connection."""

    def __init__(self, application: App, state: ServerState, limits: Limits = LIMITS) -> None:
        config = uvicorn.Config(application, lifespan="off", log_config=None, ws="none", timeout_keep_alive=75)
        config.load()
        self.refused: list[int] = []
        self.wire = Wire()
        self.connection = Connection(
            config=config,
            server_state=state,
            app_state={},
            _loop=asyncio.get_running_loop(),
            limits=limits,
            budget=application.budget,
            refused=self.refuse,
        )
        self.connection.connection_made(self.wire)

    def refuse(self, status: int) -> bytes:
        self.refused.append(status)
        return b"refused"

    def give(self, data: bytes) -> None:
        self.connection.data_received(data)

    @property
    def answers(self) -> Answers:
        return Answers(self.wire.written)

    @property
    def statuses(self) -> list[int]:
        return self.answers.statuses

    def lose(self) -> None:
        self.connection.connection_lost(None)


async def settled(condition: Callable[[], bool]) -> None:
    """Wait until nothing is pending. The test's own timeout ends a wait in vain."""
    while not condition():
        await asyncio.sleep(0)


class World:
    """An application and its connections."""

    def __init__(self, **options: Any) -> None:
        self.application = app(options=Options(**options))
        self.state = ServerState()

    def open(self, limits: Limits = LIMITS) -> Side:
        return Side(self.application, self.state, limits)


def scenario(run: Callable[[World], Awaitable[None]], **options: Any) -> None:
    async def whole() -> None:
        world = World(**options)
        await world.application.start()
        await world.application.streams.create(Create("a", content_type="text/plain"))
        try:
            await run(world)
        finally:
            for connection in list(world.state.connections):
                connection.connection_lost(None)
            await world.application.stop()
            await asyncio.gather(*world.state.tasks)
        assert world.application.budget.held == 0, "nothing is held of requests that are over"

    asyncio.run(whole())


def request(method: bytes, path: bytes = ROOT + b"a", *headers: bytes, body: bytes = b"") -> bytes:
    lines = [method + b" " + path + b" HTTP/1.1", b"Host: x", *headers]
    if body:
        lines.append(b"Content-Length: %d" % len(body))
    return b"\r\n".join([*lines, b"", body])


TEXT = b"Content-Type: text/plain"
CHUNKED = (TEXT, b"Transfer-Encoding: chunked")
POST = request(b"POST", ROOT + b"a", *CHUNKED)

TOO_LARGE = {
    "request line": b"GET /" + b"x" * 2000,
    "request line, complete": request(b"GET", b"/" + b"x" * 2000),
    "name": b"GET / HTTP/1.1\r\n" + b"x" * 2000,
    "value": b"GET / HTTP/1.1\r\nA: " + b"x" * 2000,
    "space before a value": b"GET / HTTP/1.1\r\nA: " + b" " * 2000,
    "fields": b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 400,
    "blank lines": b"\r\n" * 1001,
    "empty fields": b"GET / HTTP/1.1\r\n" + b"a:\r\n" * (HEAD_FIELDS_MAX + 2),
    "trailers": POST + b"1\r\nx\r\n0\r\n" + b"a: b\r\n" * 1500,
    "one trailer": POST + b"1\r\nx\r\n0\r\na: " + b"b" * 8000,
    "extension of a chunk": POST + b"1;" + b"x" * 8000,
}


@pytest.mark.parametrize("kind", TOO_LARGE)
@pytest.mark.parametrize("chunk", [1, 700, 2**20])
def test_the_framing_of_a_request_is_limited(kind: str, chunk: int) -> None:
    data = TOO_LARGE[kind]

    async def run(world: World) -> None:
        side = world.open()
        for start in range(0, len(data), chunk):
            side.give(data[start : start + chunk])
            await asyncio.sleep(0)
        await settled(lambda: bool(side.wire.written))
        assert side.statuses == side.refused == [431]
        assert (b"connection", b"close") in side.answers.headers[0]
        assert (b"access-control-allow-origin", b"*") in side.answers.headers[0]
        assert (b"x-request-id", b"refused") in side.answers.headers[0]
        assert side.wire.ended

    scenario(run)


def test_a_head_at_its_limit_is_taken() -> None:
    frame = request(b"GET", b"/healthz?")

    async def run(world: World) -> None:
        for more, status in ((0, 200), (1, 431)):
            side = world.open()
            side.give(request(b"GET", b"/healthz?" + b"x" * (LIMITS.head_bytes - len(frame) + more)))
            await settled(lambda side=side: bool(side.wire.written))  # type: ignore[misc]
            assert side.statuses == [status]
            side.lose()

    scenario(run)


def test_no_more_than_a_head_is_ever_given_to_the_parser() -> None:
    """The parser and uvicorn need time in proportion to the whole request line for each part of it."""

    async def run(world: World) -> None:
        side = world.open()
        given = 0
        side.give(b"GET /")
        while not side.wire.written:
            side.give(b"x")
            given += 1
        assert given < LIMITS.head_bytes
        for _ in range(1000):
            side.give(b"x" * 1000)
        assert len(side.connection._url) < LIMITS.head_bytes
        assert side.statuses == [431]

    scenario(run)


def conversation() -> tuple[bytes, list[int]]:
    """Requests one after the other, with the statuses of their answers."""
    parts = [
        (b"\r\n\r\n" + request(b"PUT", ROOT + b"b", TEXT), 201),
        (request(b"POST", ROOT + b"b", TEXT, body=b"GET /healthz HTTP/1.1\r\n\r\n"), 204),
        (request(b"POST", ROOT + b"b", *CHUNKED) + b"3;x=y\r\nabc\r\n2\r\n\r\n\r\n0\r\nA: b\r\n\r\n", 204),
        (request(b"GET", ROOT + b"none"), 404),
        (request(b"POST", ROOT + b"none", TEXT, body=b"x" * 6000), 404),
        (request(b"HEAD", ROOT + b"b"), 200),
        (request(b"POST", ROOT + b"b", *CHUNKED) + b"2\r\nde\r\n0\r\n\r\n", 204),
        (request(b"DELETE", ROOT + b"none"), 404),
        (request(b"GET", b"/healthz", b"Connection: upgrade", b"Upgrade: h2c"), 200),
    ]
    return b"".join(data for data, _ in parts), [status for _, status in parts if status]


@pytest.mark.parametrize("seed", range(12))
def test_where_the_bytes_are_cut_changes_nothing(seed: int) -> None:
    data, statuses = conversation()
    cuts = random.Random(seed)
    largest = [1, 3, 20, 300, 10_000, len(data)][seed % 6]

    async def run(world: World) -> None:
        side = world.open()
        position = 0
        while position < len(data):
            size = cuts.randint(1, largest)
            side.give(data[position : position + size])
            position += size
            if cuts.random() < 0.5:
                await asyncio.sleep(0)
        await settled(lambda: side.wire.closed)
        # An answer to HEAD has no body, although its head has the length of one.
        written = side.wire.written
        assert [int(part[:3]) for part in written.split(b"HTTP/1.1 ")[1:]] == statuses
        await world.application.streams.delete("b")

    scenario(run)


def test_the_next_request_waits_until_the_one_before_it_is_answered() -> None:
    """If a client sends a thousand requests ahead, they are not a thousand requests in memory, and each is answered in
    turn."""

    async def run(world: World) -> None:
        side = world.open()
        live = request(b"GET", ROOT + b"a?offset=now&live=long-poll")
        count = 1000
        side.give(live + request(b"GET", b"/healthz") * count)
        await asyncio.sleep(0)
        assert (side.wire.paused, len(world.state.tasks)) == (True, 1)
        assert world.application.budget.held == len(request(b"GET", b"/healthz")) * count
        side.connection.body_wanted()  # as an application that waits for a body does
        assert side.wire.paused
        await world.application.streams.delete("a")
        await settled(lambda: side.wire.written.count(b"HTTP/1.1 200") == count)
        assert side.statuses == [404] + [200] * count
        assert not side.wire.paused

    scenario(run, long_poll_seconds=60)


def test_trailers_are_no_headers() -> None:
    async def run(world: World) -> None:
        side = world.open()
        side.give(POST + b"1\r\nx\r\n0\r\nStream-Closed: true\r\nAuthorization: Bearer x\r\n\r\n")
        await settled(lambda: bool(side.wire.written))
        assert side.statuses == [204]
        assert not world.application.streams.stream("a").closed

    scenario(run)


def test_bytes_that_are_no_request() -> None:
    async def run(world: World) -> None:
        for data in (
            b"nonsense\r\n\r\n",
            b"GET / HTTP/1.1\nHost: x\n\n",
            b"\x16\x03\x01\x02\x00",
            b"CONNECT a:1 HTTP/1.1\r\n\r\n",
        ):
            side = world.open()
            side.give(data)
            assert side.refused == side.statuses == [400], data
            side.lose()

    scenario(run)


def test_invalid_bytes_after_a_request_do_not_remove_its_answer() -> None:
    async def run(world: World) -> None:
        side = world.open()
        side.give(POST + b"1\r\nx\r\n0\r\n\r\nnonsense\r\n\r\n")
        await settled(lambda: side.wire.ended)
        assert side.statuses[0] == 204
        assert world.application.streams.stream("a").tail == 1

    scenario(run)


@pytest.mark.parametrize(
    "second",
    [
        POST + b"zz\r\n",
        POST + b"1;" + b"x" * 70_000,
        POST + b"0\r\na: " + b"b" * 70_000,
    ],
    ids=["broken frame", "extension", "trailers"],
)
@pytest.mark.parametrize("chunk", [1, 2**20])
def test_a_broken_body_after_a_request_does_not_remove_its_answer(second: bytes, chunk: int) -> None:
    async def run(world: World) -> None:
        side = world.open()
        given = POST + b"1\r\nx\r\n0\r\n\r\n" + second
        for start in range(0, len(given), chunk):
            side.give(given[start : start + chunk])
        await settled(lambda: side.wire.ended)
        side.give(b"more")
        await settled(lambda: not world.state.tasks)
        assert side.statuses[0] == 204
        assert world.application.streams.stream("a").tail == 1

    scenario(run)


@pytest.mark.parametrize("rest", [b"zz\r\n", b"1\r\nxy"])
def test_a_body_with_a_broken_frame_is_not_appended(rest: bytes) -> None:
    async def run(world: World) -> None:
        side = world.open()
        side.give(POST + b"1\r\nx\r\n")
        await asyncio.sleep(0)
        side.give(rest)
        await settled(lambda: not world.state.tasks)
        assert side.statuses == [400]
        assert world.application.streams.stream("a").tail == 0

    scenario(run)


def test_an_upgrade_header_does_not_turn_a_body_into_requests() -> None:
    async def run(world: World) -> None:
        side = world.open()
        hidden = request(b"DELETE")
        side.give(request(b"POST", ROOT + b"a", TEXT, b"Connection: upgrade", b"Upgrade: h2c", body=hidden))
        await settled(lambda: bool(side.wire.written))
        assert side.statuses == [400]
        assert world.application.streams.stream("a").tail == 0

    scenario(run)


@pytest.mark.parametrize("codings", [[b"gzip, chunked"], [b"gzip", b"chunked"]])
def test_a_body_in_another_transfer_coding_is_refused(codings: list[bytes]) -> None:
    async def run(world: World) -> None:
        side = world.open()
        head = request(b"POST", ROOT + b"a", TEXT, *(b"Transfer-Encoding: " + coding for coding in codings))
        side.give(head + b"1\r\nx\r\n0\r\n\r\n")
        await settled(lambda: bool(side.wire.written))
        assert side.statuses == [501]
        assert world.application.streams.stream("a").tail == 0

    scenario(run)


@pytest.mark.parametrize("close", [b"", b"Stream-Closed: true"])
@pytest.mark.parametrize("sent", [b"", b"xy"])
def test_a_client_that_goes_before_its_body_has_come_changes_nothing(close: bytes, sent: bytes) -> None:
    async def run(world: World) -> None:
        for method, path in ((b"POST", b"a"), (b"PUT", b"new")):
            side = world.open()
            headers = [TEXT, b"Content-Length: 5", *([close] if close else [])]
            side.give(request(method, ROOT + path, *headers) + sent)
            await asyncio.sleep(0)
            side.lose()
            await settled(lambda: not world.state.tasks)
        stream = world.application.streams.stream("a")
        assert (stream.tail, stream.closed) == (0, False)
        assert [found.path for found in world.application.streams.list()] == ["a"]

    scenario(run)


def test_one_connection_too_many() -> None:
    async def run(world: World) -> None:
        sides = [world.open() for _ in range(LIMITS.connections + 1)]
        for side in sides:
            side.give(request(b"GET", b"/healthz"))
            await settled(lambda side=side: bool(side.wire.written))  # type: ignore[misc]
        assert [side.statuses for side in sides] == [[200]] * LIMITS.connections + [[503]]
        assert (b"access-control-allow-origin", b"*") in sides[-1].answers.headers[0]
        assert sides[-1].wire.closed
        sides[-1].lose()
        sides[0].lose()
        again = world.open()
        again.give(request(b"GET", b"/healthz"))
        await settled(lambda: bool(again.wire.written))
        assert again.statuses == [200]

    scenario(run)


class TestTheWholeBudget:
    """All requests under way share 10,000 bytes."""

    def test_bodies_of_all_connections_share_it(self) -> None:
        async def run(world: World) -> None:
            limits = Limits()
            sides = [world.open(limits) for _ in range(4)]
            for side in sides:
                side.give(request(b"POST", ROOT + b"a", TEXT, b"Content-Length: 3001") + b"x" * 3000)
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            await settled(lambda: bool(sides[3].wire.written))
            assert (sides[3].statuses, world.application.budget.held) == ([503], 9000)
            assert (b"retry-after", b"1") in sides[3].answers.headers[0]
            short = world.open(limits)
            short.give(request(b"POST", ROOT + b"a", TEXT, body=b"y" * 2000))
            await settled(lambda: bool(short.wire.written))
            assert short.statuses == [204], "what comes in one chunk still fits"
            for side in sides[:3]:
                side.give(b"x")
                await settled(lambda side=side: bool(side.wire.written))  # type: ignore[misc]
                assert side.statuses == [204]
            assert world.application.streams.stream("a").tail == 3 * 3001 + 2000

        scenario(run, max_body_bytes=10_000, max_buffered_bytes=10_000)

    def test_heads_that_are_not_complete_share_it(self) -> None:
        async def run(world: World) -> None:
            limits = Limits()
            sides = [world.open(limits) for _ in range(12)]
            for side in sides:
                side.give(b"GET /" + b"x" * 1000)
            assert [side.statuses for side in sides] == [[]] * 9 + [[503]] * 3

        scenario(run, max_body_bytes=10_000, max_buffered_bytes=10_000)

    def test_requests_that_are_sent_ahead_share_it(self) -> None:
        async def run(world: World) -> None:
            side = world.open(Limits())
            side.give(request(b"GET", ROOT + b"a?offset=now&live=sse") + request(b"GET", b"/healthz") * 1000)
            await settled(lambda: b"event: control" in side.wire.written)
            assert world.application.budget.held == 0
            await world.application.streams.delete("a")
            await settled(lambda: side.wire.closed)
            assert side.statuses == [200], "no other answer fits into it; the connection ends behind it"

        scenario(run, max_body_bytes=10_000, max_buffered_bytes=10_000)


class TestNoStateLastsForEver:
    def test_a_head_that_does_not_end(self) -> None:
        async def run(world: World) -> None:
            for data in (b"", b"GET / HTTP/1.1\r\nHo", request(b"GET", b"/healthz") + b"GET /"):
                side = world.open(IMPATIENT)
                if data:
                    side.give(data)
                await settled(lambda side=side: side.wire.closed)  # type: ignore[misc]
                side.lose()

        scenario(run)

    def test_blank_lines_between_requests_are_not_activity(self) -> None:
        async def run(world: World) -> None:
            side = world.open(IMPATIENT)
            side.give(request(b"GET", b"/healthz"))
            await settled(lambda: bool(side.wire.written))
            while not side.wire.closed:
                side.give(b"\r\n")
                await asyncio.sleep(0.001)
            assert side.refused == []

        scenario(run)

    def test_the_rest_of_a_body_that_nobody_reads(self) -> None:
        async def run(world: World) -> None:
            side = world.open(IMPATIENT)
            side.give(request(b"GET", b"/healthz", b"Content-Length: 1000000000") + b"x")
            await settled(lambda: bool(side.wire.written))
            while not side.wire.closed:
                side.give(b"x")
                await asyncio.sleep(0.001)
            assert side.statuses == [200]

        scenario(run)

    def test_a_connection_is_kept_when_the_rest_came(self) -> None:
        async def run(world: World) -> None:
            side = world.open(Limits())
            side.give(request(b"GET", b"/healthz", b"Content-Length: 3") + b"x")
            await settled(lambda: bool(side.wire.written))
            side.give(b"xx")
            assert side.connection._idle
            side.give(request(b"GET", b"/healthz"))
            await settled(lambda: len(side.statuses) == 2)
            assert not side.wire.closed

        scenario(run)


class TestAnAnswerBeforeTheBodyHasCome:
    def test_the_client_may_send_the_rest_and_read(self) -> None:
        async def run(world: World) -> None:
            side = world.open(Limits())
            side.give(request(b"POST", ROOT + b"a", TEXT, b"Content-Length: 1000000"))
            await settled(lambda: bool(side.wire.written))
            assert side.statuses == [413]
            for _ in range(1000):
                side.give(b"x" * 1000)
            assert (side.wire.ended, side.wire.closed, side.wire.paused) == (True, False, False)

        scenario(run, max_body_bytes=1000)

    def test_but_not_for_ever(self) -> None:
        async def run(world: World) -> None:
            side = world.open(IMPATIENT)
            side.give(request(b"POST", ROOT + b"a", TEXT, b"Content-Length: 1000000"))
            await settled(lambda: side.wire.closed)
            assert side.statuses == [413]

        scenario(run, max_body_bytes=1000)

    def test_nor_as_much_as_it_likes(self) -> None:
        async def run(world: World) -> None:
            side = world.open(Limits())
            side.give(request(b"POST", ROOT + b"a", *CHUNKED) + b"7d0\r\n" + b"x" * 2000)
            await settled(lambda: side.wire.ended)
            chunk = b"x" * 2**20
            for _ in range(64):
                side.give(chunk)
            assert not side.wire.closed
            side.give(chunk)
            assert side.wire.closed

        scenario(run, max_body_bytes=1000)

    def test_a_server_that_stops_does_not_wait_for_it(self) -> None:
        async def run(world: World) -> None:
            side = world.open(Limits())
            side.give(request(b"POST", ROOT + b"a", TEXT, b"Content-Length: 1000000"))
            await settled(lambda: side.wire.ended)
            side.connection.shutdown()
            assert side.wire.closed

        scenario(run, max_body_bytes=1000)


def test_a_stopping_server_answers_what_was_asked() -> None:
    async def run(world: World) -> None:
        idle, half, asked = world.open(Limits()), world.open(Limits()), world.open(Limits())
        half.give(b"GET / HT")
        asked.give(request(b"GET", ROOT + b"a?offset=now&live=long-poll"))
        await asyncio.sleep(0)
        for side in (idle, half, asked):
            side.connection.shutdown()
        assert (idle.wire.closed, half.wire.closed, asked.wire.closed) == (True, True, False)
        world.application.end_live_reads()
        await settled(lambda: asked.wire.closed)
        assert asked.statuses == [204]

    scenario(run)
