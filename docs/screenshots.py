"""Takes the pictures of the page of `opslog serve` that docs/server.md shows, in the browser that the system has:

python docs/screenshots.py
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright

import opslog

HERE = Path(__file__).parent
WINDOW = {"width": 1180, "height": 600}

TITLES = (
    "Build the API", "Write the importer", "Review the schema", "Load test the feed", "Document the errors",
    "Sign the webhooks", "Rotate the keys", "Tidy the archive", "Check the backups", "Translate the messages",
    "Measure start-up", "Retire the old queue",
)  # fmt: skip
AGENTS = ("planner", "ada-1", "ben-1", "cleo-1")


def write_history(path: Path) -> None:
    """A board on which four agents have worked for a while."""
    stores = {agent: opslog.open(path, agent=agent) for agent in AGENTS}
    planner = stores["planner"]
    with planner.batch():
        for number, title in enumerate(TITLES, start=1):
            planner[f"task-{number:02}"] = {"title": title, "status": "open", "hours": number % 5 + 1}
    for number in range(1, 10):
        worker = AGENTS[number % 3 + 1]
        store = stores[worker]
        store.refresh()
        key = f"task-{number:02}"
        store[key] = {**store[key], "status": "active", "worker": worker}
        if number < 7:
            store[key] = {**store[key], "status": "done", "spent": number % 4 + 1}
    planner.refresh()
    planner["task-03"] = {**planner["task-03"], "status": "open", "note": "The index is missing."}
    planner.undo()
    planner["task-03"] = {**planner["task-03"], "status": "active", "note": "One index is missing."}
    for store in stores.values():
        store.close()


def take(url: str) -> None:
    root = url.partition("/v1/")[0]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport=WINDOW, color_scheme="light")
        for name, place, wanted in (
            ("documents", "documents", "task-01"),
            ("history", "document/task-03", "One index is missing."),
        ):
            page.goto(f"{root}/#/store/tasks/{place}")
            page.get_by_text(wanted).first.wait_for()
            page.screenshot(path=HERE / "screenshots" / f"{name}.png")
        browser.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tasks")
        write_history(path)
        server = subprocess.Popen(
            [sys.executable, "-m", "opslog", "serve", "--memory", "--store", f"tasks={path}", "--port", "0", "--json"],
            stderr=subprocess.PIPE,
            text=True,
        )
        with server:
            try:
                assert server.stderr is not None
                says = map(json.loads, server.stderr)
                take(next(line["url"] for line in says if line["message"] == "serving"))
            finally:
                server.terminate()


if __name__ == "__main__":
    main()
