"""Invalid arguments are refused at once, before a request is sent."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import httpx
import pytest

from opslog.errors import UsageError
from opslog.server.client import AsyncClient, Client, Retrying
from tests.server.client.driving import KINDS, QUICK, Driver
from tests.support.fake_streams import FakeServer, FakeStream

PATH = "/v1/stream/s"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def server() -> FakeServer:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    return server


PRODUCERS: list[tuple[str, dict[str, Any]]] = [
    ("id", {"id": ""}),
    ("id", {"id": " p"}),
    ("id", {"id": "a\nb"}),
    ("id", {"id": "é"}),
    ("id", {"id": 3}),
    ("epoch", {"epoch": -1}),
    ("epoch", {"epoch": 2**53}),
    ("epoch", {"epoch": 1.0}),
    ("epoch", {"epoch": True}),
    ("epoch", {"epoch": "1"}),
    ("max_in_flight", {"max_in_flight": 0}),
    ("max_in_flight", {"max_in_flight": -1}),
    ("max_batch_bytes", {"max_batch_bytes": 0}),
    ("max_batch_bytes", {"max_batch_bytes": -1}),
    ("max_batch_bytes", {"max_batch_bytes": 0.5}),
    ("max_buffered_bytes", {"max_buffered_bytes": 0}),
    ("max_buffered_bytes", {"max_buffered_bytes": None}),
]


@pytest.mark.parametrize(("name", "options"), PRODUCERS, ids=str)
def test_a_producer_is_checked_when_it_is_made(
    kind: str, server: FakeServer, name: str, options: dict[str, Any]
) -> None:
    given = {"id": "p", **options}
    if kind == "threads":
        client = Client("http://x", http=httpx.Client(transport=httpx.MockTransport(server.handle)))
        with pytest.raises(UsageError, match=name):
            client.stream("s").producer(given.pop("id"), **given)
    else:
        http = httpx.AsyncClient(transport=httpx.MockTransport(server.handle_later))
        with pytest.raises(UsageError, match=name):
            AsyncClient("http://x", http=http).stream("s").producer(given.pop("id"), **given)
    assert not server.requests


CALLS: list[tuple[str, str, tuple[Any, ...], dict[str, Any]]] = [  # the text in the message, the call
    ("content_type", "create", ("json",), {}),
    ("content_type", "create", ("application/json\r\nX: y",), {}),
    ("content_type", "create", ("",), {}),
    ("ttl", "create", (), {"ttl": -1}),
    ("ttl", "create", (), {"ttl": 1.5}),
    ("ttl", "create", (), {"ttl": True}),
    ("expires_at", "create", (), {"expires_at": "tomorrow"}),
    ("expires_at", "create", (), {"expires_at": "2026-11-20T12:00:00Z\n"}),
    ("not both", "create", (), {"ttl": 1, "expires_at": "2026-11-20T12:00:00Z"}),
    ("takes bytes", "create", ("text/plain", "text"), {}),
    ("JSON", "create", ("application/json", b"bytes"), {}),
    ("JSON", "create", ("application/json", math.nan), {}),
    ("JSON", "create", ("application/json", "\ud800"), {}),
    ("seq", "append", ("x",), {"seq": ""}),
    ("seq", "append", ("x",), {"seq": 7}),
    ("seq", "append", ("x",), {"seq": "a\r\nb"}),
    ("seq", "append", ("x",), {"seq": "é"}),
    ("nothing to append", "append", (), {}),
    ("at is an offset", "fork", ("t",), {"at": "a b"}),
    ("at is an offset", "fork", ("t",), {"at": ""}),
    ("sub_offset", "fork", ("t",), {"sub_offset": -1}),
    ("path", "fork", ("a//b",), {}),
    ("ttl", "fork", ("t",), {"ttl": "1"}),
]


@pytest.mark.parametrize("case", CALLS, ids=str)
def test_calls_are_checked_before_anything_is_sent(
    kind: str, server: FakeServer, case: tuple[str, str, tuple[Any, ...], dict[str, Any]]
) -> None:
    message, name, arguments, options = case
    with pytest.raises(UsageError, match=message):
        Driver(kind, server).call("s", name, *arguments, **options)
    assert not server.requests


def deep(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_a_value_nested_too_deeply_to_be_written_is_refused(kind: str, server: FakeServer) -> None:
    with pytest.raises(UsageError, match="JSON"):
        Driver(kind, server).call("s", "append", deep(200_000))


@pytest.mark.parametrize(
    "options",
    [
        {"offset": ""},
        {"offset": "a&b"},
        {"offset": "1\n"},
        {"offset": 5},
        {"offset": None},
        {"live": "websocket"},
        {"live": True},
        {"live": None},
    ],
    ids=str,
)
def test_reading_is_checked_at_the_call(kind: str, options: dict[str, Any]) -> None:
    """Not only at the first batch: a program may pass on the result of `follow` long before it asks for a batch."""
    client = Client("http://x") if kind == "threads" else AsyncClient("http://x")
    with pytest.raises(UsageError, match=next(iter(options))):
        client.stream("s").follow(**options)


ADDRESSES: list[Any] = [
    "",
    "127.0.0.1:4437/v1/stream",
    "ftp://example/v1/stream",
    "http://",
    "http:///v1/stream",
    "http://example:port/",
    "http://[::1/",
    "http://example/v1/stream?x=1",
    "http://example/v1/stream#x",
    "http://name:secret@example/v1/stream",
    "http://exam ple/",
    "http://example/\n",
    b"http://example",
    None,
]


@pytest.mark.parametrize("made", [Client, AsyncClient])
@pytest.mark.parametrize("address", ADDRESSES, ids=repr)
def test_an_address_is_checked_when_the_client_is_made(made: type[Client] | type[AsyncClient], address: Any) -> None:
    with pytest.raises(UsageError, match="address"):
        made(address)


@pytest.mark.parametrize("token", ["", "a b\n", "é", 7], ids=repr)
@pytest.mark.parametrize("made", [Client, AsyncClient])
def test_a_token_that_no_header_can_carry_is_refused_and_not_shown(
    made: type[Client] | type[AsyncClient], token: Any
) -> None:
    with pytest.raises(UsageError, match="token") as raised:
        made("http://example", token=token)
    assert repr(token) not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("seconds", {"seconds": -1}),
        ("seconds", {"seconds": math.nan}),
        ("seconds", {"seconds": "60"}),
        ("seconds", {"seconds": True}),
        ("first", {"first": 0}),
        ("first", {"first": -0.1}),
        ("longest", {"longest": 0.05}),
        ("longest", {"longest": math.inf}),
        ("longest", {"longest": math.nan}),
    ],
    ids=str,
)
def test_patience_is_checked_when_it_is_made(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=name):
        Retrying(**options)


def test_patience_may_be_endless() -> None:
    assert Retrying(seconds=math.inf).tries().again() is not None


@pytest.mark.parametrize("path", ["\ud800", 3, None, b"s"], ids=repr)
def test_paths_are_text_that_an_address_can_hold(path: Any) -> None:
    with pytest.raises(UsageError, match="is not the path of a stream"):
        Client("http://example").stream(path)


@pytest.mark.parametrize("size", [1, 10, 100])
def test_batches_are_as_large_as_asked(kind: str, server: FakeServer, size: int) -> None:
    wanted = [{"n": number} for number in range(10, 30)]  # 8 bytes each, with a comma in between
    Driver(kind, server).produce("s", "p", wanted, max_batch_bytes=size, max_in_flight=1, max_buffered_bytes=size)
    bodies = [request.content for request in server.requests if request.method == "POST"]
    assert max(len(body) for body in bodies) <= max(size + 12, 10)
    assert server.streams[PATH].messages == wanted


def test_as_many_batches_are_under_way_as_asked(server: FakeServer) -> None:
    under_way: set[str] = set()
    most = 0

    async def main() -> None:
        three = asyncio.Barrier(3)
        seen: set[str] = set()

        async def answer(request: httpx.Request) -> httpx.Response:
            nonlocal most
            number = request.headers.get("producer-seq", "0")
            under_way.add(number)
            most = max(most, len(under_way))
            if number != "0" and number not in seen:  # the first batch goes alone; all others hold three
                seen.add(number)
                await three.wait()
            under_way.discard(number)
            return server.handle(request)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            client = AsyncClient("http://streams.example/v1/stream", http=http, retrying=QUICK)
            async with client.stream("s").producer("p", max_in_flight=3, max_batch_bytes=1) as producer:
                for number in range(10):
                    await producer.append(number)

    asyncio.run(main())
    assert most == 3
    assert server.streams[PATH].messages == list(range(10))
