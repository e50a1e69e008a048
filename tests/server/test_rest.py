"""Stores over HTTP: what each route answers, and what it refuses."""

from __future__ import annotations

import gzip
import re
from typing import Any
from urllib.parse import quote

import orjson
import pytest
from openapi_spec_validator import validate

import opslog
from opslog.server.http.rest.handlers import ROUTES
from opslog.server.http.rest.routes import Route
from opslog.server.http.rest.serving import ROOT
from tests.support.rest import Rest, problem

ANY_TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"


def test_a_document_is_made_read_changed_and_deleted(rest: Rest) -> None:
    made = rest.ask("PUT", "/documents/task-1", {"title": "Build", "hours": 3})
    assert (made.status_code, made.json()["ids"]) == (200, ["task-1"])
    read = rest.ask("GET", "/documents/task-1")
    assert read.json() == {"title": "Build", "hours": 3}
    assert read.headers["etag"] == made.headers["etag"] == f'"{made.json()["stamp"]}"'
    assert read.headers["opslog-author"] == "main"
    assert re.fullmatch(ANY_TIME, read.headers["opslog-ts"])
    changed = rest.ask("PATCH", "/documents/task-1", {"hours": None, "done": True})
    assert changed.json() == {"title": "Build", "done": True}
    assert rest.ask("GET", "/documents/task-1").headers["etag"] == changed.headers["etag"]
    assert rest.ask("DELETE", "/documents/task-1").json()["ids"] == ["task-1"]
    problem(rest.ask("GET", "/documents/task-1"), 404, "not_found")
    problem(rest.ask("DELETE", "/documents/task-1"), 404, "not_found")


