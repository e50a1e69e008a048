"""Who may use subscriptions, and where the events of their wakes may be written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from opslog.doors.tokens import Tokens
from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.served import ServedStores
from tests.server.test_rest_tokens import table
from tests.support.asgi import Caller

ALL = "__ds/subscriptions"


class Client(Caller):
    """A client of a server that requires tokens, and serves a store."""

    def ask(self, token: str | None, method: str, path: str, body: Any = None) -> httpx.Response:
        headers = {} if token is None else {"authorization": f"Bearer {token}"}
        return self.run(self.client.request(method, path, json=body, headers=headers))

    def subscribe(self, token: str, wake_stream: str, id: str = "s", pattern: str = "x/*") -> httpx.Response:
        config = {"type": "pull-wake", "pattern": pattern, "wake_stream": wake_stream}
        return self.ask(token, "PUT", f"{ALL}/{id}", config)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    file = tmp_path / "tokens.toml"
    file.write_text(
        table("all", read=[""], write=[""])
        + table("subscriber", read=["__ds"], write=["__ds", "x"])
        + table("streams", read=["x"], write=["x"])
    )
    stores = ServedStores({"tasks": str(tmp_path / "tasks")}, "main")
    opened = Client(App(MemoryStorage(), Options(registry=True), Tokens.load(file), stores=stores))
    yield opened
    opened.close()


@pytest.mark.parametrize("action", ["callback", "ack", "release"])
@pytest.mark.parametrize("token", [None, "streams"])
def test_an_id_that_looks_like_a_route_of_workers_needs_a_token(client: Client, token: str | None, action: str) -> None:
    address = f"{ALL}/s%2F{action}"
    config = {"type": "pull-wake", "pattern": "**", "wake_stream": "x/wakes"}
    status = 401 if token is None else 403
    assert client.ask(token, "PUT", address, config).status_code == status
    assert client.ask("all", "PUT", address, config).status_code == 201
    for method, below in (("GET", ""), ("DELETE", ""), ("POST", "/claim"), ("POST", "/streams")):
        assert client.ask(token, method, address + below, {"worker": "w"}).status_code == status
    assert client.ask("all", "GET", address).json()["id"] == f"s/{action}"


def test_a_worker_acknowledges_with_the_token_of_its_wake_alone_whatever_the_id(client: Client) -> None:
    for number, id in enumerate(("s", "a%2Fb", "a%2fclaim", "ack")):
        assert client.subscribe("all", "wakes", id).status_code == 201
        client.ask("all", "PUT", f"x/{number}", [1])
        claim = client.ask("all", "POST", f"{ALL}/{id}/claim", {"worker": "w"}).json()
        wake = {"wake_id": claim["wake_id"], "generation": claim["generation"]}
        assert client.ask(None, "POST", f"{ALL}/{id}/ack", wake).status_code == 401
        assert client.ask(claim["token"], "POST", f"{ALL}/{id}/ack", wake).json() == {"ok": True, "next_wake": False}
        assert client.ask(claim["token"], "POST", f"{ALL}/{id}/release", wake).status_code == 204
        assert client.ask("all", "DELETE", f"{ALL}/{id}").status_code == 204


@pytest.mark.parametrize(
    "address", [ALL, f"{ALL}/", f"{ALL}/s/", f"{ALL}/s/ack/", f"{ALL}/s/ack%2F", "__ds%2Fjwks.json"]
)
def test_addresses_of_nothing_need_a_token_too(client: Client, address: str) -> None:
    assert client.ask(None, "GET", address).status_code == 401
    assert client.ask("all", "GET", address).status_code == 404


def test_the_events_of_wakes_go_only_where_the_creator_may_write(client: Client) -> None:
    client.ask("all", "PUT", "secret/wakes", [])
    refused = client.subscribe("subscriber", "secret/wakes")
    assert (refused.status_code, refused.json()["error"]["message"]) == (403, "this token may not write secret/wakes")
    assert client.ask("all", "GET", f"{ALL}/s").status_code == 404
    assert client.subscribe("subscriber", "x/wakes").status_code == 201
    assert client.subscribe("all", "secret/wakes", "other").status_code == 201


@pytest.mark.parametrize("wake_stream", ["stores/tasks", "/stores/tasks/", "stores/none", "__registry__"])
def test_feeds_and_the_registry_are_no_wake_streams(client: Client, wake_stream: str) -> None:
    refused = client.subscribe("all", wake_stream)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert client.ask("all", "GET", f"{ALL}/s").status_code == 404
