"""The service below HTTP: what commits share, what a restart finds, and storages that fail."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from opslog.environment import Environment
from opslog.errors import CommitUnknownError, OpslogError, WriteFailedError
from opslog.server import Options
from opslog.server import streams as streams_module
from opslog.server.http.asgi import App
from opslog.server.protocol.appending import Append
from opslog.server.protocol.creation import Create, ForkOf
from opslog.server.protocol.producers import Stamp
from opslog.server.protocol.storage import Changes, Storage
from opslog.server.protocol.transaction import Events
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.storage.memory import MemoryShard, MemoryStorage
from opslog.server.streams import Streams
from tests.support.asgi import Caller

TYPE = "text/plain"
Reopen = Callable[..., DirectoryStorage]


def at(now: float) -> Environment:
    return Environment(time=lambda: now)


async def started(storage: Storage, environment: Environment | None = None) -> Streams:
    streams = Streams(storage, environment or Environment())
    await streams.start()
    return streams


def test_appends_that_come_together_share_a_commit(reopen: Reopen) -> None:
    async def scenario() -> None:
        storage = reopen()
        streams = await started(storage)
        await streams.create(Create("a", TYPE))
        before = sum(streams.metrics.commits.counts)
        await asyncio.gather(*(streams.append(Append("a", TYPE, b"x")) for _ in range(500)))
        assert sum(streams.metrics.commits.counts) - before <= 2
        await streams.stop()
        storage.close()

    asyncio.run(scenario())


def test_a_restart_finds_everything(reopen: Reopen) -> None:
    append = Append("f1", TYPE, b"x", stamp=Stamp("p", 0, 0))

    async def before() -> None:
        storage = reopen(shards=3)
        streams = await started(storage, at(1000.0))
        await streams.create(Create("source", TYPE, data=b"abc"))
        for number in range(9):
            await streams.create(Create(f"f{number}", fork=ForkOf("source")))
        await streams.create(Create("soon", TYPE, ttl=16, data=b"12345"))
        await streams.create(Create("late", TYPE, ttl=10_000))
        assert not (await streams.append(append)).duplicate
        assert len({streams.shard_number(f"f{number}") for number in range(9)}) == 1
        assert len({storage.home(f"f{number}") for number in range(9)}) > 1
        await streams.stop()
        storage.close()

    async def after(now: float, paths: set[str]) -> None:
        storage = reopen()
        streams = await started(storage, at(now))
        assert {stream.path for stream in streams.list()} == paths
        assert {found.path for shard in storage.shards for found in shard.streams()} == paths, (
            "what expired was removed"
        )
        assert (await streams.append(append)).duplicate
        for number in range(9):
            stream = streams.stream(f"f{number}")
            assert b"".join(streams.read(stream, 0, 100).chunks) == (b"abcx" if number == 1 else b"abc")
        assert streams.usage().bytes == (9 if "soon" in paths else 4)
        await streams.stop()
        storage.close()

    forks = {f"f{number}" for number in range(9)}
    asyncio.run(before())
    asyncio.run(after(1017.0, {"source", "soon", "late", *forks}))  # an eighth of its life may be unrecorded
    asyncio.run(after(1018.0, {"source", "late", *forks}))


def test_accesses_are_recorded_now_and_then(reopen: Reopen) -> None:
    async def scenario() -> None:
        now = [1000.0]
        storage = reopen()
        streams = await started(storage, Environment(time=lambda: now[0]))
        stream = (await streams.create(Create("a", TYPE, ttl=80))).stream
        for now[0], recorded in ((1005.0, 1000.0), (1011.0, 1011.0), (1020.0, 1011.0), (1022.0, 1022.0)):
            streams.touch(stream)
            streams.touch(stream)
            await streams.transact(lambda transaction: None)
            await streams.transact(lambda transaction: None)
            stream = streams.stream("a")
            assert stream.accessed == recorded
        await streams.stop()
        storage.close()

    asyncio.run(scenario())


def test_no_access_is_kept_of_a_stream_that_was_deleted_while_it_was_read(storage: Storage) -> None:
    async def scenario() -> None:
        streams = await started(storage)
        fork = await streams.create(Create("forked", TYPE, ttl=100))
        await streams.create(Create("fork", fork=ForkOf("forked"), ttl=100))
        kept = fork.stream
        for stream in (kept, (await streams.create(Create("alone", TYPE, ttl=100))).stream):
            with streams.followers.following(stream.path, asyncio.get_running_loop().create_future()) as follower:
                waiting = asyncio.create_task(streams.wait(stream, follower, 60))
                while not streams.followers.count:
                    await asyncio.sleep(0)
                assert stream.id in streams._accesses
                await streams.delete(stream.path)
                await waiting
        assert not streams._accesses
        await streams.stop()

    asyncio.run(scenario())


def test_a_fork_at_the_path_of_a_stream_that_is_being_deleted_stays(reopen: Reopen) -> None:
    """It may be in another shard than the stream before it."""

    async def scenario() -> None:
        storage = reopen(shards=3)
        streams = await started(storage)

        async def fork(path: str, source: str) -> None:
            created = await streams.create(Create(path, fork=ForkOf(source)))
            assert streams.stream(path) == created.stream

        sources, paths = [f"s{number}" for number in range(6)], [f"f{number}" for number in range(9)]
        assert len({storage.home(source) for source in sources}) > 1
        for source in sources:
            await streams.create(Create(source, TYPE, data=b"abc"))
        for path in paths:
            await streams.create(Create(path, TYPE))
            for source in sources:
                await asyncio.gather(streams.delete(path), fork(path, source))
        while len(streams._background.tasks) > 1:  # one sweeps for ever
            await asyncio.sleep(0)
        assert [streams.stream(path).tail for path in paths] == [3] * 9
        await streams.stop()
        storage.close()

    asyncio.run(scenario())


def test_appends_that_trim_and_the_deletion_may_share_a_commit(reopen: Reopen) -> None:
    async def scenario() -> None:
        storage = reopen()
        streams = Streams(storage, retain_bytes=20)
        await streams.start()
        await streams.create(Create("a", TYPE, data=b"x" * 20))
        commits = sum(streams.metrics.commits.counts)
        appends = [streams.append(Append("a", TYPE, b"x" * 20)) for _ in range(3)]
        await asyncio.gather(*appends, streams.delete("a"))
        assert sum(streams.metrics.commits.counts) == commits + 1
        await streams.sweep()
        assert streams.usage().bytes == 0
        await streams.stop()
        storage.close()

    asyncio.run(scenario())


def test_observers_are_notified_of_what_was_committed() -> None:
    notified: list[Events] = []

    def failing(events: Events) -> None:
        raise ZeroDivisionError

    async def scenario() -> None:
        streams = await started(MemoryStorage())
        streams.observers += [failing, notified.append]
        await streams.create(Create("a", TYPE, data=b"1"))
        await streams.append(Append("a", TYPE, b"2"))
        await streams.append(Append("a", None, b"", close=True))
        await streams.delete("a")
        await streams.stop()

    asyncio.run(scenario())
    assert [[stream.path for stream in events.created] for events in notified] == [["a"], [], [], []]
    tails = [{path: stream.tail for path, stream in events.appended.items()} for events in notified]
    assert tails == [{"a": 1}, {"a": 2}, {"a": 2}, {}]
    assert notified[2].appended["a"].closed
    assert [stream.path for stream in notified[3].deleted] == ["a"]


def test_works_of_others_commit_in_the_same_transaction(storage: Storage) -> None:
    async def scenario() -> None:
        streams = await started(storage)
        await asyncio.gather(
            streams.transact(lambda transaction: transaction.put_value(b"x/1", b"one")),
            streams.transact(lambda transaction: transaction.put_value(b"x/2", b"two")),
        )

        def replace(transaction: object) -> list[tuple[bytes, bytes]]:
            from opslog.server.protocol.transaction import Transaction

            assert isinstance(transaction, Transaction)
            transaction.put_value(b"x/1", None)
            transaction.put_value(b"x/3", b"three")
            assert transaction.value(b"x/1") is None
            return list(transaction.values(b"x/"))

        expected = [(b"x/2", b"two"), (b"x/3", b"three")]
        assert await streams.transact(replace) == expected
        assert list(storage.shards[0].values(b"x/")) == expected
        await streams.stop()

    asyncio.run(scenario())


class FailingShard(MemoryShard):
    """:ivar refused: how many commits failed."""

    failure: OpslogError | None = None
    refused = 0

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        if self.failure is not None:
            self.refused += 1
            raise self.failure
        super().commit(changes)


def test_a_sweep_that_failed_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """An expired stream is removed as soon as the storage accepts writes again."""
    monkeypatch.setattr(streams_module, "_SWEEP_SECONDS", 0.0)
    now, storage, shard = [1000.0], MemoryStorage(), FailingShard()
    storage.shards = (shard,)

    async def scenario() -> None:
        streams = await started(storage, Environment(time=lambda: now[0]))
        await streams.create(Create("a", TYPE, ttl=10))
        shard.failure = WriteFailedError("disk full")
        now[0] += 1000
        async with asyncio.timeout(60):
            while shard.refused < 3:
                await asyncio.sleep(0)
            shard.failure = None
            while shard.stream("a") is not None:
                await asyncio.sleep(0)
        await streams.stop()

    asyncio.run(scenario())


def test_a_sweep_that_failed_by_a_fault_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams_module, "_SWEEP_SECONDS", 0.0)

    async def scenario() -> None:
        streams = await started(MemoryStorage())
        faults, swept = [MemoryError(), RuntimeError("no more threads")], asyncio.Event()

        async def sweep() -> None:
            if faults:
                raise faults.pop()
            swept.set()

        monkeypatch.setattr(streams, "sweep", sweep)
        await asyncio.wait_for(swept.wait(), 60)
        await streams.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("failure", "status", "ready"), [(WriteFailedError("full"), 507, 200), (CommitUnknownError("broken"), 500, 503)]
)
def test_a_storage_that_fails(failure: OpslogError, status: int, ready: int) -> None:
    storage, shard = MemoryStorage(), FailingShard()
    storage.shards = (shard,)
    caller = Caller(App(storage, Options()))
    text = {"content-type": TYPE}
    caller.put("a", headers=text)
    shard.failure = failure
    refused = caller.post("a", content=b"x", headers=text)
    assert (refused.status_code, caller.get("a").content) == (status, b"")
    assert caller.get("http://test/readyz").status_code == ready
    assert caller.get("http://test/healthz").status_code == 200
    shard.failure = None
    # After a commit of unknown outcome nothing is written: memory may differ from what is stored.
    assert caller.post("a", content=b"x", headers=text).status_code == (204 if ready == 200 else 500)
    caller.close()


def test_the_registry_makes_up_for_a_crash(tmp_path: Path) -> None:
    async def without_registry() -> None:
        storage = DirectoryStorage(tmp_path / "data")
        streams = await started(storage)
        await streams.create(Create("new", TYPE))
        await streams.delete("old")
        await streams.stop()
        storage.close()

    def keys() -> list[str]:
        caller = Caller(App(DirectoryStorage(tmp_path / "data"), Options(registry=True)))
        found = caller.get("__registry__").json()
        while len(found) < expected:
            found = caller.get("__registry__", params={"offset": "-1"}).json()
        caller.put("old", headers={"content-type": TYPE})
        caller.close()
        return [f"{message['headers']['operation']} {message['key']}" for message in found]

    expected = 0
    assert keys() == []
    asyncio.run(without_registry())
    expected = 3
    assert keys() == ["insert old", "insert new", "delete old"]
