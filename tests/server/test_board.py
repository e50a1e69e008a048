"""The board of examples/board/ in the system's browser, started as its page says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import opslog
from tests.support.browsers import complaints_about
from tests.support.documents import ROOT
from tests.support.servers import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

EXAMPLES = ROOT / "examples"
HOSTILE = "<img src=x onerror=window.hacked=1>"


@pytest.fixture(scope="module")
def files() -> Iterator[str]:
    """Serves the files of the board as they are."""
    place = str(EXAMPLES / "board")
    command = [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", place]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline()  # Serving HTTP on 127.0.0.1 port 34567 (http://127.0.0.1:34567/) ...
        yield said.partition("(")[2].partition(")")[0]
        process.kill()


@contextmanager
def serving_tasks(place: Path, *options: str) -> Iterator[Server]:
    with serving("--store", f"tasks={place / 'tasks'}", "--data", str(place / "streams"), *options) as server:
        yield server


def opened(browser: Browser, files: str, server: Server) -> Page:
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(f"{files}?server={server.root}")
    page.locator("#state", has_text="Live").wait_for()
    return page


def card(page: Page, column: str, text: str) -> Locator:
    return page.locator(f"[data-column={column}] li", has_text=text)


def test_a_card_moves_after_another_processs_write(browser: Browser, files: str, tmp_path: Path) -> None:
    with serving_tasks(tmp_path) as server:
        page = browser.new_page()
        complaints = complaints_about(page, "http://127.0.0.1:")
        page.goto(f"{files}?server={server.root}")
        page.locator("#state", has_text="Live").wait_for()
        board = [sys.executable, str(EXAMPLES / "task_board.py"), str(tmp_path / "tasks")]
        subprocess.run([*board, "add", "build api", HOSTILE], check=True, timeout=60)
        card(page, "open", "build api").wait_for()
        card(page, "open", HOSTILE).wait_for()
        with opslog.open(tmp_path / "tasks", agent="slow") as slow:
            lease = opslog.Lease(slow, "task-001", seconds=60.0)
            assert lease.claim()
            card(page, "claimed", "build api").filter(has_text="slow").wait_for()
            lease.release()
            card(page, "open", "build api").wait_for()
        subprocess.run([*board, "work", "ann"], check=True, timeout=60, stdout=subprocess.DEVNULL)
        card(page, "done", "build api").filter(has_text="ann").wait_for()
        card(page, "done", HOSTILE).wait_for()
        assert page.locator("li").count() == 2
        assert page.locator("img").count() == 0
        assert page.evaluate("window.hacked") is None
        with opslog.open(tmp_path / "tasks", agent="cleaner") as cleaner:
            del cleaner["task-001"]
            card(page, "done", "build api").wait_for(state="detached")
            cleaner["task-002"] = {"note": "no task any more"}
            page.locator("li").wait_for(state="detached")
        page.close()
        assert not complaints


def test_the_board_goes_on_when_the_server_is_started_again(browser: Browser, files: str, tmp_path: Path) -> None:
    with opslog.open(tmp_path / "tasks", agent="planner") as store:
        store["task-001"] = {"title": "first", "status": "open"}
        with serving_tasks(tmp_path) as server:
            page = opened(browser, files, server)
            card(page, "open", "first").wait_for()
            server.kill()
        store["task-001"] = {"title": "first", "status": "done", "by": "ann"}
        with serving_tasks(tmp_path, "--port", str(server.port)):
            card(page, "done", "first").wait_for()
            assert page.locator("li").count() == 1
    page.close()


def test_without_a_server_the_board_says_how_to_start_one(browser: Browser, files: str, tmp_path: Path) -> None:
    with serving("--memory") as server:  # it serves no store
        page = browser.new_page()
        page.goto(f"{files}?server={server.root}")
        page.locator("#state", has_text="opslog serve --store tasks=./tasks").wait_for()
        page.close()
