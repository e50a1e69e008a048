"""For any answer of a server, a proxy or a broken network, a client returns correct data, or raises a StreamError that
names the request and the answer."""

from __future__ import annotations

import gzip
import json
import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from opslog.server.client import (
    OutcomeUnknownError,
    ProtocolError,
    Retrying,
    StreamError,
    UnavailableError,
)
from tests.server.client.driving import KINDS, QUICK, Driver
from tests.support.fake_streams import FakeServer, FakeStream

PATH = "/v1/stream/s"
ANSWERED = {"Content-Type": "application/json", "Stream-Next-Offset": "00002"}
UP_TO_DATE = {**ANSWERED, "Stream-Up-To-Date": "true"}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def answering(*answers: httpx.Response, stream: FakeStream | None = None) -> FakeServer:
    server = FakeServer()
    server.answers = list(answers)
    server.streams[PATH] = stream or FakeStream([1, 2], closed=True)
    return server


BODIES = {
    "cut": b'[{"key": "some lo',
    "empty": b"",
    "corrupt": b'XY"key": 1}]',
    "no array": b'{"key": 1}',
    "NaN": b"[NaN]",
    "UTF-16": '["a"]'.encode("utf-16-le"),
    "not UTF-8": b'["\xff"]',
    "two values": b"[1][2]",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("name", ["read", "follow"])
def test_json_that_is_cut_off_or_damaged_is_no_batch(kind: str, name: str, body: bytes) -> None:
    server = answering(httpx.Response(200, headers=UP_TO_DATE, content=body))
    with pytest.raises(ProtocolError, match=r"GET http://streams\.example/v1/stream/s\?offset=-1 was answered 200"):
        Driver(kind, server).read("s", name)
    (batch,) = Driver(kind, server).read("s", name)
    assert batch.messages == [1, 2], "reading again is not possible"


@pytest.mark.parametrize("number", ["9" * 5000, "[" * 100_000 + "]" * 100_000], ids=["digits", "depth"])
def test_messages_that_python_cannot_hold_can_be_read_as_bytes(kind: str, number: str) -> None:
    body = f"[1,{number}]".encode()
    server = answering(httpx.Response(200, headers=UP_TO_DATE, content=body))
    (batch,) = Driver(kind, server).read("s")
    assert batch.data == body
    with pytest.raises(ProtocolError, match=r"before 00002 cannot be decoded: .*\.data has their bytes"):
        batch.messages  # noqa: B018  (it raises)


EVENTS = {
    "no JSON": "event: control\ndata: {invalid json\n\n",
    "empty": "event: control\ndata:\n\n",
    "no object": "event: control\ndata: [1]\n\n",
    "no offset": "event: control\ndata: {}\n\n",
    "a number as offset": 'event: control\ndata: {"streamNextOffset": 3}\n\n',
    "a reserved offset": 'event: control\ndata: {"streamNextOffset": "-1"}\n\n',
    "an offset that splits an address": 'event: control\ndata: {"streamNextOffset": "3&live=sse"}\n\n',
    "half a character as offset": 'event: control\ndata: {"streamNextOffset": "\\ud800"}\n\n',
    "an object as cursor": 'event: control\ndata: {"streamNextOffset": "00003", "streamCursor": {}}\n\n',
    "a word as truth": 'event: control\ndata: {"streamNextOffset": "00003", "streamClosed": "yes"}\n\n',
    "deeper than Python goes": "event: control\ndata: " + "[" * 100_000 + "\n\n",
    "damaged data": 'event: data\ndata: [1,\n\nevent: control\ndata: {"streamNextOffset": "00003"}\n\n',
    "data and no new offset": 'event: data\ndata: [1]\n\nevent: control\ndata: {"streamNextOffset": "00002"}\n\n',
    "an offset that goes back": 'event: control\ndata: {"streamNextOffset": "00001"}\n\n',
}


@pytest.mark.parametrize("events", EVENTS.values(), ids=EVENTS)
def test_events_that_make_no_sense_are_errors(kind: str, events: str) -> None:
    server = answering(
        httpx.Response(200, headers=UP_TO_DATE, content=b"[1, 2]"),
        httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=events.encode()),
    )
    with pytest.raises(ProtocolError, match=r"GET .*live=sse&offset=00002 was answered 200 with"):
        Driver(kind, server).read("s", "follow", live="sse")


