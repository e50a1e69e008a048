"""Stores on a server for its own machine, and pages of other sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.served import ServedStores
from tests.support.asgi import Caller
from tests.support.rest import Rest, problem


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost.evil.example"},
        {"Origin": "http://127.0.0.1@evil.example"},
        {"Host": "rebound.example:4437"},
        {"Host": "192.0.2.1:4437"},
        {"Host": ""},
    ],
)
def test_no_page_of_another_site_uses_a_store_of_this_machine(tmp_path: Path, headers: dict[str, str]) -> None:
    rest = Rest(str(tmp_path / "tasks"), local_stores=True)
    here = {"Host": "127.0.0.1:4437", "content-type": "text/plain"}
    assert rest.ask("PUT", "/documents/a", {"n": 1}, **here).status_code == 200
    ops = {"ops": [{"op": "delete", "id": "a"}]}
    for method, path, body in (("POST", "/batch", ops), ("GET", "/documents/a", None), ("POST", "/storage", b"x")):
        problem(rest.ask(method, path, body, **here | headers), 403, "forbidden")
    assert rest.get("http://test/v1/stores", headers=here | headers).status_code == 403
    assert rest.get("stores/tasks", headers=here | headers).status_code == 403
    for path in ("/metrics", "/page/streams", "/page/stream?path=stores/tasks", "/page/events"):
        assert rest.get(f"http://test{path}", headers=here | headers).status_code == 403, "it names the stores"
    assert rest.ask("GET", "/documents/a", **here).json() == {"n": 1}
    rest.close()


@pytest.mark.parametrize("host", ["127.0.0.1:4437", "localhost", "[::1]:4437", "127.0.0.2"])
@pytest.mark.parametrize("origin", [None, "http://localhost:5173", "http://127.0.0.1:4437", "http://[::1]:80"])
def test_programs_and_pages_of_this_machine_use_its_stores(tmp_path: Path, host: str, origin: str | None) -> None:
    rest = Rest(str(tmp_path / "tasks"), local_stores=True)
    headers = {"Host": host} | ({} if origin is None else {"Origin": origin})
    assert rest.ask("PUT", "/documents/a", {"n": 1}, **headers).status_code == 200
    assert rest.get("stores/tasks", headers=headers).status_code == 200
    for path in ("/", "/healthz", "/metrics", "/page/streams"):
        assert rest.get(f"http://test{path}", headers=headers).status_code == 200
    rest.close()


def test_streams_that_are_no_feeds_stay_open_to_pages_of_any_site(tmp_path: Path) -> None:
    rest = Rest(str(tmp_path / "tasks"), local_stores=True)
    headers = {"Origin": "https://page.example"}
    for name in ("other", "stores/other"):
        assert rest.put(name, headers=headers).status_code == 201
    rest.close()


def test_no_page_of_another_site_reads_the_registry_where_it_names_stores(tmp_path: Path) -> None:
    rest = Rest(str(tmp_path / "tasks"), local_stores=True, registry=True)
    here = {"Host": "127.0.0.1:4437"}
    assert rest.get("stores/tasks", headers=here).status_code == 200
    assert rest.get("__registry__", headers={**here, "Origin": "https://evil.example"}).status_code == 403
    assert rest.get("__registry__", headers=here).status_code == 200
    rest.close()


@pytest.mark.parametrize("fork", ["fork", "stores/fork"])
def test_no_page_of_another_site_reads_forks_of_the_registry(tmp_path: Path, fork: str) -> None:
    storage, elsewhere = MemoryStorage(), {"Host": "127.0.0.1:4437", "Origin": "https://evil.example"}
    # A server that keeps no registry takes it for an ordinary stream.
    client = Caller(App(storage, Options(local_stores=True)))
    client.put("__registry__", content=b'["stores/tasks"]', headers={"content-type": "application/json"})
    for path, source in ((fork, "__registry__"), ("fork of it", fork), ("other", "")):
        headers = {"stream-forked-from": f"/v1/stream/{source}"} if source else {}
        assert client.put(path, headers=headers).status_code == 201
    client.close()
    stores = ServedStores({"tasks": str(tmp_path / "tasks")}, "main")
    client = Caller(App(storage, Options(local_stores=True, registry=True), stores=stores))
    for path in (fork, "fork of it"):
        assert client.get(path, headers=elsewhere).status_code == 403
        assert client.get(path, headers={"Host": "127.0.0.1:4437"}).json() == ["stores/tasks"]
    assert client.get("other", headers=elsewhere).status_code == 200
    client.close()


def test_no_page_of_another_site_uses_subscriptions_where_they_name_stores(tmp_path: Path) -> None:
    rest = Rest(str(tmp_path / "tasks"), local_stores=True)
    here, elsewhere = {"Host": "127.0.0.1:4437"}, {"Host": "127.0.0.1:4437", "Origin": "https://evil.example"}
    config = b'{"type": "pull-wake", "pattern": "stores/*", "wake_stream": "wakes"}'
    assert rest.get("stores/tasks", headers=here).status_code == 200
    assert rest.put("__ds/subscriptions/s", content=config, headers=elsewhere).status_code == 403
    assert rest.put("__ds/subscriptions/s", content=config, headers=here).status_code == 201
    for method, path in (("GET", "s"), ("DELETE", "s"), ("POST", "s/claim"), ("POST", "s/streams")):
        answer = rest.request(method, f"__ds/subscriptions/{path}", content=b'{"worker":"w"}', headers=elsewhere)
        assert answer.status_code == 403
    assert [link["path"] for link in rest.get("__ds/subscriptions/s", headers=here).json()["streams"]] == [
        "stores/tasks"
    ]
    # Whoever gets a webhook is elsewhere, and shows the token of the wake.
    assert rest.get("__ds/jwks.json", headers=elsewhere).status_code == 200
    called = rest.post("__ds/subscriptions/s/callback", content=b"{}", headers=elsewhere)
    assert called.json()["error"]["code"] == "TOKEN_INVALID"
    rest.close()


def test_without_stores_subscriptions_stay_open_to_pages_of_any_site() -> None:
    client = Caller(App(MemoryStorage(), Options(local_stores=True)))
    config = b'{"type": "pull-wake", "pattern": "**", "wake_stream": "wakes"}'
    made = client.put("__ds/subscriptions/s", content=config, headers={"Origin": "https://page.example"})
    assert made.status_code == 201
    client.close()
