"""The store for asyncio on a storage that is slow: calls that read are made in threads, and the event loop waits for
none of them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import pytest

import opslog
from opslog.concurrency.locking import Bell
from opslog.log.writer import LogWriter
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
    :ivar passed: the call of `before` behind the gate has returned.
    """

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.is_open = threading.Event()
        self.passed = threading.Event()

    def before(self, call: Callable[..., Any], waits: Callable[..., bool] = lambda *_: True) -> Callable[..., Any]:
        """The same function, but calls with arguments for which `waits` is true wait at the gate first."""

        def slowly(*arguments: Any) -> Any:
            if not waits(*arguments):
                return call(*arguments)
            self.wait()
            result = call(*arguments)
            self.passed.set()
            return result

        return slowly

    def wait(self) -> None:
        self.entered.set()
        assert self.is_open.wait(20), "the event loop is blocked"


async def reached(event: threading.Event) -> None:
    """Wait for an event of another thread."""
    while not event.is_set():
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
    slowly = gate.before(getattr(Replica, f"prepare_{call}"), lambda replica, id, *_: id == "late")

    def appending(request: Request) -> Fault | None:
        if request.method == "put_new":
            gate.is_open.set()
            assert gate.passed.wait(20)
        return None

    async def run() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            await store.set("late", {"n": 0})
            monkeypatch.setattr(Replica, f"prepare_{call}", slowly)
            with BUCKETS[url.removeprefix("bucket://")].failing(appending):
                async with store.batch() as batch:
                    late = asyncio.ensure_future(batch.set("late", {}) if call == "set" else batch.delete("late"))
                    await reached(gate.entered)
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
    slowly = gate.before(Replica.prepare_set, lambda replica, id, document: document == {"n": "old"})

    async def run() -> None:
        monkeypatch.setattr(Replica, "prepare_set", slowly)
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            async with store.batch() as batch:
                old = asyncio.ensure_future(batch.set("x", {"n": "old"}))
                await reached(gate.entered)
                old.cancel()
                with suppress(asyncio.CancelledError):
                    await old
                await batch.set("x", {"n": "new"})
                gate.is_open.set()
                await reached(gate.passed)
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
                await reached(gate.entered)
                calls = store.set("w", {}), write_batch(store), transact(store)
                writing = [asyncio.ensure_future(call) for call in calls]
                for _ in range(100):
                    await asyncio.sleep(0)  # the writes go on as far as they can
                gate.is_open.set()
                assert await reading == {"n": 1}
                await asyncio.gather(*writing)
            assert sorted([id async for id in store]) == ["w", "x", "y", "z"]

    asyncio.run(run())


def test_a_set_does_not_stop_the_event_loop_while_a_load_reads_the_own_log(url: str, gate: Gate) -> None:
    """No commit can be queued meanwhile."""

    async def run() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            log = replica_of(store._store).log
            assert log is not None
            loading = asyncio.ensure_future(asyncio.to_thread(log.quiet, lambda queue: gate.wait()))
            await reached(gate.entered)
            setting = asyncio.ensure_future(store.set("x", {}))
            for _ in range(100):
                await asyncio.sleep(0)
            gate.is_open.set()
            await asyncio.gather(loading, setting)
            assert await store.contains("x")

    asyncio.run(run())


def test_a_cancelled_buffered_set_comes_before_a_newer_one(
    url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    slowly = gate.before(LogWriter.queue, lambda log, commit, guards: commit.document == {"n": "old"})

    async def run() -> None:
        async with opslog.aio.open(url, agent="a", durability="buffered", compact_after=None) as store:
            replica = replica_of(store._store)
            monkeypatch.setattr(LogWriter, "queue", slowly)
            replica.in_state = -1  # as while a thread reads
            old = asyncio.ensure_future(store.set("x", {"n": "old"}))
            await reached(gate.entered)
            replica.in_state = 0
            old.cancel()
            asyncio.get_running_loop().call_later(0.01, gate.is_open.set)
            with suppress(asyncio.CancelledError):
                await old
            await store.set("x", {"n": "new"})
            await reached(gate.passed)
            assert await store.get("x") == {"n": "new"}

    asyncio.run(run())


def test_a_cancelled_undo_takes_back_nothing_newer(url: str, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            await store.set("x", {"n": 1})
            monkeypatch.setattr(Replica, "undo", gate.before(Replica.undo))
            undoing = asyncio.ensure_future(store.undo())
            await reached(gate.entered)
            undoing.cancel()
            asyncio.get_running_loop().call_later(0.01, gate.is_open.set)
            with suppress(asyncio.CancelledError):
                await undoing
            await store.set("x", {"n": 2})
            await reached(gate.passed)
            assert await store.get("x") == {"n": 2}

    asyncio.run(run())


def test_an_undo_takes_back_a_cancelled_transaction_that_is_being_decided(gate: Gate) -> None:
    async def run() -> None:
        async with opslog.aio.open("memory://aio-undo", agent="a", log="shared", compact_after=None) as store:

            def read(transaction: Any) -> None:
                gate.wait()

            created = asyncio.ensure_future(store.create("x", {}))
            deciding_one = asyncio.ensure_future(store.transact(read))
            await reached(gate.entered)
            created.cancel()
            with suppress(asyncio.CancelledError):
                await created
            asyncio.get_running_loop().call_later(0.01, gate.is_open.set)
            undone = await store.undo()
            await deciding_one
            assert await store.get("x") is None
            assert undone == (len(await store.ops()) == 2)

    asyncio.run(run())


def test_two_deletes_of_a_batch_at_once_delete_once(url: str) -> None:
    async def run() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            await store.set("x", {})
            async with store.batch() as batch:
                outcomes = await asyncio.gather(batch.delete("x"), batch.delete("x"), return_exceptions=True)
            assert [type(outcome) for outcome in outcomes if outcome is not None] == [opslog.NotFoundError]
            assert len((await store.ops())[-1].records) == 1

    asyncio.run(run())


def test_a_transaction_has_ended_though_its_block_was_cancelled_twice(url: str, gate: Gate) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            made = []

            async def block() -> None:
                async with store.transaction() as transaction:
                    made.append(transaction)
                    await asyncio.sleep(60)

            running = asyncio.ensure_future(block())
            while not made:
                await asyncio.sleep(0.001)
            busy = loop.run_in_executor(None, gate.wait)
            await reached(gate.entered)
            running.cancel()
            await asyncio.sleep(0)
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
            with pytest.raises(opslog.UsageError, match="has ended"):
                made[0]["x"] = {}
            gate.is_open.set()
            await busy

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
            while not undone:
                await asyncio.sleep(0.001)
            assert undone == [("x",)]

    asyncio.run(run())
