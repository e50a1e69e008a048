"""The store for asyncio: the same store, many tasks at once, and cancellation at any moment."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends.local.fs_log import FsAppender
from opslog.compaction import automatic as autocompaction
from opslog.environment import Environment
from opslog.replica.at_exit import write_buffer
from opslog.store import replica_of
from tests.support import bucket  # noqa: F401  (stores at bucket://)

TASKS = 64


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop that reports coroutines that are never awaited and tasks that never end."""

    @wraps(test)
    def run(*arguments: Any, **options: Any) -> None:
        asyncio.run(test(*arguments, **options), debug=True)

    return run


async def all_of(*calls: Awaitable[Any]) -> None:
    await asyncio.gather(*calls)


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else f"bucket://aio-{tmp_path.name}"


@in_a_loop
async def test_everything_that_the_store_can_do(url: str) -> None:
    async with opslog.aio.open(url, agent="a", compact_after=None) as store:
        for number in range(5):
            await store.set(f"{number}", {"number": number})
        assert await store.get("3") == {"number": 3}
        assert (await store.get("9"), await store.get("9", {})) == (None, {})
        assert (await store.contains("3"), await store.contains("9"), await store.count()) == (True, False, 5)
        await store.delete("4")
        with pytest.raises(opslog.NotFoundError):
            await store.delete("4")
        assert await store.undo()
        assert [id async for id in store] == [f"{number}" for number in range(5)]
        assert dict([item async for item in store.items()]) == {f"{number}": {"number": number} for number in range(5)}
        assert await store.filter(lambda document: document["number"] > 3) == [("4", {"number": 4})]
        assert await store.count(lambda document: document["number"] > 2) == 2
        assert len(await store.history("4")) == 2
        assert len(await store.ops(since=1)) == 6
        assert await store.archive(lambda document: document["number"] == 0, "old") == 1
        assert await store.archives() == ["old"]
        assert await store.load_archive("old") == {"0": {"number": 0}}
        assert (await store.compact()).number == 2  # it names the log
        assert (await store.stats()).documents == 4
        with opslog.open(url, agent="b") as other:
            other["other"] = {}
        assert [commit.agent for commit in await store.refresh()] == ["b"]
        assert await store.get("other") == {}
    with pytest.raises(opslog.ClosedError):
        await store.set("late", {})
    with opslog.open(url, read_only=True) as fresh:
        assert set(fresh) == {"1", "2", "3", "4", "other"}


@in_a_loop
async def test_tasks_writing_at_once_lose_nothing_and_share_appends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, lengths = FsAppender.append, list[int]()

    def append(self: FsAppender, data: bytes) -> Any:
        lengths.append(data.count(b"\n"))
        return real(self, data)

    monkeypatch.setattr(FsAppender, "append", append)
    async with opslog.aio.open(tmp_path, agent="a") as store:

        async def write(task: int) -> None:
            for number in range(10):
                await store.set(f"{task}-{number}", {"task": task, "number": number})
                assert await store.get(f"{task}-{number}") == {"task": task, "number": number}

        await all_of(*map(write, range(TASKS)))
    assert lengths == [TASKS] * 10
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert len(fresh) == TASKS * 10
        assert [commit.clock for commit in fresh.ops()] == list(range(1, TASKS * 10 + 1))


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@in_a_loop
async def test_a_cancelled_set_has_happened_or_not(url: str, durability: Any) -> None:
    """Tasks are cancelled at each step of their way. What others wrote is there, and the store goes on working."""
    done: set[str] = set()
    async with opslog.aio.open(url, agent="a", durability=durability, compact_after=None) as store:

        async def write(id: str) -> None:
            await store.set(id, {})
            done.add(id)

        for steps in range(12):
            tasks = [asyncio.create_task(write(f"{steps}-{number}")) for number in range(8)]
            for _ in range(steps):
                await asyncio.sleep(0)
            for task in tasks[::2]:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            assert {f"{steps}-{number}" for number in range(1, 8, 2)} <= done
        await store.set("last", {})
        seen = {id async for id in store}
        assert done | {"last"} <= seen
    with opslog.open(url, read_only=True) as fresh:
        assert (
            done | {"last"}
            <= set(fresh)
            <= {f"{steps}-{number}" for steps in range(12) for number in range(8)} | {"last"}
        )
        assert set(fresh) >= seen


