"""Stores on a server for its own machine, and pages of other sites."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.test_rest import Rest, problem


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
