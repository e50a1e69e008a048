"""Indexes of an open store: when they are made, used, updated and dropped."""

from __future__ import annotations

import dataclasses
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.errors import ClosedError, SchemaMismatchError, UsageError
from opslog.query.index import Index
from opslog.query.paths import parse_path
from opslog.replica import indexes as indexes_module
from opslog.replica import questions, scanning
from opslog.replica.indexes import Indexes
from opslog.snapshot import runs
from opslog.store import replica_of

COUNT = 300


@pytest.fixture
def root(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "tasks", agent="a", durability="buffered") as store, store.batch():
        for number in range(COUNT):
            store[f"task-{number:03}"] = {"number": number, "status": f"s{number % 100}", "tags": [number % 7, "all"]}
    return tmp_path / "tasks"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of the indexes that were made."""
    paths: list[str] = []

    class Noted(Index):
        def __init__(self, path: Any, entries: Any) -> None:
            super().__init__(path, entries)
            paths.append(str(path))

    monkeypatch.setattr(questions, "Index", Noted)
    return paths


@pytest.fixture
def store(root: Path, made: list[str]) -> Iterator[opslog.Store[Any]]:
    with opslog.open(root, agent="a", compact_after=None, durability="buffered") as store:
        yield store


def indexes_of(store: opslog.Store[Any]) -> Indexes | None:
    return replica_of(store).state.indexes


def ids(found: Iterable[tuple[str, Any]]) -> list[str]:
    return [id for id, _ in found]


def test_the_first_question_makes_an_index_and_others_use_it(store: opslog.Store[Any], made: list[str]) -> None:
    assert indexes_of(store) is None
    store.filter(lambda document: False)
    assert len(store) == COUNT
    assert indexes_of(store) is None, "who asks no question pays for none"
    for _ in range(3):
        found = store.find("status = s7")
        assert ids(found) == ["task-007", "task-107", "task-207"]
        assert found.explain == "index on status: 3 documents"
    assert store.find(order_by="-number", limit=1).explain == "index on number, in its order"
    assert store.find("number > 297").explain == "index on number: 2 documents"
    assert store.count("tags[*] = 3") == 43
    assert store.group("tags[*]")[0] == ("all", COUNT)
    assert made == ["status", "number", "tags[*]"]


def test_index_makes_indexes_by_name(store: opslog.Store[Any], made: list[str]) -> None:
    store.index("status", "number")
    store.index("status")
    assert made == ["status", "number"]
    assert store.find("status = s7 and number > 290").explain.startswith("index on")
    assert made == ["status", "number"]


def test_a_query_that_no_index_can_answer_makes_none(store: opslog.Store[Any], made: list[str]) -> None:
    for found in (
        store.find("not status = s7"),
        store.find("exists status", order_by=["status", "number"]),
        store.find(order_by="number"),
        store.find(limit=3),
        store.find({"or": [{"status": "s7"}, {"number": {"!=": 3}}]}),
    ):
        assert found.explain == "every document was read"
    assert made == []
    assert store.find("@id in [task-001, task-999]").explain == "index on @id: 2 documents"
    assert made == []


def test_an_index_that_finds_too_much_is_not_used(
    store: opslog.Store[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(questions, "_LOOKUPS_MAX", 10)
    assert store.find("tags[*] = all").explain == "every document was read"
    assert len(store.find("tags[*] = all")) == store.count("tags[*] = all") == COUNT
    few = store.find("tags[*] = all", limit=5, offset=2)
    assert few.explain == "index on tags[*]: 300 documents"
    assert ids(few) == [f"task-00{number}" for number in range(2, 7)]
    assert store.find(order_by="-status", limit=200).explain == "every document was read"
    assert made == ["tags[*]"], "an index that would be read nearly whole is not made"
    # A second condition gets an index of its own at the next question.
    assert ids(store.find("tags[*] = all and status = s7")) == ["task-007", "task-107", "task-207"]
    assert store.find("tags[*] = all and status = s7").explain == "index on status: 3 documents"
    assert store.find("tags[*] = all and number = 400 and status != s1", limit=1) == []
    # In the order of an index, until it has read too many documents that do not match.
    assert ids(store.find("tags[*] = all", order_by="-number", limit=2)) == ["task-299", "task-298"]
    none = store.find("tags[*] = all and not number > 3", order_by="-number", limit=2)
    assert ids(none) == ["task-003", "task-002"]
    assert none.explain == "every document was read"


def test_a_limit_that_the_first_documents_reach_makes_no_index(
    store: opslog.Store[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until such queries have read as many documents as the index would have."""
    store.compact()
    monkeypatch.setattr(scanning, "_AT_ONCE", 50)
    monkeypatch.setattr(runs, "_LINES_AT_ONCE", 50)
    monkeypatch.setattr(questions, "_FIRST", 100)
    for _ in range(5):
        found = store.find("status = s7", limit=1)
        assert (ids(found), found.explain) == (["task-007"], "the first 50 documents were read")
    assert made == []
    found = store.find("status = s7", limit=1)
    assert (ids(found), found.explain, made) == (["task-007"], "index on status: 3 documents", ["status"])
    # Not reached in 100 documents.
    assert store.find("number = 150", limit=1).explain == "index on number: 1 documents"
    assert store.find("number = 5", limit=1).explain == "index on number: 1 documents"
    with store.batch():
        store["task-0"] = {"tags": ["new"]}
        found = store.find("tags[*] = new", limit=1)
    assert (ids(found), found.explain) == (["task-0"], "the first 50 documents were read")
    assert made == ["status", "number"]
    monkeypatch.setattr(questions, "_FIRST", 2 * COUNT)
    assert store.find("tags[0] = none", limit=1).explain == "every document was read"
    assert store.find("tags[0] = 0", limit=2, offset=40).explain == "index on tags[0]: 43 documents"


