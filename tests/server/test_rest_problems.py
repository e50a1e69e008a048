"""Stores over HTTP: what clients and the log learn about failures."""

from __future__ import annotations

import gc
import gzip
import logging
from pathlib import Path

import httpx
import pytest

import opslog
from opslog.doors import problems as doors
from opslog.doors.access import Receive, Scope, Send, named
from opslog.doors.operations import Operations
from opslog.server.http.rest import problems
from opslog.server.http.rest.routes import Call
from opslog.server.http.rest.serving import ROOT
from opslog.server.streams import Streams
from tests.support.rest import Rest, problem


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


def test_a_condition_that_cannot_be_read_says_where(rest: Rest) -> None:
    assert "\n" in problem(rest.ask("GET", "/documents?where=a%20=%20=%201"), 400, "invalid")["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("PUT", "/documents/a", b'{"a": 1,}', "byte 8: not JSON"),
        ("PUT", "/documents/a", '{"ä": 1,}'.encode(), "byte 9: not JSON"),
        ("PATCH", "/documents/a", b'{"a": "\xff"}', "byte 7: not UTF-8"),
        ("POST", "/batch", b'{"ops": [}', "byte 9: not JSON"),
        (
            "POST",
            "/transact",
            b'{"ops": [{"op": "upsert", "id": "a"}]}',
            "'upsert' - at `$.ops[0].op`; possible are create, delete, set",
        ),
        ("POST", "/batch", b'{"ops": 1}', "POST /batch: Expected `array`, got `int` - at `$.ops`"),
    ],
)
def test_a_body_that_cannot_be_read_says_where(rest: Rest, method: str, path: str, body: bytes, says: str) -> None:
    assert says in problem(rest.ask(method, path, body), 400, "invalid")["detail"]


def test_a_compressed_body_is_refused(rest: Rest) -> None:
    answer = rest.ask("PUT", "/documents/a", gzip.compress(b"{}"), Content_Encoding="gzip")
    assert "Content-Encoding" in problem(answer, 415, "invalid")["detail"]


def test_a_refused_write_is_not_kept_in_memory(rest: Rest) -> None:
    """A cycle would keep it until the collector runs, which does not know how large it is."""
    rest.ask("PUT", "/documents/a", {"n": 1})
    op = {"op": "set", "id": "a", "data": {}, "if_stamp": "9@z"}
    gc.collect()
    gc.disable()
    try:
        problem(rest.ask("PUT", "/documents/a", {"n": 2}, If_Match='"9@z"'), 412, "conflict")
        problem(rest.ask("POST", "/transact", {"ops": [op]}), 409, "conflict")
        assert not [one for one in gc.get_objects() if isinstance(one, Call)]
    finally:
        gc.enable()


def test_no_problem_says_where_the_store_is(rest: Rest, tmp_path: Path) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    for method, path, status in (
        ("GET", "/documents/none", 404),
        ("DELETE", "/documents/none", 404),
        ("GET", "/documents?as_of=999999", 400),
        ("GET", "/archives/none", 404),
        ("GET", "/changes?since=x", 400),
    ):
        answer = rest.ask(method, path)
        assert answer.status_code == status, answer.text
        assert str(tmp_path) not in answer.text


@pytest.mark.parametrize(
    ("error", "answered"),
    [
        (opslog.CorruptError("/secret/place/ops/a.jsonl, byte 7", "ops/a.jsonl"), (500, "unreadable")),
        (opslog.LockedError("/secret/place is held by process 17"), (503, "locked")),
        (opslog.WriteFailedError("/secret/place is full"), (507, "unavailable")),
        (opslog.CommitUnknownError("/secret/place gave no answer"), (500, "unknown")),
    ],
)
def test_faults_of_the_storage_are_in_the_log_and_not_in_answers(
    rest: Rest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: opslog.OpslogError,
    answered: tuple[int, str],
) -> None:
    def fail(self: Operations, *args: object) -> None:
        raise error

    monkeypatch.setattr(Operations, "get", fail)
    answer = rest.ask("GET", "/documents/a")
    problem(answer, *answered)
    assert "secret" not in answer.text
    assert [record.error for record in caplog.records if hasattr(record, "error")] == [str(error)]


def test_what_is_logged_of_a_request_and_what_it_is_refused_with_have_its_id(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In threads, too, in which stores do their work."""

    def fail(self: Operations, *args: object) -> None:
        logging.getLogger("opslog.storage").warning("it is slow")
        raise opslog.CorruptError("ops/a.jsonl, byte 7", "ops/a.jsonl")

    monkeypatch.setattr(Operations, "get", fail)
    caplog.handler.addFilter(named)
    with caplog.at_level(logging.DEBUG, "opslog"):
        answer = rest.ask("GET", "/documents/a", x_request_id="me-1")
        assert problem(answer, 500, "unreadable")["request_id"] == answer.headers["x-request-id"] == "me-1"
        rest.ask("GET", "/documents/a")
    caplog.handler.removeFilter(named)
    first, second = caplog.records[:3], caplog.records[3:]
    assert [record.name for record in first] == ["opslog.storage", "opslog.server", "opslog.access"]
    assert {record.__dict__["request_id"] for record in first} == {"me-1"}
    assert len({record.__dict__["request_id"] for record in second}) == 1
    line = first[-1].__dict__
    assert [line[name] for name in ("door", "store", "operation", "status")] == ["http", "tasks", "get", 500]
    assert (line["method"], line["path"]) == ("GET", f"{ROOT}tasks/documents/a")
    assert line["bytes"] == len(answer.content)


@pytest.mark.parametrize("path", [f"{ROOT}tasks/documents/a", "/v1/stream/a"])
def test_a_fault_of_the_server_is_answered_and_logged_with_the_id_of_its_request(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    """A server that runs the application logs the exceptions that it raises, in the same task."""

    def fail(*args: object) -> None:
        raise ZeroDivisionError("/secret/place")

    monkeypatch.setattr(Operations, "get", fail)
    monkeypatch.setattr(Streams, "stream", fail)

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await rest.application(scope, receive, send)
        except ZeroDivisionError:
            logging.getLogger("uvicorn.error").exception("an exception in the application")

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(run), base_url="http://test") as client:
            return await client.get(path, headers={"x-request-id": "me-1"})

    caplog.handler.addFilter(named)
    with caplog.at_level(logging.DEBUG, "opslog"):
        answer = rest.run(ask())
    caplog.handler.removeFilter(named)
    assert (answer.status_code, answer.headers["x-request-id"]) == (500, "me-1")
    assert "secret" not in answer.text
    if path.startswith(ROOT):
        assert problem(answer, 500, "unknown")["request_id"] == "me-1"
    access, raised = (record.__dict__ for record in caplog.records)
    assert (access["name"], access["status"], access["request_id"]) == ("opslog.access", 500, "me-1")
    assert (raised["name"], raised["request_id"]) == ("uvicorn.error", "me-1")
    assert rest.application.metrics.requests["GET", 500] == 1


def test_every_code_of_the_doors_has_a_status() -> None:
    assert set(doors.CODES) <= set(problems.CODES)
