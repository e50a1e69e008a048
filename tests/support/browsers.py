"""A browser for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def browsing() -> Iterator[Browser]:
    """The system's browser. There is one for each module, because playwright keeps a loop in the thread, which would
    block `asyncio.run` in other tests."""
    api = pytest.importorskip("playwright.sync_api", reason="tests in a browser need playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def complaints_about(page: Page, allowed: str = "") -> list[str]:
    """What the browser reports as a problem, and each request that does not go to `allowed`. The list fills as it
    happens."""
    found: list[str] = []
    page.on("console", lambda message: found.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on(
        "request",
        lambda request: (
            None if request.url.startswith((allowed, "data:", "blob:")) else found.append(f"a request to {request.url}")
        ),
    )
    return found


def overflowing(page: Page) -> list[str]:
    """Elements wider than the window, which make the whole page scroll sideways. An element that scrolls by itself may
    be wider."""
    names: list[str] = page.evaluate(
        """() => {
            const wide = document.documentElement.clientWidth
            if (document.documentElement.scrollWidth <= wide) return []
            const inside = (element) => {
                for (let up = element.parentElement; up; up = up.parentElement)
                    if (getComputedStyle(up).overflowX !== "visible") return true
                return false
            }
            return [...document.querySelectorAll("body *")]
                .filter((element) => element.getBoundingClientRect().right > wide + 1 && !inside(element))
                .map((element) => element.outerHTML.slice(0, 120))
                .concat(`${document.documentElement.scrollWidth} of ${wide} pixels`)
        }"""
    )
    return names
