"""How a prompt shows a store, its records, commits and revisions."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

import msgspec
import pytest

import opslog
from opslog.replica.replica import Replica

_numbers = itertools.count()


@dataclass
class Task:
    title: str
    hours: float = 1.5


@pytest.fixture
def url() -> str:
    return f"memory://prompt-{next(_numbers)}"


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


def test_a_store_that_cannot_be_read_is_still_shown(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_ids_complete_at_a_prompt_and_are_bounded(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store.update({f"task-{number:04}": {} for number in range(1200)})
        assert store._ipython_key_completions_()[:2] == ["task-0000", "task-0001"]
        assert len(store._ipython_key_completions_()) == 1000
