"""Stores on the page for people, in the system's browser."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, urlsplit

import httpx
import pytest

import opslog
from opslog.server.client import Client
from tests.support.browsers import complaints_about, overflowing
from tests.support.servers import Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route

HOSTILE = "<img src=x onerror=window.hacked=1>/&lt;\"'`${window.hacked=1}"
PHONE = (390, 844)
Open = Callable[..., "Page"]


class Served:
    """A served store, to which this process writes beside the server.

    :ivar asked: the requests that the pages of this test have made.
    """

    def __init__(self, path: Path, server: Server) -> None:
        self.path = path
        self.server = server
        self.asked: list[str] = []

    def open(self, agent: str, **options: Any) -> opslog.Store[Any]:
        return opslog.open(self.path, agent=agent, **options)

    def place(self, view: str = "documents", id: str | None = None, **given: str) -> str:
        rest = "" if id is None else f"/{quote(id, safe='')}"
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in given.items())
        return f"{self.server.root}/#/store/tasks/{view}{rest}{'?' if query else ''}{query}"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    opslog.open(tmp_path / "tasks", agent="first", settings=opslog.Settings(undo_window=4)).close()
    with serving("--memory", "--store", f"tasks={tmp_path / 'tasks'}", "--feed-seconds", "0.05") as server:
        yield Served(tmp_path / "tasks", server)


@contextmanager
def showing(browser: Browser, served: Served, place: str, *, refused: int = 0, **context: Any) -> Iterator[Page]:
    """The page at an address. The test fails if the browser reports a problem or sends a request to another server.

    :param refused: a status that the browser may report.
    """
    opened = browser.new_context(**context)
    page = opened.new_page()
    page.set_default_timeout(60_000)
    complaints = complaints_about(page, served.server.root)
    page.on("request", lambda request: served.asked.append(request.url))
    page.goto(place)
    page.locator("#state", has_text="Live").wait_for()
    yield page
    opened.close()
    assert not [each for each in complaints if not refused or f"a status of {refused}" not in each]


def row(page: Page, id: str) -> Locator:
    return page.locator(f"#documents tr[data-id={json.dumps(id, ensure_ascii=False)}]")


def cells(page: Page, id: str) -> list[str]:
    return row(page, id).locator("th, td").all_inner_texts()


def test_a_change_of_another_process_is_shown(browser: Browser, served: Served) -> None:
    with served.open("planner") as store, showing(browser, served, served.place()) as page:
        page.locator("#summary", has_text="There are no documents.").wait_for()
        store["task-1"] = {"title": "Build", "status": "open"}
        row(page, "task-1").wait_for()
        assert cells(page, "task-1")[:4] == ["task-1", "Build", "open", "planner"]
        page.locator("#stores .tail", has_text="1").wait_for()
        record = store.record("task-1")
        assert record is not None
        assert row(page, "task-1").locator("time").get_attribute("datetime") == record.ts
        store["task-1"] = {"title": "Build", "status": "done"}
        row(page, "task-1").filter(has_text="done").wait_for()
        row(page, "task-1").and_(page.locator(".fresh")).wait_for()
        store["task-2"] = {"title": "Test"}
        row(page, "task-2").wait_for()
        del store["task-1"]
        row(page, "task-1").wait_for(state="detached")


def test_changes_are_pushed_and_the_page_asks_for_a_page_of_documents(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store.update({f"task-{number:03}": {"n": number} for number in range(120)})
        with showing(browser, served, served.place()) as page:
            page.locator("#summary", has_text="1–50 of 120 documents").wait_for()
            loaded = len(documents_asked(served))
            store["task-000"] = {"n": -1}
            row(page, "task-000").filter(has_text="-1").wait_for()
            # The page does not poll: its requests since then follow from the event.
            assert 1 <= len(documents_asked(served)) - loaded <= 2
            page.get_by_role("button", name="Next").click()
            page.locator("#summary", has_text="51–100").wait_for()
            page.get_by_role("button", name="Next").click()
            page.locator("#summary", has_text="101–120").wait_for()
            assert page.get_by_role("button", name="Next").is_disabled()
            page.get_by_role("button", name="Previous").click()
            page.locator("#summary", has_text="51–100").wait_for()
            assert page.locator("#documents tbody tr").count() == 50
    assert {asked["limit"][0] for asked in documents_asked(served)} == {"50"}


def test_turning_pages_faster_than_they_come_leads_to_each_of_them(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store.update({f"task-{number:03}": {"n": number} for number in range(160)})
        with showing(browser, served, served.place()) as page:
            page.locator("#summary", has_text="1–50 of 160 documents").wait_for()
            page.get_by_role("button", name="Next").evaluate("(button) => (button.click(), button.click())")
            page.locator("#summary", has_text="51–100").wait_for()
            page.get_by_role("button", name="Previous").click()
            page.locator("#summary", has_text="1–50").wait_for()
            # An answer that arrives after its page was left.
            held: list[Route] = []
            is_held = [True]
            page.route("**/documents?*", lambda route: held.append(route) if is_held[0] else route.continue_())
            with page.expect_request("**/documents?*"):
                store["task-000"] = {"n": -1}
            page.evaluate(
                """() => {
                    const rows = document.querySelector("#documents tbody")
                    const note = (records) => records.forEach(({ addedNodes }) =>
                        addedNodes.forEach((row) => window.shown.push(row.dataset.id)))
                    window.shown = []
                    new MutationObserver(note).observe(rows, { childList: true })
                }"""
            )
            page.get_by_role("button", name="Next").click()
            is_held[0] = False
            for route in held:
                route.continue_()
            row(page, "task-050").wait_for()
            page.locator("#summary", has_text="51–100").wait_for()
            assert page.evaluate("window.shown.filter((id) => id < 'task-050')") == []


def test_long_documents_come_on_shorter_pages(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        for number in range(5):
            store[f"long-{number}"] = {"text": "x" * 400_000}
        with showing(browser, served, served.place()) as page:
            page.locator("#summary", has_text="1–2 of 5 documents").wait_for()
            page.get_by_role("button", name="Next").click()
            page.locator("#summary", has_text="3–4 of 5 documents").wait_for()
            page.get_by_role("button", name="Next").click()
            page.locator("#summary", has_text="5–5 of 5 documents").wait_for()
            assert len(row(page, "long-4").inner_text()) < 500
            row(page, "long-4").locator("a").click()
            page.locator("#document .added", has_text="x" * 100).wait_for()
            page.goto(served.server.root + "/#")
            page.locator("#view", has_text="Choose a store or a stream").wait_for()


def documents_asked(served: Served) -> list[dict[str, list[str]]]:
    found = [urlsplit(url) for url in served.asked]
    return [parse_qs(url.query) for url in found if url.path == "/v1/store/tasks/documents"]


def test_hostile_ids_names_and_values_stay_text(browser: Browser, served: Served) -> None:
    document = {HOSTILE: HOSTILE, "__proto__": {"polluted": HOSTILE}, "constructor": [HOSTILE], "": None, "\u202e": "x"}
    ids = [HOSTILE, "", "a/b?c#d%41", "\u202etxt", "javascript:alert(1)"]
    with served.open("planner") as store:
        store[".."] = {"more": "which browsers take for a step in the address"}
        for id in ids:
            store[id] = document
            store[id] = {**document, "more": id}
        with showing(browser, served, served.place()) as page:
            row(page, "..").locator("a").click()
            page.locator("#document .added", has_text='"more"').wait_for()
            page.go_back()
            for id in ids:
                row(page, id).locator("a").click()
                page.locator("#document .added", has_text='"more"').wait_for()
                assert page.locator("#id").inner_text() == (id or "(empty id)")
                assert page.title() == "tasks · opslog"
                page.go_back()
            for view in ("commits", "agents", "conflicts"):
                page.goto(served.place(view))
                page.locator("#view .ids, #view .summary").first.wait_for()
            assert page.locator("#view img, #view script").count() == 0
            assert page.evaluate("[window.hacked, ({}).polluted]") == [None, None]


def test_numbers_are_shown_as_they_are_written(browser: Browser, served: Served) -> None:
    numbers = {"big": 18446744073709551615, "small": -9223372036854775808, "one": 1.0, "tiny": 5e-324}
    with served.open("planner") as store:
        store["a"] = numbers
        with showing(browser, served, served.place()) as page:
            row(page, "a").wait_for()
            assert cells(page, "a")[1:5] == ["18446744073709551615", "-9223372036854775808", "1.0", "5e-324"]
            row(page, "a").locator("a").click()
            page.locator("#document", has_text="18446744073709551615").wait_for()


def test_documents_are_asked_for_in_the_language_of_find_sorted_and_shared_by_address(
    browser: Browser, served: Served
) -> None:
    with served.open("planner") as store:
        for number, status in enumerate(["open", "done", "open", "open"]):
            store[f"task-{number}"] = {"n": number, "status": status, "due date": {"y": -number}, "end\x85": 1}
        with showing(browser, served, served.place(), refused=400) as page:
            page.keyboard.press("/")
            page.keyboard.type("status = open and n > 0")
            page.keyboard.press("Enter")
            page.locator("#summary", has_text="1–2 of 2 documents").wait_for()
            page.get_by_role("button", name="n", exact=True).click()
            page.locator("th[aria-sort=ascending]").wait_for()
            page.get_by_role("button", name="n ↑").click()
            page.locator("th[aria-sort=descending]").wait_for()
            shown = "#documents tbody th"
            page.locator(shown).first.filter(has_text="task-3").wait_for()
            assert page.locator(shown).all_inner_texts() == ["task-3", "task-2"]
            page.reload()
            page.locator(shown).first.filter(has_text="task-3").wait_for()
            page.locator(".columns summary").click()
            page.get_by_label("status").uncheck()
            page.get_by_role("button", name="Show").click()
            page.locator("#documents thead", has_not_text="status").wait_for()
            assert not page.get_by_label("status").is_checked(), "it can be chosen again"
            for name in ("due date", "end"):  # a path must quote these names
                page.locator("#documents thead button", has_text=name).click()
                page.locator("th[aria-sort=ascending]", has_text=name).wait_for()
            page.locator("#where").fill("status = ")
            page.keyboard.press("Enter")
            page.locator("#problem", has_text="^").wait_for()
            page.locator("#where").fill("")
            page.keyboard.press("Enter")
            page.locator("#summary", has_text="4 documents").wait_for()
            page.locator("#problem").wait_for(state="hidden")


def test_the_menu_of_columns_forgets_fields_that_are_gone(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store["x"] = {}
        fields: set[str] = set()
        with showing(browser, served, served.place()) as page:
            for run in range(3):
                fields = {f"run-{run}-{number}" for number in range(20)}
                store["x"] = dict.fromkeys(fields, run)
                record = store.record("x")
                assert record is not None
                row(page, "x").locator(f"time[datetime={json.dumps(record.ts)}]").wait_for()
            columns = page.locator("#documents thead button").evaluate_all("(all) => all.map((each) => each.title)")
            offered = page.locator(".columns input").evaluate_all("(all) => all.map((each) => each.dataset.name)")
    heads = {"Sort by Id", "Sort by Written by", "Sort by At"}
    assert set(offered) == {column.removeprefix("Sort by ") for column in set(columns) - heads} | fields


def test_a_document_is_shown_with_what_each_revision_changed(browser: Browser, served: Served) -> None:
    with served.open("planner") as planner, served.open("worker") as worker:
        planner["a"] = {"title": "Build", "n": 1}
        planner["a"] = {"title": "Build", "n": 2}
        worker.refresh()
        worker["a"] = {"title": "Build it", "n": 2}
        with showing(browser, served, served.place("document", "a")) as page:
            page.locator("#what", has_text="Revision 3 of 3, written by worker").wait_for()
            assert page.locator("#document .removed").inner_text().endswith('"title": "Build",')
            assert page.locator("#document .added").inner_text().endswith('"title": "Build it",')
            page.get_by_label("Revision", exact=True).press("ArrowLeft")
            page.locator("#what", has_text="Revision 2 of 3, written by planner").wait_for()
            page.locator("#document .removed", has_text='"n": 1').wait_for()
            page.get_by_role("button", name="Earlier revision").click()
            page.locator("#what", has_text="Revision 1 of 3").wait_for()
            assert page.locator("#document .same, #document .removed").count() == 0, "all of it is new"
            worker["a"] = {"title": "Built", "n": 2}
            page.locator("#what", has_text="Revision 1 of 4").wait_for()  # it stays on this revision
            page.get_by_label("Revision", exact=True).press("End")
            page.locator("#document .added", has_text="Built").wait_for()
            worker["a"] = {"title": "Shipped", "n": 2}
            page.locator("#document .added", has_text="Shipped").wait_for()  # there it follows the newest revision
            worker.undo()
            page.locator("#revisions .undone .mark", has_text="undone").wait_for()
            del worker["a"]
            page.locator("#what", has_text="deleted by worker").wait_for()
            page.get_by_label("all of it").check()
            page.get_by_label("Revision", exact=True).press("Home")
            page.locator("#document .same", has_text='"n": 1').wait_for()
            assert page.locator("#document .added").count() == 0


def test_a_commit_of_an_agent_can_be_undone(browser: Browser, served: Served) -> None:
    with served.open("planner", log="shared") as shared, served.open("beside") as beside:
        shared["a"] = {"n": 1}
        shared["a"] = {"n": 2}
        beside["b"] = {"n": 1}
        with showing(browser, served, served.place("document", "a")) as page:
            page.locator(".undo").first.click()
            page.get_by_text("Really undo?").click()
            page.locator("#said", has_text="Undone: 1 document").wait_for()
            page.locator("#what", has_text="Revision 2 of 2").wait_for()
            page.locator("#revisions .undone").wait_for()
            shared.refresh()
            assert shared["a"] == {"n": 1}
            page.goto(served.place("document", "b"))
            page.locator("#revisions li").wait_for()
            assert page.locator(".undo").count() == 0, "what stands in an agent's own log only that agent takes back"


def test_the_store_as_it_was_behind_any_commit(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        for number in range(4):
            store[f"task-{number}"] = {"n": number}
        with showing(browser, served, served.place()) as page:
            page.get_by_role("button", name="As of…").click()
            page.locator("#point", has_text="4 commits").wait_for()
            page.route("**/activity?limit=1000", lambda route: route.abort())  # the slider knows the commits
            for _ in range(3):
                page.keyboard.press("ArrowLeft")
            page.locator("#point", has_text="planner set task-1").wait_for()
            page.locator("#summary", has_text="of 2 documents").wait_for()
            store["task-9"] = {}
            page.locator("#stores .tail", has_text="5").wait_for()
            assert page.locator("#documents tbody tr").count() == 2, "the past does not change"
            row(page, "task-1").locator("a").click()
            page.locator("#what", has_text="written by planner").wait_for()
            page.go_back()
            page.get_by_role("button", name="Now").click()
            page.locator("#summary", has_text="of 5 documents").wait_for()


def test_the_store_as_it_was_at_a_time_and_before_the_commits_on_the_slider(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        for number in range(4):
            store["a"] = {"n": number}
        second = store.history("a")[1].record
        with showing(browser, served, served.place(as_of=second.ts)) as page:
            page.locator("#point", has_text=f"After clock {second.clock}: planner set a").wait_for()
            row(page, "a").filter(has_text="1").wait_for()
            row(page, "a").locator("a").click()
            page.locator("#what", has_text="Revision 2 of 4").wait_for()
            page.route("**/activity?limit=1000", lambda route: route.continue_(url=route.request.url[:-3]))
            page.goto(served.place(as_of=str(second.clock)))
            page.locator("#point", has_text=f"As of {second.clock}, before the commits").wait_for()
            row(page, "a").filter(has_text="1").wait_for()


def test_agents_leases_conflicts_commits_archives_and_figures(browser: Browser, served: Served) -> None:
    with served.open("ann") as ann, served.open("bob") as bob:
        ann["task"] = {"by": "ann"}
        bob["task"] = {"by": "bob"}  # neither has read the other's write
        ann["old"] = {"n": 18446744073709551615}
        ann.archive('@id = "old"', period="2026-Q3")
        lease = opslog.Lease(bob, "task", 30.0)
        assert lease.claim()
        with showing(browser, served, served.place("agents")) as page:
            page.locator("#agents tbody th", has_text="ann").wait_for()
            assert sorted(page.locator("#agents tbody th").all_inner_texts()) == ["ann", "bob"]
            page.locator("#leases tr", has_text="task").filter(has_text="bob").wait_for()
            lease.release()
            page.locator("#leases").wait_for(state="detached")
            page.get_by_role("link", name="Conflicts").click()
            lost = page.locator("#lost tbody tr")
            lost.wait_for()
            assert [lost.locator("th, td").nth(cell).inner_text() for cell in (0, 1, 4)] == ["task", "ann", "bob"]
            page.get_by_role("link", name="Commits").click()
            page.locator("#commits tbody tr", has_text="bob").first.wait_for()
            page.get_by_role("link", name="Archives").click()
            page.get_by_role("link", name="2026-Q3").click()
            page.locator("#archived tr", has_text="18446744073709551615").wait_for()
            page.get_by_role("link", name="Figures").click()
            page.locator("figure").nth(2).wait_for()
            assert page.get_by_role("img").count() == 3
            ann.update({f"task-{number}": {} for number in range(3)})
            for number in range(5):
                ann["task-9"] = {"n": number}
            ann.compact()
            page.locator("p.hint", has_text="1 compaction").wait_for()
            page.locator("#stats dt", has_text="size of logs").wait_for()


def test_a_lease_that_nobody_renews_is_seen_to_run_out(browser: Browser, served: Served) -> None:
    with served.open("ann") as ann, showing(browser, served, served.server.root) as page:
        assert opslog.Lease(ann, "task", 3600.0).claim()
        page.clock.install()
        page.goto(served.place("agents"))
        page.locator("#leases tr", has_text="held").wait_for()
        page.clock.fast_forward(3_601_000)
        page.locator("#leases tr", has_text="may be taken over").wait_for()


def test_everything_is_done_with_the_keyboard(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        for name in "abc":
            store[name] = {"name": name}
        with showing(browser, served, served.server.root) as page:
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.className") == "skip"
            page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            row(page, "a").locator("a").focus()
            page.keyboard.press("ArrowDown")
            page.keyboard.press("ArrowDown")
            assert page.evaluate("document.activeElement.textContent") == "c"
            store["b"] = {"name": "other"}
            row(page, "b").filter(has_text="other").wait_for()
            assert page.evaluate("document.activeElement.textContent") == "c", "updates do not take the focus away"
            page.keyboard.press("ArrowUp")
            store["b"] = {"name": "again"}
            row(page, "b").filter(has_text="again").wait_for()
            assert page.evaluate("document.activeElement.textContent") == "b", "nor that of the row itself"
            page.keyboard.press("Enter")
            page.locator("#id", has_text="b").wait_for()


@pytest.mark.long
def test_views_that_are_drawn_again_keep_the_focus(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store["a"] = {}
        with showing(browser, served, served.place("commits")) as page:
            page.locator("#commits .ids a").focus()
            store["b"] = {}
            page.locator("#commits .ids a", has_text="b").wait_for()
            assert page.evaluate("document.activeElement.textContent") == "a"
            page.goto(served.place("agents"))
            page.locator("#agents .ids a", has_text="a").focus()
            store["c"] = {}
            page.locator("#agents .ids a", has_text="c").wait_for()
            assert page.evaluate("document.activeElement.textContent") == "a"


def test_a_write_that_lost_and_one_that_was_undone_at_once_are_revisions_on_the_page(
    browser: Browser, served: Served
) -> None:
    with served.open("slow") as slow, served.open("planner") as store, served.open("other", log="shared") as other:
        store["a"] = {"n": 1}
        store["a"] = {"n": 2}
        with showing(browser, served, served.place("document", "a")) as page:
            page.locator("#what", has_text="Revision 2 of 2").wait_for()
            page.evaluate("window.drawn = document.querySelector('#revisions li')")
            for id in "bc":  # the page has drawn the first answer before it asks again
                with page.expect_response("**/history/a?*"):
                    store[id] = {}
            assert page.evaluate("window.drawn.isConnected"), "the history is the same"
            slow["a"] = {"n": "lost"}  # it has not read the others
            page.locator("#what", has_text="Revision 3 of 3, written by planner").wait_for()
            other.refresh()
            other["a"] = {"n": "undone"}
            assert other.undo()
            page.locator("#revisions .undone", has_text="other").wait_for()
            page.locator("#what", has_text="Revision 4 of 4, written by other").wait_for()
            store.refresh()
            del store["a"]
            page.locator("#what", has_text="deleted by planner").wait_for()
            store["a"] = {"n": 3}
            page.locator("#document .added", has_text="3").wait_for()


def test_a_phone_shows_the_list_or_what_was_chosen(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store["x" * 200] = {"long": "y" * 500, "words": "many words " * 40, "deep": {"n": list(range(60))}}
        size = {"width": PHONE[0], "height": PHONE[1]}
        with showing(browser, served, served.server.root, viewport=size) as page:
            page.locator("#stores a").click()
            row(page, "x" * 200).wait_for()
            assert page.locator("#side").is_hidden()
            for view in ("documents", "commits", "agents", "conflicts", "archives", "figures"):
                page.goto(served.place(view))
                page.locator("#body > *").first.wait_for()
                assert overflowing(page) == [], view
            page.goto(served.place("document", "x" * 200))
            page.locator("#document .added").first.wait_for()
            assert overflowing(page) == []
            page.locator("#menu").click()
            page.locator("[role=treeitem]").wait_for()
            assert page.locator("#menu").get_attribute("aria-expanded") == "true"
            page.locator("[role=treeitem]").click()
            page.locator("#messages li").first.wait_for()
            assert page.locator("#side").is_hidden()
            assert overflowing(page) == []


def test_everything_has_a_name_for_a_screen_reader(browser: Browser, served: Served) -> None:
    with served.open("planner") as store:
        store["a"] = {"n": 1}
        store["a"] = {"n": 2}
        with showing(browser, served, served.place()) as page:
            for view in ("documents", "commits", "agents", "conflicts", "archives", "figures", "document"):
                page.goto(served.place(view, "a" if view == "document" else None))
                page.locator("#body > *").nth(1 if view == "documents" else 0).wait_for()
                assert page.evaluate(NAMELESS) == [], view
                assert page.locator("#view h1").count() == 1


# Controls without a name, tables without a caption, and pictures without a text.
NAMELESS = """() => [...document.querySelectorAll("button, a, input, summary, table, svg, [role=group], nav, select")]
    .filter((each) => each.checkVisibility())
    .filter((each) => !(each.ariaLabel || each.labels?.[0]?.textContent.trim() || each.textContent.trim()
        || each.ariaLabelledByElements?.length || each.caption))
    .map((each) => each.outerHTML)"""


TOKENS = {"reader": {}, "ann": {"write": ["stores/tasks"]}, "bob": {"write": ["stores/tasks"]}}


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Served]:
    """A server with tokens that may use only one store."""
    lines = []
    for name, rights in TOKENS.items():
        digest = sha256(f"secret of {name}".encode()).hexdigest()
        lines += ["[[token]]", f'name = "{name}"', f'sha256 = "{digest}"', 'read = ["stores/tasks"]']
        lines += [f"{right} = {json.dumps(prefixes)}" for right, prefixes in rights.items()]
    (tmp_path / "tokens.toml").write_text("\n".join(lines))
    stores = [f"--store=tasks={tmp_path / 'tasks'}", f"--store=secret={tmp_path / 'secret'}"]
    with serving("--memory", *stores, "--tokens", str(tmp_path / "tokens.toml")) as server:
        yield Served(tmp_path / "tasks", server)


@pytest.mark.parametrize(("who", "may"), [("reader", False), ("ann", True), ("bob", False)])
def test_a_token_sees_what_it_may_read_and_undoes_what_its_agent_wrote(
    browser: Browser, guarded: Served, who: str, may: bool
) -> None:
    with Client(guarded.server.url, token="secret of ann"):
        written = httpx.put(
            f"{guarded.server.root}/v1/store/tasks/documents/a",
            json={"n": 1},
            headers={"authorization": "Bearer secret of ann"},
        )
        assert written.status_code == 200
    context = browser.new_context()
    page = context.new_page()
    page.goto(guarded.place("document", "a"))
    page.locator("#token").fill("wrong")
    page.keyboard.press("Enter")
    page.locator("#state", has_text="does not know this token").wait_for()
    page.locator("#token").fill("“secret”")  # as some editors write it
    page.keyboard.press("Enter")
    page.locator("#state", has_text="cannot have these characters").wait_for()
    page.locator("#token").fill(f"  secret of {who} ")
    page.keyboard.press("Enter")
    page.locator("#state", has_text="Live").wait_for()
    page.locator("#what", has_text="written by ann").wait_for()
    assert page.locator("#stores li").all_inner_texts()[0].startswith("tasks")
    assert page.locator("#stores li").count() == 1
    assert page.locator("[role=treeitem]").count() == 1, "nor does the list of streams name the other one"
    assert page.locator(".undo").count() == int(may)
    if may:
        page.locator(".undo").click()
        page.locator(".undo").click()
        page.locator("#said", has_text="Undone").wait_for()
    stored = page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]")
    assert stored == [0, 1, ""], "the token is forgotten with the tab"
    context.close()