def test_indexes_that_do_not_fit_together_are_not_made_in_turns(
    store: opslog.Store[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.index("number", "status")
    indexes = indexes_of(store)
    assert indexes is not None
    monkeypatch.setattr(indexes_module, "INDEX_BYTES_MAX", sum(index.bytes for index in indexes.by_path.values()))
    store.index("tags[*]")
    made.clear()
    short = "every document was read; there is no memory for an index on number: all indexes together take at most"
    for _ in range(3):
        found = store.find("number = 5")
        assert ids(found) == ["task-005"]
        assert found.explain.startswith(short)
        assert store.find("status = s7").explain == "index on status: 3 documents"
        assert store.find("number = 5 and status = s5").explain == "index on status: 3 documents"
        assert store.find("not number = 5").explain == "every document was read"
    assert made == []
    assert store.find("number = 5").explain == "index on number: 1 documents", "they may be what is needed by now"
    assert made == ["number"]
    # By name they are made at once.
    store.index("tags[*]")
    store.index("status")
    assert made == ["number", "tags[*]", "status"]


def answers(store: opslog.Store[Any]) -> list[Any]:
    return [
        store.find("status = s7"),
        store.find("number >= 290"),
        store.find(order_by="-number", limit=7),
        store.find(order_by="status", limit=7),
        store.find("tags[*] = 3", order_by="-number"),
        store.count("status = s7"),
        store.group("status"),
        store.group("tags[*]", "status in [s7, s8]"),
        store.find("@author = b"),
    ]


def plain_answers(store: opslog.Store[Any]) -> list[Any]:
    """The answers of the same questions without indexes."""
    replica = replica_of(store)
    kept, replica.questions._from_indexes = replica.questions._from_indexes, lambda answer, at, otherwise=None: None  # type: ignore[method-assign]
    try:
        return answers(store)
    finally:
        replica.questions._from_indexes = kept  # type: ignore[method-assign]


def write(store: opslog.Store[Any]) -> None:
    store["task-007"] = {"number": 1000, "status": "s8"}
    store["task-008"] = {"status": "s7", "tags": [3]}
    store.pop("task-107", None)
    store["new"] = {"number": "text", "status": "s7"}
    with store.batch():
        store["new-2"] = {"number": 295.5, "status": None}
        store.pop("task-207", None)


def undo(store: opslog.Store[Any], root: Path) -> None:
    write(store)
    store.undo()
    store.undo()


def transactions(store: opslog.Store[Any], root: Path) -> None:
    store.modify("task-007", lambda document: (document or {}) | {"status": "s8"})
    store.create("new-3", {"status": "s7"})
    store.transact(lambda t: t.pop("task-107", None))
    store.undo()


def refresh(store: opslog.Store[Any], root: Path) -> None:
    write_as("b", root)
    store.refresh()


def compaction(store: opslog.Store[Any], root: Path) -> None:
    write(store)
    store.compact()
    store.refresh()


def compaction_by_another(store: opslog.Store[Any], root: Path) -> None:
    write(store)
    store.flush()
    write_as("b", root, compacts=True)
    store.refresh()


def archive(store: opslog.Store[Any], root: Path) -> None:
    store.archive("number > 290", "p")


def torn(store: opslog.Store[Any], root: Path) -> None:
    write(store)
    replica_of(store).invalidate()


CHANGES = [undo, transactions, refresh, compaction, compaction_by_another, archive, torn]


def write_as(agent: str, root: Path, *, compacts: bool = False) -> None:
    with opslog.open(root, agent=agent, compact_after=None) as other:
        if "new" in other:
            other["task-009"] = {"status": "s7"}
        else:
            write(other)
        if compacts:
            other.compact(full=True)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("large", [False, True], ids=["runs in memory", "runs on storage"])
def test_indexes_follow_what_changes(
    root: Path, change: Callable[[opslog.Store[Any], Path], None], large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if large:
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    with opslog.open(root, agent="a", compact_after=None, durability="buffered") as store:
        assert answers(store) == plain_answers(store)
        change(store, root)
        assert answers(store) == plain_answers(store)
        found = store.find("status = s7")
        assert found.explain.startswith("index on status")
        refresh(store, root)
        write(store)
        assert answers(store) == plain_answers(store)


def written(other: opslog.Store[Any]) -> None:
    other["task-010"] = {"status": "s7"}


def written_and_undone(other: opslog.Store[Any]) -> None:
    other.undo()


def compacted(other: opslog.Store[Any]) -> None:
    other["task-010"] = {"status": "s7"}
    for number in range(3):
        other["last"] = {"number": number}
    other.compact()


@pytest.mark.parametrize("work", [written, written_and_undone, compacted], ids=lambda work: work.__name__)
def test_a_state_that_was_loaded_again_takes_over_the_indexes(
    tmp_path: Path, made: list[str], work: Callable[[opslog.Store[Any]], None]
) -> None:
    """The difference may be in the new tail, in the old tail, or in a new run."""
    settings = opslog.Settings(undo_window=2)
    with (
        opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store,
        opslog.open(tmp_path, agent="b", compact_after=None) as other,
    ):
        for number in range(20):
            store[f"task-{number:03}"] = {"status": f"s{number}"}
        store.compact()
        other.refresh()
        other["task-011"] = {"status": "s7"}
        other["task-007"] = {"status": "none"}
        replica_of(store).invalidate()  # so that this state and the next one begin with the same run
        assert ids(store.find("status = s7")) == ["task-011"]
        before = replica_of(store).state
        work(other)
        replica_of(store).invalidate()
        found = store.find("status = s7")
        assert replica_of(store).state is not before
        assert found == store.filter(lambda document: document.get("status") == "s7")
        assert ids(found) == ["task-007" if work is written_and_undone else "task-010", "task-011"]
        assert made == ["status"], "nothing was read anew but what can differ"


def test_a_question_can_be_asked_of_the_past(root: Path, made: list[str]) -> None:
    with opslog.open(root, agent="b") as store:
        store["task-007"] = {"status": "gone"}
    with opslog.open(root, as_of=1) as past:
        assert len(past.find("status = s7")) == 3
        assert len(past.find("status = s7")) == 3
    assert made == ["status"]


def test_an_index_is_made_beside_writes(store: opslog.Store[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The index has the changes that came while it was made."""

    class Slow(Index):
        def __init__(self, path: Any, entries: Any) -> None:
            entries = iter(entries)
            first = [next(entries) for _ in range(100)]
            store["task-007"] = {"status": "s8"}
            store["task-250"] = {"status": "s7"}
            replica_of(store).invalidate()  # and all of it is loaded anew
            store["task-251"] = {"status": "s7"}
            super().__init__(path, [*first, *entries])

    monkeypatch.setattr(questions, "Index", Slow)
    found = store.find("status = s7")
    assert ids(found) == ["task-107", "task-207", "task-250", "task-251"]
    assert found.explain == "index on status: 4 documents"


def test_threads_ask_and_write_at_once(store: opslog.Store[Any]) -> None:
    failures: list[BaseException] = []

    def run(work: Callable[[int], None]) -> Callable[[], None]:
        def runs_it() -> None:
            try:
                for number in range(60):
                    work(number)
            except BaseException as error:  # noqa: BLE001  (raised below)
                failures.append(error)

        return runs_it

    def ask(number: int) -> None:
        for id, document in store.find("status = s7"):
            assert document["status"] == "s7", id
        assert len(store.find(order_by="-number", limit=5)) == 5

    def change(number: int) -> None:
        store[f"task-{number:03}"] = {"number": -number, "status": f"s{number % 9}"}
        if number % 10 == 0:
            indexes = indexes_of(store)
            if indexes is not None:
                replica_of(store).change(lambda state: indexes.drop())

    threads = [threading.Thread(target=run(work)) for work in (ask, ask, change, change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert store.find("status = s7") == store.filter(lambda document: document.get("status") == "s7")


def test_indexes_that_take_too_much_memory_are_dropped(
    store: opslog.Store[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.find("status = s7")
    indexes = indexes_of(store)
    assert indexes is not None
    size = sum(index.bytes for index in indexes.by_path.values())
    monkeypatch.setattr(indexes_module, "INDEX_BYTES_MAX", 3 * size)
    for path in ("number", "tags[0]", "status", "@clock", "@author", "@ts"):
        store.find({path: "nothing"})
        assert sum(index.bytes for index in indexes.by_path.values()) <= 3 * size
    assert parse_path("number") not in indexes.by_path
    assert parse_path("@ts") in indexes.by_path
    monkeypatch.setattr(indexes_module, "INDEX_BYTES_MAX", 10)
    made.clear()
    for _ in range(3):
        assert len(store.find("tags[1] = all", limit=3)) == 3
        found = store.find("tags[1] = nothing")
        assert found.explain.startswith(
            "every document was read; there is no memory for an index on tags[1]: all indexes"
        )
    assert made == ["tags[1]"], "one that is too large alone is not tried again"


def test_very_many_changes_rebuild_the_indexes(
    store: opslog.Store[Any], made: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.find("status = s7")
    indexes = indexes_of(store)
    assert indexes is not None
    for number in range(indexes_module._CHANGES_MAX + COUNT):
        store[f"more-{number}"] = {"status": "s7"}
    assert indexes.by_path == {}
    assert not indexes._changed
    assert store.count("status = s7") == 3 + indexes_module._CHANGES_MAX + COUNT
    assert made == ["status", "status"]


def test_an_exception_in_a_correction_does_not_leave_it_half_done(
    store: opslog.Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.find("status = s7")
    store["task-007"] = {"status": "s8"}
    store["task-008"] = {"status": "s7"}

    class Stop(Exception):
        pass

    def stop(self: Index, id: str, keys: Any) -> None:
        raise Stop

    with monkeypatch.context() as context:
        context.setattr(Index, "_add", stop)
        with pytest.raises(Stop):
            store.find("status = s7")
    assert ids(store.find("status = s7")) == ["task-008", "task-107", "task-207"]


def test_the_handler_of_a_signal_does_not_see_an_index_half_corrected(
    store: opslog.Store[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.find("status = s7")
    store["task-008"] = {"status": "s7"}
    refused: list[UsageError] = []
    add = Index._add

    def handle(*_: object) -> None:
        for call in (lambda: store.find("status = s7"), lambda: store.set("x", {})):
            try:
                call()
            except UsageError as error:
                refused.append(error)

    def interrupted(self: Index, id: str, keys: Any) -> None:
        signal.raise_signal(signal.SIGUSR1)
        add(self, id, keys)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        with monkeypatch.context() as context:
            context.setattr(Index, "_add", interrupted)
            found = ids(store.find("status = s7"))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(refused) == 2
    assert found == ["task-007", "task-008", "task-107", "task-207"]


def test_a_document_that_cannot_be_read_is_an_error_with_an_index_too(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["a"] = {"n": 1}
    with opslog.open(tmp_path, agent="b") as store:
        assert store.find("n = 1").explain.startswith("index")
        with opslog.open(tmp_path, agent="c", version=2) as newer:
            newer["b"] = {"n": 1}
        store.refresh()
        for _ in range(2):
            with pytest.raises(opslog.SchemaVersionError):
                store.find("n = 1")
        del store["b"]
        assert ids(store.find("n = 1")) == ["a"]


def test_a_closed_store_answers_nothing(root: Path) -> None:
    store = opslog.open(root, read_only=True)
    store.find("status = s7")
    store.close()
    for call in (lambda: store.find("status = s7"), lambda: store.index("x"), lambda: store.count("status = s7")):
        with pytest.raises(ClosedError):
            call()


def test_a_closed_store_frees_its_indexes(root: Path) -> None:
    store = opslog.open(root, read_only=True)
    store.index("status")
    indexes = replica_of(store).state.indexes
    assert indexes is not None
    gone = weakref.ref(indexes.by_path[parse_path("status")])
    del indexes
    gc.disable()
    try:
        store.close()
        assert gone() is None
    finally:
        gc.enable()


def test_a_typed_document_that_is_not_of_its_type_is_named(tmp_path: Path) -> None:
    task: Any = dataclasses.make_dataclass("Task", [("n", int)])
    with opslog.open(tmp_path, agent="a") as store:
        store["a"] = {"n": "text"}
        store["b"] = {"n": 1}
    with opslog.open(tmp_path, agent="a", type=task) as typed:
        for _ in range(2):
            assert [document.n for _, document in typed.find("n = 1")] == [1]
            with pytest.raises(SchemaMismatchError, match="'a'"):
                typed.find("n = text")


class TestInTransactions:
    """Indexes also answer inside a transaction, beneath the transaction's own writes."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[opslog.Store[Any]]:
        with opslog.open(tmp_path / "store", agent="a") as store:
            with store.batch():
                for number in range(3000):
                    store[f"task-{number:04}"] = {"owner": f"agent-{number % 300}", "number": number}
            yield store

    def test_find_says_that_it_used_one(self, store: opslog.Store[Any]) -> None:
        def ask(transaction: opslog.Transaction[Any]) -> None:
            found = transaction.find("owner = agent-7")
            assert (len(found), found.explain) == (10, "index on owner: 10 documents")
            found = transaction.find(order_by="-number", limit=2)
            assert ([id for id, _ in found], found.explain) == (
                ["task-2999", "task-2998"],
                "index on number, in its order",
            )
            transaction["task-0007"] = {"owner": "me"}
            del transaction["task-0307"]
            transaction["new"] = {"owner": "agent-7"}
            found = transaction.find("owner = agent-7")
            assert [id for id, _ in found][:2] == ["new", "task-0607"]
            assert (len(found), found.explain) == (9, "index on owner: 11 documents")
            assert transaction.count("owner = agent-7") == 9
            assert transaction.group("owner", "owner = agent-7") == [("agent-7", 9)]

        store.transact(ask)
        assert store.count("owner = agent-7") == 9

    def test_a_block_asks_about_the_moment_of_its_beginning(self, store: opslog.Store[Any], tmp_path: Path) -> None:
        def ask(other: opslog.Store[Any]) -> None:
            with store.transaction() as transaction:
                before = transaction.find("owner = agent-7")
                other["task-0007"] = {"owner": "other"}
                other["task-0008"] = {"owner": "agent-7"}
                replica_of(store).refresh()
                again = transaction.find("owner = agent-7")
                assert again == before
                assert again.explain == "index on owner: 11 documents"
                transaction["done"] = {}

        with opslog.open(tmp_path / "store", agent="b") as other, pytest.raises(opslog.ConflictError):
            ask(other)
        with store.transaction() as transaction:
            assert [id for id, _ in transaction.find("owner = agent-7", limit=1)] == ["task-0008"]

    def test_documents_that_did_not_match_were_read_too(self, store: opslog.Store[Any], tmp_path: Path) -> None:
        """The commits that it read have to be durable before the transaction is, as if it had read every document."""
        with opslog.open(tmp_path / "store", agent="b") as other:
            other["task-0007"] = {"owner": "other"}

        def rests_on(ask: Callable[[opslog.Transaction[Any]], object]) -> set[str]:
            with store.transaction() as transaction:
                ask(transaction)
                source: Any = transaction.source
                return set(source.agents)

        by_index = rests_on(lambda transaction: transaction.find("owner = agent-8"))
        assert by_index >= rests_on(lambda transaction: transaction.filter(lambda document: False)) == {"a", "b"}

    def test_after_a_load_everything_is_read(self, store: opslog.Store[Any]) -> None:
        def ask() -> None:
            with store.transaction() as transaction:
                before = transaction.find("owner = agent-7")
                replica_of(store).invalidate()
                replica_of(store).refresh()
                again = transaction.find("owner = agent-7")
                assert (again, again.explain) == (before, "every document was read")

        with pytest.raises(opslog.ConflictError, match="the store was loaded anew meanwhile"):
            ask()
