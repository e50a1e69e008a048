"""The client on a network that loses requests and answers: no message is lost, and none is there twice."""

from __future__ import annotations

import asyncio
import pickle
import sys
import threading
from types import FrameType
from typing import Any

import httpx
import pytest

from opslog.environment import Environment, parse_ts
from opslog.errors import OpslogError, UsageError
from opslog.server.client import (
    AsyncClient,
    Client,
    OutcomeUnknownError,
    ProducerFencedError,
    ProtocolError,
    RequestRefusedError,
    Retrying,
    SequenceGapError,
    StreamClosedError,
    StreamConflictError,
    StreamError,
    StreamGoneError,
    StreamNotFoundError,
    UnavailableError,
    retrying,
)
from opslog.server.client.messages import Reply
from tests.server.client.driving import KINDS, QUICK, URL, Driver, connected
from tests.support.fake_streams import FakeServer, FakeStream

PATH = "/v1/stream/s"


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def mock(kind: str, server: FakeServer) -> Any:
    return httpx.MockTransport(server.handle if kind == "threads" else server.handle_later)


def messages(server: FakeServer) -> list[object]:
    return server.streams[PATH].messages


@pytest.mark.parametrize("seed", range(8))
def test_a_producer_appends_exactly_once_and_in_order(kind: str, seed: int) -> None:
    server = FakeServer(seed)
    server.streams[PATH] = FakeStream()
    wanted = [{"n": number} for number in range(100)]
    Driver(kind, server).produce("s", "p", wanted, end=True, max_batch_bytes=40, max_buffered_bytes=200)
    assert messages(server) == wanted
    assert server.streams[PATH].closed
    if kind == "asyncio":
        return
    assert any(request.headers.get("producer-seq") == "5" for request in server.requests), "it was one batch only"


@pytest.mark.timeout(60)
def test_a_signal_handler_that_interrupts_a_producer_is_refused() -> None:
    """At each place of an append where the handler of a signal could run."""
    server = FakeServer(0)
    server.streams[PATH] = FakeStream()
    accepted: list[dict[str, int]] = []
    refused: list[UsageError] = []
    place, at, reached = 0, 0, True

    def append(message: dict[str, int]) -> None:
        producer.append(message)
        accepted.append(message)

    def handler(frame: FrameType, event: str, argument: object) -> None:
        nonlocal at, reached
        if event in {"call", "c_return"} and frame.f_globals["__name__"].startswith("opslog"):
            at += 1
            if at == place:
                reached = True
                try:
                    append({"of the handler": place})
                except UsageError as error:
                    refused.append(error)

    with connected("threads", URL, mock("threads", server)) as client, client.stream("s").producer("p") as producer:
        while reached:
            place, at, reached = place + 1, 0, False
            sys.setprofile(handler)
            try:
                append({"interrupted": place})
            finally:
                sys.setprofile(None)
    assert len(accepted) > place, "before the call begins, nothing is in the way"
    assert len(refused) > 10
    assert "signal handler" in str(refused[0])
    assert sorted(map(str, messages(server))) == sorted(map(str, accepted))


@pytest.mark.parametrize("live", ["sse", "long-poll"])
@pytest.mark.parametrize("seed", range(8))
def test_a_follower_sees_each_message_once_and_ends_at_the_end(kind: str, seed: int, live: str) -> None:
    server = FakeServer(seed)
    server.streams[PATH] = FakeStream(list(range(20)), closed=True)
    batches = Driver(kind, server).read("s", "follow", live=live)
    assert [message for batch in batches for message in batch.messages] == list(range(20))
    assert [batch.closed for batch in batches] == [False] * (len(batches) - 1) + [True]


@pytest.mark.parametrize("cut", range(0, 160, 3))
def test_following_resumes_wherever_an_event_stream_breaks(cut: int) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream([])
    driver = Driver("threads", server)
    found: list[object] = []

    def seen(batch: object) -> bool:
        found.extend(batch.messages)  # type: ignore[attr-defined]
        stream = server.streams[PATH]
        if not stream.messages:
            stream.messages += ["a", "b"]
            torn = server._answer(httpx.Request("GET", f"http://streams.example{PATH}?live=sse&offset=0")).stream
            torn._whole = min(cut, len(torn._data) - 1)  # type: ignore[union-attr]
            server.answers = [httpx.Response(200, headers={"Content-Type": "text/event-stream"}, stream=torn)]
            stream.closed = True
        return False

    driver.read("s", "follow", live="sse", until=seen)
    assert found == ["a", "b"]


