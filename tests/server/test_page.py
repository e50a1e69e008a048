"""The page for people, in the system's browser."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import httpx
import pytest

import opslog.server.page as page_files
from opslog.server.client import Client, Stream
from tests.support.servers import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
FILES = {path.name: KINDS[path.suffix] for path in Path(page_files.__file__).parent.iterdir() if path.suffix in KINDS}
HOSTILE = "<img src=x onerror=window.hacked=1>/&lt;\"'`${window.hacked=1}"


@pytest.fixture(scope="module")
def root() -> Iterator[str]:
    with serving("--memory") as server:
        yield server.url


@pytest.fixture
def page(browser: Browser, root: str) -> Iterator[Page]:
    """The page as it opens. The test fails if the browser reports a problem."""
    context = browser.new_context()
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(root.removesuffix("/v1/stream"))
    page.locator("#state", has_text="Live").wait_for()
    yield page
    context.close()
    assert not complaints


@pytest.fixture
def client(root: str) -> Iterator[Client]:
    with Client(root) as client:
        yield client


def made(client: Client, path: str, *messages: object) -> Stream:
    stream = client.stream(path)
    stream.create("application/json")
    if messages:
        stream.append(*messages)
    return stream


def item(path: str) -> str:
    return f"[role=treeitem][data-path={path!r}]"


def test_new_streams_and_new_messages_are_shown(page: Page, client: Client) -> None:
    stream = made(client, "live/one")
    row = page.locator(item("live/one"))
    row.wait_for()
    stream.append("x" * 5000)
    row.locator(".tail", has_text="5.00 kB").wait_for()
    stream.close()
    row.locator(".mark", has_text="closed").wait_for()
    stream.delete()
    row.wait_for(state="detached")


def test_messages_arrive_exactly_as_they_were_written(page: Page, client: Client) -> None:
    stream = made(client, "messages", {"n": 12345678901234567890123}, [1.0, "a,b]"], 'quoted \\" one')
    page.locator(item("messages")).click()
    page.locator("#messages li").nth(2).wait_for()
    assert page.locator("#messages li").all_inner_texts() == [
        '{"n":12345678901234567890123}',
        '[1.0,"a,b]"]',
        '"quoted \\\\\\" one"',
    ]
    stream.append({"later": True}, close=True)
    page.locator("#messages .note", has_text="closed").wait_for()
    assert page.locator("#messages li").nth(3).inner_text() == '{"later":true}'


def test_everything_is_done_with_the_keyboard(page: Page, client: Client) -> None:
    for name in "abc":
        made(client, f"keys/{name}", name, 2)
    page.locator(item("keys/c")).wait_for()
    page.keyboard.press("/")
    page.keyboard.type("keys/")
    page.keyboard.press("Enter")
    for key in ("ArrowDown", "End", "ArrowUp", "Enter"):
        page.keyboard.press(key)
    page.locator("#messages li", has_text='"b"').wait_for()
    assert page.locator("#name").inner_text() == "keys/b"
    assert page.evaluate("document.activeElement.dataset.path") == "keys/b", "updates do not take the focus away"
    assert page.locator("[role=treeitem][tabindex='0']").count() == 1, "one stop for the Tab key"
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.id") == "messages"
    page.reload()
    page.locator("#messages li", has_text="2").wait_for()
    assert page.locator("#messages li").all_inner_texts() == ['"b"', "2"], "the address names the stream"


def test_a_stream_that_is_created_again_is_followed_again(browser: Browser, client: Client, root: str) -> None:
    stream = made(client, "come/and/gone", {"n": "of the first one"})
    context = browser.new_context()  # in it the browser may report missing resources
    page = context.new_page()
    page.goto(f"{root.removesuffix('/v1/stream')}/#/stream/come%2Fand%2Fgone")
    page.locator("#messages li", has_text="of the first one").wait_for()
    stream.delete()
    page.locator("#messages .note", has_text="deleted").wait_for()
    made(client, "come/and/gone", {"n": "of the second one"})
    page.locator("#messages li", has_text="of the second one").wait_for()
    assert page.locator("#messages li").count() == 1
    context.close()


def test_forks_are_a_tree(page: Page, client: Client) -> None:
    source = made(client, "tree/source", 1, 2)
    fork = source.fork("tree/fork")
    fork.fork("tree/fork-of-fork")
    source.delete()
    inner = page.locator(f"{item('tree/source')} > ul > {item('tree/fork')} > ul > {item('tree/fork-of-fork')}")
    inner.wait_for()
    assert inner.get_attribute("aria-level") == "3"
    page.locator(f"{item('tree/source')} > .row .mark", has_text="deleted").wait_for()
    page.locator(f"{item('tree/fork')} > .row").click()
    page.locator("#facts dd", has_text="tree/source at").wait_for()


def test_producers_are_shown(page: Page, client: Client) -> None:
    stream = made(client, "produced")
    with stream.producer("<b>planner</b>", epoch=4) as producer:
        producer.append("x")
    page.locator(item("produced")).click()
    cells = page.locator("#producers tbody td")
    cells.first.wait_for()
    assert cells.all_inner_texts() == ["<b>planner</b>", "4", "0"]


@pytest.mark.long
def test_followers_are_shown_with_how_far_behind_they_are(page: Page, client: Client, root: str) -> None:
    stream = made(client, "followed/one", "first")
    subscription = {"type": "webhook", "pattern": "followed/**", "webhook": {"url": "https://webhook.example/"}}
    put = httpx.put(f"{root}/__ds/subscriptions/builds", json=subscription)
    assert put.status_code == 201, put.text
    stream.append("second")
    page.locator(item("followed/one")).click()
    shown = page.locator("#followers tbody tr")
    shown.filter(has_text="builds").filter(has_text="9 B behind").wait_for()
    shown.filter(has_text="1 reader").filter(has_text="at the end").wait_for()
    with httpx.stream("GET", f"{root}/followed/one?offset=-1&live=sse", timeout=60) as other:
        assert other.status_code == 200
        shown.filter(has_text="2 readers").wait_for()
    shown.filter(has_text="1 reader").wait_for()


def test_long_messages_are_indented_and_those_that_arrive_say_when(page: Page, client: Client) -> None:
    stream = made(client, "indented", {"words": ["word"] * 30, "n": 12345678901234567890123})
    page.locator(item("indented")).click()
    first = page.locator("#messages li").first
    first.wait_for()
    assert first.inner_text().startswith('{\n  "words": [\n    "word",')
    assert first.inner_text().endswith('\n  "n": 12345678901234567890123\n}')
    assert first.locator(".json-number").inner_text() == "12345678901234567890123"
    assert first.get_attribute("data-at") is None, "nobody knows when it came"
    stream.append("[" * 5)
    page.locator("#messages li[data-at]", has_text="[[[[[").wait_for()
    stream.append(json.loads("[" * 450 + "]" * 450))  # indented, it would be a quarter of a million spaces
    page.locator("#messages li", has_text="[" * 100).wait_for()
    assert len(page.locator("#messages li").last.inner_text()) < 5000


def test_hostile_names_and_messages_stay_text(page: Page, client: Client) -> None:
    message = "</li></ol><script>window.hacked=1</script><img src=x onerror=window.hacked=1>"
    made(client, HOSTILE, message)
    row = page.locator("[role=treeitem]", has_text="onerror")
    row.click()
    page.locator("#messages li", has_text="<script>").wait_for()
    assert page.locator("#name").inner_text() == HOSTILE
    assert page.locator("#view img, #streams img, #view script").count() == 0
    assert page.evaluate("window.hacked") is None


def test_nothing_but_the_files_of_the_page_may_run(root: str) -> None:
    base = root.removesuffix("/v1/stream")
    for name, kind in FILES.items():
        answer = httpx.get(base + ("/" if name == "index.html" else f"/page/{name}"))
        assert answer.status_code == 200
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert "default-src 'none'; script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        markup = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function(", "srcdoc")
        assert not [word for word in markup if word in answer.text], name
        if name == "index.html":
            assert not re.search(r"<script(?! src=)|<style|\s(on\w+|style)=", answer.text), "nothing stands in it"


@pytest.mark.parametrize("media_type", ["text/html", "image/svg+xml", "application/xhtml+xml"])
def test_a_stream_that_is_a_page_runs_no_script_in_the_origin_of_the_server(
    browser: Browser, client: Client, root: str, media_type: str
) -> None:
    outer = "svg" if "svg" in media_type else "html"
    spaces = {"image/svg+xml": "2000/svg", "application/xhtml+xml": "1999/xhtml"}
    space = f' xmlns="http://www.w3.org/{spaces[media_type]}"' if media_type in spaces else ""
    path = f"pages/{media_type}"
    stream = client.stream(path)
    stream.create(media_type)
    stream.append(f"<{outer}{space}><script>document.documentElement.id = 'hacked'</script></{outer}>".encode())
    context = browser.new_context()
    page = context.new_page()
    for query in ("", "?offset=-1"):
        page.goto(f"{root}/{path}{query}")
        assert page.locator(outer).count() == 1
        assert page.locator("#hacked").count() == 0
        assert page.evaluate("self.origin") == "null", "it is not of the origin that may use stores here"
    context.close()


def test_a_client_that_has_a_file_of_the_page_is_not_sent_it_again(root: str) -> None:
    url = f"{root.removesuffix('/v1/stream')}/page/main.js"
    first = httpx.get(url)
    assert first.headers["cache-control"] == "no-cache"
    same = httpx.get(url, headers={"if-none-match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    assert httpx.get(url, headers={"if-none-match": '"other"'}).content == first.content
    assert httpx.get(url.replace("main.js", "../server.py")).status_code == 404


def test_long_lists_come_in_parts(client: Client, root: str) -> None:
    paths = sorted(f"many/{number:04}" for number in range(501))
    for path in paths:
        client.stream(path).create("text/plain")
    base = root.removesuffix("/v1/stream")
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        part = httpx.get(f"{base}/page/streams?after={quote(after)}").json()
        found += [stream["path"] for stream in part["streams"]]
        after = part["after"]
    assert [path for path in found if path.startswith("many/")] == paths
    assert found == sorted(set(found), key=str.encode)


def test_news_of_streams_behind_show_more_do_not_make_the_list_longer(page: Page, client: Client) -> None:
    part = {"root": "/v1/stream/", "streams": [], "after": "shown/m"}
    page.route("**/page/streams?*", lambda route: route.fulfill(json=part))
    page.reload()
    page.locator("#more").wait_for()
    for path in ("shown/z", "shown/a"):
        client.stream(path).create("text/plain")
    page.locator("[role=treeitem]", has_text="shown/a").wait_for()
    assert page.locator("[role=treeitem]").count() == 1


def test_a_server_with_tokens_asks_for_one(browser: Browser, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    hashed = hashlib.sha256(b"secret").hexdigest()
    tokens.write_text(f'[[token]]\nname = "me"\nsha256 = "{hashed}"\nread = [""]\nwrite = [""]\n')
    with serving("--memory", "--tokens", str(tokens)) as server, Client(server.url, token="secret") as client:
        made(client, "private", "message")
        assert httpx.get(f"{server.root}/page/streams").status_code == 401
        page = browser.new_page()
        page.goto(server.root)
        page.locator("#token").fill("secret")
        page.keyboard.press("Enter")
        page.locator(item("private")).click()
        page.locator("#messages li", has_text='"message"').wait_for()
        page.close()
