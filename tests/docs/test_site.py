"""The site that `make docs` has built, in the system's browser: on a desktop and on a phone, light and dark.

Screenshots are in build/screenshots, for a check by eye. These tests check that nothing is too wide, that the browser
reports no problem, and that no page loads anything from elsewhere.
"""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import opslog
from tests.support.browsers import complaints_about, overflowing
from tests.support.documents import ROOT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = ROOT / "build" / "site"
DESK, PHONE = (1280, 900), (390, 844)
SHOWN = ("", "tutorial/", "architecture/", "reference/", "benchmarks/")
VIEWS: dict[str, tuple[tuple[int, int], Literal["light", "dark"]]] = {
    "desk-light": (DESK, "light"),
    "desk-dark": (DESK, "dark"),
    "phone-light": (PHONE, "light"),
}


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    """The address of the site, at localhost."""
    if not (SITE / "index.html").exists():
        # In CI `make docs` runs first. The tests of a wheel have no Makefile beside them.
        assert not (os.environ.get("CI") and (ROOT / "Makefile").exists()), "build/site is missing: make docs"
        pytest.skip("there is no site in build/: make docs")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=SITE))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def opened(browser: Browser, view: str) -> Page:
    (width, height), scheme = VIEWS[view]
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme=scheme, reduced_motion="reduce"
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    return page


@pytest.mark.parametrize("view", VIEWS)
def test_pages_are_shown_as_they_should_be(browser: Browser, site: str, screenshots: Path, view: str) -> None:
    page = opened(browser, view)
    complaints = complaints_about(page, site)
    for path in SHOWN:
        page.goto(site + path)
        page.screenshot(path=screenshots / f"{path.strip('/') or 'index'}-{view}.png")
        assert page.evaluate("document.body.dataset.mdColorScheme") == ("slate" if "dark" in view else "default")
    page.context.close()
    assert not complaints


def test_no_page_is_wider_than_a_phone_or_asks_anybody_else(browser: Browser, site: str) -> None:
    page = opened(browser, "phone-light")
    index = json.loads((SITE / "search" / "search_index.json").read_text(encoding="utf-8"))
    index["docs"] = []  # or each page would make the whole index
    page.route("**/search_index.json", lambda route: route.fulfill(json=index))
    complaints = complaints_about(page, site)
    wide = {}
    for path in sorted(path.parent.relative_to(SITE).as_posix() for path in SITE.rglob("index.html")):
        page.goto(f"{site}{path}/")
        if found := overflowing(page):
            wide[path] = found
    page.context.close()
    assert not wide
    assert not complaints


def test_the_search_finds_a_page(browser: Browser, site: str, screenshots: Path) -> None:
    page = opened(browser, "desk-light")
    complaints = complaints_about(page, site)
    page.goto(site)
    page.keyboard.press("/")
    page.keyboard.type("undo window")
    page.locator(".md-search-result__link").first.wait_for()
    page.screenshot(path=screenshots / "search-desk-light.png")
    page.locator(".md-search-result__link").first.click()
    page.wait_for_url(lambda url: url.rstrip("/") != site.rstrip("/"))
    page.context.close()
    assert not complaints


def test_pictures_are_drawn_when_the_site_is_built(browser: Browser, site: str, screenshots: Path) -> None:
    context = browser.new_context(viewport={"width": 1280, "height": 1500}, java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(60_000)
    page.goto(site + "architecture/")
    pictures = page.locator(".picture svg")
    assert pictures.count() == (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").count("```mermaid\n")
    for number in range(pictures.count()):
        pictures.nth(number).screenshot(path=screenshots / f"picture-{number + 1}.png")
    assert not page.locator(".mermaid").count()
    context.close()


def test_names_in_the_reference_lead_to_their_headings(browser: Browser, site: str) -> None:
    page = opened(browser, "desk-light")
    page.goto(site + "reference/")
    page.locator("[id='opslog.Store.set'] ~ .doc-contents a", has_text="ConflictError").first.click()
    page.wait_for_url("**/reference/#opslog.errors.ConflictError")
    broken = page.evaluate(
        """() => [...document.querySelectorAll('.md-content a[href^="#"]')]
            .map((link) => decodeURIComponent(link.hash.slice(1)))
            .filter((place) => place && !document.getElementById(place))"""
    )
    page.context.close()
    assert not broken


@pytest.mark.usefixtures("site")
def test_blocks_and_lists_are_shown_as_such() -> None:
    """A checkout may show text as a block or list that the site shows as a paragraph, with its marks."""
    marks = re.compile(r"^(?:```|[-*] |\d+\. )", re.MULTILINE)
    left = {
        path.parent.relative_to(SITE).as_posix(): paragraph
        for path in SITE.rglob("index.html")
        for paragraph in re.findall(r"<p>(.*?)</p>", path.read_text(encoding="utf-8"), re.DOTALL)
        if marks.search(paragraph)
    }
    assert not left


@pytest.mark.usefixtures("site")
def test_the_reference_has_every_public_name() -> None:
    html = (SITE / "reference" / "index.html").read_text(encoding="utf-8")
    missing = [name for name in opslog.__all__ if not re.search(rf'id="opslog\.(\w+\.)*{name}"', html)]
    assert not missing, "add them to docs/reference.md"


@pytest.mark.usefixtures("site")
def test_the_first_page_is_the_readme_and_leads_to_all_pages() -> None:
    html = (SITE / "index.html").read_text(encoding="utf-8")
    article = html[html.index("<article") : html.index("</article>")]
    assert "An acknowledged commit is never lost" in article
    assert "test_processes.py" in article, "tests have no page: they are named"
    linked = set(re.findall(r'href="(?:\./)?([\w-]+)/(?:#[^"]*)?"', article))
    shown = {path.parent.name for path in SITE.glob("*/index.html")} - {"decisions"}
    assert linked >= shown, f"docs/index.md does not name {shown - linked}"
