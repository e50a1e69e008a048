"""How notebooks show a store: its tables, in the system's browser.

A notebook puts them into a box that scrolls sideways. Its style here is that of JupyterLab's output, as far as it
concerns tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

import opslog
from tests.support.browsers import complaints_about, overflowing

if TYPE_CHECKING:
    from playwright.sync_api import Browser

STYLE = """
body { margin: 16px; font: 14px/1.5 system-ui, sans-serif }
:root { background: Canvas; color: CanvasText; color-scheme: light dark }
pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap; margin: 12px 0 4px }
.output { overflow-x: auto }
.output table { border-collapse: collapse; border-spacing: 0; font-size: 12px; table-layout: fixed; margin: 0 0 1em }
.output td, .output th { text-align: right; vertical-align: middle; padding: 0.5em; white-space: normal }
.output thead { border-bottom: 1px solid }
.output tbody tr:nth-child(even) { background: color-mix(in srgb, CanvasText 6%, transparent) }
"""
HOSTILE = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_tables_of_a_store_in_a_notebook(
    browser: Browser, tmp_path: Path, screenshots: Path, scheme: Literal["light", "dark"]
) -> None:
    with opslog.open(tmp_path / "tasks", agent="planner") as store:
        for number in range(1, 31):
            task = {"title": f"Part {number}", "status": "open", "hours": number / 2, "tags": ["a", "ü"]}
            store[f"task-{number:02}"] = task
        store["task-01"] = {"title": "Part 1", "status": "done", "hours": 1, HOSTILE: HOSTILE, "note": "long " * 100}
        store["task-01"] = {"title": "Part 1", "status": "archived"}
        store.undo()
        shown = {
            "store": store._repr_html_(),
            "store.find('hours >= 14')": store.find("hours >= 14")._repr_html_(),
            "store.history('task-01')": store.history("task-01")._repr_html_(),  # type: ignore[attr-defined]
        }
        cells = [
            f"<pre>{code.replace('>', '&gt;')}</pre><div class=output>{html}</div>" for code, html in shown.items()
        ]
    page = browser.new_page(viewport={"width": 1000, "height": 700}, color_scheme=scheme)
    complaints = complaints_about(page)
    page.set_content(f"<!doctype html><meta charset=utf-8><style>{STYLE}</style>{''.join(cells)}")
    page.screenshot(path=screenshots / f"notebook-{scheme}.png", full_page=True)
    assert page.locator("table").count() == len(shown)
    assert page.locator("table").nth(0).locator("tbody tr").count() == 20
    assert page.locator("table").nth(1).locator("tbody tr").first.inner_text().split("\t")[:2] == ["task-28", "Part 28"]
    assert page.locator("table").nth(2).locator("tbody tr").last.inner_text().endswith("undone")
    assert HOSTILE[:79] in page.locator("table").nth(0).inner_text()
    assert not page.evaluate("'hacked' in window")
    assert not overflowing(page)
    page.close()
    assert not complaints