def test_a_fenced_producer_says_who_fenced_it(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream(producers={"p": (4, 0)})
    with pytest.raises(ProducerFencedError, match="epoch=5 or claim=True") as raised:
        Driver(kind, server).produce("s", "p", ["x"], epoch=3)
    assert raised.value.epoch == 4
    assert messages(server) == []


def test_claiming_takes_the_next_epoch_and_fences_the_former_holder(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream(producers={"p": (4, 7)})
    epoch, end = Driver(kind, server).produce("s", "p", ["x"], claim=True)
    assert (epoch, end) == (5, "00001")
    assert server.streams[PATH].producers == {"p": (5, 0)}


def test_a_restart_in_the_same_epoch_is_an_error_instead_of_lost_data(kind: str) -> None:
    """The server takes the first batch for a duplicate, reports success, and drops it."""
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    driver = Driver(kind, server)
    driver.produce("s", "p", ["first"])
    with pytest.raises(ProducerFencedError, match="from another producer with this id and epoch"):
        driver.produce("s", "p", ["second"])
    epoch, _ = driver.produce("s", "p", ["second"], claim=True)
    assert epoch == 1
    assert messages(server) == ["first", "second"]


def test_claiming_does_not_go_on_for_ever(kind: str) -> None:
    """Two processes claim the same id in turn, or a server counts the epoch itself."""
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    replied = server._reply(server.streams[PATH], 200)
    server.answers = [
        replied,
        *(httpx.Response(403, headers={"Producer-Epoch": str(epoch)}) for epoch in range(1, 40, 2)),
    ]
    with pytest.raises(ProducerFencedError, match="epoch=22 or claim=True"):
        Driver(kind, server).produce("s", "p", ["x"], claim=True)


def test_claiming_after_a_lost_answer_is_not_guessed(kind: str) -> None:
    """The lost attempt may have succeeded before another process took over. To send it again might append it twice."""
    server = FakeServer()
    server.streams[PATH] = FakeStream(producers={"p": (4, 7)})
    replied = server._reply(server.streams[PATH], 200)
    server.answers = [replied, httpx.ReadError("lost")]
    with pytest.raises(OutcomeUnknownError, match="an answer was lost before"):
        Driver(kind, server).produce("s", "p", ["x"], claim=True)


def test_a_stream_that_lost_acknowledged_batches_is_an_error(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    replied = server._reply(server.streams[PATH], 200)
    acknowledged = httpx.Response(200, headers={"Producer-Epoch": "0", "Producer-Seq": "0"})
    server.answers = [replied, acknowledged]
    with pytest.raises(SequenceGapError, match="expects batch 0") as raised:
        Driver(kind, server).produce("s", "p", ["x", "y"], max_batch_bytes=1)
    assert (raised.value.expected, raised.value.received) == (0, 1)


def test_an_append_whose_answer_was_lost_is_not_repeated(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    replied = server._reply(server.streams[PATH], 200)
    server.answers = [replied, httpx.ReadTimeout("no answer")]
    with pytest.raises(OutcomeUnknownError, match="read the stream before you repeat it"):
        Driver(kind, server).call("s", "append", "x")
    assert [request.method for request in server.requests] == ["HEAD", "POST"]


@pytest.mark.parametrize("answered", [True, False])
def test_an_append_that_may_be_there_twice_is_repeated(kind: str, answered: bool) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    failure = httpx.Response(500) if answered else httpx.ReadError("lost")
    server.answers = [server._reply(server.streams[PATH], 200), failure]
    assert Driver(kind, server).call("s", "append", "x", at_least_once=True).next_offset == "00001"


def test_an_append_that_was_not_carried_out_is_repeated(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    replied = server._reply(server.streams[PATH], 200)
    server.answers = [replied, httpx.ConnectError("refused"), httpx.Response(429, headers={"Retry-After": "0"})]
    assert Driver(kind, server).call("s", "append", "x").next_offset == "00001"
    assert messages(server) == ["x"]


def test_deleting_again_after_a_lost_answer_is_success(kind: str) -> None:
    server = FakeServer()
    server.answers = [httpx.ReadError("lost")]
    Driver(kind, server).call("s", "delete")
    with pytest.raises(StreamNotFoundError):
        Driver(kind, server).call("s", "delete")


IMPATIENT = Retrying(seconds=0.0, first=0.001)


@pytest.mark.parametrize("down", [True, False])
def test_patience_ends(kind: str, down: bool) -> None:
    def failure() -> Exception | httpx.Response:
        return httpx.ConnectError("refused") if down else httpx.Response(503, text="full")

    server = FakeServer()
    server.answers = [failure()]
    with pytest.raises(UnavailableError, match="try again later"):
        Driver(kind, server, retrying=IMPATIENT).call("s", "head")
    server.answers = [failure()]
    with pytest.raises(UnavailableError, match="try again later"):
        Driver(kind, server, retrying=IMPATIENT).read("s")


ANSWERS: list[tuple[int, dict[str, str], type[StreamError]]] = [
    (400, {}, RequestRefusedError),
    (401, {}, RequestRefusedError),
    (404, {}, StreamNotFoundError),
    (409, {}, StreamConflictError),
    (409, {"Stream-Closed": "true", "Stream-Next-Offset": "7"}, StreamClosedError),
    (410, {}, StreamGoneError),
    (413, {}, RequestRefusedError),
    (301, {}, ProtocolError),
    (200, {}, ProtocolError),
]


@pytest.mark.parametrize(("status", "headers", "kind_of_error"), ANSWERS, ids=str)
def test_every_answer_is_an_error_that_says_what_was_asked(
    kind: str, status: int, headers: dict[str, str], kind_of_error: type[StreamError]
) -> None:
    server = FakeServer()
    server.answers = [httpx.Response(status, headers=headers, text="because")]
    with pytest.raises(kind_of_error, match=r"POST http://streams\.example/v1/stream/s") as raised:
        Driver(kind, server).call("s", "close")
    assert type(raised.value) is kind_of_error
    assert isinstance(raised.value, OpslogError)
    assert raised.value.status == status
    assert status == 200 or raised.value.detail == "because"
    assert vars(pickle.loads(pickle.dumps(raised.value))) == vars(raised.value)


@pytest.mark.parametrize("path", ["", "/", "a//b", "a/../b", "./a"])
def test_paths_that_would_lead_elsewhere_are_refused(path: str) -> None:
    with pytest.raises(UsageError):
        Driver("threads", FakeServer()).call(path, "head")


def test_a_stream_that_disappears_ends_its_followers(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream([1])
    driver = Driver(kind, server, retrying=QUICK)
    with pytest.raises(StreamNotFoundError):
        driver.read("s", "follow", until=lambda batch: server.streams.pop(PATH, None) is None)


@pytest.mark.timeout(60)
def test_the_answers_to_other_batches_do_not_shorten_a_pause() -> None:
    """A server without capacity got requests from each of a producer's threads as fast as it refused the others."""
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    others = threading.Semaphore(0)
    handle = server.handle

    def refusing_the_second(request: httpx.Request) -> httpx.Response:
        number = request.headers.get("producer-seq", "0")
        if number == "1":
            server.requests.append(request)
            return httpx.Response(503)
        answer = handle(request)
        if number != "0":
            others.release()
        return answer

    def appended() -> None:
        with httpx.Client(transport=httpx.MockTransport(refusing_the_second)) as http:
            patient = Retrying(seconds=600, first=300, longest=300)
            stream = Client("http://streams.example/v1/stream", http=http, retrying=patient).stream("s")
            with stream.producer("p", max_batch_bytes=1, max_in_flight=5) as producer:
                producer.append(0, 1, 2, 3, 4)
                for _ in range(3):
                    assert others.acquire(timeout=60)
                raise LookupError("that is all")

    with pytest.raises(LookupError):
        appended()
    assert [request.headers.get("producer-seq") for request in server.requests].count("1") == 1


def test_flushing_waits_for_what_was_appended_before_and_not_for_what_others_append(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    more = iter(range(1, 100))
    appended_when_flushed: list[int] = []

    def run_threads() -> None:
        def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST" and (number := next(more, None)) is not None:
                producer.append(number)
            return server.handle(request)

        with httpx.Client(transport=httpx.MockTransport(answer)) as http:
            stream = Client("http://streams.example/v1/stream", http=http).stream("s")
            with stream.producer("p", max_batch_bytes=1, max_in_flight=1) as producer:
                producer.append(0)
                producer.flush()
                appended_when_flushed.append(len(messages(server)))

    async def run_tasks() -> None:
        async def answer(request: httpx.Request) -> httpx.Response:
            if request.method == "POST" and (number := next(more, None)) is not None:
                await producer.append(number)
            for _ in range(10):  # let others run, as a network would
                await asyncio.sleep(0)
            return server.handle(request)

        async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
            stream = AsyncClient("http://streams.example/v1/stream", http=http).stream("s")
            async with stream.producer("p", max_batch_bytes=1, max_in_flight=1) as producer:
                await producer.append(0)
                await producer.flush()
                appended_when_flushed.append(len(messages(server)))

    if kind == "threads":
        run_threads()
    else:
        asyncio.run(run_tasks())
    assert appended_when_flushed[0] < 100
    assert messages(server) == [*range(len(messages(server)))], "leaving the block waits for the rest"


def test_an_invalid_message_keeps_the_others_of_its_append_out(kind: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    with (
        connected(kind, "http://streams.example/v1/stream", mock(kind, server)) as client,
        client.stream("s").producer("p") as producer,
    ):
        with pytest.raises(UsageError):
            producer.append(1, b"bytes", 2)
        producer.append(3)
    assert messages(server) == [3]


@pytest.mark.parametrize("refusal", [404, 409, 401, 410])
def test_a_refusal_after_a_lost_answer_says_that_the_batch_may_be_there(kind: str, refusal: int) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    replied = server._reply(server.streams[PATH], 200)
    server.answers = [replied, httpx.ReadError("lost"), httpx.Response(refusal, headers={"Stream-Closed": "true"})]
    with pytest.raises(OutcomeUnknownError, match="batch 0 may or may not be appended") as raised:
        Driver(kind, server).produce("s", "p", ["x"])
    assert raised.value.status == refusal


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_answers_that_come_at_once_and_bring_nothing_are_asked_for_less_and_less_often(live: str) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream([1])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        if len(slept) == 6:
            server.streams[PATH].closed = True

    environment = Environment(monotonic=lambda: 5.0, sleep=sleep)
    patient = Retrying(first=0.5, longest=4.0, environment=environment)
    (first, last) = Driver("threads", server, retrying=patient).read("s", "follow", live=live)
    assert (first.messages, last.closed) == ([1], True)
    assert slept == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]


@pytest.mark.parametrize(("status", "error"), [(507, UnavailableError), (501, RequestRefusedError)])
def test_a_request_that_was_certainly_not_carried_out_is_not_unknown(
    kind: str, status: int, error: type[StreamError]
) -> None:
    server = FakeServer()
    server.streams[PATH] = FakeStream()
    server.answers = [server._reply(server.streams[PATH], 200), httpx.Response(status)]
    with pytest.raises(error):
        Driver(kind, server).call("s", "append", 1)
    server.answers = [httpx.Response(520)]
    with pytest.raises(UnavailableError, match="nothing was changed"):
        Driver(kind, server).call("s", "head")


@pytest.mark.parametrize("live", ["long-poll", "sse"])
def test_a_client_with_short_timeouts_can_follow_a_quiet_stream(kind: str, live: str) -> None:
    """httpx gives up after five seconds without a byte, and a server may wait for half a minute."""
    server = FakeServer()
    server.streams[PATH] = FakeStream([1])
    with connected(kind, "http://streams.example/v1/stream", mock(kind, server)) as client:
        driver = Driver(kind, server)

        def close(batch: object) -> bool:
            server.streams[PATH].closed = True
            return False

        driver.read("s", "follow", live=live, until=close)
        client.stream("s").head()
    waits = {request.url.params.get("live"): request.extensions["timeout"]["read"] for request in server.requests}
    assert waits == {None: 5.0, live: 90.0}


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        ("7", 7.0),
        ("Fri, 20 Nov 2026 12:00:30 GMT", 30.0),
        ("Fri, 20 Nov 2026 12:00:30 -0000", 30.0),
        ("Fri, 20 Nov 2026 11:00:00 GMT", 0.0),
        ("", 0.0),
        ("-5", 0.0),
        ("soon", 0.0),
        ("Fri, 99 Nov 2026 12:00:30 GMT", 0.0),
        ("Fri, 20 Nov 99999 12:00:30 GMT", 0.0),
    ],
)
def test_a_server_may_say_when_to_come_back(value: str, pause: float) -> None:
    noon = Environment(time=lambda: parse_ts("2026-11-20T12:00:00Z"))
    assert retrying.asked_pause(Reply(503, {"retry-after": value}), noon) == pause
