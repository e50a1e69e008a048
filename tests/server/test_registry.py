"""The registry names every stream, whatever clients and earlier versions of the server did to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.protocol.appending import Append
from opslog.server.protocol.transaction import Transaction
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.streams import REGISTRY
from tests.server.conftest import MAP_BYTES
from tests.support.asgi import Caller
from tests.support.waiting import until

JSON = {"content-type": "application/json"}


@contextmanager
def served(folder: Path, **options: Any) -> Iterator[Caller]:
    """A server of the directory `folder`, from its start to its end."""
    client = Caller(App(DirectoryStorage(folder, map_bytes=MAP_BYTES), Options(**options)))
    yield client
    client.close()


def known(client: Caller) -> set[str]:
    """The streams that a reader of the whole registry knows."""
    found: set[str] = set()
    offset, is_end = "-1", False
    while not is_end:
        answer = client.get(REGISTRY, params={"offset": offset})
        for message in answer.json():
            if isinstance(message, dict) and "type" in message:
                (found.add if message["headers"]["operation"] == "insert" else found.discard)(message["key"])
        offset, is_end = answer.headers["stream-next-offset"], "stream-up-to-date" in answer.headers
    return found


def test_retention_leaves_the_registry_whole(tmp_path: Path) -> None:
    options = {"registry": True, "retain_bytes": 200}
    paths = {f"a{number}" for number in range(30)}
    with served(tmp_path, **options) as client:
        for path in sorted(paths):
            client.put(path, headers=JSON)
        until(lambda: known(client) == paths)
        assert "stream-earliest-offset" not in client.head(REGISTRY).headers
    with served(tmp_path, **options) as client:
        assert known(client) == paths


@pytest.mark.parametrize(
    ("method", "headers"),
    [("POST", {}), ("POST", {"stream-closed": "true"}), ("PUT", {}), ("DELETE", {})],
    ids=["append", "close", "create", "delete"],
)
def test_only_the_server_writes_the_registry(tmp_path: Path, method: str, headers: dict[str, str]) -> None:
    with served(tmp_path, registry=True) as client:
        answer = client.request(method, REGISTRY, content=b"[1]", headers=JSON | headers)
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
        assert answer.text == "this stream is the registry of all streams, and read-only\n"
        client.put("a", headers=JSON)
        until(lambda: known(client) == {"a"})


def test_messages_that_do_not_announce_streams_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    deep = b'{"value":' * 900 + b"1" + b"}" * 900
    with served(tmp_path) as client:
        client.put("a", headers=JSON)
        client.put(REGISTRY, content=b'[{"a":1},{"key":1,"headers":{}},"text"]', headers=JSON)
        # Versions 0.1 and 0.2 had no limit of levels of their own.
        client.run(client.application.streams.append(Append(REGISTRY, JSON["content-type"], deep + b",")))
    assert not caplog.records
    with served(tmp_path, registry=True) as client:
        until(lambda: known(client) == {"a"})
    assert "the registry has 4 messages that do not announce streams: they were skipped" in caplog.messages


def test_a_registry_that_was_trimmed_names_all_streams_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    paths = {"a", "b", "c"}
    with served(tmp_path, registry=True) as client:
        for path in sorted(paths):
            client.put(path, headers=JSON)
        until(lambda: known(client) == paths)

        def trim(transaction: Transaction) -> None:
            """As versions 0.1 and 0.2 did."""
            stream = transaction.stream(REGISTRY)
            assert stream is not None
            ((_, first), *_) = transaction.records(stream.id, 0, stream.tail, 1)
            transaction.changes.trimmed[stream.id] = len(first)
            transaction.put(replace(stream, earliest=len(first)))

        client.run(client.application.streams.work_on(REGISTRY, trim))
        assert "a" not in known(client)
    with served(tmp_path, registry=True) as client:
        until(lambda: known(client) == paths)
        earliest = client.head(REGISTRY).headers["stream-earliest-offset"]
        assert any(f"the registry begins at offset {earliest}: " in message for message in caplog.messages)


@pytest.mark.parametrize("headers", [JSON | {"stream-closed": "true"}, {"content-type": "text/plain"}])
def test_a_registry_that_cannot_be_written_keeps_no_server_from_starting(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, headers: dict[str, str]
) -> None:
    with served(tmp_path) as client:
        client.put(REGISTRY, headers=headers)
    with served(tmp_path, registry=True) as client:
        assert client.put("a", headers=JSON).status_code == 201
        assert client.get(REGISTRY).content in {b"", b"[]"}
        (message,) = (record.getMessage() for record in caplog.records if record.levelname == "ERROR")
        assert f"the stream {REGISTRY} " in message
        assert "start the server without --registry, delete that stream" in message
    with served(tmp_path) as client:  # as that message says
        assert client.delete(REGISTRY).status_code == 204
    with served(tmp_path, registry=True) as client:
        until(lambda: known(client) == {"a"})


def announcement(path: str, content_type: str = JSON["content-type"]) -> dict[str, Any]:
    value = {"path": path, "contentType": content_type, "createdAt": 1}
    return {"type": "stream", "key": path, "value": value, "headers": {"operation": "insert"}}


@pytest.mark.parametrize(
    "message",
    [
        announcement("a") | {"type": "other"},
        announcement("a") | {"value": None},
        announcement("a") | {"value": {"path": "b", "contentType": JSON["content-type"]}},
        announcement("a") | {"value": {"path": "a", "contentType": 1}},
        announcement("a") | {"headers": {"operation": "update"}},
        announcement("a", "text/plain"),
    ],
    ids=["type", "no value", "path", "content type of another kind", "operation", "another content type"],
)
def test_messages_of_another_form_hide_no_streams(tmp_path: Path, message: dict[str, Any]) -> None:
    with served(tmp_path) as client:
        client.put("a", headers=JSON)
        client.put(REGISTRY, content=json.dumps([message]).encode(), headers=JSON)
    for _ in range(2):  # the second start announces nothing again
        with served(tmp_path, registry=True) as client:
            until(lambda: len(client.get(REGISTRY).json()) > 1)
            _, announced = client.get(REGISTRY).json()
            assert (announced["key"], announced["value"]["contentType"]) == ("a", JSON["content-type"])


def test_what_was_announced_before_a_message_of_a_client_is_announced_again(tmp_path: Path) -> None:
    with served(tmp_path, registry=True) as client:
        for path in ("a", "b"):
            client.put(path, headers=JSON)
        until(lambda: known(client) == {"a", "b"})
    with served(tmp_path) as client:
        client.delete("b")
        client.post(REGISTRY, content=b'[{"headers":{"control":"reset"}}]', headers=JSON)
    for _ in range(2):
        with served(tmp_path, registry=True) as client:
            until(lambda: len(client.get(REGISTRY).json()) > 3)
            again = client.get(REGISTRY).json()[3:]
            assert [(message["key"], message["headers"]["operation"]) for message in again] == [
                ("a", "insert"),
                ("b", "delete"),
            ]


def test_the_registry_cannot_be_forked(tmp_path: Path) -> None:
    fork = {"stream-forked-from": f"/v1/stream/{REGISTRY}"}
    with served(tmp_path, registry=True) as client:
        answer = client.put("fork", headers=fork)
        assert answer.status_code == 403
        assert answer.text.startswith("this stream is the registry of all streams, and cannot be forked")
        assert client.get("fork").status_code == 404
    with served(tmp_path) as client:
        assert client.put("fork", headers=fork).status_code == 201, "it is an ordinary stream now"
