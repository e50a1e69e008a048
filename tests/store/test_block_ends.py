"""Blocks of batches and transactions that end in another thread than they began in, or before blocks that began in
them. Python's garbage collector closes a generator in whichever thread it runs, and tasks of one thread take turns."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest

import opslog
from opslog.errors import ClosedError, UsageError
from opslog.format.commits import SetOp
from opslog.replica import batch
from opslog.replica.deciding import Deciding
from opslog.store import replica_of
from tests.support.waiting import until


def in_thread(call: Callable[[], object]) -> None:
    """Make a call in another thread; its exception is raised here."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001  (whatever it is)
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def read(path: Path) -> list[str]:
    """The documents that a fresh reader sees."""
    with opslog.open(path, read_only=True) as reader:
        return list(reader)


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_another_thread_ends_leaves_the_batch_of_that_thread_open(tmp_path: Path, fails: bool) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        foreign = store.batch()
        in_thread(foreign.__enter__)
        with suppress(KeyError), store.batch():
            store["one"] = {}
            foreign.__exit__(GeneratorExit, GeneratorExit(), None)
            store["two"] = {}
            assert read(tmp_path) == []
            if fails:
                raise KeyError
        assert read(tmp_path) == ([] if fails else ["one", "two"])


def test_writes_after_a_batch_that_another_thread_ended_are_plain(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        block = store.batch()
        block.__enter__()
        store["in"] = {}
        in_thread(lambda: block.__exit__(None, None, None))
        assert read(tmp_path) == ["in"]
        store["after"] = {}
        assert read(tmp_path) == ["after", "in"]
        with pytest.raises(UsageError, match="has ended"):
            block.__exit__(None, None, None)


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_that_ends_before_one_that_began_in_it_takes_nothing_of_that_away(tmp_path: Path, fails: bool) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        first, second, third = store.batch(), store.batch(), store.batch()
        first.__enter__()
        store["first"] = {}
        second.__enter__()
        store["second"] = {}
        third.__enter__()
        store["third"] = {}
        second.__exit__(*((KeyError, KeyError(), None) if fails else (None, None, None)))
        third.__exit__(None, None, None)
        assert read(tmp_path) == []
        assert ("second" in store, "third" in store) == (not fails, True)
        first.__exit__(None, None, None)
        assert read(tmp_path) == (["first", "third"] if fails else ["first", "second", "third"])


@pytest.mark.parametrize("log", ["own", "shared"])
@pytest.mark.parametrize("guarded", [False, True])
def test_the_outermost_of_two_batches_ends_first(tmp_path: Path, log: Literal["own", "shared"], guarded: bool) -> None:
    """Wherever its commit goes: for a guarded document, and without a log of its own, that is the shared log."""
    if guarded:
        with opslog.open(tmp_path, agent="b") as store:
            store.create("one", {"from": "b"})
            store.delete("one")
    with opslog.open(tmp_path, agent="a", log=log) as store:
        first, second = store.batch(), store.batch()
        first.__enter__()
        store["one"] = {}
        second.__enter__()
        store["two"] = {}
        first.__exit__(None, None, None)
        assert read(tmp_path) == ["one"]
        store["three"] = {}
        second.__exit__(None, None, None)
        store["four"] = {}
        assert read(tmp_path) == ["four", "one", "three", "two"]


def test_a_batch_ends_in_a_thread_that_is_in_a_transaction(tmp_path: Path) -> None:
    """It began outside of it, so it is no part of it, and is committed at once."""
    with opslog.open(tmp_path, agent="a") as store:
        foreign = store.batch()

        def begin() -> None:
            foreign.__enter__()
            store["foreign"] = {}

        in_thread(begin)
        with suppress(KeyError), store.transaction() as transaction:
            transaction["own"] = {}
            foreign.__exit__(None, None, None)
            assert read(tmp_path) == ["foreign"]
            raise KeyError
        assert read(tmp_path) == ["foreign"]


@pytest.mark.parametrize("fails", [False, True])
def test_a_batch_does_not_see_one_around_it_that_has_ended(tmp_path: Path, fails: bool) -> None:
    """What was dropped is gone, and what was committed can be overwritten by others."""
    with opslog.open(tmp_path, agent="a") as store:
        first, second = store.batch(), store.batch()
        first.__enter__()
        store["first"] = {"by": "the first"}
        second.__enter__()
        store["second"] = {}
        assert store["first"] == {"by": "the first"}
        first.__exit__(*((KeyError, KeyError(), None) if fails else (None, None, None)))
        assert (list(store), "first" in store) == ((["second"], False) if fails else (["first", "second"], True))
        in_thread(partial(store.set, "first", {"by": "another thread"}))
        assert store["first"] == {"by": "another thread"}
        record = store.record("first")
        assert record is not None
        assert record.clock > 0
        second.__exit__(None, None, None)
        assert read(tmp_path) == ["first", "second"]


def test_a_transaction_that_another_thread_ends(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        block = store.transaction()
        block.__enter__()["in"] = {}
        in_thread(lambda: block.__exit__(None, None, None))
        assert read(tmp_path) == ["in"]
        store["after"] = {}
        with store.transaction() as transaction:
            transaction["another"] = {}
        assert read(tmp_path) == ["after", "another", "in"]
        with pytest.raises(UsageError, match="has ended"):
            block.__exit__(None, None, None)


def test_a_transaction_that_another_thread_ends_leaves_the_one_of_that_thread_open(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        foreign = store.transaction()
        in_thread(foreign.__enter__)
        with store.transaction() as transaction:
            transaction["one"] = {}
            foreign.__exit__(GeneratorExit, GeneratorExit(), None)
            with pytest.raises(UsageError, match="write through it"):
                store["plain"] = {}
            with store.batch():
                store["two"] = {}
            assert read(tmp_path) == []
        assert read(tmp_path) == ["one", "two"]


def test_a_batch_that_outlives_its_transaction_is_not_written(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        with store.transaction() as transaction:
            batch = store.batch()
            batch.__enter__()
            transaction["one"] = {}
            store["two"] = {}
        with pytest.raises(UsageError, match="this transaction has ended"):
            batch.__exit__(None, None, None)
        store["three"] = {}
        assert read(tmp_path) == ["one", "three"]


@pytest.mark.parametrize(
    "call", [lambda store: store.undo(), lambda store: store.archive("n = 1")], ids=["undo", "archive"]
)
@pytest.mark.parametrize("log", ["own", "shared"])
def test_what_cannot_be_part_of_a_transaction_is_refused_in_its_block(
    tmp_path: Path, log: Any, call: Callable[[opslog.Store[dict[str, Any]]], object]
) -> None:
    with opslog.open(tmp_path, agent="a", log=log) as store:
        store["x"] = {"n": 1}
        with store.transaction(), pytest.raises(UsageError, match="transaction"):
            call(store)
        assert store["x"] == {"n": 1}
        assert store.archives() == []


@pytest.mark.parametrize("use", ["read", "leave"])
def test_a_transaction_of_the_parent_is_refused_in_a_forked_child(tmp_path: Path, use: str) -> None:
    """Also if another thread had the lock of the state at the fork, which nobody gives back in the child."""
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {}
        block = store.transaction()
        transaction = block.__enter__()
        is_in, may_go_on = threading.Event(), threading.Event()

        def wait(_: object) -> None:
            is_in.set()
            may_go_on.wait()

        thread = threading.Thread(target=lambda: replica_of(store).change(wait))
        thread.start()
        until(is_in.is_set)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks in processes with threads
            child = os.fork()
        if child == 0:
            signal.alarm(60)  # ends the child if it hangs
            try:
                if use == "read":
                    transaction.get("x")
                block.__exit__(None, None, None)
            except ClosedError:
                os._exit(7)
            os._exit(1)
        may_go_on.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        block.__exit__(KeyError, KeyError(), None)


@pytest.mark.parametrize(("batches", "ended"), [(1, 1), (2, 1), (2, 2)])
def test_a_write_whose_batch_another_thread_ends_at_this_moment_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batches: int, ended: int
) -> None:
    """:param batches: how many blocks there are, one in the other. :param ended: how many of them end, from the
    innermost on."""
    with opslog.open(tmp_path, agent="a") as store:
        blocks = [store.batch() for _ in range(batches)]
        for block in blocks:
            block.__enter__()
        ending = blocks[::-1][:ended]

        def made(*fields: Any) -> SetOp:
            while ending:
                in_thread(partial(ending.pop(0).__exit__, None, None, None))
            return SetOp(*fields)

        monkeypatch.setattr(batch, "SetOp", made)
        store["x"] = {"n": 1}
        assert store["x"] == {"n": 1}
        if ended < batches:
            assert read(tmp_path) == []
            blocks[0].__exit__(None, None, None)
        assert read(tmp_path) == ["x"]


def test_an_inner_batch_that_ends_while_another_thread_ends_the_outer_one_is_committed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        outer, inner = store.batch(), store.batch()
        outer.__enter__()
        store["outer"] = {}
        inner.__enter__()
        store["inner"] = {}
        ending = [outer]
        is_over = vars(batch.OpenBatch)["is_over"].fget

        def end_after_the_answer(opened: batch.OpenBatch) -> bool:
            answer: bool = is_over(opened)
            while ending:
                in_thread(partial(ending.pop().__exit__, None, None, None))
            return answer

        monkeypatch.setattr(batch.OpenBatch, "is_over", property(end_after_the_answer))
        inner.__exit__(None, None, None)
        assert read(tmp_path) == ["inner", "outer"]


@pytest.mark.parametrize("tasks", [False, True])
def test_a_transaction_takes_no_writes_once_its_end_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tasks: bool
) -> None:
    refused = []

    def late(deciding: Deciding[Any], *arguments: Any) -> Any:
        with pytest.raises(UsageError, match="has ended"):
            transaction["y"] = {}
        refused.append(True)
        return original(deciding, *arguments)

    name = "submit" if tasks else "run"
    original = getattr(Deciding, name)
    transaction: Any = None

    async def write() -> None:
        nonlocal transaction
        async with opslog.aio.open(tmp_path, agent="a") as store, store.transaction() as transaction:
            transaction["x"] = {}
            monkeypatch.setattr(Deciding, name, late)

    if tasks:
        asyncio.run(write())
    else:
        with opslog.open(tmp_path, agent="a") as store, store.transaction() as transaction:
            transaction["x"] = {}
            monkeypatch.setattr(Deciding, name, late)
    assert refused == [True]
    assert read(tmp_path) == ["x"]
