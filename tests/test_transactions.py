"""Transactions: what they see, what they depend on, and what happens to plain writes beside them.

The tests make races instead of waiting for them: a deciding function calls another store, which then comes first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.backends.local.fs import FsBackend
from opslog.environment import Environment
from opslog.errors import ConflictError, ExistsError, NotFoundError, SealedError, UsageError, WriteFailedError
from opslog.format.layout import TRANSACTIONS
from opslog.store import replica_of
from tests.support import bucket

Store = opslog.Store[dict[str, Any]]
Document = dict[str, Any]

_numbers = itertools.count()


@pytest.fixture(params=["directory", "memory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"{request.param}://tx-{next(_numbers)}"


def open_writer(url: str, agent: str, **options: Any) -> Store:
    return opslog.open(url, agent=agent, compact_after=None, **options)


def increment(document: Document | None) -> Document:
    return {"n": (document or {"n": 0})["n"] + 1}


def in_block(store: Store, block: Callable[[opslog.Transaction[Document]], object]) -> None:
    with store.transaction() as transaction:
        block(transaction)


def shared(store: Store) -> list[opslog.Commit]:
    return [commit for commit in store.ops() if commit.agent == TRANSACTIONS]


# -- what each call does


def test_one_of_all_creators_of_a_document_succeeds(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("task", {"by": "a"})
        with pytest.raises(ExistsError, match="a wrote it") as failed:
            b.create("task", {"by": "b"})
        assert failed.value.id == "task"
        assert failed.value.record.author == "a"
        assert failed.value.record.document == {"by": "a"}
        assert b["task"] == {"by": "a"}  # it has read that by then
        a.delete("task")
        b.create("task", {"by": "b"})
        assert [commit.author for commit in shared(a)] == ["a", "a", "b"]


def test_a_stamp_names_the_last_write_and_can_be_kept_as_text(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        assert a.record("x") is None
        a["x"] = {"n": 1}
        record = a.record("x")
        assert record is not None
        assert (record.author, str(record.stamp), record.stamp) == ("a", "1@a", (1, "a"))
        b.refresh()
        b.set("x", {"n": 2}, if_stamp="1@a")
        with pytest.raises(ConflictError, match="b wrote what is there now") as failed:
            a.set("x", {"n": 3}, if_stamp=record.stamp)
        assert failed.value.record.stamp == b.record("x").stamp  # type: ignore[union-attr]
        a.set("x", {"n": 3}, if_stamp=failed.value.record.stamp)
        with pytest.raises(ConflictError):
            b.delete("x", if_stamp="1@a")
        b.delete("x", if_stamp=str(a.record("x").stamp))  # type: ignore[union-attr]
        b.set("x", {"n": 4}, if_stamp=None)
        with pytest.raises(ConflictError, match="exists"):
            b.set("x", {"n": 5}, if_stamp=None)
        for wrong in ("yesterday", 1, b.record("x"), (1, "a", 0), ("a", 1), [1, "a"]):
            with pytest.raises(UsageError, match="1042@planner"):
                b.set("x", {"n": 5}, if_stamp=wrong)  # type: ignore[arg-type]
            with pytest.raises(UsageError, match="1042@planner"):
                b.delete("x", if_stamp=wrong)  # type: ignore[arg-type]
        assert b["x"] == {"n": 4}


def test_modify_gets_the_document_and_gives_the_new_one(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        assert a.modify("n", increment) == {"n": 1}
        assert b.modify("n", increment) == {"n": 2}
        assert a.modify("n", lambda document: None) is None
        assert "n" not in a
        assert b.modify("n", lambda document: document) is None
        assert b.modify("none", lambda document: document) is None  # it is absent before and after
        assert len(shared(a)) == 3


def test_a_function_is_called_again_only_where_something_it_has_read_has_changed(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("x", {"n": 0})
        calls: list[int] = []

        def with_race(id: str) -> Any:
            def function(transaction: opslog.Transaction[Document]) -> None:
                calls.append(transaction["x"]["n"])
                if len(calls) == 1:
                    b.modify(id, increment)
                transaction["x"] = increment(transaction["x"])

            return function

        a.transact(with_race("other"))
        assert (calls, a["x"]) == ([0], {"n": 1})
        calls.clear()
        a.transact(with_race("x"))
        assert (calls, a["x"]) == ([1, 2], {"n": 3})


def test_a_transaction_gives_up_after_its_attempts(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        calls: list[None] = []

        def lose(transaction: opslog.Transaction[Document]) -> None:
            calls.append(None)
            transaction["x"] = increment(transaction.get("x"))
            b.modify("x", increment)

        with pytest.raises(ConflictError) as failed:
            a.transact(lose, attempts=3)
        assert len(calls) == 3
        assert failed.value.record.author == "b"
        with pytest.raises(UsageError):
            a.transact(lose, attempts=0)
        assert a["x"] == b["x"] == {"n": 3}


def test_an_exception_leaves_nothing_and_is_raised(url: str) -> None:
    with open_writer(url, "a") as a:

        def fail(transaction: opslog.Transaction[Document]) -> None:
            transaction["x"] = {}
            raise LookupError("mine")

        with pytest.raises(LookupError, match="mine"):
            a.transact(fail)
        with pytest.raises(LookupError):
            in_block(a, fail)
        assert (len(a), shared(a)) == (0, [])


def test_a_transaction_reads_one_moment_and_its_own_writes(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"], a["y"], a["z"] = {"n": 1}, {"n": 1}, {"n": 5}

        def read(transaction: opslog.Transaction[Document]) -> None:
            assert transaction["x"] == {"n": 1}
            b.refresh()
            with b.batch():
                b["x"], b["y"] = {"n": 2}, {"n": 2}
            a.refresh()
            assert a["y"] == {"n": 2}
            assert transaction["y"] == {"n": 1}
            assert list(transaction) == ["x", "y", "z"]
            transaction["w"] = {"n": 0}
            del transaction["z"]
            assert "z" not in transaction
            assert dict(transaction.items()) == {"w": {"n": 0}, "x": {"n": 1}, "y": {"n": 1}}
            assert [document["n"] for document in transaction.values()] == [0, 1, 1]
            assert (len(transaction), transaction.count(), transaction.count(lambda it: it["n"])) == (3, 3, 2)
            assert transaction.filter(lambda it: not it["n"]) == [("w", {"n": 0})]
            with pytest.raises(NotFoundError):
                del transaction["z"]
            with pytest.raises(NotFoundError):
                transaction["z"]

        with pytest.raises(ConflictError):
            in_block(a, read)
        assert dict(a.items()) == {"x": {"n": 2}, "y": {"n": 2}, "z": {"n": 5}}


def test_a_query_conflicts_only_with_documents_that_match_before_or_after(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"], a["done"] = {"open": True}, {"open": False}
        b.refresh()

        def count_with(change: str, document: Document) -> None:
            with a.transaction() as transaction:
                found = transaction.filter(lambda it: it["open"])
                transaction["count"] = {"open": False, "n": len(found)}
                b.set(change, document)

        count_with("done", {"open": False, "n": 1})
        with pytest.raises(ConflictError):
            count_with("done", {"open": True})
        with pytest.raises(ConflictError):
            count_with("done", {"open": False})
        with pytest.raises(ConflictError):
            count_with("new", {"open": True})
        assert a["count"]["n"] == 1


def test_a_transaction_that_only_read_is_checked_and_not_written(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["x"] = {"n": 1}
        with a.transaction() as transaction:
            assert transaction["x"] == {"n": 1}
        b.refresh()

        def read(transaction: opslog.Transaction[Document]) -> None:
            assert transaction["x"] == {"n": 1}
            b["x"] = {"n": 2}

        with pytest.raises(ConflictError):
            in_block(a, read)
        assert shared(a) == []


def test_it_sees_plain_commits_that_were_acknowledged_before_it_began(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        b["n"] = {"n": 7}
        assert a.modify("n", increment) == {"n": 8}


def test_a_plain_write_that_has_not_seen_a_transaction_loses(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("x", {"by": "a"})
        b["y"] = {}
        b["x"] = {"by": "b"}  # without having read it
        a.refresh()
        b.refresh()
        assert a["x"] == b["x"] == {"by": "a"}
        assert a.record("x").clock == 1000  # type: ignore[union-attr]


# -- guarded documents


def test_plain_writes_of_a_guarded_document_go_through_the_shared_log(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("x", {"n": 0})
        b.refresh()
        b["x"] = {"n": 1}
        with b.batch():
            b["x"], b["plain"] = {"n": 2}, {"n": 2}
        b["plain"] = {"n": 3}  # this came with the batch
        del b["x"]
        assert [(commit.by, commit.op) for commit in shared(b)] == [
            ("a", "set"),
            ("b", "set"),
            ("b", "batch"),
            ("b", "set"),
            ("b", "delete"),
        ]
        b["other"] = {}
        assert b.record("other").agent == "b"  # type: ignore[union-attr]
        a["x"] = {"n": 4}  # the tombstone also guards it for agents that have read it; this one has not
        assert a.record("x").agent == TRANSACTIONS  # type: ignore[union-attr]


def test_later_transactions_see_a_plain_write_of_a_guarded_document(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a.create("x", {"n": 0})
        b.refresh()

        def write(transaction: opslog.Transaction[Document]) -> None:
            transaction["x"] = increment(transaction["x"])
            b["x"] = {"n": 10}

        with pytest.raises(ConflictError):
            in_block(a, write)
        assert a["x"] == {"n": 10}


def test_a_transaction_that_comes_in_while_a_plain_set_is_stamped_guards_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        b.create("other", {})
        a.refresh()
        log = replica_of(a).log
        assert log is not None
        queue = log.queue

        def after_a_refresh(*args: Any) -> Any:
            monkeypatch.undo()
            b.create("x", {"n": 1})
            a.refresh()
            return queue(*args)

        monkeypatch.setattr(log, "queue", after_a_refresh)
        a["x"] = {"n": 2}
        assert a.record("x").agent == TRANSACTIONS  # type: ignore[union-attr]
        assert [commit.agent for commit in a.ops() if commit.agent == "a"] == []


def test_a_transaction_of_the_same_store_that_comes_in_before_a_plain_set_is_queued_guards_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check whether it is guarded came while the transaction was being appended."""
    with open_writer(url, "a") as a:
        replica = replica_of(a)
        log, append_at = replica.log, replica.backend.append_at
        assert log is not None
        plain = opslog.Set("", 0, "", "x", msgspec.Raw(b"{}"))
        guards: list[int | None] = []

        def append(*args: Any) -> Any:
            guards.append(replica.unguarded(plain))
            return append_at(*args)

        monkeypatch.setattr(replica.backend, "append_at", append)
        a.create("x", {"n": 1})
        with pytest.raises(SealedError, match="came in meanwhile"):
            log.queue(plain, *guards)