def test_events_of_other_kinds_are_passed_over(kind: str) -> None:
    events = 'event: from-the-future\ndata: {"x"\n\nevent: control\ndata: {"streamNextOffset": "00003", "new": 1}\n\n'
    server = answering(
        httpx.Response(200, headers=UP_TO_DATE, content=b"[1, 2]"),
        httpx.Response(200, headers={"Content-Type": "text/event-stream"}, content=events.encode()),
        stream=FakeStream([1, 2, 3], closed=True),
    )
    batches = Driver(kind, server).read("s", "follow", live="sse")
    assert [batch.messages for batch in batches] == [[1, 2], []]


BINARY = {"Content-Type": "application/octet-stream", "Stream-Next-Offset": "2", "Stream-Up-To-Date": "true"}
CONTROL = b'event: control\ndata: {"streamNextOffset": "3", "streamClosed": true}\n\n'


@pytest.mark.parametrize(
    ("content_type", "encoding", "events"),
    [
        ("application/octet-stream", "base64", b"event: data\ndata: Q=Q=\n\n" + CONTROL),
        ("application/octet-stream", "base64", "event: data\ndata: ÄÖ==\n\n".encode() + CONTROL),
        ("application/octet-stream", "base64", b"event: data\ndata: QQ=\n\n" + CONTROL),
        ("application/octet-stream", "", b"event: data\ndata: QQ==\n\n" + CONTROL),
        ("application/octet-stream", "rot13", b"event: data\ndata: QQ==\n\n" + CONTROL),
        ("text/plain", "base64", b"event: data\ndata: QQ==\n\n" + CONTROL),
        ("text/plain", "", b"event: data\ndata: \xff\n\n" + CONTROL),
    ],
    ids=str,
)
def test_data_events_in_another_encoding_than_they_say_are_errors(
    kind: str, content_type: str, encoding: str, events: bytes
) -> None:
    headers = {"Content-Type": "text/event-stream", **({"Stream-SSE-Data-Encoding": encoding} if encoding else {})}
    server = answering(
        httpx.Response(200, headers={**BINARY, "Content-Type": content_type}, content=b"x"),
        httpx.Response(200, headers=headers, content=events),
    )
    with pytest.raises(ProtocolError, match="use live='long-poll'"):
        Driver(kind, server).read("s", "follow", live="sse")


HEADERS: dict[str, dict[str, str]] = {
    "no offset": {"Stream-Next-Offset": ""},
    "a reserved offset": {"Stream-Next-Offset": "now"},
    "two offsets": {"Stream-Next-Offset": "1, 2"},
    "an offset that splits an address": {"Stream-Next-Offset": "1?x"},
    "no type": {"Content-Type": ""},
    "a ttl of half a second": {"Stream-TTL": "0.5"},
    "a ttl of many digits": {"Stream-TTL": "9" * 5000},
}


@pytest.mark.parametrize("headers", HEADERS.values(), ids=HEADERS)
def test_headers_that_make_no_sense_are_errors(kind: str, headers: dict[str, str]) -> None:
    with pytest.raises(ProtocolError, match=r"HEAD http://streams\.example/v1/stream/s was answered 200 with"):
        Driver(kind, answering(httpx.Response(200, headers={**ANSWERED, **headers}))).call("s", "head")


def login() -> httpx.Response:
    return httpx.Response(200, headers={"Content-Type": "text/html"}, content=b"<h1>Please log in</h1>")


@pytest.mark.parametrize("name", ["head", "close", "delete", "create"])
def test_the_login_page_of_a_proxy_is_no_success(kind: str, name: str) -> None:
    with pytest.raises(ProtocolError, match="is that the address of a stream"):
        Driver(kind, answering(login())).call("s", name)


def test_the_login_page_of_a_proxy_acknowledges_no_batch(kind: str) -> None:
    server = answering(httpx.Response(200, headers=ANSWERED), login())
    with pytest.raises(ProtocolError, match="without this epoch and batch"):
        Driver(kind, server).produce("s", "p", ["x"])


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (200, {"Producer-Epoch": "x", "Producer-Seq": "0"}),
        (200, {"Producer-Epoch": "0", "Producer-Seq": "1_0"}),
        (204, {}),
        (403, {"Producer-Epoch": "many"}),
        (403, {"Producer-Epoch": "0"}),
        (409, {"Producer-Expected-Seq": "-1"}),
        (409, {"Producer-Expected-Seq": "9" * 5000}),
    ],
    ids=lambda value: str(value)[:60],
)
def test_numbers_for_producers_that_make_no_sense_end_the_producer(
    kind: str, status: int, headers: dict[str, str]
) -> None:
    server = answering(httpx.Response(200, headers=ANSWERED), httpx.Response(status, headers=headers))
    with pytest.raises(ProtocolError, match=rf"POST .* was answered {status} with"):
        Driver(kind, server).produce("s", "p", ["x"])


