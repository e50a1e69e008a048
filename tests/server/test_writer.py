"""The writer of a shard answers everybody who asks for a change."""

from __future__ import annotations

import asyncio

import pytest

from opslog.environment import REAL
from opslog.server.metrics import Metrics
from opslog.server.protocol.model import Stream
from opslog.server.protocol.transaction import Transaction
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