def test_a_head_has_what_a_get_has_but_the_body(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    get, head = (rest.ask(method, "/documents/a", x_request_id="same") for method in ("GET", "HEAD"))
    assert head.headers == get.headers
    assert (head.status_code, head.content) == (200, b"")
    assert rest.ask("HEAD", "/documents/none").status_code == 404


def test_one_of_several_creators_succeeds_and_the_others_see_its_name(rest: Rest) -> None:
    made = rest.ask("PUT", "/documents/a", {"n": 1}, if_none_match="*", opslog_agent="planner")
    assert made.status_code == 201
    found = problem(rest.ask("PUT", "/documents/a", {"n": 2}, if_none_match="*"), 412, "exists")
    assert (found["id"], found["now"]["author"], found["now"]["data"]) == ("a", "planner", {"n": 1})
    assert f'"{found["now"]["stamp"]}"' == made.headers["etag"]


def test_a_write_with_if_match_takes_effect_only_on_what_was_read(rest: Rest) -> None:
    first = rest.ask("PUT", "/documents/a", {"n": 1}).headers["etag"]
    second = rest.ask("PUT", "/documents/a", {"n": 2}, if_match=first).headers["etag"]
    assert problem(rest.ask("PUT", "/documents/a", {"n": 3}, if_match=first), 412, "conflict")["now"]["data"] == {
        "n": 2
    }
    problem(rest.ask("PATCH", "/documents/a", {"n": 3}, if_match=first), 412, "conflict")
    problem(rest.ask("DELETE", "/documents/a", if_match=first), 412, "conflict")
    assert rest.ask("GET", "/documents/a").json() == {"n": 2}
    third = rest.ask("PATCH", "/documents/a", {"m": 1}, if_match=second).headers["etag"]
    assert rest.ask("DELETE", "/documents/a", if_match=third).status_code == 200
    problem(rest.ask("PUT", "/documents/a", {"n": 4}, if_match="*"), 412, "not_found")
    problem(rest.ask("PUT", "/documents/a", {"n": 4}, if_match=third), 412, "conflict")
    rest.ask("PUT", "/documents/a", {"n": 4})
    assert rest.ask("PUT", "/documents/a", {"n": 5}, if_match="*").status_code == 200


@pytest.mark.parametrize("headers", [{"if_match": "W/"}, {"if_match": '"1@a", "2@a"'}, {"if_none_match": '"1@a"'}])
def test_conditions_that_cannot_be_read_are_refused(rest: Rest, headers: dict[str, str]) -> None:
    problem(rest.ask("PUT", "/documents/a", {}, **headers), 400, "invalid")
    problem(rest.ask("GET", "/documents/a"), 404, "not_found")


@pytest.mark.parametrize("tag", ["nonsense", "", "1@", "@a", f"{'9' * 5000}@a"])
def test_an_etag_that_is_no_stamp_is_refused(rest: Rest, tag: str) -> None:
    problem(rest.ask("PUT", "/documents/a", {}, if_match=f'"{tag}"'), 400, "invalid")


def test_a_change_of_any_stamp_needs_a_document(rest: Rest) -> None:
    for method in ("PUT", "PATCH", "DELETE"):
        problem(rest.ask(method, "/documents/a", {"n": 1}, if_match="*"), 412, "not_found")
    problem(rest.ask("GET", "/documents/a"), 404, "not_found")
    assert rest.ask("PATCH", "/documents/a", {"n": 1}).json() == {"n": 1}, "without a condition it makes one"
    assert rest.ask("PATCH", "/documents/a", {"m": 2}, if_match="*").json() == {"n": 1, "m": 2}


def test_a_write_under_a_condition_that_it_does_not_take_is_refused(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    ops = {"ops": [{"op": "delete", "id": "a"}]}
    for method, path, body, condition in (
        ("PATCH", "/documents/a", {"n": 2}, {"If_None_Match": "*"}),
        ("DELETE", "/documents/a", None, {"If_None_Match": "*"}),
        ("POST", "/batch", ops, {"If_Match": '"1@a"'}),
        ("POST", "/transact", ops, {"If_None_Match": "*"}),
        ("POST", "/undo", None, {"If_Match": '"1@a"'}),
        ("POST", "/archives", {"where": "n = 1"}, {"If_Match": "*"}),
        ("POST", "/compact", None, {"If_Match": "*"}),
    ):
        problem(rest.ask(method, path, body, **condition), 400, "invalid")
    assert rest.ask("GET", "/documents/a").json() == {"n": 1}


def test_a_client_that_has_a_document_is_not_sent_it_again(rest: Rest) -> None:
    tag = rest.ask("PUT", "/documents/a", {"n": 1}).headers["etag"]
    same = rest.ask("GET", "/documents/a", if_none_match=tag)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", tag)
    rest.ask("PUT", "/documents/a", {"n": 2})
    assert rest.ask("GET", "/documents/a", if_none_match=tag).json() == {"n": 2}


@pytest.mark.parametrize("id", ["", "/", "a/b", "ä 🚀", "%41", "..", "?x#y", 'q"', "line\nbreak"])
def test_every_id_has_an_address(rest: Rest, id: str) -> None:
    path = f"/documents/{quote(id, safe='').replace('.', '%2E')}"
    assert rest.ask("PUT", path, {"id": id}).json()["ids"] == [id]
    assert rest.ask("GET", path).json() == {"id": id}
    assert [item["id"] for item in rest.ask("GET", "/documents").json()["items"]] == [id]


def test_a_slash_in_an_id_needs_no_escape(rest: Rest) -> None:
    rest.ask("PUT", "/documents/team/a/1", {"n": 1})
    assert rest.ask("GET", "/documents/team%2Fa%2F1").json() == {"n": 1}


def test_an_id_that_is_not_utf8_is_refused(rest: Rest) -> None:
    problem(rest.ask("GET", "/documents/%ff"), 400, "invalid")


def test_lists_are_asked_for_in_the_language_of_find_and_page_by_page(rest: Rest) -> None:
    for number in range(25):
        rest.ask("PUT", f"/documents/task-{number:02}", {"n": number, "status": "active" if number % 2 else "done"})
    active = [f"task-{number:02}" for number in range(1, 25, 2)]
    asked, found, cursor = "/documents?where=status%20=%20active&limit=5", [], None
    while True:
        page = rest.ask("GET", asked if cursor is None else f"{asked}&cursor={quote(cursor)}").json()
        found += [item["id"] for item in page["items"]]
        assert len(page["items"]) <= 5
        if (cursor := page["cursor"]) is None:
            break
        rest.ask("PUT", "/documents/a-first", {"status": "active"})  # before the cursor
    assert found == active
    short = rest.ask("GET", "/documents?max_bytes=250").json()
    assert 0 < len(short["items"]) < 5
    assert len(rest.ask("GET", "/documents?max_bytes=1").json()["items"]) == 1
    assert short["cursor"] is not None
    as_object = quote('{"status": "active", "n": {">": 20}}')
    page = rest.ask("GET", f"/documents?where={as_object}&order_by=-n&fields=n").json()
    assert [item["data"] for item in page["items"]] == [{"n": 23}, {"n": 21}]
    assert rest.ask("GET", "/count?where=status%20=%20active").json() == {"documents": 13, "groups": None}
    assert rest.ask("GET", "/count?by=status").json()["groups"] == [
        {"value": "active", "documents": 13},
        {"value": "done", "documents": 13},
    ]


@pytest.mark.parametrize(
    "query",
    ["where=a%20=", "order_by=.", "limit=0", "limit=1001", "limit=x", "cursor=x", "nothing=1", "limit=1&limit=2",
     "where={", "fields=[", "as_of=never", "as_of=9999999", "offset=-1", "max_bytes=0", "where=%ff",
     "offset=9999999999999999999", "order_by=n&cursor=skip:99999999999999999999"],
)  # fmt: skip
def test_questions_that_cannot_be_read_are_refused(rest: Rest, query: str) -> None:
    problem(rest.ask("GET", f"/documents?{query}"), 400, "invalid")


def test_batches_and_transactions_happen_whole_or_not_at_all(rest: Rest) -> None:
    both = rest.ask(
        "POST", "/batch", {"ops": [{"op": "set", "id": "a", "data": {"n": 1}}, {"op": "create", "id": "b", "data": {}}]}
    )
    stamp = both.json()["stamp"]
    assert both.json()["ids"] == ["a", "b"]
    late = {"ops": [{"op": "set", "id": "c", "data": {}}, {"op": "create", "id": "b", "data": {}}]}
    assert problem(rest.ask("POST", "/batch", late), 409, "exists")["id"] == "b"
    problem(rest.ask("GET", "/documents/c"), 404, "not_found")
    moved = {"ops": [{"op": "delete", "id": "a", "if_stamp": stamp}], "expect": [{"id": "b", "stamp": stamp}]}
    assert rest.ask("POST", "/transact", moved).status_code == 200
    assert problem(rest.ask("POST", "/transact", moved), 409, "conflict")["id"] == "a"
    checked = {"expect": [{"id": "a", "stamp": None}, {"id": "b", "stamp": stamp}]}
    assert rest.ask("POST", "/transact", checked).json() == {"ids": [], "stamp": None}


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b"{", b'{"ops": 1}', b'{"ops": [{"op": "move", "id": "a"}]}', b'{"ops": [], "more": 1}',
     b'{"ops": [{"op": "set", "id": "a"}]}', b'{"ops": [{"op": "delete", "id": "a", "data": {}}]}', b"\xff"],
)  # fmt: skip
def test_bodies_that_cannot_be_read_are_refused(rest: Rest, body: bytes) -> None:
    problem(rest.ask("POST", "/batch", body), 400, "invalid")


