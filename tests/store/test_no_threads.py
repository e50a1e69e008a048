"""A process that can start no more threads: writes still work, and callers do the work of the missing threads."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.concurrency.background import Worker
from tests.support import bucket  # noqa: F401  (stores at bucket://)

DURABILITIES = pytest.mark.parametrize("durability", ["fsync", "buffered"])


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path) if request.param == "directory" else f"bucket://no-threads-{tmp_path.name}"


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """After it is called, no thread can be started."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    return lambda: monkeypatch.setattr(threading.Thread, "start", refuse)


def read(url: str) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as fresh:
        return dict(fresh.items())


@DURABILITIES
def test_every_write_is_done(url: str, no_threads: Callable[[], None], durability: Any) -> None:
    no_threads()
    with opslog.open(url, agent="a", durability=durability, compact_after=5) as store:
        for number in range(12):
            store[f"{number}"] = {"number": number}
            assert f"{number}" in read(url), "nobody else would write it"
        with store.batch():
            store["0"] = {}
            del store["1"]
        assert store.undo()
        store.flush()
        assert store.refresh() == []
        expected = dict(store.items())
    assert read(url) == expected
    assert len(expected) == 12


def test_a_compaction_by_hand_is_done_and_its_lock_given_back(url: str, no_threads: Callable[[], None]) -> None:
    """On an object storage a thread would renew the lock. Another process that took it over meanwhile would do no
    harm."""
    with opslog.open(url, agent="a", compact_after=None, settings=opslog.Settings(undo_window=0)) as store:
        no_threads()
        for number in range(1, 4):
            store["x"] = {"number": number}
            done = store.compact()  # LockedError if the one before had kept the lock
            assert (done.number, done.commits) == (number + 1, 1)
    assert read(url) == {"x": {"number": 3}}


@pytest.mark.parametrize("before", ["opening", "the first write", "the second write"])
@DURABILITIES
def test_no_asyncio_call_waits_for_ever(
    url: str, no_threads: Callable[[], None], monkeypatch: pytest.MonkeyPatch, durability: Any, before: str
) -> None:
    async def act() -> None:
        if before == "opening":
            no_threads()
        async with (
            asyncio.timeout(60),
            opslog.aio.open(url, agent="a", durability=durability, compact_after=5) as store,
        ):
            if before == "the second write":
                await store.set("first", {})
            no_threads()
            await asyncio.gather(*(store.set(f"{number}", {"number": number}) for number in range(12)))
            async with store.batch() as batch:
                await batch.set("0", {})
                await batch.delete("1")
            assert await store.undo()
            await store.delete("2")
            await store.flush()
            assert await store.refresh() == []
            assert await store.get("1") == {"number": 1}
            await store.stats()
        monkeypatch.undo()  # asyncio itself needs a thread to end

    asyncio.run(act())
    assert set(read(url)) - {"first"} == {f"{number}" for number in range(12)} - {"2"}


@pytest.mark.parametrize("has_pool", [True, False])
def test_tasks_get_their_answers_where_there_is_no_memory_to_wake_a_thread(
    url: str, monkeypatch: pytest.MonkeyPatch, has_pool: bool
) -> None:
    """The event loop wakes the threads, so that no caller would get the error."""

    def exhausted(*arguments: object) -> Any:
        raise MemoryError

    async def act() -> None:
        async with opslog.aio.open(url, agent="a", compact_after=None) as store:
            with monkeypatch.context() as patch:
                patch.setattr(Worker, "wake", exhausted)
                if not has_pool:
                    patch.setattr(asyncio.get_running_loop(), "run_in_executor", exhausted)
                await asyncio.wait_for(
                    asyncio.gather(
                        *(store.set(f"{number}", {"n": number}) for number in range(3)),
                        *(store.create(f"{number}", {"n": number}) for number in range(3, 6)),
                    ),
                    30,
                )

    asyncio.run(act())
    assert set(read(url)) == {f"{number}" for number in range(6)}


def test_a_call_that_the_pool_refused_and_made_later_is_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """`ThreadPoolExecutor.submit` queues a call before it starts a thread for it."""
    calls: list[str] = []

    async def act() -> None:
        loop = asyncio.get_running_loop()
        async with opslog.aio.open("memory://no-threads-once", agent="a") as store:
            refused: list[Callable[[], object]] = []

            def refuse(executor: object, function: Callable[..., object], *arguments: object) -> Any:
                refused.append(lambda: function(*arguments))
                raise RuntimeError("can't start new thread")

            monkeypatch.setattr(loop, "run_in_executor", refuse)
            monkeypatch.setattr(store._store, "undo", lambda: calls.append("undo"))
            await store.undo()
            for late in refused:
                late()
            monkeypatch.undo()

    asyncio.run(act())
    assert calls == ["undo"]
