"""Closing fails: of a file, after all important work is done, or of a store whose buffer cannot be written."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from contextlib import suppress
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

import pytest

import opslog
from opslog.backends.forking import Descriptor
from opslog.concurrency.background import Worker
from opslog.log.session import WriterSession
from opslog.log.writer import LogWriter
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places, is_finalizing


def test_a_compaction_whose_manifest_is_there_keeps_what_that_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something failed after the manifest had got its name: on some filesystems closing a file can fail."""
    real = Descriptor.close

    def close(file: Descriptor) -> None:
        is_manifest = file.number >= 0 and "/manifests/" in os.readlink(f"/proc/self/fd/{file.number}")
        real(file)
        if is_manifest:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    root = tmp_path / "store"
    with opslog.open(root, agent="a", compact_after=None, settings=opslog.Settings(undo_window=0)) as store:
        store["old"] = {"v": 1}
        with monkeypatch.context() as patch:
            patch.setattr(Descriptor, "close", close)
            with pytest.raises(opslog.CommitUnknownError, match="was created"):
                store.compact()
    with opslog.open(root, read_only=True) as fresh:
        assert dict(fresh.items()) == {"old": {"v": 1}}
        assert fresh.stats().manifest == 2


def test_a_close_whose_flush_fails_ends_automatic_compaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: LogWriter) -> NoReturn:
        raise MemoryError

    others = set(threading.enumerate())
    store: opslog.Store[dict[str, int]] = opslog.open(tmp_path, agent="a", durability="buffered")
    store["x"] = {"v": 1}
    worker = replica_of(store).compaction._worker
    monkeypatch.setattr(worker, "_work", lambda: None)
    assert worker.wake()
    with monkeypatch.context() as patch:
        patch.setattr(LogWriter, "flush", fail)
        with pytest.raises(MemoryError):
            store.close()
    assert _threads(others) == []
    with opslog.open(tmp_path, read_only=True) as fresh:
        assert dict(fresh.items()) == {"x": {"v": 1}}


def test_an_asyncio_close_that_reports_a_lost_buffer_ends_its_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async def close() -> list[str]:
        others = set(threading.enumerate())
        store = await opslog.aio.open(tmp_path, agent="a", durability="buffered", buffer_seconds=3600)
        await store.create("x", {"v": 1})
        await store.set("y", {"v": 1})
        assert _threads(others)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(opslog.WriteFailedError, match="free some space"):
                await store.close()
        return _threads(others)

    assert asyncio.run(close()) == []


def test_a_close_that_cannot_begin_leaves_an_asyncio_store_open(tmp_path: Path) -> None:
    """With the threads that its tasks need."""

    async def close(number: int) -> bool:
        others = set(threading.enumerate())
        store = await opslog.aio.open(tmp_path / f"{number}", agent="a", compact_after=None)
        await store.set("x", {})
        await store.create("y", {})
        came = False

        def at(place: Place) -> None:
            nonlocal came
            came = came or place.number == number
            if place.number == number and not is_finalizing():
                raise MemoryError

        closing = store._close
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "_close", lambda: at_places(closing, at))
            with suppress(MemoryError):
                await store.close()
        for call in (store.set("z", {}), store.create(f"w{number}", {})):
            with suppress(opslog.ClosedError):
                await asyncio.wait_for(call, 30)
        await store.close()
        assert _threads(others) == []
        return came

    number = 1
    while asyncio.run(close(number)):
        number += 3
    assert number > 50


def test_an_asyncio_close_that_was_interrupted_ends_queued_transactions(tmp_path: Path) -> None:
    """The event loop had no time yet to wake the thread that decides them."""

    async def close(number: int) -> bool:
        store = await opslog.aio.open(tmp_path / f"{number}", agent="a", compact_after=None)
        tasks: list[asyncio.Task[None]] = []
        seen = 0

        def at(place: Place) -> None:
            nonlocal seen
            if ".Deciding." in place.where and not is_finalizing():
                seen += 1
                if seen == number:
                    raise MemoryError

        deciding = replica_of(store._store).transactions
        assert deciding is not None
        real = store._close

        def wake() -> None:
            if len(deciding._queue) == 3:
                queued.set()

        def closing() -> None:
            assert queued.wait(30)
            at_places(real, at)

        queued = threading.Event()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store._decider, "wake", wake)
            patch.setattr(store, "_close", closing)
            ended = asyncio.create_task(store.close())
            tasks += [asyncio.create_task(store.create(f"{number}", {})) for number in range(3)]
            with suppress(MemoryError):
                await ended
        if not store._replica.is_closed:  # it came before the close began
            store._decider.wake()
        _, waiting = await asyncio.wait(tasks, timeout=30)
        assert not waiting, number
        assert {type(task.exception()) for task in tasks} <= {opslog.ClosedError, NoneType}
        await store.close()
        return seen >= number

    number = 1
    while asyncio.run(close(number)):
        number += 1
    assert number > 10


def test_a_set_ends_whose_commit_is_written_by_a_close_that_was_cancelled_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes for tasks did not get its turn before."""
    appending, cancelled = threading.Event(), threading.Event()
    append, run = WriterSession.append, Worker._run

    def slow(self: WriterSession, lines: bytes, read_at: float | None = None) -> Any:
        appending.set()
        cancelled.wait(30)
        return append(self, lines, read_at)

    def late(self: Worker) -> None:
        while not self._closed:
            cancelled.wait(0.001)
        run(self)

    async def cancel() -> None:
        store = await opslog.aio.open(tmp_path, agent="a", compact_after=None)
        monkeypatch.setattr(WriterSession, "append", slow)
        monkeypatch.setattr(Worker, "_run", late)
        setting = asyncio.create_task(store.set("x", {}))
        await asyncio.sleep(0)
        closing = asyncio.create_task(store.close())
        while not appending.is_set():
            await asyncio.sleep(0.001)
        closing.cancel()
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        cancelled.set()
        await asyncio.wait_for(setting, 30)

    asyncio.run(cancel())


def _threads(others: set[threading.Thread]) -> list[str]:
    """The names of the threads of stores, without those that were there before."""
    return [thread.name for thread in set(threading.enumerate()) - others if thread.name.startswith("opslog-")]