@pytest.mark.parametrize("body", [b"", b"[]", b"1", b'{"a": NaN}', b'{"a": 1, "a": 2}', b'{"a": 18446744073709551616}'])
def test_a_body_that_no_document_can_hold_is_refused(rest: Rest, body: bytes) -> None:
    problem(rest.ask("PUT", "/documents/a", body), 400, "invalid")


def test_numbers_stay_what_they_are(rest: Rest) -> None:
    text = b'{"big":18446744073709551615,"small":-9223372036854775808,"one":1.0,"tiny":5e-324,"pi":3.141592653589793}'
    rest.ask("PUT", "/documents/a", text)
    assert rest.ask("GET", "/documents/a").content == text


def test_an_undo_takes_back_the_callers_own_newest_write(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1}, opslog_agent="planner")
    rest.ask("PUT", "/documents/b", {"n": 1}, opslog_agent="worker")
    assert rest.ask("POST", "/undo", opslog_agent="planner").json()["ids"] == ["a"]
    assert rest.ask("POST", "/undo", opslog_agent="planner").json()["undone"] is False
    problem(rest.ask("GET", "/documents/a"), 404, "not_found")
    rest.ask("PUT", "/documents/b", {"n": 2}, opslog_agent="planner")
    problem(rest.ask("POST", "/undo", opslog_agent="worker"), 409, "conflict")
    assert rest.ask("GET", "/documents/b").json() == {"n": 2}


