"""A client of a store over HTTP, without a network."""

from __future__ import annotations

from typing import Any

import httpx
import orjson

from opslog.server.http.asgi import App
from opslog.server.http.rest.serving import ROOT
from opslog.server.options import Options
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores.served import ServedStores
from tests.support.asgi import Caller


class Rest(Caller):
    """A client of one store, which is served as ``tasks``."""

    def __init__(self, url: str, **options: Any) -> None:
        stores = ServedStores({"tasks": url}, "main")
        super().__init__(App(MemoryStorage(), Options(feed_seconds=0.01, **options), stores=stores))

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> httpx.Response:
        content = b"" if body is None else body if isinstance(body, bytes) else orjson.dumps(body)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.request(method, f"http://test{ROOT}tasks{path}", content=content, headers=named)


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """The problem document of a refusal."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert (found["status"], found["code"]) == (status, code)
    assert found["type"] == f"urn:opslog:problem:{code}"
    assert found["title"]
    assert found["detail"]
    assert found["next"]
    return found