@in_a_loop
async def test_a_set_needs_the_thread_pool_only_to_look_up_a_version(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opslog.aio.open(url, agent="a", version=3) as store:
        with monkeypatch.context() as patch:
            patch.setattr(asyncio, "to_thread", lambda call, *arguments: pytest.fail(f"{call} in a thread"))
            await store.set("x", {"by": "a"})
    async with opslog.aio.open(url, agent="tool", version=None) as tool:
        await tool.set("x", {"by": "tool"})
        await tool.set("new", {})
        sets = [commit for commit in await tool.ops() if isinstance(commit, opslog.Set)]
    assert [(commit.id, commit.v) for commit in sets] == [("x", 3), ("x", 3), ("new", 1)]


@in_a_loop
async def test_a_write_after_a_long_absence_reads_what_is_new_first(url: str) -> None:
    """A store that has not refreshed for half of the tombstone TTL must not write with its old clock: the tombstone
    that would decide may be gone."""
    now = [1000.0]
    environment = Environment(time=lambda: 1_800_000_000.0 + now[0], monotonic=lambda: now[0])
    settings = opslog.Settings(tombstone_ttl_seconds=100)
    async with opslog.aio.open(url, agent="late", environment=environment, settings=settings) as late:
        await late.set("a", {"n": 0})
        with opslog.open(url, agent="other", environment=environment) as other:
            for number in range(10):
                other["b"] = {"n": number}
            other["a"] = {"n": 1}
        now[0] += 51
        await late.set("a", {"n": 2})
        assert await late.get("b") == {"n": 9}
    with opslog.open(url, read_only=True) as store:
        assert store["a"] == {"n": 2}


@in_a_loop
async def test_batches_of_tasks_do_not_mix(url: str) -> None:
    async with opslog.aio.open(url, agent="a", compact_after=None) as store:
        await store.set("shared", {"turn": 0})

        async def write(task: int) -> None:
            async with store.batch() as batch:
                await batch.set(f"{task}", {"task": task})
                await asyncio.sleep(0)
                assert await batch.get(f"{task}") == {"task": task}
                assert await batch.get(f"{(task + 1) % 8}") is None, "what another batch has"
                assert await store.get(f"{task}") is None, "not before the end"
                await store.set(f"beside-{task}", {})
                await batch.set("shared", {"turn": task})

        await all_of(*map(write, range(8)))
        assert await store.count() == 17
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with store.batch() as batch:
                await batch.set("never", {})
                await batch.delete("shared")
                1 / 0  # noqa: B018
        assert not await store.contains("never")
        with pytest.raises(opslog.UsageError, match="has ended"):
            await batch.set("late", {})
        async with store.batch():
            """Nothing."""
        commits = await store.ops()
    assert sum(isinstance(commit, opslog.Batch) for commit in commits) == 8
    assert len(commits) == 17


@in_a_loop
async def test_errors_reach_the_task_that_made_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opslog.aio.open(tmp_path, agent="a") as store:
        with pytest.raises(opslog.InvalidDocumentError):
            await store.set("x", {"bad": object()})
        with pytest.raises(opslog.AgentBusyError):
            await opslog.aio.open(tmp_path, agent="a")

        def fail(self: FsAppender, data: bytes) -> Any:
            raise opslog.WriteFailedError("the disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(FsAppender, "append", fail)
            found = await asyncio.gather(*(store.set(f"{n}", {}) for n in range(5)), return_exceptions=True)
            assert [type(error) for error in found] == [opslog.WriteFailedError] * 5
            assert len({id(error) for error in found}) == 5
        await store.set("good", {})
        assert [id async for id in store] == ["good"]
    async with opslog.aio.open(tmp_path, read_only=True) as reader:
        with pytest.raises(opslog.ReadOnlyError):
            await reader.set("x", {})
        with pytest.raises(opslog.ReadOnlyError):
            async with reader.batch():
                pytest.fail("a batch of a reader")


@in_a_loop
async def test_close_says_what_was_not_written_though_a_cancelled_call_got_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def refuse(self: FsAppender, data: bytes) -> None:
        asked.set()
        cancelled.wait()
        raise opslog.WriteFailedError("the disk is full")

    store = await opslog.aio.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    monkeypatch.setattr(FsAppender, "append", refuse)
    await store.set("a", {})
    flushing = asyncio.ensure_future(store.flush())
    while not asked.is_set():
        await asyncio.sleep(0.001)
    flushing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await flushing
    cancelled.set()
    while not replica_of(store).failure_was_raised:
        await asyncio.sleep(0.01)
    with pytest.warns(RuntimeWarning, match="the disk is full"):
        write_buffer(replica_of(store))  # at the end of a program that does not close the store
    with pytest.raises(opslog.WriteFailedError, match="the disk is full"):
        await store.close()


@in_a_loop
async def test_a_close_that_is_cancelled_twice_is_reported_at_the_end_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, cancelled = threading.Event(), threading.Event()

    def refuse(self: FsAppender, data: bytes) -> None:
        asked.set()
        cancelled.wait()
        raise opslog.WriteFailedError("the disk is full")

    store = await opslog.aio.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    monkeypatch.setattr(FsAppender, "append", refuse)
    await store.set("a", {})
    closing = asyncio.ensure_future(store.close())
    while not asked.is_set():
        await asyncio.sleep(0.001)
    for _ in range(2):
        closing.cancel()
        await asyncio.sleep(0)
    cancelled.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await asyncio.get_running_loop().shutdown_default_executor()  # when the thread that closes has ended
    with pytest.warns(RuntimeWarning, match="the disk is full"):
        write_buffer(replica_of(store))


@in_a_loop
async def test_what_close_has_raised_is_not_reported_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: FsAppender, data: bytes) -> None:
        raise opslog.WriteFailedError("the disk is full")

    store = await opslog.aio.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
    monkeypatch.setattr(FsAppender, "append", refuse)
    await store.set("a", {})
    with pytest.raises(opslog.WriteFailedError, match="the disk is full"):
        await store.close()
    write_buffer(replica_of(store))  # at the end of the program: a warning would be an error


@in_a_loop
async def test_a_task_is_woken_though_there_was_no_memory_to_wake_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with opslog.aio.open("memory://no-memory-to-wake", agent="a") as store:
        wake = store._wake_tasks._schedule
        failed: list[object] = []

        def schedule(call: Callable[[], None]) -> object:
            if not failed:
                failed.append(call)
                raise MemoryError
            return wake(call)

        monkeypatch.setattr(store._wake_tasks, "_schedule", schedule)
        async with asyncio.timeout(30):
            await store.create("job", {})
        assert failed


@in_a_loop
async def test_an_opening_that_is_cancelled_gives_the_name_back(tmp_path: Path) -> None:
    for steps in range(6):
        opening = asyncio.ensure_future(_opened(tmp_path))
        for _ in range(steps):
            await asyncio.sleep(0)
        opening.cancel()
        with suppress(asyncio.CancelledError):
            await (await opening).close()
        async with asyncio.timeout(30):
            while True:  # its thread may be about to release the name
                with suppress(opslog.AgentBusyError):
                    await (await opslog.aio.open(tmp_path, agent="a")).close()
                    break
                await asyncio.sleep(0.001)


async def _opened(path: Path) -> opslog.aio.AsyncStore[Any]:
    return await opslog.aio.open(path, agent="a")


@in_a_loop
async def test_closing_beside_writers(url: str) -> None:
    store = await opslog.aio.open(url, agent="a", compact_after=None)
    done: list[str] = []

    async def write(task: int) -> None:
        with suppress(opslog.ClosedError):
            for number in range(10_000):
                await store.set(f"{task}-{number}", {})
                done.append(f"{task}-{number}")

    tasks = [asyncio.create_task(write(task)) for task in range(8)]
    while len(done) < 20:
        await asyncio.sleep(0)
    closing = asyncio.create_task(store.close())
    await asyncio.sleep(0)
    closing.cancel()
    with suppress(asyncio.CancelledError):
        await closing
    await asyncio.gather(*tasks)
    await store.close()
    with opslog.open(url, agent="a") as fresh:
        assert set(done) <= set(fresh)


@in_a_loop
async def test_watch_follows_others_until_the_store_is_closed(url: str) -> None:
    seen: list[str] = []
    store = await opslog.aio.open(url, read_only=False, agent="reader")

    async def follow() -> None:
        async for commit in store.watch(poll_seconds=0.001):
            assert isinstance(commit, opslog.Set)
            seen.append(commit.id)

    following = asyncio.create_task(follow())
    async with opslog.aio.open(url, agent="writer") as writer:
        for number in range(5):
            await writer.set(f"{number}", {})
    while len(seen) < 5:
        await asyncio.sleep(0.001)
    await store.close()
    await following
    assert seen == [f"{number}" for number in range(5)]


@in_a_loop
async def test_changes_are_those_of_the_store(url: str) -> None:
    async with opslog.aio.open(url, agent="a", compact_after=None) as store:
        for number in range(3):
            await store.set(f"{number}", {"number": number})
        changes = await store.changes()
        assert changes.reset
        assert [change.id async for change in changes] == ["0", "1", "2"]
        await store.delete("1")
        await store.set("3", {})
        changes = await store.changes(changes.token)
        assert [(change.id, change.document) async for change in changes] == [("1", None), ("3", {})]
        assert [effect.op for effect in changes.commits] == ["delete", "set"]
        assert len((await store.changes(changes.token)).commits) == 0
        await store.set("4", {})
        async for found in store.follow(changes.token, poll_seconds=0.001):
            assert [change.id async for change in found] == ["4"]
            break
        else:
            raise AssertionError("nothing came")


@in_a_loop
async def test_following_changes_ends_when_the_store_is_closed(url: str) -> None:
    store = await opslog.aio.open(url, agent="a", compact_after=None)
    found = []

    async def follow() -> None:
        async for changes in store.follow(poll_seconds=0.001):
            found.append([change.id async for change in changes])
            if len(found) == 2:
                await store.close()

    following = asyncio.create_task(follow())
    while not found:
        await asyncio.sleep(0.001)
    await store.set("x", {})
    await following
    assert found == [[], ["x"]]


@in_a_loop
async def test_automatic_compactions_and_types(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @dataclass
    class Task:
        title: str

    monkeypatch.setattr(autocompaction, "COMPACT_AFTER_COST", 10**9)
    async with opslog.aio.open(tmp_path, type=Task, compact_after=50) as store:
        for number in range(120):
            await store.set(f"{number}", Task(f"{number}"))
        assert await store.get("7") == Task("7")
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert fresh.stats().manifest > 1


def test_both_kinds_of_store_have_the_same_calls() -> None:
    """Every call of one of them exists in the other one."""

    def calls(store: type) -> dict[str, list[str]]:
        names = [name for name in dir(store) if not name.startswith("_")]
        return {name: list(inspect.signature(getattr(store, name)).parameters) for name in names}

    threads, tasks = calls(opslog.Store), calls(opslog.aio.AsyncStore)
    of_mappings = {"clear", "keys", "pop", "popitem", "setdefault", "update", "values"}
    assert threads.keys() - tasks.keys() == {*of_mappings, "records"}
    assert tasks.keys() - threads.keys() == {"contains"}, "`in` cannot be awaited"
    threads["compact"].remove("progress")
    assert all(threads[name] == tasks[name] for name in threads.keys() & tasks.keys())


def test_the_module_is_there_when_it_is_used() -> None:
    assert opslog.aio.open.__module__ == "opslog.aio"
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        getattr(opslog, "nothing")  # noqa: B009