def test_a_server_that_does_not_close_is_not_believed(kind: str) -> None:
    server = answering(httpx.Response(204, headers=ANSWERED))
    with pytest.raises(ProtocolError, match="does not close streams"):
        Driver(kind, server).call("s", "close")
    echoed = {"Producer-Epoch": "0", "Producer-Seq": "0"}
    server = answering(httpx.Response(200, headers=ANSWERED), httpx.Response(204, headers={**ANSWERED, **echoed}))
    with pytest.raises(ProtocolError, match="does not close streams"):
        Driver(kind, server).produce("s", "p", [], end=True)


def test_another_stream_under_the_same_address_is_noticed(kind: str) -> None:
    server = answering(
        httpx.Response(200, headers=ANSWERED, content=b"[1, 2]"),
        httpx.Response(200, headers={**UP_TO_DATE, "Stream-Next-Offset": "00001"}, content=b"[]"),
    )
    with pytest.raises(ProtocolError, match="another stream was made at this address"):
        Driver(kind, server).read("s")
    server = answering(
        httpx.Response(200, headers=ANSWERED, content=b"[1, 2]"),
        httpx.Response(200, headers={**UP_TO_DATE, "Content-Type": "text/plain", "Stream-Next-Offset": "00003"}),
    )
    with pytest.raises(ProtocolError, match="'text/plain' after 'application/json'"):
        Driver(kind, server).read("s")


def test_a_redirect_says_where_to(kind: str) -> None:
    server = answering(httpx.Response(308, headers={"Location": "https://elsewhere.example/"}))
    with pytest.raises(ProtocolError, match=r"308 leads to 'https://elsewhere\.example/'; use that address"):
        Driver(kind, server).read("s")


# -- what the connection itself does


