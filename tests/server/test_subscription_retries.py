"""Subscriptions and the registry go on after a commit that failed, without a restart or another event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from opslog.errors import WriteFailedError
from opslog.server import registry
from opslog.server.protocol.creation import Create
from opslog.server.protocol.storage import Changes
from opslog.server.protocol.transaction import Events
from opslog.server.registry import Registry
from opslog.server.storage.memory import MemoryStorage
from opslog.server.streams import Streams
from opslog.server.subscriptions import wakes
from tests.server.test_subscription_service import Here, Hook, running, until


class Failing(MemoryStorage):
    """A storage that refuses some commits.

    :ivar refuses: whether it refuses these changes now.
    :ivar refused: how many commits it has refused.
    """

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.refuses: Callable[[Changes], bool] = lambda changes: False
        self.refused = 0
        self._error = error or WriteFailedError("the disk is full")
        (self._shard,) = self.shards
        self._real_commit = self._shard.commit
        self._shard.commit = self._commit  # type: ignore[method-assign]

    def _commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        if self.refuses(changes):
            self.refused += 1
            raise self._error
        self._real_commit(changes, applied)

    async def fail(self, refuses: Callable[[Changes], bool], times: int = 2) -> None:
        """Refuse these changes, until so many commits were refused."""
        end = self.refused + times
        self.refuses = lambda changes: self.refused < end and refuses(changes)
        await until(lambda: self.refused == end)


def changes_a_subscription(changes: Changes) -> bool:
    return any(key.startswith(b"subscriptions/") for key in changes.values)


def writes_to(path: str) -> Callable[[Changes], bool]:
    return lambda changes: path in changes.streams and bool(changes.records)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wakes, registry):
        monkeypatch.setattr(module, "_RETRY_SECONDS", 0.001)


PULL: dict[str, Any] = {"type": "pull-wake", "streams": ["a"], "wake_stream": "wakes", "lease_ttl_ms": 1000}


async def claimed(here: Here) -> None:
    """A subscription with something to be read, and a worker that has claimed it."""
    await here.create("a")
    await here.create("wakes")
    await here.put("s", **PULL)
    await here.append("a", 1)
    assert (await here.post("claim", worker="one")).status_code == 200


@pytest.mark.parametrize("refuses", [changes_a_subscription, writes_to("wakes")], ids=["step", "event"])
def test_a_wake_is_announced_although_a_commit_failed(refuses: Callable[[Changes], bool]) -> None:
    storage = Failing()

    async def run() -> None:
        async with running(storage=storage) as here:
            await here.create("a")
            await here.create("wakes")
            await here.put("s", **PULL)
            failing = asyncio.create_task(storage.fail(refuses))
            await asyncio.sleep(0)  # so that it refuses from here on
            await here.append("a", 1)
            await failing
            await until(lambda: here.streams.stream("wakes").tail > 0)
            (event,) = await here.messages("wakes")
            assert (event["subscription_id"], event["generation"]) == ("s", 1)
            assert (await here.post("claim", worker="w")).status_code == 200

    asyncio.run(run())


def test_a_lease_ends_although_the_commit_of_its_end_failed() -> None:
    storage = Failing()

    async def run() -> None:
        async with running(storage=storage) as here:
            await claimed(here)
            await storage.fail(changes_a_subscription)
            await until(lambda: here.service.get("s").subscription.generation == 2)
            assert (await here.post("claim", worker="two")).status_code == 200

    asyncio.run(run())


def test_what_is_due_is_not_tried_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has failed is still due. Without a pause, it would be tried again in each turn of the event loop."""
    storage = Failing()
    monkeypatch.setattr(wakes, "_RETRY_SECONDS", 3600.0)

    async def run() -> None:
        async with running(storage=storage) as here:
            await claimed(here)
            storage.refuses = changes_a_subscription
            entry = here.service.get("s")
            await until(lambda: storage.refused > 0 and entry.retry_at is not None)
            assert entry.timer is not None
            assert entry.timer.when() > asyncio.get_running_loop().time() + 3000
            assert storage.refused == 1
            storage.refuses = lambda changes: False

    asyncio.run(run())


def test_a_request_that_fails_loses_no_news_of_streams() -> None:
    """An acknowledgement takes in the append during the wake. If its commit fails, the append is still to be taken
    in."""
    storage, hook = Failing(), Hook(False)

    async def run() -> None:
        async with running(hook, storage) as here:
            await here.webhook(pattern="**", lease_ttl_ms=600_000)
            await here.create("a", 1)
            await until(lambda: here.service.get("s").subscription.taken)
            (body,) = hook.bodies
            wake = {"wake_id": body["wake_id"], "generation": body["generation"]}
            await here.append("a", 2)
            storage.refuses = changes_a_subscription
            with pytest.raises(WriteFailedError):
                await here.post("callback", body["callback_token"], **wake, done=True)
            await here.create("b", 1)
            await until(lambda: storage.refused > 1)
            storage.refuses = lambda changes: False
            await until(lambda: "b" in here.service.get("s").links)

    asyncio.run(run())


def test_a_webhook_is_posted_although_the_commit_before_it_failed() -> None:
    storage, hook = Failing(), Hook(True)

    async def run() -> None:
        async with running(hook, storage) as here:
            await here.create("a")
            await here.webhook(streams=["a"], lease_ttl_ms=600_000)
            entry, more = here.service.get("s"), [2]

            def append_more(events: Events) -> None:
                if more:
                    tasks.append(asyncio.create_task(here.append("a", more.pop())))

            # This append is in the same commit as the beginning of the wake, which therefore does not include it. So
            # the delivery has to store what it is about.
            tasks: list[asyncio.Task[None]] = []
            here.streams.observers.append(append_more)
            await here.append("a", 1)
            await storage.fail(lambda changes: entry.subscription.wake_id is not None and not hook.bodies)
            await until(lambda: bool(hook.bodies))
            assert hook.bodies[0]["generation"] == 1
            await asyncio.gather(*tasks)

    asyncio.run(run())


@pytest.mark.parametrize("error", [WriteFailedError("the disk is full"), MemoryError()], ids=["expected", "other"])
def test_the_registry_announces_a_stream_although_a_commit_failed(error: Exception) -> None:
    storage = Failing()

    async def run() -> None:
        streams = Streams(storage)
        await streams.start()
        register = Registry(streams)
        await register.start()
        append, failures = streams.append, [error, error]

        async def failing(request: Any) -> Any:
            if failures:
                raise failures.pop()
            return await append(request)

        streams.append = failing  # type: ignore[method-assign]
        await streams.create(Create("one", content_type="text/plain"))
        await until(lambda: not failures)
        await until(lambda: set(register._announced()) == {"one"})
        # While nothing can be written, it stops all the same.
        failures += [error] * 1000
        await streams.create(Create("two", content_type="text/plain"))
        await register.stop()
        streams.append = append  # type: ignore[method-assign]
        await streams.stop()

    asyncio.run(run())
