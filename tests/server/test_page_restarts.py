"""The page for people while the server is started again, in the system's browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import opslog
from tests.server.test_page_stores import Served, row
from tests.support.servers import serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.mark.long
def test_it_goes_on_when_the_server_is_started_again(browser: Browser, tmp_path: Path) -> None:
    store = tmp_path / "tasks"
    with serving("--memory", "--store", f"tasks={store}") as server:
        served = Served(store, server)
        context = browser.new_context()
        page = context.new_page()
        page.goto(served.place())
        page.locator("#state", has_text="Live").wait_for()
        server.kill()
        page.locator("#state").filter(has_not_text="Live").wait_for()
    with served.open("planner") as writer:
        writer["while-it-was-away"] = {}
        with serving("--memory", "--store", f"tasks={store}", "--port", str(server.port)):
            row(page, "while-it-was-away").wait_for()
            page.locator("#state", has_text="Live").wait_for()
            writer["later"] = {}
            row(page, "later").wait_for()
    context.close()


@pytest.mark.long
def test_a_feed_that_was_created_again_is_read_from_its_beginning(browser: Browser, tmp_path: Path) -> None:
    """Its offsets belong to other messages."""
    store = tmp_path / "tasks"
    context = browser.new_context()
    page = context.new_page()
    with opslog.open(store, agent="planner") as writer:
        writer.update({f"task-{number}": {"n": number} for number in range(20)})
        with serving("--memory", "--store", f"tasks={store}") as server:
            page.goto(f"{server.root}/#/stream/stores%2Ftasks")
            page.locator("#messages li", has_text="snapshot-end").wait_for()
            server.kill()
            page.locator("#state").filter(has_not_text="Live").wait_for()
        writer.update({f"task-{number}": {"n": -number} for number in range(20)})
        with serving("--memory", "--store", f"tasks={store}", "--port", str(server.port)):
            page.locator("#messages li", has_text='"n":-19').wait_for()
            writer["later"] = {}
            page.locator("#messages li", has_text="later").wait_for()
            assert page.locator("#messages li", has_text="snapshot-end").count() == 1
    context.close()


def test_what_could_not_be_read_while_the_server_was_away_is_read_again(browser: Browser, tmp_path: Path) -> None:
    """Also what no write changes: the past, and archives."""
    store = tmp_path / "tasks"
    with opslog.open(store, agent="planner") as writer:
        writer["old"] = {"n": 1}
        writer.archive('@id = "old"', period="2026-Q3")
        writer["new"] = {"n": 2}
        clock = writer.stats().clock
        writer["newer"] = {"n": 3}
    context = browser.new_context()
    pages = [context.new_page(), context.new_page()]
    options = ("--memory", "--store", f"tasks={store}")
    with serving(*options) as server:
        served = Served(store, server)
        for page in pages:
            page.goto(served.place())
            page.locator("#state", has_text="Live").wait_for()
        server.kill()
    past, archives = pages
    for page, place in ((past, served.place(as_of=str(clock))), (archives, served.place("archives", "2026-Q3"))):
        page.locator("#state").filter(has_not_text="Live").wait_for()
        page.evaluate("(place) => (location.hash = place)", place.partition("#")[2])
        page.locator("#problem", has_text="Failed to fetch").wait_for()
    with serving(*options, "--port", str(server.port)):
        row(past, "new").wait_for()
        past.locator("#point", has_text=f"After clock {clock}").wait_for()
        archives.locator("#archived tr", has_text="old").wait_for()
        for page in pages:
            page.locator("#problem").wait_for(state="hidden")
    context.close()