def test_an_undo_may_name_the_write_that_it_takes_back(rest: Rest) -> None:
    mine = rest.ask("PUT", "/documents/a", {}).json()["stamp"]
    newest = rest.ask("PUT", "/documents/b", {}).json()["stamp"]
    problem(rest.ask("POST", "/undo", {"stamp": mine}), 409, "conflict")
    problem(rest.ask("POST", "/undo", {"stamp": "no stamp"}), 400, "invalid")
    assert rest.ask("POST", "/undo", {"stamp": newest}).json()["ids"] == ["b"]
    assert rest.ask("GET", "/documents/a").status_code == 200


def test_writes_of_other_processes_are_there_at_once(rest: Rest, url: str) -> None:
    with opslog.open(url, agent="beside") as beside:
        for number in range(3):
            beside["a"] = {"n": number}
            assert rest.ask("GET", "/documents/a").json() == {"n": number}
        rest.ask("PUT", "/documents/a", {"n": 9})
        beside.refresh()
        assert beside["a"] == {"n": 9}
        record = beside.record("a")
        assert record is not None
        assert (record.agent, record.author) == ("transactions", "main")


def test_every_read_can_be_of_the_past(rest: Rest) -> None:
    clock = int(rest.ask("PUT", "/documents/a", {"n": 1}).json()["stamp"].partition("@")[0])
    ts = rest.ask("GET", "/documents/a").headers["opslog-ts"]
    rest.ask("PUT", "/documents/a", {"n": 2})
    rest.ask("PUT", "/documents/b", {})
    for point in (clock, ts):
        assert rest.ask("GET", f"/documents/a?as_of={point}").json() == {"n": 1}
        assert [item["id"] for item in rest.ask("GET", f"/documents?as_of={point}").json()["items"]] == ["a"]
        assert rest.ask("GET", f"/count?as_of={point}").json()["documents"] == 1
        assert rest.ask("GET", f"?as_of={point}").json()["documents"] == 1
        assert len(rest.ask("GET", f"/history/a?as_of={point}").json()["revisions"]) == 1
        assert len(rest.ask("GET", f"/ops?as_of={point}").json()["commits"]) == 1
        stats = rest.ask("GET", f"/stats?as_of={point}").json()
        assert [stats[name] for name in ("documents", "commits", "clock")] == [1, 1, clock]
        activity = rest.ask("GET", f"/activity?as_of={point}").json()
        assert [commit["ids"] for commit in activity["commits"]] == [["a"]]
        assert [agent["clock"] for agent in activity["agents"]] == [clock]
    assert rest.ask("GET", "/documents/a").json() == {"n": 2}
    assert len(rest.ask("GET", "/activity").json()["commits"]) == 3