def test_a_plain_write_of_the_same_store_that_was_made_without_a_transaction_loses(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Like one of another process: it comes from another thread, while the transaction is being appended."""
    with open_writer(url, "a") as a:
        backend = replica_of(a).backend
        append_at = backend.append_at

        def append(*args: Any) -> Any:
            a["x"] = {"by": "plain"}
            return append_at(*args)

        monkeypatch.setattr(backend, "append_at", append)
        a.create("x", {"by": "transaction"})
        assert a["x"] == {"by": "transaction"}


@pytest.mark.parametrize("outcome", ["fails", "loses its race"])
def test_a_transaction_that_is_not_in_the_log_lets_no_plain_write_win_over_one_that_is(
    url: str, monkeypatch: pytest.MonkeyPatch, outcome: str
) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        backend = replica_of(a).backend
        append_at = backend.append_at

        def append(*args: Any) -> Any:
            monkeypatch.setattr(backend, "append_at", append_at)
            b.create("x", {"by": "b"})
            if outcome == "fails":
                raise WriteFailedError("disk full")
            assert append_at(*args) is None
            a["x"] = {"by": "a"}  # before it has read what came first

        monkeypatch.setattr(backend, "append_at", append)
        if outcome == "fails":
            with pytest.raises(WriteFailedError):
                a.create("y", {})
            a["x"] = {"by": "a"}
        else:
            a.create("y", {})
        a.refresh()
        assert a["x"] == {"by": "b"}


# -- undo


def test_undo_takes_back_the_newest_commit_in_whichever_log_it_is(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["plain"] = {"n": 1}
        a.create("x", {"n": 1})
        a["plain"] = {"n": 2}
        assert a.undo()
        assert (a["plain"], a["x"]) == ({"n": 1}, {"n": 1})
        assert a.undo()
        assert "x" not in a
        assert a.undo()
        assert len(a) == 0
        assert not a.undo()
        b.refresh()
        assert len(b) == 0


def test_commits_that_others_built_on_are_not_taken_back(url: str) -> None:
    with open_writer(url, "a") as a, open_writer(url, "b") as b:
        a["older"] = {}
        a.create("x", {"n": 1})
        stamp = a.record("x").stamp  # type: ignore[union-attr]
        b.modify("x", increment)
        with pytest.raises(ConflictError, match="b wrote"):
            a.undo()
        assert b.undo()
        a.refresh()
        assert a.record("x").stamp == stamp  # type: ignore[union-attr]  # valid again
        a.set("x", {"n": 9}, if_stamp=stamp)
        assert "older" in a


def test_an_undo_never_passes_a_transaction_that_is_out_of_reach(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=3)) as a, open_writer(url, "b") as b:
        a["older"] = {}
        a.create("x", {"n": 1})
        for _ in range(3):
            b.modify("y", increment)
        assert not a.undo()
        assert "older" in a
        assert b.undo()
    with open_writer(url, "a") as a:
        assert not a.undo()


# -- where they cannot be


def test_batches_and_transactions_in_each_other(url: str) -> None:
    with open_writer(url, "a") as a:
        with a.batch(), pytest.raises(UsageError, match="batch"):
            a.create("x", {})
        with a.batch(), pytest.raises(UsageError, match="batch"), a.transaction():
            pass
        with a.transaction() as transaction:
            transaction["x"] = {}
            with pytest.raises(UsageError, match="another transaction"):
                a.create("y", {})
            with pytest.raises(UsageError, match="another transaction"), a.transaction():
                pass
            transaction["w"] = {}
            with a.batch():
                a["z"] = {}
                assert a["w"] == {}  # as the transaction sees it
                del a["w"]
            assert "z" in transaction
            assert "z" not in a
            with pytest.raises(UsageError, match="write through it"):
                a["y"] = {}
        with pytest.raises(UsageError, match="has ended"):
            transaction["x"] = {}
        assert sorted(a) == ["x", "z"]
        assert len(shared(a)) == 1
        a.create("y", {})


def test_a_function_does_not_use_the_store(url: str) -> None:
    with open_writer(url, "a") as a:
        a["x"] = {}
        with pytest.raises(UsageError, match="does not use the store"):
            a.transact(lambda transaction: a["x"])
        with pytest.raises(UsageError, match="does not use the store"):
            a.modify("x", lambda document: a.set("x", {}))
        assert a["x"] == {}


def test_stores_that_cannot_write_refuse_them(url: str) -> None:
    with open_writer(url, "a") as a:
        a.create("x", {"n": 1})
        clock = a.stats().clock
        a.modify("x", increment)
    for options in ({"read_only": True}, {"as_of": clock}):
        with opslog.open(url, **options) as store:
            assert store.record("x").author == "a"  # type: ignore[union-attr]
            assert store["x"] == ({"n": 1} if "as_of" in options else {"n": 2})
            calls: list[Callable[[], object]] = [
                partial(store.create, "y", {}),
                partial(store.modify, "y", increment),
                partial(store.transact, len),
                partial(in_block, store, len),
                partial(store.set, "y", {}, if_stamp=None),
            ]
            for call in calls:
                with pytest.raises(opslog.ReadOnlyError):
                    call()
    with pytest.raises(opslog.InvalidNameError, match="transactions"):
        open_writer(url, "transactions")
    with pytest.raises(opslog.ClosedError):
        a.create("y", {})


def test_a_buffered_store_writes_what_it_has_first_and_waits(url: str) -> None:
    with open_writer(url, "a", durability="buffered", buffer_seconds=3600.0) as a, open_writer(url, "b") as b:
        a["n"] = {"n": 1}
        assert a.modify("n", increment) == {"n": 2}
        b.refresh()
        assert b["n"] == {"n": 2}
        a["m"] = {"n": 1}
        with a.transaction() as transaction:
            assert transaction["m"] == {"n": 1}


def test_types_are_checked_in_transactions(url: str) -> None:
    @dataclass
    class Task:
        title: str

    with opslog.open(url, agent="a", type=Task) as a:
        a.create("x", Task("one"))
        assert a.modify("x", lambda task: Task(task.title + "!") if task else None) == Task("one!")
        with pytest.raises(opslog.InvalidDocumentError), a.transaction() as transaction:
            transaction["x"] = "no task"  # type: ignore[arg-type]
        assert a["x"] == Task("one!")


# -- compaction, and what is on storage


def test_records_keep_their_author_in_a_snapshot(url: str) -> None:
    with open_writer(url, "a", settings=opslog.Settings(undo_window=0)) as a:
        a.create("x", {"n": 1})
        a.create("gone", {"n": 1})
        a.delete("gone")
        before = a.record("x")
        a.compact()
        with opslog.open(url, read_only=True) as reader:
            assert reader.record("x") == before
        with open_writer(url, "b") as b:
            b["x"] = {"n": 2}  # still guarded
            assert b.record("x").agent == TRANSACTIONS  # type: ignore[union-attr]
        a.modify("x", increment)
        assert a["x"] == {"n": 3}


def test_ts_of_the_shared_log_never_goes_back(url: str) -> None:
    times = itertools.cycle([1_800_000_000.0, 1_700_000_000.0])
    environment = Environment(time=lambda: next(times))
    with open_writer(url, "a", environment=environment) as a, open_writer(url, "b", environment=environment) as b:
        for store in (a, b, a, b):
            store.modify("n", increment)
        stamps = [commit.ts for commit in shared(a)]
        assert stamps == sorted(stamps)
        assert [commit.clock for commit in shared(a)] == [1000, 2000, 3000, 4000]
        assert len({commit.tx for commit in shared(a)}) == 4


def test_reads_of_a_transaction_are_durable_before_its_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    persisted: list[str] = []
    persist = FsBackend.persist

    def noted(self: FsBackend, paths: Any) -> None:
        paths = list(paths)
        persisted.extend(paths)
        persist(self, paths)

    with open_writer(str(tmp_path / "s"), "a") as a, open_writer(str(tmp_path / "s"), "b") as b:
        b["x"], b["y"] = {"n": 1}, {"n": 1}
        monkeypatch.setattr(FsBackend, "persist", noted)
        a.modify("x", increment)
        assert any(path.startswith("ops/b/") for path in persisted)
        persisted.clear()
        a.modify("x", increment)
        assert not any(path.startswith("ops/b/") for path in persisted)
        b.create("z", {})
        with pytest.raises(ExistsError):
            a.create("z", {})
        assert any(path.startswith("ops/transactions/") for path in persisted)


def test_an_append_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_writer(str(tmp_path / "s"), "a") as a:
        a.create("x", {"n": 0})
        with monkeypatch.context() as patched:
            patched.setattr(FsBackend, "append_at", _fail)
            with pytest.raises(WriteFailedError, match="disk full"):
                a.modify("x", increment)
        assert a["x"] == {"n": 0}
        assert a.modify("x", increment) == {"n": 1}


def _fail(*_: object) -> None:
    raise WriteFailedError("disk full")


def test_a_plain_set_of_another_document_asks_for_nothing_more() -> None:
    name = f"tx-{next(_numbers)}"
    with open_writer(f"bucket://{name}", "a") as a:

        def asked() -> int:
            before = len(bucket.BUCKETS[name].asked)
            a["plain"] = {}
            return len(bucket.BUCKETS[name].asked) - before

        a["plain"] = {}
        without = asked()
        a.create("x", {})
        assert asked() == without
