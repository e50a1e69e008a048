"""Archives: documents moved out of the store, never lost on the way."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.memory import MemoryBackend
from opslog.environment import Environment

_numbers = itertools.count()
Store = opslog.Store[dict[str, Any]]


@pytest.fixture
def url() -> str:
    return f"memory://archive-{next(_numbers)}"


def fill(store: Store, count: int = 6) -> None:
    for number in range(count):
        store[f"{number}é"] = {"number": number, "even": number % 2 == 0}


def even(document: dict[str, Any]) -> bool:
    return bool(document["even"])


def test_archived_documents_are_there_and_nowhere_else(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        fill(store)
        assert store.archives() == []
        assert store.archive(even, "p") == 3
        assert set(store) == {"1é", "3é", "5é"}
        assert store.archives() == ["p"]
        assert store.load_archive("p") == {f"{n}é": {"number": n, "even": True} for n in (0, 2, 4)}
        assert store.archive(even, "p") == 0
        (commit,) = store.ops(since=6)
        assert isinstance(commit, opslog.Batch)
        assert [(op.id, getattr(op, "archived", None)) for op in commit.ops] == [(f"{n}é", "p") for n in (0, 2, 4)]
    with opslog.open(url, read_only=True) as reader:
        assert len(reader.load_archive("p")) == 3
        with pytest.raises(opslog.NotFoundError, match="the periods are: p"):
            reader.load_archive("q")
        with pytest.raises(opslog.InvalidNameError):
            reader.load_archive("../p")
        with pytest.raises(opslog.ReadOnlyError):
            reader.archive(even)


def test_an_undo_brings_them_back(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        fill(store)
        before = dict(store.items())
        store.archive(even, "p")
        assert store.undo()
        assert dict(store.items()) == before
        assert len(store.load_archive("p")) == 3, "there, too"


@pytest.mark.parametrize(
    ("seconds", "period"),
    [(0, "1970-Q1"), (1_795_521_600, "2026-Q4"), (1_775_001_599, "2026-Q1"), (1_775_001_600, "2026-Q2")],
)
def test_the_default_period_is_the_quarter(url: str, seconds: int, period: str) -> None:
    with opslog.open(url, agent="a", environment=Environment(time=lambda: float(seconds))) as store:
        fill(store)
        store.archive(even)
        assert store.archives() == [period]


def test_old_documents_only(url: str) -> None:
    now = [1_800_000_000.0]
    with opslog.open(url, agent="a", environment=Environment(time=lambda: now[0])) as store:
        fill(store)
        now[0] += 86400
        store["2é"] = {"number": 2, "even": True, "touched": True}
        assert store.archive(even, older_than=timedelta(days=2)) == 0
        assert store.archive(even, older_than=timedelta(days=999_999)) == 0
        assert store.archive(even, older_than=timedelta(hours=23)) == 2
        assert "2é" in store


@pytest.mark.parametrize("failing", ["jsonl", "index", "delete"])
def test_a_failure_on_the_way_loses_nothing(url: str, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    create = MemoryBackend.create

    def fail(self: MemoryBackend, path: str, data: bytes) -> None:
        if path.startswith("archive/") and path.endswith(failing):
            raise opslog.WriteFailedError("the disk is full")
        create(self, path, data)

    with opslog.open(url, agent="a") as store:
        fill(store)
        before = dict(store.items())
        with monkeypatch.context() as patch:
            patch.setattr(MemoryBackend, "create", fail)
            if failing == "delete":
                assert store._log is not None
                patch.setattr(type(store._log._appender), "append", broken)
            with pytest.raises(opslog.WriteFailedError):
                store.archive(even, "p")
        assert dict(store.items()) == before
        assert store.archives() == (["p"] if failing == "delete" else []), "an unfinished archive is none"
        assert store.archive(even, "p") == 3
        assert len(store.load_archive("p")) == 3


def broken(self: object, data: bytes) -> None:
    raise opslog.WriteFailedError("the disk is full")


def test_of_a_document_archived_twice_the_later_counts(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        for number in (1, 2, 3):
            store["x"] = {"number": number}
            store.archive(lambda document: True, "p")
        assert store.load_archive("p") == {"x": {"number": 3}}


def test_others_writes_are_taken_in_first(url: str) -> None:
    with opslog.open(url, agent="a") as a, opslog.open(url, agent="b") as b:
        a["x"] = {"done": False}
        b.refresh()
        a["x"] = {"done": True}
        assert b.archive(lambda document: document["done"], "p") == 1


def test_archives_have_types_and_versions(url: str) -> None:
    with opslog.open(url, agent="a", version=1) as store:
        store["x"] = {"name": "old"}
        store.archive(lambda document: True, "p")
    with opslog.open(
        url, read_only=True, version=2, migrate=lambda document, version: {**document, "from": version}
    ) as store:
        assert store.load_archive("p") == {"x": {"name": "old", "from": 1}}


def test_damage_is_found_when_it_is_loaded(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        fill(store)
        store.archive(even, "p")
        backend = open_backend(url)
        (path,) = (entry.path for entry in backend.list("archive/") if entry.path.endswith(".jsonl"))
        data = backend.read(path)
        backend.delete([path])
        backend.create(path, data.replace(b"number", b"numbed"))
        with pytest.raises(opslog.CorruptError, match="do not fit their checksum") as caught:
            store.load_archive("p")
        assert (caught.value.path, caught.value.offset) == (path, 0)
