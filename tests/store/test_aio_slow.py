"""The store for asyncio on a storage that is slow: calls that read are made in threads, and the event loop waits for
none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

import opslog
from opslog.concurrency.locking import Bell
from opslog.replica import deciding
from opslog.replica.deciding import Deciding
from opslog.replica.replica import Replica
from opslog.snapshot import runs
from opslog.store import replica_of
from tests.support.bucket import BUCKETS, Fault, Request
from tests.support.waiting import until

Document = dict[str, Any]


class Gate:
    """Where threads wait until the test lets them pass.

    :ivar entered: a thread is there.
    :ivar is_open: threads pass.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()

    def wait(self) -> None:
        self.entered.set()
        assert self.is_open.wait(20), "the event loop is blocked"

    async def reached(self) -> None:
        while not self.entered.is_set():
            await asyncio.sleep(0.001)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.is_open.set()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"bucket://aio-slow-{tmp_path.name}"


@pytest.mark.parametrize("call", ["set", "delete"])
def test_a_cancelled_call_of_a_batch_does_not_come_in_later(
    call: Literal["set", "delete"], url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would come into memory alone, as the batch does not have it in the log."""
    prepare: Callable[..., Any] = getattr(Replica, f"prepare_{call}")
    returned = threading.Event()

    def slowly(replica: Replica[Document], id: str, *rest: Any) -> Any:
        if not id.startswith("late"):
            return prepare(replica, id, *rest)
        gate.wait()
        record = prepare(replica, id, *rest)
        returned.set()
        return record

    def appending(request: Request) -> Fault | None:
        if request.method == "put_new":
            gate.is_open.set()
            assert returned.wait(20)
        return None

    async def run() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            await store.set("late", {"n": 0})
            monkeypatch.setattr(Replica, f"prepare_{call}", slowly)
            with BUCKETS[url.removeprefix("bucket://")].failing(appending):
                async with store.batch() as batch:
                    late = asyncio.ensure_future(batch.set("late", {}) if call == "set" else batch.delete("late"))
                    await gate.reached()
                    late.cancel()
                    with suppress(asyncio.CancelledError):
                        await late
                    await batch.set("x", {"n": 1})
            assert await store.get("late") == {"n": 0}
            assert dict([item async for item in store.items()]) == dict(opslog.open(url, read_only=True))
            assert [[record.id for record in commit.records] for commit in await store.ops()] == [["late"], ["x"]]

    asyncio.run(run())


def test_a_cancelled_set_of_a_batch_loses_against_a_newer_one(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare, returned = Replica.prepare_set, threading.Event()

    def slowly(replica: Replica[Document], id: str, document: Document) -> Any:
        if document != {"n": "old"}:
            return prepare(replica, id, document)
        gate.wait()
        record = prepare(replica, id, document)
        returned.set()
        return record

    async def run() -> None:
        monkeypatch.setattr(Replica, "prepare_set", slowly)
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            async with store.batch() as batch:
                old = asyncio.ensure_future(batch.set("x", {"n": "old"}))
                await gate.reached()
                old.cancel()
                with suppress(asyncio.CancelledError):
                    await old
                await batch.set("x", {"n": "new"})
                gate.is_open.set()
                while not returned.is_set():
                    await asyncio.sleep(0.001)
            assert await store.get("x") == {"n": "new"}

    asyncio.run(run())


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
def test_writes_do_not_stop_the_event_loop_while_a_task_reads_a_large_snapshot(
    durability: Literal["fsync", "buffered"], url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)  # so that the snapshot stays in the storage
    with opslog.open(url, agent="old", settings=opslog.Settings(undo_window=0)) as old:
        old["x"] = {"n": 1}
        old.compact()
    bucket = BUCKETS[url.removeprefix("bucket://")]

    def slow(request: Request) -> Fault | None:
        if request.method == "get" and "snapshots" in request.key:
            gate.wait()
        return None

    async def transact(store: opslog.aio.AsyncStore[Document]) -> None:
        async with store.transaction() as transaction:
            transaction["z"] = {}

    async def write_batch(store: opslog.aio.AsyncStore[Document]) -> None:
        async with store.batch() as batch:
            await batch.set("y", {})

    async def run() -> None:
        async with opslog.aio.open(url, agent="a", durability=durability, compact_after=None) as store:
            with bucket.failing(slow):
                reading = asyncio.ensure_future(store.get("x"))
                await gate.reached()
                calls = store.set("w", {}), write_batch(store), transact(store)
                writing = [asyncio.ensure_future(call) for call in calls]
                for _ in range(100):
                    await asyncio.sleep(0)  # the writes go on as far as they can
                gate.is_open.set()
                assert await reading == {"n": 1}
                await asyncio.gather(*writing)
            assert sorted([id async for id in store]) == ["w", "x", "y", "z"]

    asyncio.run(run())


def test_a_call_that_comes_when_the_others_are_decided_is_decided(monkeypatch: pytest.MonkeyPatch) -> None:
    """`undo` waits in a thread for the one that decides for the tasks."""
    decide, calls = Deciding._decide_queued, list[threading.Thread]()

    def sleep(waiting: Any) -> None:
        """As `opslog.concurrency.locking.sleep`, but only a wake-up ends it."""
        if waiting.bell is None:
            waiting.bell = Bell()
        else:
            assert waiting.bell.wait(20), "nobody has woken it"

    async def run() -> None:
        async with opslog.aio.open("memory://aio-late-caller", agent="a", compact_after=None) as store:
            undone = []

            def undo() -> None:
                undone.append(replica_of(store._store).undo())

            def decide_and_let_one_come(self: Deciding[Document]) -> None:
                decide(self)
                if not calls:
                    calls.append(threading.Thread(target=undo))
                    calls[0].start()
                    until(lambda: bool(self._queue) and self._queue[0].bell is not None)

            monkeypatch.setattr(deciding, "sleep", sleep)
            monkeypatch.setattr(Deciding, "_decide_queued", decide_and_let_one_come)
            await store.create("x", {})
            await asyncio.to_thread(calls[0].join)
            assert undone == [("x",)]

    asyncio.run(run())
