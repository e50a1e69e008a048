"""Changes of a store over HTTP: from a token on, and in bounded answers."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from tests.support.rest import Rest, problem


def test_changes_go_on_from_a_token(rest: Rest) -> None:
    rest.ask("PUT", "/documents/a", {"n": 1})
    first = rest.ask("GET", "/changes").json()
    assert (first["reset"], [each["id"] for each in first["changes"]]) == (True, ["a"])
    rest.ask("PUT", "/documents/b", {"n": 1})
    rest.ask("DELETE", "/documents/a")
    second = rest.ask("GET", f"/changes?since={quote(first['token'])}").json()
    assert not second["reset"]
    assert [(each["op"], each["id"]) for each in second["changes"]] == [("delete", "a"), ("set", "b")]
    problem(rest.ask("GET", "/changes?since=nonsense"), 400, "invalid")


def test_a_reset_is_bounded(rest: Rest) -> None:
    rest.ask("POST", "/batch", {"ops": [{"op": "set", "id": f"{n}", "data": {"text": "x" * 400}} for n in range(3)]})
    for bound in ("most=2", "max_bytes=1000"):
        reset = rest.ask("GET", f"/changes?{bound}").json()
        assert (reset["reset"], reset["complete"], reset["changes"]) == (True, False, [])
        assert rest.ask("GET", f"/changes?since={quote(reset['token'])}").json()["changes"] == []
    reset = rest.ask("GET", "/changes?most=3&max_bytes=2000").json()
    assert (reset["complete"], len(reset["changes"])) == (True, 3)
    problem(rest.ask("GET", "/changes?most=1001"), 400, "invalid")


def test_changes_are_bounded_and_name_the_documents_that_they_leave_out(rest: Rest) -> None:
    token = quote(rest.ask("GET", "/changes").json()["token"])
    rest.ask("POST", "/batch", {"ops": [{"op": "set", "id": f"{n}", "data": {"text": "x" * 400}} for n in range(4)]})
    for bound, shown in (("most=3", 3), ("max_bytes=1500", 2), ("max_bytes=0", 0)):
        found = rest.ask("GET", f"/changes?since={token}&{bound}").json()
        assert [each["id"] for each in found["changes"]] + found["omitted"] == ["0", "1", "2", "3"]
        assert (len(found["changes"]), found["complete"]) == (shown, True)


def test_a_client_that_has_nothing_gets_all_of_a_large_store_in_bounded_answers(rest: Rest) -> None:
    """It pages through the documents while others write, and what they write it gets by the token from before."""
    for n in range(10):
        rest.ask("PUT", f"/documents/{n}", {"n": n})
    reset = rest.ask("GET", "/changes?most=3").json()
    assert not reset["complete"]
    known: dict[str, Any] = {}
    pages = 0
    more: str | None = ""
    while more is not None:
        page = rest.ask("GET", f"/documents?limit=3{more}").json()
        known.update((item["id"], item["data"]) for item in page["items"])
        more, pages = page["cursor"] and f"&cursor={quote(page['cursor'])}", pages + 1
        rest.ask("DELETE", f"/documents/{pages}")  # some of it was read already, some is still to come
        rest.ask("PUT", f"/documents/{10 - pages}", {"n": "changed"})
        rest.ask("PUT", f"/documents/new-{pages}", {})
    token, answers = reset["token"], 0
    while True:
        found = rest.ask("GET", f"/changes?since={quote(token)}&limit=2&most=2").json()
        assert (found["reset"], found["omitted"]) == (False, [])
        if not found["commits"]:
            break
        for change in found["changes"]:
            if change["op"] == "set":
                known[change["id"]] = change["data"]
            else:
                known.pop(change["id"], None)
        token, answers = found["token"], answers + 1
    assert min(pages, answers) > 3, "in parts"
    there = rest.ask("GET", "/documents?limit=1000").json()["items"]
    assert known == {item["id"]: item["data"] for item in there}
