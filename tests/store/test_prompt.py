"""How a prompt or a notebook shows a store, its records, commits and revisions."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.logs import logger
from opslog.notebook import CELL, COLUMNS, ROWS, documents_table, table
from opslog.replica.replica import Replica

_numbers = itertools.count()


@dataclass
class Task:
    title: str
    hours: float = 1.5


@pytest.fixture
def url() -> str:
    return f"memory://prompt-{next(_numbers)}"


class Cells(HTMLParser):
    """The texts of a table row by row, and every other element."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.others: set[str] = set()
        self._cell: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self._cell = []
        elif tag not in ("table", "caption", "thead", "tbody", "p"):
            self.others.add(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self.rows[-1].append("".join(self._cell))
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.append(data)


def test_a_store_shows_its_size_its_type_and_how_it_is_seen(url: str) -> None:
    with opslog.open(url, agent="planner", type=Task) as store:
        store["x"] = Task("Build")
        assert repr(store) == f"<opslog.Store {url}: 1 document of Task, agent='planner'>"
        store["y"] = Task("Test")
    assert repr(store) == f"<opslog.Store {url}: closed>"
    with opslog.open(url, read_only=True) as reader:
        assert repr(reader) == f"<opslog.Store {url}: 2 documents, read_only>"
    with opslog.open(url, as_of=1) as past:
        assert repr(past) == f"<opslog.Store {url}: 1 document, as_of=1>"


def test_a_store_for_asyncio_shows_the_same(url: str) -> None:
    async def shown() -> list[str]:
        async with opslog.aio.open(url, agent="planner", type=Task) as store:
            await store.set("x", Task("Build"))
            there = repr(store)
        return [there, repr(store)]

    assert asyncio.run(shown()) == [
        f"<opslog.aio.AsyncStore {url}: 1 document of Task, agent='planner'>",
        f"<opslog.aio.AsyncStore {url}: closed>",
    ]


def test_a_store_that_cannot_be_read_is_shown_all_the_same(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with opslog.open(url, agent="a") as store:

        def fail(self: object) -> int:
            raise opslog.RetryError("no answer")

        monkeypatch.setattr(Replica, "count", fail)
        assert repr(store) == f"<opslog.Store {url}: cannot be read now, agent='a'>"


def test_records_commits_and_revisions_show_documents(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {"title": "Build", "tags": [1, None]}
        store.update({f"d{number}": {"n": number} for number in range(7)})
        del store["x"]
        store.undo()
        one, batch, delete, undo = store.ops()
        shown = f"Set(id='x', document={{'title': 'Build', 'tags': [1, None]}}, ts='{one.ts}', clock=1, agent='a')"
        assert repr(store.record("x")) == repr(one) == shown
        assert repr(store.history("x")[0]) == f"Revision(record={shown}, undone=False)"
        assert repr(batch).startswith("Batch(ops=[SetOp(id='d0', document={'n': 0}), SetOp(id='d1'")
        assert "… 2 more], ts=" in repr(batch)
        assert repr(delete) == f"Delete(id='x', ts='{delete.ts}', clock=3, agent='a')"
        assert repr(undo).startswith("Undo(target=3, ")
        store.create("claim", {"n": 1})
        assert "by='a'" in repr(store.record("claim"))
    assert repr(opslog.Set("", 0, "", "x", msgspec.Raw(b"{bad"), 2)) == "Set(id='x', data=b'{bad', v=2, clock=0)"
    assert len(repr(opslog.Set("", 0, "", "x", msgspec.Raw(b'{"x":"%s"}' % (b"y" * 10_000))))) < 1100


def test_a_notebook_shows_the_first_documents_by_their_fields(url: str) -> None:
    with opslog.open(url, agent="a", type=Task) as store:
        store.update({f"t{number:03}": Task(f"task {number}") for number in range(50)})
        html = store._repr_html_()
        assert html is not None
        rows = Cells(html).rows
        assert rows[0] == ["id", "title", "hours"]
        assert rows[1] == ["t000", "task 0", "1.5"]
        assert len(rows) == ROWS + 1
        assert f"{ROWS} of 50 documents" in html
        assert "50 documents of Task" in html
    assert opslog.Store._repr_html_(store) is None, "it is closed, and its text says so"


def test_a_notebook_shows_what_a_question_found(url: str) -> None:
    with opslog.open(url, agent="a", type=Task) as store:
        store.update({f"t{number:03}": Task(f"task {number}") for number in range(50)})
        found = store.find("hours = 1.5", offset=10)
        html = found._repr_html_()
    assert Cells(html).rows[:2] == [["id", "title", "hours"], ["t010", "task 10", "1.5"]]
    assert f"{ROWS} of 40 documents" in html
    assert found.explain in html


def test_a_notebook_shows_what_happened_to_a_document(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {"n": 1}
        store["x"] = {"n": 2}
        store.undo()
        revisions = store.history("x")
        assert isinstance(revisions, list)
        rows = Cells(revisions._repr_html_()).rows  # type: ignore[attr-defined]
    assert [row[:4] + row[5:] for row in rows[1:]] == [
        ["set", '{"n":1}', "a", "1", ""],
        ["set", '{"n":2}', "a", "2", "undone"],
    ]


def test_text_of_documents_stays_text_in_a_notebook() -> None:
    script = "<script>alert(1)</script>"
    html = documents_table(script, [(script, {script: script, "list": [script]})])
    found = Cells(html)
    assert found.others == set()
    assert found.rows == [["id", script, "list"], [script, script, f'["{script}"]']]


def test_a_table_has_bounds() -> None:
    wide: dict[str, Any] = {f"field-{number}": "x" * 1000 for number in range(30)}
    taken: list[str] = []

    def pairs() -> Iterator[tuple[str, object]]:
        for number in itertools.count():
            taken.append(str(number))
            yield taken[-1], wide

    html = documents_table("many", pairs(), 10**9)
    rows = Cells(html).rows
    assert len(taken) == ROWS
    assert len(rows[1]) == COLUMNS + 1
    assert {len(text) for text in rows[1][1:]} == {CELL}
    assert f"{ROWS} of 1,000,000,000 documents; {COLUMNS} of 30 fields" in html
    assert Cells(documents_table("odd", [("a", 5), ("b", {"n": 1j})])).rows[1:] == [["a", "5", ""], ["b", "", "1j"]]
    assert "<p>" not in table("empty", ["id"], [])


def test_ids_complete_at_a_prompt_and_are_bounded(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store.update({f"task-{number:04}": {} for number in range(1200)})
        assert store._ipython_key_completions_()[:2] == ["task-0000", "task-0001"]
        assert len(store._ipython_key_completions_()) == 1000


# -- update


@pytest.mark.parametrize("argument", [{"x": {"n": 1}, "y": {"n": 2}}, [("x", {"n": 1}), ("y", {"n": 2})]], ids=type)
def test_update_is_one_batch(url: str, argument: Any) -> None:
    with opslog.open(url, agent="a") as store:
        store.update(argument, z={"n": 3})
        assert [commit.op for commit in store.ops()] == ["batch"]
        assert sorted(store) == ["x", "y", "z"]
        assert store.undo()
        assert len(store) == 0


def test_an_update_that_fails_has_set_nothing(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError):
            store.update({"x": {"n": 1}, "y": {"n": {2}}})
        assert len(store) == 0
        with store.batch():
            store.update({"x": {}})
            store.update(other={})
        assert [commit.op for commit in store.ops()] == ["batch"]


# -- logging


def test_loggers_have_one_handler_that_prints_nothing(tmp_path: Path) -> None:
    for _ in range(3):
        assert logger("log").name == "opslog.log"
    handlers = logging.getLogger("opslog").handlers
    assert [type(handler) for handler in handlers].count(logging.NullHandler) == 1
