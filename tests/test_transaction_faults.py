"""Transactions whose group is interrupted, half refused, or cut off from the storage.

`submit` makes the groups, so that their members do not depend on threads.
"""

from __future__ import annotations

import gc
import itertools
import shutil
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Position
from opslog.errors import (
    AgentFencedError,
    CommitUnknownError,
    ConflictError,
    ExistsError,
    MissingFileError,
    OpslogError,
    ReopenError,
    RetryError,
    WriteFailedError,
)
from opslog.format.commits import Commit
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.log.reader import Cursor
from opslog.replica import transaction
from opslog.replica.deciding import Deciding
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from tests.support import bucket

Store = opslog.Store[dict[str, Any]]
Document = dict[str, Any]
Transaction = opslog.Transaction[Document]

_numbers = itertools.count()


def open_writer(url: str, agent: str, **options: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, **options)


@pytest.fixture
def url() -> str:
    return f"memory://faults-{next(_numbers)}"


def deciding_of(store: Store) -> Deciding[Document]:
    found = replica_of(store).transactions
    assert found is not None
    return found


def increment(document: Document | None) -> Document:
    return {"n": (document or {"n": 0})["n"] + 1}


def count_into(id: str, transaction: Transaction) -> int:
    transaction[id] = {"n": len(transaction)}
    return len(transaction)


def interrupt(transaction: Transaction) -> None:
    raise KeyboardInterrupt


# -- groups


def test_a_refusal_names_the_stamp_of_a_winner_of_the_same_group(url: str) -> None:
    with open_writer(url, "a") as store:
        deciding = deciding_of(store)
        won, refused = (deciding.submit(partial(transaction.create, "x", {"n": n})) for n in (1, 2))
        stamp = deciding.submit(lambda transaction: transaction.record("x"), attempts=1)
        deciding.decide_all()
        won.outcome()
        record = store.record("x")
        with pytest.raises(ExistsError, match="a wrote it") as failed:
            refused.outcome()
        assert record is not None
        assert failed.value.record == record == stamp.outcome()


def test_an_undo_takes_back_what_came_before_it_in_its_group(url: str) -> None:
    with open_writer(url, "a") as store:
        store.create("x", {"n": 0})
        deciding = deciding_of(store)
        modified = deciding.submit(partial(transaction.modify, "x", increment))
        undone = deciding.submit(lambda transaction: transaction.undo("a"))
        deciding.decide_all()
        assert modified.outcome() == {"n": 1}
        assert undone.outcome() == ("x",)
        assert store["x"] == {"n": 0}


def test_a_function_that_ends_its_thread_ends_nobody_else(url: str) -> None:
    with open_writer(url, "a") as store:
        deciding = deciding_of(store)

        def exit(transaction: Transaction) -> None:
            raise SystemExit

        exits = deciding.submit(exit)
        other = deciding.submit(partial(transaction.modify, "x", increment))
        leader = threading.Thread(target=deciding.decide_all)
        leader.start()
        leader.join()
        assert other.outcome() == store["x"] == {"n": 1}
        with pytest.raises(SystemExit):
            exits.outcome()


# -- interrupts