@pytest.mark.parametrize("path", ["/changes", "/archives", "/archives/2026-Q4", "/figures"])
def test_what_is_only_of_now_says_why(rest: Rest, path: str) -> None:
    refused = problem(rest.ask("GET", f"{path}?as_of=1000"), 400, "invalid")
    assert re.search("has no as_of: .{40}", refused["detail"])


def test_every_read_has_a_past_or_says_why_not() -> None:
    for route in ROUTES:
        has_past = any(parameter.name == "as_of" for parameter in route.parameters)
        assert (has_past or bool(route.now_only)) == (route.method == "GET"), route.name


def test_a_past_that_was_compacted_away_is_gone(url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(url, agent="beside", settings=settings) as beside:
        for number in range(5):
            beside["a"] = {"n": number}
            beside.compact()
    rest = Rest(url)
    try:
        problem(rest.ask("GET", "/ops?since=1"), 410, "gone")
        problem(rest.ask("GET", "/documents/a?as_of=1"), 410, "gone")
    finally:
        rest.close()


def test_history_says_who_wrote_what_and_what_was_taken_back(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1}, opslog_agent="planner")
    rest.ask("PUT", "/documents/a", {"n": 2}, opslog_agent="worker")
    rest.ask("POST", "/undo", opslog_agent="worker")
    rest.ask("DELETE", "/documents/a")
    found = rest.ask("GET", "/history/a").json()["revisions"]
    assert [(each["op"], each["author"], each["undone"], each["data"]) for each in found] == [
        ("set", "planner", False, {"n": 1}),
        ("set", "worker", True, {"n": 2}),
        ("delete", "main", False, None),
    ]
    assert rest.ask("GET", "/history/a?limit=1").json()["earlier"] == 2


def test_commits_come_in_pages(rest: Rest) -> None:
    for number in range(7):
        rest.ask("PUT", f"/documents/{number}", {})
    found: list[str] = []
    since: int | None = 0
    while since is not None:
        page = rest.ask("GET", f"/ops?limit=3&since={since}").json()
        found += [commit["id"] for commit in page["commits"]]
        since = page["since"]
    assert found == [str(number) for number in range(7)]


def test_a_page_of_commits_has_no_more_bytes_than_asked_for(rest: Rest) -> None:
    for number in range(4):
        rest.ask("PUT", f"/documents/{number}", {"text": "x" * 400_000})
    pages = [rest.ask("GET", "/ops?since=0")]
    while (since := pages[-1].json()["since"]) is not None:
        pages.append(rest.ask("GET", f"/ops?since={since}&max_bytes={500_000 if len(pages) < 2 else 1}"))
    assert [[commit["id"] for commit in page.json()["commits"]] for page in pages] == [["0", "1"], ["2"], ["3"]]
    assert all(len(page.content) < 2**20 for page in pages)


def test_archives_remove_documents_in_the_name_of_their_caller(rest: Rest, url: str) -> None:
    for number in range(4):
        rest.ask("PUT", f"/documents/{number}", {"done": number < 2})
    moved = rest.ask("POST", "/archives", {"where": "done = true", "period": "2026-Q4"}, opslog_agent="keeper")
    assert moved.json() == {"documents": 2}
    assert rest.ask("GET", "/archives").json() == {"periods": ["2026-Q4"]}
    assert [item["id"] for item in rest.ask("GET", "/archives/2026-Q4").json()["items"]] == ["0", "1"]
    first = rest.ask("GET", "/archives/2026-Q4?limit=1").json()
    rest_of_it = rest.ask("GET", f"/archives/2026-Q4?limit=1&cursor={quote(first['cursor'])}").json()
    assert [[item["id"] for item in page["items"]] for page in (first, rest_of_it)] == [["0"], ["1"]]
    assert rest_of_it["cursor"] is None
    problem(rest.ask("GET", "/archives/2026-Q4?cursor=skip:1"), 400, "invalid")
    assert [item["id"] for item in rest.ask("GET", "/documents").json()["items"]] == ["2", "3"]
    assert rest.ask("GET", "/history/0").json()["revisions"][-1]["author"] == "keeper"
    problem(rest.ask("GET", "/archives/none"), 404, "not_found")
    for seconds in (-1, 1e300, "1"):
        problem(rest.ask("POST", "/archives", {"where": "n = 1", "older_than_seconds": seconds}), 400, "invalid")
    problem(rest.ask("GET", "/archives/%2e%2e%2f"), 400, "invalid")


