"""The rights of tokens for stores over HTTP."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from opslog.doors.tokens import Tokens
from opslog.errors import InvalidNameError, UsageError
from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.http.rest.serving import ROOT
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.served import ServedStores
from tests.support.asgi import Caller


def table(name: str, **fields: object) -> str:
    lines = [f"{key} = {str(value).replace(chr(39), chr(34))}" for key, value in fields.items()]
    digest = sha256(name.encode()).hexdigest()
    return f'[[token]]\nname = "{name}"\nsha256 = "{digest}"\n' + "\n".join(lines) + "\n"


TOKENS = (
    table("reader", read=["stores/tasks"])
    + table("planner", read=["stores/tasks"], write=["stores/tasks"])
    + table("bot 7", read=["stores/tasks"], write=["stores/tasks"])
    + table("ci", read=[""], write=["stores/tasks"], agent='"builder"')
    + table("operator", read=["stores"], operate=["stores"])
    + table("writer", write=["stores/tasks"])
    + table("keeper", operate=["stores/tasks"])
    + table("elsewhere", read=["stores/other", "stores/task"], write=["stores/other"], operate=["stores/other"])
)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Caller]:
    file = tmp_path / "tokens.toml"
    file.write_text(TOKENS)
    stores = ServedStores({"tasks": str(tmp_path / "tasks"), "other": str(tmp_path / "other")}, "main")
    opened = Caller(App(MemoryStorage(), Options(feed_seconds=0.01), Tokens.load(file), stores=stores))
    yield opened
    opened.close()


def ask(
    client: Caller, token: str | None, method: str, path: str, content: bytes = b"{}", **named: str
) -> httpx.Response:
    headers = {name.replace("_", "-"): value for name, value in named.items()}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    content = b"" if method in {"GET", "HEAD"} else content
    return client.request(method, f"http://test{ROOT}tasks{path}", content=content, headers=headers)


READING = [("GET", ""), ("GET", "/documents"), ("GET", "/count"), ("GET", "/ops"), ("GET", "/changes"),
           ("GET", "/stats"), ("GET", "/archives"), ("GET", "/history/a")]  # fmt: skip
WRITING = [("PUT", "/documents/a"), ("PATCH", "/documents/a"), ("DELETE", "/documents/a"), ("POST", "/transact"),
           ("POST", "/undo")]  # fmt: skip
OPERATING = [("POST", "/compact"), ("POST", "/archives")]


@pytest.mark.parametrize(
    ("token", "allowed"),
    [
        ("reader", READING),
        ("planner", READING + WRITING),
        ("operator", READING + OPERATING),
        ("writer", []),
        ("keeper", []),
        ("elsewhere", []),
    ],
)
def test_a_token_may_do_what_it_says_and_nothing_else(
    client: Caller, token: str, allowed: list[tuple[str, str]]
) -> None:
    ask(client, "planner", "PUT", "/documents/a")
    for method, path in READING + WRITING + OPERATING:
        content = b'{"where": "done = true"}' if path == "/archives" else b"{}"
        answer = ask(client, token, method, path, content)
        if (method, path) in allowed:
            assert answer.status_code == 200, (method, path, answer.text)
        else:
            assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)


def test_a_client_without_the_right_to_read_learns_nothing_by_writing(client: Caller) -> None:
    ask(client, "planner", "PUT", "/documents/a", b'{"secret": 1}')
    expecting = b'{"expect": [{"id": "a", "stamp": null}], "ops": []}'
    for answer in (
        ask(client, "writer", "PUT", "/documents/a", if_none_match="*"),
        ask(client, "writer", "POST", "/transact", expecting),
        ask(client, "writer", "PATCH", "/documents/a"),
        ask(client, "keeper", "POST", "/archives", b'{"where": "secret = 1"}'),
    ):
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
        assert "secret" not in answer.text
    assert ask(client, "reader", "GET", "/documents/a").json() == {"secret": 1}


def test_without_a_known_token_nothing_is_answered(client: Caller) -> None:
    for method, path in READING + WRITING + OPERATING:
        for token in (None, "nobody"):
            answer = ask(client, token, method, path)
            assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
            assert answer.headers["www-authenticate"] == "Bearer"
    assert client.get("http://test/v1/stores").status_code == 401


def test_a_token_does_not_learn_which_stores_there_are_besides_its_own(client: Caller) -> None:
    listed = client.get("http://test/v1/stores", headers={"authorization": "Bearer elsewhere"})
    rights = {"other": ["read", "write", "operate"]}
    assert listed.json() == {"stores": ["other"], "rights": rights, "agent": "elsewhere"}
    for name in ("tasks", "none"):
        answer = client.get(f"http://test{ROOT}{name}/documents", headers={"authorization": "Bearer elsewhere"})
        assert answer.status_code == 403


@pytest.mark.parametrize(
    ("token", "rights", "agent"),
    [("reader", ["read"], "reader"), ("ci", ["read", "write"], "builder"),
     ("operator", ["read", "operate"], "operator"), ("bot 7", ["read"], None), ("writer", None, "writer")],
)  # fmt: skip
def test_a_token_learns_what_it_may_do(client: Caller, token: str, rights: list[str] | None, agent: str | None) -> None:
    found = client.get("http://test/v1/stores", headers={"authorization": f"Bearer {token}"}).json()
    assert (found["rights"].get("tasks"), found["agent"]) == (rights, agent)


@pytest.mark.parametrize("token", ["reader", "elsewhere"])
def test_the_page_names_only_streams_that_a_token_may_read(client: Caller, token: str) -> None:
    headers = {"authorization": f"Bearer {token}"}
    name = {"reader": "tasks", "elsewhere": "other"}[token]
    feed = f"http://test/v1/stream/stores/{name}"
    while client.get(feed, headers=headers).status_code == 404:
        pass  # it is being made
    listed = client.get("http://test/page/streams", headers=headers).json()
    assert [stream["path"] for stream in listed["streams"]] == [f"stores/{name}"]
    assert client.get(f"http://test/page/stream?path=stores/{name}", headers=headers).status_code == 200
    other = {"reader": "other", "elsewhere": "tasks"}[token]
    assert client.get(f"http://test/page/stream?path=stores/{other}", headers=headers).status_code == 403


def test_writes_are_made_by_the_agent_of_the_token(client: Caller) -> None:
    for token, agent in (("planner", "planner"), ("ci", "builder")):
        assert ask(client, token, "PUT", "/documents/a").status_code == 200
        assert ask(client, "reader", "GET", "/documents/a").headers["opslog-author"] == agent


def test_nobody_writes_in_the_name_of_another_agent(client: Caller) -> None:
    assert ask(client, "planner", "PUT", "/documents/a", opslog_agent="planner").status_code == 200
    for method, path in WRITING:
        answer = ask(client, "ci", method, path, opslog_agent="planner")
        assert (answer.status_code, answer.json()["code"]) == (403, "forbidden"), (method, path)
    assert ask(client, "ci", "POST", "/undo").json()["undone"] is False
    assert ask(client, "reader", "GET", "/documents/a").status_code == 200


def test_a_token_whose_name_no_agent_can_have_needs_an_agent_to_write(client: Caller) -> None:
    assert ask(client, "bot 7", "GET", "/documents").status_code == 200
    answer = ask(client, "bot 7", "PUT", "/documents/a")
    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
    assert "names no agent" in answer.json()["detail"]


def test_the_log_names_tokens_and_nothing_that_is_secret(client: Caller, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG, "opslog.access"):
        ask(client, "ci", "GET", "/documents?where=title+%3D+secret")
        ask(client, "nobody-knows-this", "GET", "/documents")
    known, unknown = (record.__dict__ for record in caplog.records)
    assert (known["token"], known["path"], known["status"]) == ("ci", f"{ROOT}tasks/documents", 200)
    assert unknown["status"] == 401
    assert "token" not in unknown
    assert not {"secret", "nobody-knows-this"} & set(re.findall(r"[\w-]+", repr([known, unknown])))


def test_a_feed_is_read_with_the_right_to_read_its_store(client: Caller) -> None:
    for token, status in (("reader", 200), ("elsewhere", 403)):
        answer = client.get("stores/tasks", headers={"authorization": f"Bearer {token}"})
        assert answer.status_code == status


def test_a_file_with_an_agent_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    for agent in ("transactions", "a b", ""):
        file.write_text(table("x", agent=f'"{agent}"'))
        with pytest.raises(InvalidNameError):
            Tokens.load(file)
    file.write_text(table("x", operates=[""]))
    with pytest.raises(UsageError):
        Tokens.load(file)