@pytest.mark.parametrize("after", ["take_own", "appended", "between_refreshes"])
def test_a_transaction_appended_before_an_interrupt_is_not_decided_again(
    url: str, after: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(url, "a") as store:
        replica, deciding = replica_of(store), deciding_of(store)
        call = getattr(replica, after)

        def interrupted(*args: Any) -> None:
            call(*args)
            raise KeyboardInterrupt

        other = deciding.submit(partial(transaction.modify, "x", increment))
        with monkeypatch.context() as patch:
            patch.setattr(replica, after, interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.create("y", {})
        deciding.decide_all()
        assert other.outcome() == store["x"] == {"n": 1}
        assert "y" in store


def test_an_interrupt_before_what_was_appended_is_in_memory_does_not_hide_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(url, "a") as store:
        other = deciding_of(store).submit(partial(transaction.modify, "x", increment))

        def interrupted(commits: Iterable[Commit], end: Cursor) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(replica_of(store), "take_own", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.create("y", {})
        assert other.outcome() == store["x"] == {"n": 1}
        assert store.modify("x", increment) == {"n": 2}


@pytest.mark.parametrize("undoes", [False, True])
@pytest.mark.parametrize("cause", ["an interrupt", "a torn state"])
def test_the_first_transaction_that_was_appended_and_is_not_in_memory_guards_what_it_wrote(
    url: str, cause: str, undoes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plain write and an undo that come after it find this out."""
    with open_writer(url, "a") as store:
        store["before"] = {}
        first = deciding_of(store).submit(partial(transaction.create, "x", {"by": "transaction"}))
        replica = replica_of(store)
        real = replica.take_own

        def take_own(commits: Sequence[Commit], end: Cursor) -> None:
            if cause == "an interrupt":
                raise KeyboardInterrupt
            # As if another thread had been interrupted while it took in a commit of its own log.
            replica.change(lambda state: setattr(state, "is_torn", True))
            real(commits, end)

        with monkeypatch.context() as patch:
            patch.setattr(replica, "take_own", take_own)
            with pytest.raises(KeyboardInterrupt) if cause == "an interrupt" else nullcontext():
                deciding_of(store).decide_all()
        first.outcome()
        if undoes:
            assert store.undo()
            assert list(store) == ["before"]
        else:
            store["x"] = {"by": "plain write"}
            assert store["x"] == {"by": "plain write"}
            record = store.record("x")
            assert record is not None
            assert record.agent == TRANSACTIONS


def test_a_plain_write_after_the_half_of_a_group_that_is_in_the_log_wins(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(url, "a") as store:
        backend, deciding = replica_of(store).backend, deciding_of(store)
        append_at = backend.append_at

        def append_one(agent: str, end: Position, lines: bytes) -> Position:
            first = lines[: lines.index(b"\n") + 1]
            append_at(agent, end, first)
            raise WriteFailedError("disk full", durable=len(first))

        x, y = (deciding.submit(partial(transaction.create, id, {"by": "transaction"})) for id in "xy")
        with monkeypatch.context() as patch:
            patch.setattr(backend, "append_at", append_one)
            deciding.decide_all()
        x.outcome()
        with pytest.raises(WriteFailedError):
            y.outcome()
        store["x"] = {"by": "plain write"}
        assert store["x"] == {"by": "plain write"}


@pytest.mark.parametrize("loads", [False, True])
def test_a_plain_write_does_not_outrank_a_transaction_whose_reading_was_interrupted(
    url: str, loads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock was already ahead of it."""
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0)) as a, open_writer(url, "b") as b:
        b.create("x", {"by": "b"})
        replica = replica_of(a)
        observe = replica.clock.observe

        def interrupted(clock: int) -> None:
            observe(clock)
            raise KeyboardInterrupt

        if loads:
            b.compact()  # this store has not read it
        with monkeypatch.context() as patch:
            patch.setattr(replica.clock, "observe", interrupted)
            with pytest.raises(KeyboardInterrupt):
                a.refresh()
        a["x"] = {"by": "a"}
        assert a["x"] == {"by": "a"}
        record = a.record("x")
        assert record is not None
        assert record.agent == TRANSACTIONS


def test_a_query_is_asked_again_after_its_group_was_interrupted(url: str) -> None:
    with open_writer(url, "a") as store, open_writer(url, "b") as b:
        deciding = deciding_of(store)
        other = deciding.submit(partial(count_into, "count"), attempts=1)
        with pytest.raises(KeyboardInterrupt):
            store.transact(interrupt)
        b["x"] = {"n": 1}
        deciding.decide_all()
        assert other.outcome() == 2


def test_a_block_that_is_given_up_while_it_commits_does_not_miss_what_came_in(url: str) -> None:
    with open_writer(url, "a") as store, open_writer(url, "b") as b:
        deciding = deciding_of(store)
        made = deciding.begin()
        count_into("count", made)
        commit = deciding.submit(partial(deciding.repeat, made))
        deciding.leave(made)
        b["x"] = {"n": 1}
        deciding.decide_all()
        with pytest.raises(ConflictError, match="query"):
            commit.outcome()


# -- views


def test_a_view_that_is_released_takes_nothing_from_the_others(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(url, "a") as store:
        replica = replica_of(store)
        first, second = replica.freeze(), replica.freeze()
        keep: Callable[..., None] = first.keep

        def keep_and_release(*args: Any) -> None:
            keep(*args)
            first.release()

        monkeypatch.setattr(first, "keep", keep_and_release)
        store["x"] = {"n": 1}
        assert second.record("x") is None


def test_a_block_that_is_never_left_keeps_nothing(url: str) -> None:
    with open_writer(url, "a") as store:
        view = weakref.ref(store.transaction().__enter__().source.view)  # type: ignore[attr-defined]
        gc.collect()
        assert view() is None
        store["x"] = {"n": 1}
        assert store.modify("x", increment) == {"n": 2}


def test_clear_in_a_transaction_reads_all_documents_once(url: str) -> None:
    with open_writer(url, "a") as store:
        for n in range(5):
            store[f"d{n}"] = {}
        with store.transaction() as made:
            made.clear()
            assert len(made.reads.queries) == 1
        assert len(store) == 0


# -- the storage


def test_an_unknown_outcome_stays_unknown_where_nothing_can_be_read_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = f"faults-{next(_numbers)}"
    with open_writer(f"bucket://{name}", "a") as store:
        replica = replica_of(store)

        def unreachable(*args: object) -> None:
            raise RetryError("no answer")

        def fail(*args: object) -> None:
            patch.setattr(replica.backend, "list_logs", unreachable)
            raise CommitUnknownError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(replica.backend, "append_at", fail)
            with pytest.raises(CommitUnknownError):
                store.create("x", {})
        assert not [request for request in bucket.BUCKETS[name].asked if "transactions" in request.key]


@pytest.mark.parametrize("where", ["the log", "the records"])
def test_an_unknown_outcome_is_known_by_the_nonce_in(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the log, if others have overwritten everything that it wrote; by the records, if it is before the cut."""
    settings = opslog.Settings(undo_window=0) if where == "the records" else None
    url = f"bucket://faults-{next(_numbers)}"
    with open_writer(url, "a", settings=settings) as store, open_writer(url, "b") as b:
        backend = replica_of(store).backend
        append_at = backend.append_at

        def fail(*args: Any) -> None:
            assert append_at(*args) is not None
            if where == "the log":
                b.modify("x", increment)
            else:
                b.compact()
                assert ManifestStore(backend).newest().cut[TRANSACTIONS].commits == 1
            raise CommitUnknownError("no answer")

        with monkeypatch.context() as patch:
            patch.setattr(backend, "append_at", fail)
            store.create("x", {"n": 1})
        assert store["x"] == {"n": 2 if where == "the log" else 1}


def test_what_a_query_found_deleted_is_durable_and_so_is_all_that_was_not_compacted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = str(tmp_path / "store")
    with open_writer(url, "a") as store, open_writer(url, "b") as b, open_writer(url, "c") as c:
        b["x"] = {}
        c["y"] = {}
        store.refresh()
        del b["x"]
        backend = replica_of(store).backend
        persisted: list[str] = []

        def persist(paths: Iterable[str]) -> None:
            for path in paths:
                persisted.append(path)
                raise MissingFileError("compacted meanwhile", path)

        monkeypatch.setattr(backend, "persist", persist)
        store.transact(partial(count_into, "count"))
        assert [path.split("/")[1] for path in persisted] == ["b", "c"]


def count_large_into(id: str, transaction: Transaction) -> None:
    transaction[id] = {"n": transaction.count(lambda document: document["n"] > 1)}


def note_persisted(patch: pytest.MonkeyPatch, store: Store) -> list[str]:
    """The segments that this store makes durable from now on."""
    backend = replica_of(store).backend
    persist = backend.persist
    persisted: list[str] = []

    def note(paths: Iterable[str]) -> None:
        persisted.extend(paths := list(paths))
        persist(paths)

    patch.setattr(backend, "persist", note)
    return persisted


@pytest.mark.parametrize("writes", [True, False])
def test_what_a_query_in_a_block_has_read_is_durable_before_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, writes: bool
) -> None:
    url = str(tmp_path / "store")
    with open_writer(url, "a") as store, open_writer(url, "b") as b:
        b["x"] = {"n": 2}
        persisted = note_persisted(monkeypatch, store)
        with store.transaction() as made:
            if writes:
                count_large_into("count", made)
            else:
                assert made.find("n = 2") == [("x", {"n": 2})]
        assert persisted == [segment_path("b", 1)]


def test_what_a_decision_rests_on_that_is_kept_after_a_lost_race_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query counts the same as before because of the last line of "c". That line is read when the group is decided
    for the second time. The group does not reach its append, because the other transaction has to queue first."""
    url = str(tmp_path / "store")
    with open_writer(url, "a") as store, open_writer(url, "b") as b, open_writer(url, "c") as c:
        b.create("n", {"n": 0})
        deciding, backend = deciding_of(store), replica_of(store).backend
        persisted = note_persisted(monkeypatch, store)
        append_at = backend.append_at
        deciding.submit(partial(count_large_into, "count"))
        deciding.submit(partial(transaction.modify, "n", increment))

        def come_first(*args: Any) -> Any:
            monkeypatch.setattr(backend, "append_at", append_at)
            b.modify("n", increment)
            for n in (2, 1):
                c["x"] = {"n": n}
            return append_at(*args)

        monkeypatch.setattr(backend, "append_at", come_first)
        deciding.decide_all()
        assert (store["count"], store["n"]) == ({"n": 0}, {"n": 2})
        assert segment_path("c", 1) in persisted


def test_a_store_that_can_have_lost_its_name_decides_nothing(tmp_path: Path) -> None:
    url = str(tmp_path / "store")
    with open_writer(url, "a") as store:
        shutil.rmtree(tmp_path / "store" / "locks")  # before it has a segment, whose lock would keep others out
        with open_writer(url, "a") as rival:
            rival["x"] = {"n": 2}  # no refresh of the first one reads this: it is in its own log
            with pytest.raises(AgentFencedError, match="lock file"):
                store.modify("x", lambda document: document)
            with pytest.raises(AgentFencedError, match="lock file"):
                store.create("y", {})
            rival.create("y", {"by": "rival"})


def test_a_store_whose_own_commit_has_an_unknown_outcome_decides_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_writer(url, "a")
    log = replica_of(store).log
    assert log is not None

    def fail(*arguments: object) -> None:
        raise CommitUnknownError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(log.session, "append", fail)
        with pytest.raises(CommitUnknownError):
            store["x"] = {}
    with pytest.raises(ReopenError, match="open it again"):
        store.create("x", {})
    store.close()
    with open_writer(url, "a") as again:
        again.create("x", {})


@pytest.mark.parametrize("call", ["modify", "create", "query", "nothing is written"])
@pytest.mark.parametrize("is_loaded", [False, True])
def test_an_undo_by_which_something_else_was_read_is_durable_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, is_loaded: bool
) -> None:
    """Without that line there would be another document. Another process has written the line, and may not have synced
    it yet."""
    url = str(tmp_path / "store")

    def undo() -> None:
        for id in ("x", "y"):
            b[id] = {"n": 2}
            assert b.undo()

    with open_writer(url, "b") as b, open_writer(url, "c") as c:
        c["x"] = {"n": 1}
        if is_loaded:
            undo()
        with open_writer(url, "a") as store:
            if not is_loaded:
                undo()
            persisted: list[str] = []
            backend = replica_of(store).backend
            monkeypatch.setattr(backend, "persist", persisted.extend)
            match call:
                case "modify":
                    store.modify("x", lambda document: document)
                case "create":
                    store.create("y", {})
                case "query":
                    store.transact(partial(count_into, "count"))
                case _:
                    assert store.transact(lambda transaction: transaction["x"]) == {"n": 1}
            read = {"b"} if call == "create" else {"b", "c"}
            assert {path.split("/")[1] for path in persisted} == read
            persisted.clear()
            b["other"] = {}
            store.modify("y", lambda document: {"n": 3})
            assert persisted == [], "it is durable by now"


@pytest.mark.parametrize("is_written", [True, False])
@pytest.mark.parametrize("storage", ["directory", "bucket"])
def test_buffered_commits_are_durable_before_a_transaction_that_read_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, storage: str, is_written: bool
) -> None:
    """The transaction flushes the store's queue before it reads."""
    url = str(tmp_path / "store") if storage == "directory" else f"bucket://buffered-{next(_numbers)}"
    store = open_writer(url, "a", durability="buffered", buffer_seconds=3600)
    replica = replica_of(store)
    assert replica.log is not None
    read_logs = replica.read_logs

    def write_and_read() -> None:
        monkeypatch.setattr(replica, "read_logs", read_logs)
        store["x"] = {"n": 1}
        read_logs()

    def fail(*arguments: object) -> None:
        raise WriteFailedError("the disk is full")

    with monkeypatch.context() as patch:
        if not is_written:
            patch.setattr(replica.log.session, "append", fail)
        monkeypatch.setattr(replica, "read_logs", write_and_read)
        if is_written:
            store.modify("x", lambda document: document and {"n": document["n"] + 1})
        else:
            with pytest.raises(OpslogError, match="the disk is full"):
                store.modify("x", lambda document: document)
    with opslog.open(url, read_only=True) as reader:
        assert [(commit.agent, commit.ids) for commit in reader.ops()] == (
            [("a", ("x",)), (TRANSACTIONS, ("x",))] if is_written else []
        )
    with suppress(OpslogError):
        store.close()
