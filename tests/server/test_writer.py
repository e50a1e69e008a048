"""The writer of a shard answers everybody who asks for a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from opslog.environment import REAL
from opslog.errors import CommitUnknownError, WriteFailedError
from opslog.server.metrics import Metrics
from opslog.server.protocol.model import Stream
from opslog.server.protocol.storage import Changes
from opslog.server.protocol.transaction import Transaction
from opslog.server.storage import writer as writer_module
from opslog.server.storage.memory import MemoryShard, MemoryStorage
from opslog.server.storage.writer import Writer
from opslog.server.streams import Streams


class DurableShard(MemoryShard):
    """Its commits are made in the writer's thread."""

    durable = True


def change(transaction: Transaction) -> None:
    transaction.changes.values[b"key"] = b"value"


def test_an_error_after_a_commit_is_answered_and_the_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seconds: float) -> None:
        raise MemoryError

    async def ask() -> None:
        metrics = Metrics()
        writer = Writer(DurableShard(), REAL, metrics, lambda events: None)
        monkeypatch.setattr(metrics.commits, "observe", fail)
        # The outcome of the first is unknown, so nothing more is written.
        for expected in (MemoryError, CommitUnknownError):
            with pytest.raises(expected):
                await asyncio.wait_for(writer.run(change), 60)
        assert writer.failure == "MemoryError()"
        assert await asyncio.wait_for(writer.in_thread(lambda: 7), 60) == 7
        await writer.close()

    asyncio.run(ask())


@pytest.mark.parametrize("shard", [MemoryShard, DurableShard])
def test_requests_are_answered_before_followers_are_served(shard: type[MemoryShard]) -> None:
    order: list[str] = []

    def append(transaction: Transaction) -> None:
        change(transaction)
        transaction.events.created.append(Stream(1, "a", "text/plain", 0.0, 0.0))

    async def ask(writer: Writer, name: str) -> None:
        await writer.run(append)
        order.append(name)

    async def main() -> None:
        written = asyncio.Event()

        async def follow() -> None:
            await written.wait()
            order.append("follower")

        writer = Writer(shard(), REAL, Metrics(), lambda events: written.set())
        async with asyncio.timeout(60), asyncio.TaskGroup() as tasks:
            tasks.create_task(follow())
            await asyncio.sleep(0)  # now it is waiting
            for name in ("first", "second"):
                tasks.create_task(ask(writer, name))
        await writer.close()

    asyncio.run(main())
    assert order == ["first", "second", "follower"]


class Waits(threading.Event):
    """An event that says when somebody begins to wait for it."""

    def __init__(self, begun: threading.Event) -> None:
        super().__init__()
        self._begun = begun

    def wait(self, timeout: float | None = None) -> bool:
        self._begun.set()
        return super().wait(timeout)


class WatchedShard(DurableShard):
    """A commit is applied once `ready` is set, at the latest after a minute. `order` has that, and the turn of the
    event loop that was asked for when the commit began."""

    def __init__(self, order: list[str], ready: threading.Event | None = None) -> None:
        super().__init__()
        self.turn = threading.Event()
        self._loop = asyncio.get_running_loop()
        self._order = order
        self._ready = ready or self.turn

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        def take_turn() -> None:
            self._order.append("loop")
            self.turn.set()

        self._loop.call_soon_threadsafe(take_turn)
        self._ready.wait(60)
        self._order.append("applied")
        assert applied is not None
        applied()
        assert self.turn.wait(60), "the loop goes on while the disk writes"
        super().commit(changes)


LONG = bytes(2 * 1024 * 1024)


def change_much(transaction: Transaction) -> None:
    transaction.append(1, 0, LONG)


async def change_at_once(writer: Writer, *works: Callable[[Transaction], None]) -> None:
    async with asyncio.timeout(300):
        await asyncio.gather(*(writer.run(work) for work in works))
    await writer.close()


def test_the_loop_waits_until_a_group_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, order = threading.Event(), list[str]()
    monkeypatch.setattr(writer_module, "Event", lambda: Waits(begun))

    async def main() -> None:
        writer = Writer(WatchedShard(order, begun), REAL, Metrics(), lambda events: None, 3600.0)
        await change_at_once(writer, change, change)

    asyncio.run(main())
    assert begun.is_set()
    assert order == ["applied", "loop"]


@pytest.mark.parametrize(
    ("works", "seconds"),
    [
        pytest.param([change, change], 0.001, id="long"),
        pytest.param([change], 3600.0, id="a single change"),
        pytest.param([change, change_much], 3600.0, id="many bytes"),
    ],
)
def test_the_loop_does_not_wait(works: list[Callable[[Transaction], None]], seconds: float) -> None:
    order: list[str] = []

    async def main() -> None:
        await change_at_once(Writer(WatchedShard(order), REAL, Metrics(), lambda events: None, seconds), *works)

    asyncio.run(main())
    assert order == ["loop", "applied"]


def test_the_loop_does_not_wait_for_the_thread_that_does_something_else() -> None:
    order: list[str] = []

    async def main() -> None:
        writer = Writer(shard := WatchedShard(order), REAL, Metrics(), lambda events: None, 3600.0)
        other = asyncio.create_task(writer.in_thread(lambda: shard.turn.wait(60)))
        await asyncio.sleep(0)
        changes = asyncio.gather(writer.run(change), writer.run(change))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(shard.turn.set)
        assert await asyncio.wait_for(other, 300), "the loop had a turn"
        await asyncio.wait_for(changes, 300)
        await writer.close()

    asyncio.run(main())


def test_the_loop_goes_on_at_once_if_a_group_fails_before_it_is_applied() -> None:
    class Refusing(DurableShard):
        def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
            raise WriteFailedError("disk full")

    async def main() -> None:
        with pytest.raises(WriteFailedError, match="disk full"):
            await change_at_once(Writer(Refusing(), REAL, Metrics(), lambda events: None, 3600.0), change, change)

    asyncio.run(main())


def test_the_event_loop_waits_for_all_shards_together_no_longer_than_for_one() -> None:
    async def main() -> None:
        storage = MemoryStorage()
        storage.shards = (MemoryShard(), MemoryShard())
        streams = Streams(storage)
        await streams.start()
        assert sum(writer._wait_seconds for writer in streams._writers) == writer_module.WAIT_SECONDS
        await streams.stop()

    asyncio.run(main())
