"""Requests as the operator of a server sees them: their ids, and the lines of the log."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
from collections.abc import Callable
from typing import Any

import pytest

from opslog.doors.access import Message, Receive, Request, Scope, Send, accounted, named, working_for
from opslog.doors.logs import JsonLines, Lines

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MADE = re.compile("[0-9a-f]{16}")


def scope(*headers: tuple[str, str], path: str = "/a", query: str = "") -> Scope:
    raw = path.encode() + (b"?" + query.encode() if query else b"")
    given = [(name.encode(), value.encode()) for name, value in headers]
    return {"type": "http", "method": "GET", "path": path, "raw_path": raw, "headers": given}


async def ignore(message: Message) -> None:
    pass


def begun(*headers: tuple[str, str]) -> Request:
    request = Request(scope(*headers), ignore)
    request.end()
    return request


@pytest.mark.parametrize(
    ("headers", "id"),
    [
        ([("x-request-id", "a-B.1_2+/=:")], "a-B.1_2+/=:"),
        ([("x-request-id", "x" * 128)], "x" * 128),
        ([("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")], TRACE),
        ([("x-request-id", "mine"), ("traceparent", f"00-{TRACE}-00f067aa0ba902b7-01")], "mine"),
        ([("x-request-id", "with space"), ("traceparent", f"01-{TRACE}-00f067aa0ba902b7-01-more")], TRACE),
    ],
)
def test_a_client_may_name_its_request(headers: list[tuple[str, str]], id: str) -> None:
    assert begun(*headers).id == id


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("x-request-id", "")],
        [("x-request-id", "x" * 129)],
        [("x-request-id", "a\nb")],
        [("x-request-id", 'a"b')],
        [("x-request-id", "é")],
        [("x-request-id", "one"), ("x-request-id", "two")],
        [("traceparent", f"00-{'0' * 32}-00f067aa0ba902b7-01")],
        [("traceparent", TRACE)],
    ],
)
def test_what_cannot_be_a_name_is_replaced(headers: list[tuple[str, str]]) -> None:
    ids = {begun(*headers).id for _ in range(10)}
    assert len(ids) == 10
    assert all(MADE.fullmatch(id) for id in ids)


def test_a_forked_process_makes_ids_of_its_own(forked: Callable[[Callable[[], None]], None]) -> None:
    begun()  # the next ids are drawn now
    reader, writer = os.pipe()

    def child() -> None:
        os.write(writer, begun().id.encode())

    forked(child)
    made = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert MADE.fullmatch(made)
    assert made not in {begun().id for _ in range(1000)}


def test_each_request_has_one_line_without_its_query(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/left":
            raise ConnectionError
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"123", "more_body": True})
        await send({"type": "http.response.body", "body": b"45"})

    async def nothing() -> Message:
        raise AssertionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def run() -> None:
        await accounted(answer)(scope(("x-request-id", "one"), path="/a", query="token=secret"), nothing, send)
        with pytest.raises(ConnectionError):
            await accounted(answer)(scope(path="/left"), nothing, send)
        await accounted(answer)(scope(path="/" + "x" * 1000), nothing, send)

    with caplog.at_level(logging.DEBUG, "opslog.access"):
        asyncio.run(run())
    first, left, long = (record.__dict__ for record in caplog.records)
    assert sent[0]["headers"] == [(b"x-request-id", b"one")]
    fields = ("request_id", "method", "path", "status", "bytes")
    assert [first[name] for name in fields] == ["one", "GET", "/a", 200, 5]
    assert first["ms"] >= 0
    assert left["status"] is None
    assert len(long["path"]) < 600


def test_the_line_is_of_level_debug(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "opslog.access"):
        begun()
    assert not caplog.records


def record(**extra: Any) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "opslog.storage", "msg": "slow", "levelname": "WARNING", **extra})
    named(made)
    return made


def test_what_is_logged_for_a_request_has_its_id() -> None:
    request = begun(("x-request-id", "mine"))
    assert "request_id" not in json.loads(JsonLines().format(record()))
    with working_for(request):
        assert json.loads(JsonLines().format(record()))["request_id"] == "mine"
        assert json.loads(JsonLines().format(record(request_id="other")))["request_id"] == "other"
    assert "request_id" not in json.loads(JsonLines().format(record()))


def test_an_exception_that_goes_on_is_logged_with_the_id() -> None:
    """The program that runs the application logs it, in the task of the request."""

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def nothing() -> Message:
        raise AssertionError

    async def run() -> None:
        with pytest.raises(ZeroDivisionError):
            await accounted(fail)(scope(("x-request-id", "one")), nothing, ignore)
        assert json.loads(JsonLines().format(record()))["request_id"] == "one"

    asyncio.run(run())


def test_a_value_cannot_pass_for_another_line() -> None:
    text = Lines().format(record(path="/a\n2026-11-24 error", status=200))
    assert "\n" not in text
    assert text.endswith(" slow path='/a\\n2026-11-24 error' status=200")
