"""Stores, results and histories as tables in a notebook."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from typing import Any

import pytest

import opslog
from opslog.notebook import CELL, COLUMNS, ROWS, documents_table, table

_numbers = itertools.count()


@dataclass
class Task:
    title: str
    hours: float = 1.5


@pytest.fixture
def url() -> str:
    return f"memory://notebook-{next(_numbers)}"


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
