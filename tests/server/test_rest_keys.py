"""Requests that are sent again: with an Idempotency-Key one is carried out once; those that take no key may be
repeated."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import orjson
import pytest

import opslog
from opslog.environment import REAL, Environment, parse_ts
from opslog.server.http.asgi import App
from opslog.server.http.rest.serving import ROOT
from opslog.server.options import Options
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.served import ServedStores
from tests.support.asgi import Caller
from tests.support.keys import key_made
from tests.support.servers import Server
from tests.support.waiting import until


class Rest(Caller):
    def __init__(self, url: str, environment: Environment = REAL) -> None:
        stores = ServedStores({"tasks": url}, "main", environment)
        super().__init__(App(MemoryStorage(), Options(feed_seconds=60), stores=stores))

    def ask(
        self, method: str, path: str, body: object = None, key: str | None = None, **headers: str
    ) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        if key is not None:
            named["idempotency-key"] = key
        content = b"" if body is None else orjson.dumps(body)
        return self.request(method, f"http://test{ROOT}tasks{path}", content=content, headers=named)

    def commits(self) -> int:
        return len(self.ask("GET", "/ops?limit=1000").json()["commits"])


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


@pytest.fixture
def rest(url: str) -> Iterator[Rest]:
    client = Rest(url)
    yield client
    client.close()


WRITES: list[tuple[str, str, Any]] = [
    ("PUT", "/documents/a", {"n": 1}),
    ("PATCH", "/documents/there", {"n": 1}),
    ("DELETE", "/documents/there", None),
    ("POST", "/batch", {"ops": [{"op": "set", "id": "x", "data": {}}, {"op": "delete", "id": "there"}]}),
    ("POST", "/transact", {"ops": [{"op": "create", "id": "x", "data": {}}], "expect": [{"id": "y", "stamp": None}]}),
    ("POST", "/undo", None),
]


@pytest.mark.parametrize(("method", "path", "body"), WRITES)
def test_a_request_that_comes_again_is_answered_as_before_and_writes_nothing(
    rest: Rest, url: str, method: str, path: str, body: Any
) -> None:
    rest.ask("PUT", "/documents/there", {"was": 1})
    key = key_made()
    first = rest.ask(method, path, body, key)
    assert first.status_code == 200, first.text
    assert "idempotency-replayed" not in first.headers
    rest.ask("PUT", "/documents/there", {"meanwhile": True})
    commits = rest.commits()
    second = rest.ask(method, path, body, key)
    assert (second.status_code, second.json()) == (200, first.json())
    assert second.headers["idempotency-replayed"] == "true"
    assert second.headers.get("etag") == first.headers.get("etag")
    rest.close()
    again = Rest(url)
    third = again.ask(method, path, body, key)
    assert (third.status_code, third.json()) == (200, first.json())
    assert again.commits() == commits
    again.close()
    rest.__init__(url)  # type: ignore[misc]


def test_a_condition_that_held_is_not_asked_again(rest: Rest) -> None:
    key, answers = key_made(), list[httpx.Response]()
    for replayed in (False, True):
        answers.append(rest.ask("PUT", "/documents/a", {"n": 1}, key, if_none_match="*"))
        assert answers[-1].status_code == 201
        assert ("idempotency-replayed" in answers[-1].headers) == replayed
    tag, key = answers[0].headers["etag"], key_made()
    for _ in range(2):
        assert rest.ask("PUT", "/documents/a", {"n": 2}, key, if_match=tag).status_code == 200
    assert rest.ask("PUT", "/documents/a", {"n": 2}, key_made(), if_match=tag).status_code == 412


def test_a_request_that_was_refused_may_be_carried_out_later(rest: Rest) -> None:
    key = key_made()
    assert rest.ask("DELETE", "/documents/a", None, key).status_code == 404
    rest.ask("PUT", "/documents/a", {"n": 1})
    assert rest.ask("DELETE", "/documents/a", None, key).status_code == 200


def test_answers_say_until_when_a_request_may_be_repeated(rest: Rest) -> None:
    before, key = time.time(), key_made()
    first = rest.ask("PUT", "/documents/a", {}, key).headers["idempotency-until"]
    assert before + 600 <= parse_ts(first) <= time.time() + 600
    second = rest.ask("PUT", "/documents/a", {}, key).headers["idempotency-until"]
    assert parse_ts(second) == pytest.approx(parse_ts(first), abs=2)


def test_another_request_with_the_same_key_is_refused(rest: Rest) -> None:
    key = key_made()
    rest.ask("PUT", "/documents/a", {"n": 1}, key)
    others: list[tuple[str, str, Any]] = [
        ("PUT", "/documents/a", {"n": 2}),
        ("PUT", "/documents/b", {"n": 1}),
        ("DELETE", "/documents/a", None),
    ]
    for method, path, body in others:
        answer = rest.ask(method, path, body, key)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid")
    by_another = rest.ask("PUT", "/documents/a", {"n": 1}, key, opslog_agent="another")
    assert by_another.status_code == 200, "keys are the agent's"


def test_an_invalid_key_is_refused(rest: Rest) -> None:
    for key in ("", "x", str(uuid.uuid4()), f"{{{key_made()}}}", key_made(seconds_ago=-3600)):
        answer = rest.ask("PUT", "/documents/a", {}, key)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid"), key
    assert rest.commits() == 0


def test_a_call_that_may_be_repeated_as_it_is_takes_no_key_and_says_so(rest: Rest) -> None:
    for method, path in (("POST", "/compact"), ("POST", "/archives"), ("GET", "/documents")):
        answer = rest.ask(method, path, {"where": "done = true"} if path == "/archives" else None, key_made())
        assert answer.status_code == 400
        assert "send it again without one" in answer.json()["detail"]


def together(rest: Rest, path: str, body: object, times: int) -> list[httpx.Response]:
    """The answers to a request that comes so many times at once."""

    async def post() -> list[httpx.Response]:
        asking = [rest.client.post(f"http://test{ROOT}tasks{path}", content=orjson.dumps(body)) for _ in range(times)]
        return await asyncio.gather(*asking)

    return rest.run(post())


def documents(rest: Rest, path: str = "/documents") -> dict[str, Any]:
    return {item["id"]: item["data"] for item in rest.ask("GET", f"{path}?limit=1000").json()["items"]}


@pytest.mark.parametrize("full", [False, True])
def test_a_compaction_may_be_repeated_afterwards_and_meanwhile(rest: Rest, full: bool) -> None:
    for number in range(50):
        rest.ask("PUT", f"/documents/d{number % 10}", {"n": number})
    rest.ask("DELETE", "/documents/d3")
    before, commits = documents(rest), rest.commits()
    first = rest.ask("POST", "/compact", {"full": full})
    assert (first.status_code, documents(rest)) == (200, before)
    codes = [answer.json().get("code", "done") for answer in together(rest, "/compact", {"full": full}, 4)]
    assert "done" in codes
    assert set(codes) <= {"done", "locked"}, "one at a time; the others are to come again"
    assert (documents(rest), rest.commits()) == (before, commits)
    again = rest.ask("POST", "/compact", {"full": full}).json()
    assert (again["commits"], again["records"] if not full else 0) == (0, 0), "what was compacted is not taken again"
    rest.ask("PUT", "/documents/d3", {"n": "new"})
    assert documents(rest) == before | {"d3": {"n": "new"}}


ARCHIVE = {"where": "done = true", "period": "2026-Q4"}


@pytest.fixture
def done(rest: Rest) -> dict[str, Any]:
    """The documents to archive, beside one that stays."""
    tasks = {f"t{number}": {"done": True, "n": number} for number in range(5)}
    ops = [{"op": "set", "id": id, "data": data} for id, data in {**tasks, "open": {"done": False}}.items()]
    assert rest.ask("POST", "/batch", {"ops": ops}).status_code == 200
    return tasks


def test_documents_are_archived_once_however_often_that_is_asked_for(rest: Rest, done: dict[str, Any]) -> None:
    assert rest.ask("POST", "/archives", ARCHIVE).json() == {"documents": 5}
    commits = rest.commits()
    for _ in range(2):
        assert rest.ask("POST", "/archives", ARCHIVE).json() == {"documents": 0}
    assert rest.commits() == commits
    assert documents(rest) == {"open": {"done": False}}
    assert documents(rest, "/archives/2026-Q4") == done


def test_simultaneous_requests_to_archive_move_each_document_once(rest: Rest, done: dict[str, Any]) -> None:
    answers = together(rest, "/archives", ARCHIVE, 4)
    assert [answer.status_code for answer in answers] == [200] * 4
    assert sum(answer.json()["documents"] for answer in answers) == 5
    assert documents(rest) == {"open": {"done": False}}
    assert documents(rest, "/archives/2026-Q4") == done


def test_a_request_to_archive_that_failed_in_the_middle_is_finished_when_it_comes_again(
    rest: Rest, done: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> int:
        raise opslog.WriteFailedError("the disk is full")

    with monkeypatch.context() as broken:
        broken.setattr("opslog.archive._delete_unchanged", fail)
        assert rest.ask("POST", "/archives", ARCHIVE).status_code == 507
    assert documents(rest, "/archives/2026-Q4") == done, "the archive is there already"
    assert documents(rest) == {**done, "open": {"done": False}}, "and the documents still are"
    rest.ask("PATCH", "/documents/t0", {"n": "changed meanwhile"})
    rest.ask("PATCH", "/documents/t1", {"done": False})
    assert rest.ask("POST", "/archives", ARCHIVE).json() == {"documents": 4}
    assert documents(rest) == {"open": {"done": False}, "t1": {"done": False, "n": 1}}
    assert documents(rest, "/archives/2026-Q4") == {**done, "t0": {"done": True, "n": "changed meanwhile"}}


def test_in_a_log_of_which_nothing_was_collected_a_key_may_be_of_any_age(rest: Rest) -> None:
    key = key_made(seconds_ago=10**7)
    assert rest.ask("PUT", "/documents/a", {}, key).status_code == 200
    assert rest.ask("PUT", "/documents/a", {}, key).headers["idempotency-replayed"] == "true"


def test_a_key_that_is_older_than_what_was_collected_is_refused_and_never_carried_out_twice(url: str) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(url, agent="main", settings=settings):
        pass
    rest = Rest(url)
    key, older = key_made(seconds_ago=120), key_made(seconds_ago=200)
    assert rest.ask("PUT", "/documents/a", {"n": 1}, key).status_code == 200
    rest.close()
    log = Path(url) / "ops" / "transactions"
    with opslog.open(url, agent="keeper", log="shared", compact_after=None) as keeper:
        for number in range(4):
            with (log / sorted(path.name for path in log.iterdir())[-1]).open("ab") as newest:
                newest.write(b"torn")  # so that the next line begins a new segment
            keeper[f"k{number}"] = {}
            keeper.compact()
    assert not (log / "00000000000000000001.jsonl").exists()
    rest = Rest(url)
    commits = rest.commits()
    for each in (key, older):
        answer = rest.ask("PUT", "/documents/a", {"n": 1}, each)
        assert (answer.status_code, answer.json()["code"]) == (409, "expired")
        assert "Nothing was written" in answer.json()["detail"]
    assert rest.commits() == commits
    rest.close()


def test_new_keys_are_taken_however_short_the_grace_period_is(url: str) -> None:
    """Also from clients whose clocks are off by half of it. An old key is not, nor one of the future."""
    settings = opslog.Settings(undo_window=0, grace_seconds=10)
    with opslog.open(url, agent="main", settings=settings):
        pass
    rest = Rest(url)
    old = key_made()
    assert rest.ask("PUT", "/documents/a", {"n": 1}, old).status_code == 200
    rest.close()
    log = Path(url) / "ops" / "transactions"
    with opslog.open(url, agent="keeper", log="shared", compact_after=None) as keeper:
        for number in range(4):
            with (log / sorted(path.name for path in log.iterdir())[-1]).open("ab") as newest:
                newest.write(b"torn")  # so that the next line begins a segment
            keeper[f"k{number}"] = {}
            keeper.compact()
            for manifest in (Path(url) / "manifests").iterdir():  # 11 seconds pass
                os.utime(manifest, (manifest.stat().st_mtime - 11,) * 2)
    assert not (log / "00000000000000000001.jsonl").exists()
    rest = Rest(url, replace(REAL, time=lambda: time.time() + 11))
    for off, status in ((0, 200), (-4, 200), (4, 200), (6, 400)):
        key = key_made(seconds_ago=-11 - off)
        for _ in range(2):
            answer = rest.ask("PUT", "/documents/a", {"off": off}, key)
            assert answer.status_code == status, (off, answer.text)
    assert rest.ask("PUT", "/documents/a", {"n": 1}, old).status_code == 409
    rest.close()


def test_of_simultaneous_requests_one_writes(url: str) -> None:
    """In one process and in two, where the one that loses the race for the end of the log decides again."""
    servers = [Server("--memory", "--store", f"tasks={url}") for _ in range(2)]
    try:
        key = key_made()
        places = [f"{server.root}/v1/store/tasks/documents/a" for server in servers for _ in range(8)]

        def put(place: str) -> httpx.Response:
            return httpx.put(place, content=b'{"n": 1}', headers={"idempotency-key": key}, timeout=60)

        with ThreadPoolExecutor(16) as threads:
            answers = list(threads.map(put, places))
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.json()["stamp"] for answer in answers}) == 1
        assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    finally:
        for server in servers:
            server.kill()
    with opslog.open(url, read_only=True) as store:
        assert len(list(store.ops())) == 1


@pytest.mark.parametrize("kills", [4, pytest.param(40, marks=[pytest.mark.slow, pytest.mark.timeout(900)])])
def test_clients_that_retry_through_kills_write_everything_exactly_once(url: str, kills: int) -> None:
    """Each client adds 1 to its own document, so a second write would show."""
    server = Server("--memory", "--store", f"tasks={url}")
    place = f"{server.root}/v1/store/tasks/batch"
    again = ("--memory", "--store", f"tasks={url}", "--port", str(server.port))
    done = dict.fromkeys("abcd", 0)
    ended = Event()

    def write(name: str) -> None:
        with httpx.Client(timeout=10) as client:
            while not ended.is_set():
                body = orjson.dumps({"ops": [{"op": "set", "id": f"{name}/{done[name]}", "data": {}}]})
                headers = {"idempotency-key": key_made(), "opslog-agent": name}
                while not _is_answered(client, place, body, headers):
                    if ended.is_set():
                        return
                done[name] += 1

    with ThreadPoolExecutor(4) as threads:
        writing = [threads.submit(write, name) for name in done]
        for _ in range(kills):
            before = dict(done)
            until(lambda before=before: all(done[name] > before[name] + 2 for name in done))  # type: ignore[misc]
            server.kill()
            server = Server(*again)
        ended.set()
        for each in writing:
            each.result()
    server.kill()
    with opslog.open(url, read_only=True) as store:
        written = [(commit.author, id) for commit in store.ops() for id in commit.ids]
    assert len(written) == len(set(written)), "a request was carried out twice"
    for name, number in done.items():
        ids = {id for author, id in written if author == name}
        acknowledged = {f"{name}/{each}" for each in range(number)}
        assert acknowledged <= ids <= acknowledged | {f"{name}/{number}"}


def _is_answered(client: httpx.Client, place: str, body: bytes, headers: dict[str, str]) -> bool:
    try:
        answer = client.post(place, content=body, headers=headers)
    except httpx.TransportError:
        return False
    assert answer.status_code in {200, 503}, answer.text
    return answer.status_code == 200
