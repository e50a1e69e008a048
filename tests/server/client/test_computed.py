"""Headers and parameters of the caller: each request carries them, computed anew."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from opslog.errors import UsageError
from opslog.server.client import AsyncClient, Client, ProtocolError, RequestRefusedError
from opslog.server.client.computed import AsyncValues
from tests.server.client.driving import KINDS, Driver
from tests.support.fake_streams import FakeServer, FakeStream

PATH = "/v1/stream/s"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Counter:
    """Returns 1, 2, 3…"""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> str:
        self.count += 1
        return str(self.count)

    async def later(self) -> str:
        await asyncio.sleep(0)
        return self()

    def whole(self) -> dict[str, str]:
        return {"X-Number": self()}

    async def whole_later(self) -> dict[str, str]:
        return {"X-Number": await self.later()}


def numbers(server: FakeServer) -> list[str | None]:
    return [request.headers.get("x-number") for request in server.requests]


WAYS: list[tuple[str, Callable[[Counter], AsyncValues]]] = [
    ("threads", lambda counter: {"X-Number": counter}),
    ("threads", lambda counter: counter.whole),
    ("asyncio", lambda counter: {"X-Number": counter}),
    ("asyncio", lambda counter: {"X-Number": counter.later}),
    ("asyncio", lambda counter: counter.whole),
    ("asyncio", lambda counter: counter.whole_later),
]


@pytest.mark.parametrize(("kind", "headers"), WAYS)
def test_headers_are_computed_for_each_request_retry_and_reconnection(
    kind: str, headers: Callable[[Counter], AsyncValues]
) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream([1], closed=True)
    server.answers = [httpx.Response(503), httpx.ConnectError("refused")]
    driver = Driver(kind, server, headers=headers(Counter()))
    driver.call("s", "head")
    assert numbers(server) == ["1", "2", "3"]
    server.requests.clear()
    server.answers = [httpx.ReadError("lost"), httpx.Response(503)]
    driver = Driver(kind, server, headers=headers(Counter()))
    driver.read("s", "follow", live="sse")
    assert numbers(server) == ["1", "2", "3"]


@pytest.mark.parametrize(("kind", "headers"), WAYS)
def test_a_producer_computes_them_for_each_batch(kind: str, headers: Callable[[Counter], AsyncValues]) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    Driver(kind, server, headers=headers(Counter())).produce("s", "p", [1, 2, 3], max_batch_bytes=1, max_in_flight=1)
    assert numbers(server) == ["1", "2", "3", "4"]


def test_a_token_is_renewed_where_a_fixed_one_is_refused(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    token = ["old"]
    asked = server.handle

    def checked(request: httpx.Request) -> httpx.Response:
        return asked(request) if request.headers["authorization"] == "Bearer new" else httpx.Response(401)

    server.handle = checked  # type: ignore[method-assign]
    driver = Driver(kind, server, headers={"Authorization": lambda: f"Bearer {token[0]}"})
    with pytest.raises(RequestRefusedError):
        driver.call("s", "head")
    token[0] = "new"
    driver.call("s", "head")


def test_parameters_are_sorted_into_the_address_and_not_shown_in_errors(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream([1], closed=True)
    driver = Driver(kind, server, params={"signature": Counter(), "a b": "c&d"})
    driver.read("s")
    assert str(server.requests[0].url).endswith("/s?a%20b=c%26d&offset=-1&signature=1")
    driver.call("s", "head")
    assert str(server.requests[1].url).endswith("/s?a%20b=c%26d&signature=2")
    server.answers = [httpx.Response(200)]
    with pytest.raises(ProtocolError) as raised:
        driver.read("s")
    assert "signature" not in str(raised.value)
    assert raised.value.url == "http://streams.example/v1/stream/s?offset=-1"


def test_headers_that_a_request_needs_go_before_those_of_the_caller(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    Driver(kind, server, headers={"X-A": "1", "x-a": "2", "authorization": "Basic eA=="}).call("s", "append", 1)
    sent = server.requests[-1].headers
    assert (sent["x-a"], sent["authorization"], sent["content-type"]) == ("2", "Basic eA==", "application/json")


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("headers are a mapping", {"headers": [("X-A", "1")]}),
    ("'X A' is not the name", {"headers": {"X A": "1"}}),
    ("'' is not the name", {"headers": {"": "1"}}),
    ("value of the header X-A", {"headers": {"X-A": "s3cret\r\nX-B: 2"}}),
    ("value of the header X-A", {"headers": {"X-A": "é"}}),
    ("value of the header X-A", {"headers": {"X-A": 1}}),
    ("value of the header X-A", {"headers": {"X-A": ""}}),
    ("Content-Type is set by the client", {"headers": {"Content-Type": "text/plain"}}),
    ("stream-closed is set by the client", {"headers": {"stream-closed": "true"}}),
    ("Producer-Id is set by the client", {"headers": {"Producer-Id": "x"}}),
    ("not both", {"headers": {"authorization": "x"}, "token": "y"}),
    ("'offset' cannot be", {"params": {"offset": "1"}}),
    ("'' cannot be", {"params": {"": "1"}}),
    ("value of the parameter a", {"params": {"a": 1}}),
    ("value of the parameter a", {"params": {"a": "\ud800"}}),
    ("params are a mapping", {"params": "a=b"}),
]


@pytest.mark.parametrize(("message", "options"), REFUSED, ids=str)
def test_values_that_cannot_be_sent_are_refused_when_the_client_is_made(message: str, options: dict[str, Any]) -> None:
    for made in (Client, AsyncClient):
        with pytest.raises(UsageError, match=message) as raised:
            made("http://example", **options)
        assert "s3cret" not in str(raised.value)


@pytest.mark.parametrize("computed", ["s3cret\n", "", None, 5, b"x"], ids=repr)
def test_values_that_cannot_be_sent_are_refused_when_they_are_computed(kind: str, computed: Any) -> None:
    server = FakeServer()
    for headers in ({"X-A": lambda: computed}, lambda: {"X-A": computed}, lambda: computed):
        with pytest.raises(UsageError, match=r"value of the header X-A|instead of a mapping") as raised:
            Driver(kind, server, headers=headers).call("s", "head")
        assert "s3cret" not in str(raised.value)
    assert not server.requests


def test_coroutine_functions_are_for_the_client_for_asyncio() -> None:
    server = FakeServer()
    with pytest.raises(UsageError, match="AsyncClient awaits others"):
        Driver("threads", server, headers={"X-A": Counter().later}).call("s", "head")
    assert not server.requests


class NoToken(Exception):
    pass


@pytest.mark.timeout(60)
def test_an_error_of_a_function_ends_the_call(kind: str) -> None:
    left = [3]

    def token() -> str:
        left[0] -= 1
        if left[0] < 0:
            raise NoToken
        return "x"

    server = FakeServer()
    server.streams[PATH] = FakeStream()
    driver = Driver(kind, server, headers={"X-A": token})
    with pytest.raises(NoToken):
        driver.produce("s", "p", [1, 2, 3, 4], max_batch_bytes=1, max_in_flight=1)
    assert server.streams[PATH].messages == [1, 2]
    with pytest.raises(NoToken):
        driver.call("s", "head")
    with pytest.raises(NoToken):
        driver.read("s")


@pytest.mark.timeout(60)
def test_callers_that_wait_for_a_producer_learn_that_the_client_was_closed() -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    http = httpx.Client(transport=httpx.MockTransport(server.handle))
    stream = Client("http://streams.example/v1/stream", http=http).stream("s")
    producer = stream.producer("p")
    batches = stream.follow()
    next(batches)
    http.close()
    with pytest.raises(UsageError, match="this client is closed"):
        stream.head()
    with pytest.raises(UsageError, match="this client is closed"):
        next(batches)
    producer.append(1)
    with pytest.raises(UsageError, match="this client is closed"):
        producer.flush()
    with pytest.raises(UsageError, match="this client is closed"):
        producer.close()


@pytest.mark.timeout(60)
def test_a_closed_producer_says_so_instead_of_waiting_for_ever() -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    with httpx.Client(transport=httpx.MockTransport(server.handle)) as http:
        with Client("http://streams.example/v1/stream", http=http).stream("s").producer("p") as producer:
            producer.append(1)
        assert producer.flush() == "00001"
        for call in (lambda: producer.append(2), producer.end):
            with pytest.raises(UsageError, match="this producer is closed"):
                call()

    async def main() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(server.handle_later)) as http:
            stream = AsyncClient("http://streams.example/v1/stream", http=http).stream("s")
            producer = stream.producer("q", epoch=4)
            with pytest.raises(UsageError, match="enter a producer"):
                await producer.append(2)
            with pytest.raises(UsageError, match="enter a producer"):
                await producer.flush()
            assert producer.epoch == 4
            async with producer:
                await producer.append(2)
            assert await producer.flush() == "00002"
            with pytest.raises(UsageError, match="this producer is closed"):
                await producer.append(3)

    asyncio.run(main())
    assert server.streams[PATH].messages == [1, 2]
