"""Stores over HTTP: what answers take in memory."""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest

from opslog.doors import operations
from opslog.doors.values import Entry, entry_of
from opslog.format.commits import Set
from opslog.server.http.budget import Budget
from opslog.server.http.rest import handlers
from opslog.server.protocol.refusals import Refused
from tests.support.rest import Rest, problem

MB = 10**6


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


def test_an_answer_counts_until_it_is_sent(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"text": "x" * MB})
    rest.ask("PUT", "/documents/short", {})
    application = rest.application
    held: list[int] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        held.append(application.budget.held)

    async def receive() -> MutableMapping[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    path = "/v1/store/tasks/documents"
    scope = {"type": "http", "method": "GET", "path": path, "headers": [], "query_string": b""}
    rest.run(application(scope, receive, send))
    assert len(held) > 4, "the head, and parts: a client that does not read them holds the server up"
    assert min(held) > MB
    assert application.budget.held == 0
    with application.budget.holding() as others:
        others.hold(application.budget.bytes_max)
        found = rest.ask("GET", "/documents")
        assert problem(found, 503, "unavailable")["retry"]
        assert found.headers["retry-after"] == "1"
        assert rest.ask("GET", "/documents/short").status_code == 200
    assert rest.ask("GET", "/documents").status_code == 200


def test_a_thread_holds_nothing_for_a_request_that_has_ended() -> None:
    """Nobody would release that."""
    budget = Budget(1000)
    with budget.holding() as holding:
        holding.hold(100)
    with pytest.raises(Refused):
        holding.hold(100)
    assert budget.held == 0


def test_a_write_is_answered_also_where_there_is_no_room(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"text": "x" * MB})
    with rest.application.budget.holding() as others:
        others.hold(rest.application.budget.bytes_max - 1000)
        assert rest.ask("PATCH", "/documents/a", {"n": 1}).json()["n"] == 1


def test_pages_of_long_documents_end_early(rest: Rest) -> None:
    """Nobody has to ask for that."""
    ids = [f"{number}" for number in range(3)]
    ops = [{"op": "set", "id": id, "data": {"text": "x" * (handlers._DOCUMENTS_BYTES // 5 * 2)}} for id in ids]
    for op in ops:
        assert rest.ask("POST", "/batch", {"ops": [op]}).status_code == 200

    def pages(path: str) -> list[list[str]]:
        page = rest.ask("GET", path).json()
        found = [page]
        while page["cursor"] is not None:
            page = rest.ask("GET", f"{path}?cursor={page['cursor']}").json()
            found.append(page)
        return [[item["id"] for item in page["items"]] for page in found]

    assert pages("/documents") == [ids[:2], ids[2:]]
    assert rest.ask("POST", "/archives", {"where": "exists text", "period": "old"}).json() == {"documents": 3}
    assert pages("/archives/old") == [ids[:2], ids[2:]]


def test_a_page_decodes_no_more_documents_than_it_has_and_one(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        rest.ask("PUT", f"/documents/{number:02}", {"text": "x" * 1000})
    made: list[str] = []

    def noted(record: Set, document: dict[str, Any] | None = None) -> Entry:
        made.append(record.id)
        return entry_of(record, document)

    monkeypatch.setattr(operations, "entry_of", noted)
    page = rest.ask("GET", "/documents?max_bytes=3500").json()
    assert [item["id"] for item in page["items"]] == ["00", "01", "02"]
    assert made == ["00", "01", "02", "03"]


def test_a_history_has_the_newest_revisions_that_fit(rest: Rest) -> None:
    for number in range(4):
        rest.ask("PUT", "/documents/a", {"n": number, "text": "x" * (handlers._DOCUMENTS_BYTES // 5 * 2)})
    found = rest.ask("GET", "/history/a").json()
    assert ([each["data"]["n"] for each in found["revisions"]], found["earlier"]) == ([2, 3], 2)
    found = rest.ask("GET", "/history/a?max_bytes=1").json()
    assert ([each["data"]["n"] for each in found["revisions"]], found["earlier"]) == ([3], 3)


@pytest.mark.parametrize("path", ["documents", "history/a", "ops", "changes", "archives/old"])
def test_nobody_asks_for_answers_without_a_limit(rest: Rest, path: str) -> None:
    found = rest.ask("GET", f"/{path}?max_bytes={handlers._BYTES_MAX + 1}")
    assert problem(found, 400, "invalid")["detail"].startswith("max_bytes is a whole number from ")
