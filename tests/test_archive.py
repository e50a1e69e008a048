"""Archives: documents moved out of the store, never lost on the way."""

from __future__ import annotations

import asyncio
import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.backends.memory import MemoryBackend
from opslog.environment import Environment
from opslog.format.layout import archive_of
from opslog.log.session import WriterSession
from opslog.store import replica_of

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
        for wrong in (5, "5d", timedelta(seconds=-1)):
            with pytest.raises(opslog.UsageError, match=r"older_than is a timedelta from 0 on"):
                store.archive(even, older_than=wrong)  # type: ignore[arg-type]
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
                assert replica_of(store).log is not None
                patch.setattr(WriterSession, "append", broken)
            with pytest.raises(opslog.WriteFailedError):
                store.archive(even, "p")
        assert dict(store.items()) == before
        assert store.archives() == (["p"] if failing == "delete" else []), "an unfinished archive is none"
        assert store.archive(even, "p") == 3
        assert len(store.load_archive("p")) == 3


def broken(self: object, *arguments: object) -> None:
    raise opslog.WriteFailedError("the disk is full")


def test_the_later_archive_of_a_document_counts(url: str) -> None:
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


# -- what changes while documents are moved


CHANGES = ["set", "delete", "batch", "undo", "other", "other and compact", "compact"]


def change(store: Store, other: Store, kind: str) -> None:
    """The change to "2é" while it is being moved."""
    if kind == "set":
        store["2é"] = {"number": 2, "even": True, "newer": True}
    elif kind == "delete":
        del store["2é"]
    elif kind == "batch":
        with store.batch():
            store["2é"] = {"number": 2, "even": False}
            store["new"] = {"number": 9, "even": False}
    elif kind == "undo":
        assert store.undo()
    elif kind.startswith("other"):
        other.refresh()
        other["2é"] = {"number": 2, "even": True, "newer": True}
    if kind.endswith("compact"):  # then nothing compacted was read yet, so the store loads again
        other["one"] = other["two"] = {"number": 9, "even": False}
        other.compact()
    if kind.endswith(("other", "compact")):
        store.refresh()


@pytest.mark.usefixtures("snapshots")
@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@pytest.mark.parametrize("kind", CHANGES)
@pytest.mark.parametrize("moment", ["while chosen", "when written"])
def test_documents_changed_meanwhile_stay(
    url: str, monkeypatch: pytest.MonkeyPatch, kind: str, durability: Any, moment: str
) -> None:
    """Another thread changes them, at the two moments between reading a document for the archive and deleting it."""
    settings = opslog.Settings(undo_window=1)
    changes = [kind]

    def change_once() -> None:
        if changes:
            store.flush()
            thread = threading.Thread(target=change, args=(store, other, changes.pop()))
            thread.start()
            thread.join()

    def chooses(document: dict[str, Any]) -> bool:
        if moment == "while chosen" and document["number"] == 4:
            change_once()
        return even(document)

    create = MemoryBackend.create

    def create_and_change(self: MemoryBackend, path: str, data: bytes) -> None:
        create(self, path, data)
        if moment == "when written" and path.startswith("archive/") and path.endswith(".index"):
            change_once()

    with (
        opslog.open(url, agent="a", durability=durability, settings=settings, compact_after=None) as store,
        opslog.open(url, agent="b", compact_after=None) as other,
    ):
        fill(store)
        store["2é"] = {"number": 2, "even": True, "last": True}
        monkeypatch.setattr(MemoryBackend, "create", create_and_change)
        assert store.archive(chooses, "p") == (3 if kind == "compact" else 2)
        assert not changes
        archived = store.load_archive("p")
        stays = {
            "set": {"number": 2, "even": True, "newer": True},
            "other": {"number": 2, "even": True, "newer": True},
            "other and compact": {"number": 2, "even": True, "newer": True},
            "batch": {"number": 2, "even": False},
            "undo": {"number": 2, "even": True},
        }
        assert store.get("2é") == stays.get(kind)
        assert set(store) >= {"1é", "3é", "5é"}
        assert not {"0é", "4é"} & set(store)
        assert {"0é", "4é"} < set(archived)
        if kind != "undo":
            assert store.undo()
            assert {"0é", "4é"} < set(store), "the whole of what was moved comes back"
            assert store.get("2é") == stays.get(kind, None if kind == "delete" else archived["2é"])
    with opslog.open(url, read_only=True) as fresh:
        assert fresh.get("2é") == stays.get(kind, None if kind == "delete" else archived["2é"])


def test_writers_in_other_threads_lose_nothing_to_an_archive_that_goes_on_and_on(url: str) -> None:
    """Each document counts up. The last acknowledged value is in the store, or in the archive."""
    ids = [f"{number}" for number in range(8)]
    last = dict.fromkeys(ids, 0)
    archived: dict[str, int] = {}
    over = threading.Event()

    def count_up(id: str) -> None:
        while not over.is_set():
            store[id] = {"n": last[id] + 1}
            last[id] += 1

    with opslog.open(url, agent="a", compact_after=None) as store:
        threads = [threading.Thread(target=count_up, args=(id,)) for id in ids]
        for thread in threads:
            thread.start()
        moved = sum(store.archive(lambda document: document["n"] % 2 == 0, f"p{number}") for number in range(60))
        over.set()
        for thread in threads:
            thread.join()
        for period in store.archives():
            for id, document in store.load_archive(period).items():
                archived[id] = max(archived.get(id, 0), document["n"])
        for id in ids:
            assert (store[id]["n"] if id in store else archived[id]) == last[id]
        deletes = [commit for commit in store.ops() if isinstance(commit, opslog.Batch)]
        assert sum(len(commit.ops) for commit in deletes) == moved


def test_an_archive_beside_tasks_leaves_what_they_write(url: str) -> None:
    async def run() -> None:
        async with opslog.aio.open(url, agent="a") as store:
            await store.set("task", {"done": True})
            loop = asyncio.get_running_loop()

            def is_done(document: dict[str, Any]) -> bool:
                if document["done"]:
                    asyncio.run_coroutine_threadsafe(store.set("task", {"done": False}), loop).result()
                return bool(document["done"])

            assert await store.archive(is_done, "p") == 0
            assert await store.get("task") == {"done": False}

    asyncio.run(run())


def test_a_document_is_in_its_log_before_it_is_in_an_archive(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise, a server could not know that it is a document of the store."""
    with opslog.open("memory://archived-buffer", agent="a", durability="buffered", buffer_seconds=3600) as store:
        store["a"] = {"n": 1}
        backend = replica_of(store).backend
        create = backend.create
        in_log: list[bool] = []

        def noted(path: str, data: bytes) -> None:
            if archive_of(path) is not None:
                in_log.append(any(b'"id":"a"' in backend.read(entry.path) for entry in backend.list("ops/a/")))
            create(path, data)

        monkeypatch.setattr(backend, "create", noted)
        assert store.archive("n = 1", "old") == 1
        assert in_log == [True, True]
