"""Pages of another origin use the server from a browser: preflight requests, and what scripts may read."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.servers import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FETCH = """async ([method, url, headers, body]) => {
    const answer = await fetch(url, {method, headers, body})
    return [answer.status, Object.fromEntries(answer.headers), await answer.text()]
}"""
TOKEN = {"authorization": "Bearer secret"}
JSON = {"content-type": "application/json"}


class Empty(http.server.BaseHTTPRequestHandler):
    """A site with one empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>elsewhere</title><link rel=icon href=data:,>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[str]:
    """The origin of another site: two ports of this machine are two origins."""
    with http.server.HTTPServer(("127.0.0.1", 0), Empty) as site:
        thread = threading.Thread(target=site.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{site.server_port}/"
        site.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that requires a token, so that each request needs a preflight."""
    tokens: Path = tmp_path_factory.mktemp("tokens") / "tokens.toml"
    hashed = sha256(b"secret").hexdigest()
    tokens.write_text(f'[[token]]\nname = "page"\nsha256 = "{hashed}"\nread = [""]\nwrite = ["open"]\n')
    with serving("--memory", "--tokens", str(tokens), "--max-body-bytes", "1000", "--webhook-loopback") as running:
        yield running


class Script:
    """The calls that a script on the page of another origin can make."""

    def __init__(self, page: Page, root: str) -> None:
        self._page = page
        self._root = root

    def fetch(
        self, method: str, path: str, headers: dict[str, str], body: str | None = None
    ) -> tuple[int, dict[str, str], str]:
        """Status, readable headers, and body. It raises for a request that CORS forbids."""
        given: list[Any] = [method, f"{self._root}/{path}", headers, body]
        status, readable, text = self._page.evaluate(FETCH, given)
        return status, readable, text


@pytest.fixture
def script(browser: Browser, elsewhere: str, server: Server) -> Iterator[Script]:
    page = browser.new_page()
    page.goto(elsewhere)
    yield Script(page, server.url)
    page.close()


def test_a_page_creates_appends_reads_closes_and_deletes(script: Script) -> None:
    status, headers, _ = script.fetch("PUT", "open/a", TOKEN | JSON)
    assert status == 201
    assert headers["location"].endswith("/v1/stream/open/a")
    producer = {"producer-id": "page", "producer-epoch": "0", "producer-seq": "0", "stream-seq": "1"}
    status, headers, _ = script.fetch("POST", "open/a", TOKEN | JSON | producer, '[{"n":1},{"n":2}]')
    assert status == 200
    assert headers["producer-seq"] == "0"
    offset = headers["stream-next-offset"]
    status, headers, text = script.fetch("GET", "open/a?offset=-1", TOKEN)
    assert (status, text) == (200, '[{"n":1},{"n":2}]')
    assert (headers["stream-next-offset"], headers["stream-up-to-date"]) == (offset, "true")
    assert script.fetch("GET", "open/a?offset=-1", TOKEN | {"if-none-match": headers["etag"]})[0] == 304
    fork = {"stream-forked-from": "/v1/stream/open/a", "stream-fork-offset": offset, "stream-ttl": "60"}
    assert script.fetch("PUT", "open/fork", TOKEN | fork)[0] == 201
    assert script.fetch("HEAD", "open/fork", TOKEN)[1]["stream-ttl"] == "60"
    status, headers, _ = script.fetch("POST", "open/a", TOKEN | {"stream-closed": "true"})
    assert (status, headers["stream-closed"]) == (204, "true")
    assert script.fetch("DELETE", "open/fork", TOKEN)[0] == 204


def test_a_page_follows(script: Script) -> None:
    script.fetch("PUT", "open/live", TOKEN | {"content-type": "application/octet-stream"}, "x")
    script.fetch("POST", "open/live", TOKEN | {"stream-closed": "true"})
    status, headers, text = script.fetch("GET", "open/live?offset=-1&live=sse", TOKEN)
    assert (status, headers["stream-sse-data-encoding"]) == (200, "base64")
    assert '"streamClosed":true' in text


def test_a_page_makes_subscriptions(script: Script) -> None:
    script.fetch("PUT", "open/wakes", TOKEN | JSON)
    body = '{"type":"pull-wake","pattern":"open/*","wake_stream":"open/wakes"}'
    status, _, text = script.fetch("PUT", "__ds/subscriptions/page", TOKEN | JSON, body)
    assert status == 403, "a subscription wants a token that writes everything"
    assert "__ds" in text


REFUSED = [
    ("PUT", "open/b", JSON, None, 401),
    ("PUT", "closed/b", TOKEN | JSON, None, 403),
    ("POST", "open/none", TOKEN | JSON, "[1]", 404),
    ("POST", "open/a", TOKEN | {"content-type": "text/plain"}, "x", 409),
    ("POST", "open/a", TOKEN | JSON, "x" * 2000, 413),
    ("GET", "open/a?offset=nonsense", TOKEN, None, 400),
    ("DELETE", "__ds/nothing", TOKEN, None, 403),
]


@pytest.mark.parametrize("refused", REFUSED, ids=[str(status) for *_, status in REFUSED])
def test_a_page_learns_what_was_wrong(
    script: Script, refused: tuple[str, str, dict[str, str], str | None, int]
) -> None:
    script.fetch("PUT", "open/a", TOKEN | JSON)
    method, path, headers, body, status = refused
    assert script.fetch(method, path, headers, body)[0] == status


def test_a_method_that_streams_do_not_have_is_not_announced(script: Script) -> None:
    from playwright.sync_api import Error

    with pytest.raises(Error, match="Failed to fetch"):
        script.fetch("PATCH", "open/a", TOKEN | JSON, "x")
