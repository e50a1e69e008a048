"""Faults on demand."""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.support.servers import Server, http, serving

TEXT = {"content-type": "text/plain"}


@pytest.fixture
def server() -> Iterator[Server]:
    with serving("--memory", "--faults", "--sse-seconds", "1", "--long-poll-seconds", "0.2") as running:
        http("PUT", f"{running.url}/a", content=b"abcdefgh", headers=TEXT)
        yield running


def inject(server: Server, **fault: object) -> int:
    return http("POST", f"{server.root}/_test/inject-error", json={"path": "/v1/stream/a", **fault}).status_code


def get(server: Server, **params: str) -> httpx.Response:
    return http("GET", f"{server.url}/a", params=params)


def test_each_kind_of_fault(server: Server) -> None:
    assert inject(server, status=503, count=2, retryAfter=7) == 200
    assert [get(server).status_code, get(server).headers["retry-after"]] == [503, "7"]
    assert get(server).text == "abcdefgh"
    inject(server, status=500, method="POST")
    assert get(server).status_code == 200
    assert http("POST", f"{server.url}/a", content=b"x", headers=TEXT).status_code == 500
    inject(server, dropConnection=True)
    with pytest.raises(httpx.RemoteProtocolError):
        get(server)
    inject(server, truncateBodyBytes=3)
    assert get(server).text == "abc"
    inject(server, corruptBody=True)
    assert get(server).text == "XYcdefgh"
    inject(server, delayMs=30, jitterMs=10)
    assert get(server).elapsed.total_seconds() >= 0.03
    inject(server, injectSseEvent={"eventType": "unknown", "data": "odd"})
    assert get(server, offset="-1", live="sse").text.startswith(
        "event: unknown\ndata: odd\n\nevent: data\ndata:abcdefgh"
    )
    inject(server, status=500, probability=0)
    assert get(server).status_code == 200


def test_faults_that_are_none(server: Server) -> None:
    assert inject(server) == 400
    assert inject(server, status="x") == 400
    assert http("GET", f"{server.root}/_test/inject-error").status_code == 405
    inject(server, status=500)
    assert http("DELETE", f"{server.root}/_test/inject-error").json() == {"ok": True}
    assert get(server).status_code == 200


def test_every_answer_has_the_id_of_its_request(server: Server) -> None:
    control, path = f"{server.root}/_test/inject-error", "/v1/stream/a"
    named = {"x-request-id": "of-the-client"}
    for fault in ({"status": 503}, {"truncateBodyBytes": 3}, {"delayMs": 1}):
        answers = [
            http("POST", control, json={"path": path, **fault}, headers=named),
            http("GET", f"{server.url}/a", headers=named),
        ]
        assert [answer.headers.get_list("x-request-id") for answer in answers] == [["of-the-client"]] * 2, fault
    inject(server, dropConnection=True)
    with httpx.Client() as client, client.stream("GET", f"{server.url}/a", headers=named) as broken:
        assert broken.headers["x-request-id"] == "of-the-client"
    for refused in (http("GET", control), http("POST", control, json={"path": path})):
        assert refused.headers["x-request-id"], "made by the server where the client gives none"


def test_nobody_breaks_a_server_that_was_not_asked_to_be(server: Server) -> None:
    with serving("--memory") as usual:
        assert inject(usual, status=500) == 404
