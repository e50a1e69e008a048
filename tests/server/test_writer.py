"""The writer of a shard answers everybody who asks for a change."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from opslog.environment import REAL
from opslog.errors import WriteFailedError
from opslog.server.metrics import Metrics
from opslog.server.protocol.model import Stream
from opslog.server.protocol.storage import Changes
from opslog.server.protocol.transaction import Transaction
from opslog.server.storage import writer as writer_module
from opslog.server.storage.memory import MemoryShard
from opslog.server.storage.writer import Writer


class DurableShard(MemoryShard):
    """Its commits are made in the writer's thread."""

    durable = True


def change(transaction: Transaction) -> None:
    transaction.changes.values[b"key"] = b"value"


def test_an_error_after_a_commit_is_answered_and_the_thread_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seconds: float) -> None:
        raise MemoryError("none left")

    async def ask() -> None:
        metrics = Metrics()
        writer = Writer(DurableShard(), REAL, metrics, lambda events: None)
        monkeypatch.setattr(metrics.commits, "observe", fail)
        for _ in range(2):  # the outcome of the first is unknown, so nothing more is written
            with pytest.raises(MemoryError):
                await asyncio.wait_for(writer.run(change), 60)
        assert isinstance(writer.failure, MemoryError)
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


class SlowShard(DurableShard):
    """It notes in `order` when a commit is applied, and when the event loop gets its turn after the commit began. It
    waits `wait` seconds for such a turn before the commit counts as applied."""

    def __init__(self, order: list[str], wait: float) -> None:
        super().__init__()
        self.loop = asyncio.get_running_loop()
        self._order, self._wait = order, wait

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        turn = threading.Event()

        def take_turn() -> None:
            self._order.append("loop")
            turn.set()

        self.loop.call_soon_threadsafe(take_turn)
        turn.wait(self._wait)
        self._order.append("applied")
        assert applied is not None
        applied()
        assert turn.wait(60), "the loop goes on while the disk writes"
        super().commit(changes)


async def changed_at_once(shard: DurableShard, count: int) -> None:
    writer = Writer(shard, REAL, Metrics(), lambda events: None)
    async with asyncio.timeout(60):
        await asyncio.gather(*(writer.run(change) for _ in range(count)))
    await writer.close()


def test_the_loop_stands_still_while_a_group_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_STANDSTILL_SECONDS", 60.0)
    order: list[str] = []

    async def main() -> None:
        await changed_at_once(SlowShard(order, 0.2), 2)

    asyncio.run(main())
    assert order == ["applied", "loop"]


@pytest.mark.parametrize("count", [1, 2])
def test_the_loop_does_not_stand_still_for_a_single_change_nor_for_long(count: int) -> None:
    order: list[str] = []

    async def main() -> None:
        await changed_at_once(SlowShard(order, 60), count)

    asyncio.run(main())
    assert order == ["loop", "applied"]


def test_the_loop_goes_on_at_once_if_a_group_fails_before_it_is_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "_STANDSTILL_SECONDS", 3600.0)

    class Refusing(DurableShard):
        def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
            raise WriteFailedError("disk full")

    async def main() -> None:
        with pytest.raises(WriteFailedError, match="disk full"):
            await changed_at_once(Refusing(), 2)

    asyncio.run(main())