@contextmanager
def saying(answer: bytes) -> Iterator[str]:
    """The address of a server that gives everybody the same answer and closes the connection."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:
                    return
                with connection:
                    asked = b""
                    while b"\r\n\r\n" not in asked:
                        asked += connection.recv(65536)
                    connection.sendall(answer)
                    connection.shutdown(socket.SHUT_WR)
                    connection.recv(65536)  # until the client has closed it

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/v1/stream"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(timeout=60)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nStream-Next-Offset: 2\r\nStream-Up-To-Date: true\r\n"
RAW: dict[str, tuple[bytes, type[StreamError]]] = {
    "nothing": (b"", UnavailableError),
    "no HTTP": (b"SSH-2.0-OpenSSH_9.2\r\n", UnavailableError),
    "half a head": (HEAD, UnavailableError),
    "half a body": (HEAD + b"Content-Length: 100\r\n\r\n[1,", UnavailableError),
    "half a chunk": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n10\r\n[1,", UnavailableError),
    "a chunk of nonsense": (HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n[1]", UnavailableError),
    "a body that ends with the connection": (HEAD + b"\r\n[1,", ProtocolError),
    "no gzip": (HEAD + b"Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\n[1]", ProtocolError),
    "a head that is no text": (HEAD + b"Stream-Cursor: \xff\xfe\r\nContent-Length: 3\r\n\r\n[1]", ProtocolError),
    "a redirect that leads nowhere": (b"HTTP/1.1 301 x\r\nLocation: A:0\r\nContent-Length: 0\r\n\r\n", ProtocolError),
    "a damaged gzip": (
        HEAD + b"Content-Encoding: gzip\r\n\r\n" + gzip.compress(b"[1]" * 99)[:12] + b"\xff" * 20,
        ProtocolError,
    ),
}
ONCE = Retrying(seconds=0)


@pytest.mark.parametrize(("answer", "error"), RAW.values(), ids=RAW)
def test_a_connection_that_breaks_or_lies_is_a_stream_error(kind: str, answer: bytes, error: type[StreamError]) -> None:
    with saying(answer) as url:
        driver = Driver(kind, None, url=url, retrying=ONCE)
        with pytest.raises(error, match="GET http://127"):
            driver.read("s")


@pytest.mark.parametrize("answer", ["nothing", "half a head", "half a body", "no gzip"])
def test_an_append_with_such_an_answer_may_have_been_carried_out(kind: str, answer: str) -> None:
    with saying(RAW[answer][0]) as url:
        driver = Driver(kind, None, url=url, retrying=ONCE)
        with pytest.raises(OutcomeUnknownError, match="may or may not have been carried out"):
            driver.call("s", "close")


# -- anything at all

TEXTS = st.one_of(
    st.sampled_from(["", "true", "TRUE", "-1", "now", "00001", "00002", "5", "0", "1e3", "²", "é", "a,b", "9" * 400]),
    st.text(st.characters(min_codepoint=32, max_codepoint=255, exclude_characters="\x7f"), max_size=8),
)
FIELDS = [
    *("Content-Type", "Location", "Stream-Next-Offset", "Stream-Up-To-Date", "Stream-Closed", "Stream-Cursor"),
    *("Stream-TTL", "Stream-Expires-At", "Producer-Epoch", "Producer-Seq", "Producer-Expected-Seq"),
    "Stream-SSE-Data-Encoding",
]
TYPES = ["application/json", "text/plain", "text/event-stream", "application/octet-stream", "text/html", ";", "json"]
GOOD_BODIES = [
    b"[]",
    b'[1, {"a": [null, "\xc3\xa9"]}]',
    b'event: data\ndata: [1]\n\nevent: control\ndata: {"streamNextOffset": "00003", "streamCursor": "7"}\n\n',
    b'event: control\ndata: {"streamNextOffset": "00004", "streamClosed": true}\n\n',
]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """A body as servers send it: whole, cut off, or with some of its bytes changed."""
    body = bytearray(draw(st.sampled_from(GOOD_BODIES)))
    for _ in range(draw(st.integers(0, 3))):
        body[draw(st.integers(0, len(body) - 1))] = draw(st.integers(0, 255))
    return bytes(body[: draw(st.integers(0, len(body)))] if draw(st.booleans()) else body)


@st.composite
def responses(draw: st.DrawFn) -> tuple[int, dict[str, bytes], bytes]:
    status = draw(
        st.sampled_from([200, 200, 200, 200, 201, 204, 204, 206, 301, 304, 400, 403, 404, 409, 410, 429, 500, 503])
    )
    headers = draw(st.dictionaries(st.sampled_from(FIELDS), TEXTS, max_size=6))
    if draw(st.booleans()):
        headers["Content-Type"] = draw(st.sampled_from(TYPES))
    if draw(st.booleans()):
        headers["Stream-Next-Offset"] = draw(st.sampled_from(["00001", "00002", "00003"]))
    encoded = {name: value.encode("latin-1") for name, value in headers.items()}
    return status, encoded, draw(st.one_of(st.binary(max_size=20), damaged()))


CALLS: list[tuple[str, Any]] = [
    ("head", ()),
    ("create", ("application/json", 1)),
    ("append", (1,)),
    ("close", ()),
    ("delete", ()),
    ("fork", ("t",)),
]


@pytest.mark.parametrize("what", [*(name for name, _ in CALLS), "read", "sse", "long-poll", "produce"])
@given(found=st.lists(responses(), min_size=1, max_size=3))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_answer_at_all_is_a_result_or_a_stream_error(
    kind: str, what: str, found: list[tuple[int, dict[str, bytes], bytes]]
) -> None:
    answers = [
        httpx.Response(status, headers=[(name.encode(), value) for name, value in headers.items()], content=body)
        for status, headers, body in found
    ]
    if what in {"append", "produce"}:  # these first ask for the content type, which decides what can be appended
        answers.insert(0, httpx.Response(200, headers=ANSWERED))
    server = answering(*answers)
    server.streams["/v1/stream/t"] = FakeStream()
    driver = Driver(kind, server, retrying=QUICK)
    try:
        if what == "produce":
            driver.produce("s", "p", [1])
        elif what == "read":
            assert all(isinstance(batch.data, bytes) for batch in driver.read("s"))
        elif what in {"sse", "long-poll"}:
            driver.read("s", "follow", live=what)
        else:
            driver.call("s", what, *dict(CALLS)[what])
    except StreamError as error:
        assert "http://streams.example/v1/stream/" in str(error)  # noqa: PT017  (some answers are fine)


@pytest.mark.parametrize("seed", range(20))
def test_damage_to_a_body_is_never_data(kind: str, seed: int) -> None:
    """If one byte of a JSON stream changed anywhere, a client returns the server's content, or raises an error."""
    chance = random.Random(seed)
    wanted = [{"n": number, "text": "äöü"} for number in range(3)]
    body = bytearray(json.dumps(wanted, ensure_ascii=False).encode())
    place = chance.randrange(len(body))
    body[place] ^= 0x80  # a byte of valid text with this bit changed is never valid in the same place
    server = answering(httpx.Response(200, headers=UP_TO_DATE, content=bytes(body)))
    with pytest.raises(ProtocolError, match="utf-8"):
        Driver(kind, server).read("s")
