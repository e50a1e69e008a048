"""The result of `find` works like a list, and is a table for everything that reads Arrow, and for notebooks."""

from __future__ import annotations

import copy
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

import opslog
from opslog.replica.found import Found


@dataclass
class Task:
    title: str
    hours: int = 1


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "store", agent="a") as a, opslog.open(tmp_path / "store", agent="b") as b:
        for number in range(6):
            (a if number % 2 else b)[f"task-{number}"] = {"title": f"T{number}", "hours": 2**63 + number}
    return tmp_path / "store"


def test_a_table_has_what_was_found_in_its_order(root: Path) -> None:
    with opslog.open(root, agent="c") as store:
        found = store.find("@author = a", order_by="-hours", limit=2)
        whole = store.to_arrow()
        rows = {row["id"]: row for row in whole.to_pylist()}
        store["task-5"] = {"title": "later", "hours": 0}
        table = found.to_arrow()
        assert table.schema == whole.schema
        assert table.to_pylist() == [rows["task-5"], rows["task-3"]]
        assert pa.RecordBatchReader.from_stream(found).read_all() == table
        tasks = duckdb.from_arrow(table)
        assert tasks.filter("hours > 9223372036854775811").project("id, author").fetchall() == [("task-5", "a")]
        assert store.find("hours = 7").to_arrow().to_pylist() == []


def test_an_index_gives_the_same_table_as_a_scan(root: Path) -> None:
    with opslog.open(root, read_only=True) as store:
        by_index = store.find("title = T3")
        assert by_index.explain.startswith("index on title")
        assert by_index.to_arrow() == store.find('not title != "T3"').to_arrow()


def test_documents_of_types_and_of_older_versions_are_in_their_present_form(root: Path) -> None:
    def migrate(document: Any, version: int) -> Any:
        return {"title": document["title"] + "!", "hours": 3}

    with opslog.open(root, agent="c", type=Task, version=2, migrate=migrate) as store:
        store["new"] = Task("New", 7)
        found = store.find("hours > 0", order_by="-@id", limit=2)
        assert found == [("task-5", Task("T5!", 3)), ("task-4", Task("T4!", 3))]
        assert found.to_arrow().select(["id", "title", "hours"]).to_pylist() == [
            {"id": "task-5", "title": "T5!", "hours": 3},
            {"id": "task-4", "title": "T4!", "hours": 3},
        ]


def test_an_uncommitted_document_has_no_author_and_time(root: Path) -> None:
    with opslog.open(root, agent="c") as store:
        with store.batch():
            store["x"] = {"title": "batched"}
            in_batch = store.find("title = batched").to_arrow().to_pylist()
        with store.transaction() as transaction:
            transaction["y"] = {"title": "written"}
            in_transaction = transaction.find("title = written").to_arrow().to_pylist()
    nothing = {"clock": None, "agent": None, "author": None, "ts": None}
    assert in_batch == [{"id": "x", "title": "batched"} | nothing]
    assert in_transaction == [{"id": "y", "title": "written"} | nothing]


def test_it_is_used_as_a_list_is(root: Path) -> None:
    with opslog.open(root, read_only=True) as store:
        found = store.find("@author = a", order_by="hours")
    pairs = [(f"task-{number}", {"title": f"T{number}", "hours": 2**63 + number}) for number in (1, 3, 5)]
    assert found == pairs == found
    assert found != pairs[:2]
    assert found != tuple(pairs)
    assert found != Found(pairs[:2])
    assert repr(found) == repr(pairs)
    assert (len(found), list(found), found[0], found[-1], found[:2]) == (3, pairs, pairs[0], pairs[-1], pairs[:2])
    assert list(reversed(found)) == pairs[::-1]
    assert pairs[1] in found
    assert dict(found) == dict(pairs)
    assert not Found()
    with pytest.raises(TypeError, match="unhashable"):
        hash(found)


def test_a_copy_has_the_pairs_and_says_that_it_is_no_table(root: Path) -> None:
    with opslog.open(root, read_only=True) as store:
        found = store.find("@author = a", order_by="hours")
    for other in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert (type(other), other, other.explain) == (Found, found, found.explain)
        with pytest.raises(opslog.UsageError, match="this is a copy of what find returned"):
            other.to_arrow()


@pytest.mark.parametrize("what", ["store", "found"])
def test_programs_that_take_arrow_take_what_the_documents_say(root: Path, what: str) -> None:
    with opslog.open(root, read_only=True) as store:
        found: Any = store if what == "store" else store.find("@author = a", order_by="-hours")
        expected = found.to_arrow().to_pylist()
        assert [row["id"] for row in expected][:1] == ["task-0" if what == "store" else "task-5"]
        rows = [(row["id"], row["hours"]) for row in expected]
        assert pa.table(found).to_pylist() == expected
        asked = duckdb.sql("SELECT id, hours FROM found")
        assert asked is not None
        assert asked.fetchall() == rows
        for frame in [polars.from_arrow(found.to_arrow()), *([polars.DataFrame(found)] if what == "found" else [])]:
            assert isinstance(frame, polars.DataFrame)
            assert frame.select("id", "hours").rows() == rows
        pandas = found.to_arrow().to_pandas()
        assert list(zip(pandas["id"].to_list(), pandas["hours"].to_list(), strict=True)) == rows


def test_a_notebook_shows_a_table_and_nothing_of_it_is_html(root: Path) -> None:
    with opslog.open(root, agent="c") as store:
        with store.batch():
            for number in range(30):
                store[f"x{number:02}"] = {"title": "<script>", "n": number}
        html = store.find('title = "<script>"', order_by="-n")._repr_html_()
    assert html.index(">x29</td>") < html.index(">x28</td>")
    assert html.count("<tr") == 21
    assert "20 of 30 documents" in html
    assert "<script>" not in html
    assert ">&lt;script&gt;</td>" in html


def test_without_the_extra_it_says_what_to_install(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opslog.open(root, read_only=True) as store:
        found = store.find("title = T1")
    monkeypatch.setitem(__import__("sys").modules, "opslog.tables.tables", None)
    with pytest.raises(opslog.UsageError, match=r"pip install 'opslog\[query\]'"):
        found.__arrow_c_stream__()