def test_operators_compact(rest: Rest) -> None:
    for number in range(100):
        rest.ask("PUT", "/documents/a", {"n": number})
    done = rest.ask("POST", "/compact", {"full": True}).json()
    assert (done["number"], done["records"]) == (2, 1)
    assert rest.ask("GET", "/documents/a").json() == {"n": 99}


def test_a_description_says_what_is_in_the_store(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"title": "x"}, opslog_agent="planner")
    for path in ("", "/"):
        found = rest.ask("GET", path).json()
        assert found["documents"] == 1
        assert [agent["name"] for agent in found["agents"]] == ["planner"]
        assert found["fields"] == [{"path": "title", "documents": 1, "types": ["string"]}]


def test_long_answers_are_compressed_on_request(rest: Rest) -> None:
    tag = rest.ask("PUT", "/documents/a", {"text": "x" * 5000}).headers["etag"]
    answer, body = rest.raw(f"http://test{ROOT}tasks/documents/a", {"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip"
    assert len(body) < 500
    assert orjson.loads(gzip.decompress(body)) == {"text": "x" * 5000}
    assert answer.headers["etag"] == f'{tag[:-1]};gzip"'
    assert rest.ask("PUT", "/documents/a", {"n": 1}, if_match=answer.headers["etag"]).status_code == 200
    answer, body = rest.raw(f"http://test{ROOT}tasks/documents/a", {"accept-encoding": "gzip"})
    assert "content-encoding" not in answer.headers


def test_other_addresses_and_methods_are_refused(rest: Rest) -> None:
    problem(rest.ask("GET", "/nothing"), 404, "not_found")
    problem(rest.get(f"http://test{ROOT}none/documents"), 404, "not_found")
    answer = rest.ask("POST", "/documents/a", {})
    problem(answer, 405, "method_not_allowed")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH, PUT"
    everything = {"stores": ["tasks"], "rights": {"tasks": ["read", "write", "operate"]}, "agent": None}
    assert rest.get("http://test/v1/stores").json() == everything
    problem(rest.post("http://test/v1/stores"), 405, "method_not_allowed")
    assert rest.ask("OPTIONS", "/documents/a").status_code == 204


def test_a_body_that_is_too_large_is_refused(url: str) -> None:
    rest = Rest(url, max_body_bytes=1000)
    try:
        problem(rest.ask("PUT", "/documents/a", {"text": "x" * 1000}), 413, "too_large")
        assert rest.ask("PUT", "/documents/a", {"text": "x" * 900}).status_code == 200
    finally:
        rest.close()


def test_a_client_that_asks_too_often_is_refused(url: str) -> None:
    rest = Rest(url, rate=1)
    try:
        answers = [rest.ask("GET", "/documents") for _ in range(4)]
        problem(answers[-1], 429, "rate")
        assert int(answers[-1].headers["retry-after"]) >= 1
        # Lists that show what a token may read count, too; what shows nothing does not.
        for path in ("v1/stores", "page/streams", "page/stream?path=stores/tasks", "page/events"):
            assert rest.get(f"http://test/{path}").status_code == 429, path
        assert rest.get("http://test/").status_code == 200
    finally:
        rest.close()


def test_an_agent_cannot_have_a_name_that_no_agent_can_have(rest: Rest) -> None:
    for name in ("transactions", "..", "a/b"):
        problem(rest.ask("PUT", "/documents/a", {}, opslog_agent=name), 400, "invalid")


def test_a_feed_cannot_be_forked(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    assert rest.get("stores/tasks").status_code == 200
    refused = rest.put("mine", headers={"Stream-Forked-From": "/v1/stream/stores/tasks"})
    assert (refused.status_code, "feed of a store" in refused.text) == (403, True)
    assert rest.head("mine").status_code == 404
    assert rest.put("plain").status_code == 201
    assert rest.put("fork", headers={"Stream-Forked-From": "/v1/stream/plain"}).status_code == 201


def test_figures_of_each_store_are_there_for_prometheus(rest: Rest) -> None:
    for number in range(3):
        rest.ask("PUT", f"/documents/{number}", {})
    rest.ask("GET", "/documents/none")
    rest.get(f"http://test{ROOT}other/documents")
    rest.get("stores/tasks")
    text = rest.get("http://test/metrics").text
    counted = 'opslog_store_requests_total{{door="{}",operation="{}",status="{}",store="tasks"}} {}'
    assert counted.format("http", "set", 200, 3.0) in text
    assert counted.format("http", "get", 404, 1.0) in text
    assert counted.format("feed", "feed", 200, 1.0) in text
    assert 'opslog_store_seconds_count{door="http",store="tasks"} 4.0' in text
    assert 'opslog_store_seconds_count{door="feed"' not in text, "they wait for as long as they like"
    assert 'opslog_store_documents{store="tasks"} 3.0' in text
    assert 'opslog_store_commits{store="tasks"} 3.0' in text
    assert 'opslog_store_compaction_fails{store="tasks"} 0.0' in text
    assert '"other"' not in text


# -- the description


@pytest.fixture
def description(rest: Rest) -> dict[str, Any]:
    answer = rest.get("http://test/v1/openapi.json")
    assert answer.status_code == 200
    found: dict[str, Any] = answer.json()
    return found


def test_the_description_is_openapi(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1.")
    validate(description)


def test_the_description_has_every_route_and_nothing_else(description: dict[str, Any]) -> None:
    described = {
        (method.upper(), path.removeprefix(ROOT + "{store}"))
        for path, operations in description["paths"].items()
        for method in operations
    }
    assert described == {(route.method, route.path) for route in ROUTES}
    names = [operation["operationId"] for each in description["paths"].values() for operation in each.values()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_every_described_operation_is_served(rest: Rest, route: Route) -> None:
    """The server knows every address and parameter of the description."""
    rest.ask("PUT", "/documents/x", {"n": 1})
    examples = {
        "as_of": "1000",
        "where": "n=1",
        "order_by": "n",
        "fields": "n",
        "by": "n",
        "limit": "1",
        "most": "1",
        "offset": "0",
    }
    examples["max_bytes"] = "1000"
    tokens = {"cursor", "since"}  # the server makes these
    query = "&".join(f"{each.name}={examples[each.name]}" for each in route.parameters if each.name not in tokens)
    path = route.path.replace("{id}", "x").replace("{period}", "2026-Q4")
    answer = rest.ask(route.method, f"{path}?{query}", _body(route))
    if route.name == "archived":
        problem(answer, 404, "not_found")
    else:
        assert answer.status_code == 200, answer.text


def _body(route: Route) -> object:
    op = {"op": "set", "id": "y", "data": {}}
    return {
        "set": {"n": 2},
        "modify": {"n": 2},
        "batch": {"ops": [op]},
        "transact": {"ops": [op]},
        "archive": {"where": "n = 5"},
        "compact": {},
    }.get(route.name)


def test_answers_have_the_fields_that_are_described(rest: Rest, description: dict[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    rest.ask("PUT", "/documents/x", {"n": 1})
    for route in ROUTES:
        if route.method != "GET" or route.name == "archived":
            continue
        answer = rest.ask("GET", route.path.replace("{id}", "x"))
        operation = description["paths"][f"{ROOT}{{store}}{route.path}"]["get"]
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        jsonschema.validate(answer.json(), {**schema, "components": description["components"]})
