"""How soon the page of `opslog serve` shows what another process wrote, and what a large store costs it.

    python -m benchmarks.live [--documents N] [--changes N] [--folder DIR]

A store of so many documents is made in DIR (or a temporary directory), compacted and served. Chromium opens its page.
Then this process, which is not the server, sets a document on that page again and again: measured is the time from the
return of the set, when it is durable, until the browser has drawn it.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import opslog
from tests.support.browsers import browsing
from tests.support.servers import Server

# Resolves when the row has the time of this write.
_DRAWN = """ts => new Promise(drawn => {
    const check = () => {
        const time = document.querySelector('#documents tr[data-id="task-0000000"] time')
        if (time && time.dateTime === ts) drawn(Date.now()); else requestAnimationFrame(check)
    }
    check()
})"""


def build(url: Path, documents: int) -> None:
    """A compacted store of small documents, unless it is there."""
    with opslog.open(url, agent="builder") as store:
        if len(store) >= documents:
            return
        for first in range(0, documents, 10_000):
            store.update(
                {f"task-{n:07d}": {"title": f"Task {n}"} for n in range(first, min(first + 10_000, documents))}
            )
        store.compact()


def measure(url: Path, changes: int) -> None:
    """Print what is measured."""
    began = time.monotonic()
    server = Server("--memory", "--store", f"tasks={url}")
    try:
        print(f"the server answers after {time.monotonic() - began:.2f} s")
        with browsing() as browser, opslog.open(url, agent="writer", compact_after=None) as store:
            page = browser.new_page()
            page.set_default_timeout(600_000)
            began = time.monotonic()
            page.goto(f"{server.root}/#/store/tasks")
            page.locator("#documents tbody tr").first.wait_for()
            print(f"the first documents are drawn after {time.monotonic() - began:.2f} s")
            page.locator("#state", has_text="Live").wait_for()
            print(f"it is live after {time.monotonic() - began:.2f} s")
            seconds, dice = [], random.Random(1)
            for n in range(changes):
                page.wait_for_timeout(1000 * dice.random())  # at any moment between two times at which the server asks
                store["task-0000000"] = {"title": f"change {n} of {changes}"}
                durable = time.time()
                record = store.record("task-0000000")
                assert record is not None
                seconds.append(page.evaluate(_DRAWN, record.ts) / 1000 - durable)
            shown = ", ".join(f"{name} {value:.2f} s" for name, value in _figures(seconds))
            print(f"{changes} changes were drawn after: {shown}")
    finally:
        server.stop()


def _figures(seconds: list[float]) -> list[tuple[str, float]]:
    return [("median", statistics.median(seconds)), ("at the most", max(seconds))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=1_000_000)
    parser.add_argument("--changes", type=int, default=20)
    parser.add_argument("--folder", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        url = (given.folder or Path(temporary)) / "store"
        build(url, given.documents)
        measure(url, given.changes)


if __name__ == "__main__":
    main()
