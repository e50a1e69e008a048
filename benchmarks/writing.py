"""Workloads that write: set by one caller and by many, buffered, and in batches. Nothing compacts by itself: that is a
workload of its own, and would come into some of the rounds."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import opslog
import opslog.aio
from benchmarks.material import Documents, documents, line
from benchmarks.npm import npm_modules
from benchmarks.peers import DURABLE, NPM, NPM_COPIES, QUICK, Lmdb, Npm, Peer, Sqlite, Tinydb, contend
from benchmarks.runner import Round, Scale, Timer, contender

BATCH = 100


def bare(folder: Path, records: list[bytes], operations: int, *, each: bool = True) -> Iterator[Round]:
    """Appends of the same bytes, with an fdatasync after each of them or after the last."""
    with (folder / "floor").open("ab", buffering=0) as file:

        def run(timer: Timer) -> int:
            with timer:
                for record in records:
                    file.write(record)
                    if each:
                        os.fdatasync(file.fileno())
                if not each:
                    os.fdatasync(file.fileno())
            return operations

        yield run


@contender("set, durable, one caller", "opslog", "on disk")
def set_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", compact_after=None) as store:

        def run(timer: Timer) -> int:
            written = documents(scale.sets, timer.number)
            with timer:
                for id, value in written:
                    store.set(id, value)
            return scale.sets

        yield run


@contender("set, durable, one caller", "floor: write + fdatasync", "on disk")
def set_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    return bare(folder, [line(number) for number in range(scale.sets)], scale.sets)


def _set(peer: Peer, scale: Scale, timer: Timer) -> int:
    # TinyDB writes its whole file each time.
    written = documents(scale.writes if isinstance(peer, Tinydb) else scale.sets, timer.number)
    timer.seconds += peer.set(written)
    return len(written)


contend("set, durable, one caller", DURABLE, _set)


def _threaded(scale: Scale, work: Callable[[int, Documents], None]) -> Iterator[Round]:
    """All threads do as many writes; time runs until all have."""
    with ThreadPoolExecutor(scale.threads) as pool:

        def run(timer: Timer) -> int:
            written = documents(scale.sets // scale.threads, timer.number)
            with timer:
                for done in [pool.submit(work, thread, written) for thread in range(scale.threads)]:
                    done.result()
            return scale.threads * len(written)

        yield run


@contender("set, durable, 16 threads", "opslog", "on disk")
def threads_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", compact_after=None) as store:

        def work(thread: int, written: Documents) -> None:
            for id, value in written:
                store.set(f"{id}-{thread}", value)

        yield from _threaded(scale, work)


@contender("set, durable, 16 threads", "floor: one write + fdatasync per 16", "on disk")
def threads_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    groups = [line(number) * scale.threads for number in range(scale.sets // scale.threads)]
    return bare(folder, groups, scale.threads * len(groups))


@contender("set, durable, 16 threads", "SQLite WAL FULL, a connection each", "on disk")
def threads_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with Sqlite(folder):  # makes the table

        def work(thread: int, written: Documents) -> None:
            with Sqlite(folder) as database:
                for id, value in written:
                    database.put(f"{id}-{thread}", value)

        yield from _threaded(scale, work)


@contender("set, durable, 16 threads", "LMDB", "on disk")
def threads_lmdb(folder: Path, scale: Scale) -> Iterator[Round]:
    with Lmdb(folder) as database:

        def work(thread: int, written: Documents) -> None:
            for id, value in written:
                database.put(f"{id}-{thread}", value)

        yield from _threaded(scale, work)


TASKS = 64


@contender("set, durable, 64 tasks", "opslog.aio", "on disk")
def tasks_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with asyncio.Runner() as runner:
        store = runner.run(_opened(folder / "store"))

        async def write(task: int, written: Documents) -> None:
            for id, value in written:
                await store.set(f"{id}-{task}", value)

        async def write_all(written: Documents) -> None:
            await asyncio.gather(*(write(task, written) for task in range(TASKS)))

        def run(timer: Timer) -> int:
            written = documents(scale.sets // TASKS, timer.number)
            with timer:
                runner.run(write_all(written))
            return TASKS * len(written)

        yield run
        runner.run(store.close())


async def _opened(path: Path) -> opslog.aio.AsyncStore[dict[str, Any]]:
    return await opslog.aio.open(path, compact_after=None)


@contender("set, durable, 64 tasks", "floor: one write + fdatasync per 64", "on disk")
def tasks_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    groups = [line(number) * TASKS for number in range(scale.sets // TASKS)]
    return bare(folder, groups, TASKS * len(groups))


@contender("set, durable, 64 tasks", "opslog, one caller", "on disk")
def tasks_one_caller(folder: Path, scale: Scale) -> Iterator[Round]:
    return set_opslog(folder, scale)


def tasks_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    with Npm(folder) as peer:

        def run(timer: Timer) -> int:
            written = documents(scale.sets // TASKS, timer.number)
            timer.seconds += peer.set_at_once(
                [(f"{id}-{task}", value) for task in range(TASKS) for id, value in written]
            )
            return TASKS * len(written)

        yield run


if npm_modules() is not None:
    contender("set, durable, 64 tasks", f"{NPM}, all at once", "when the system writes it")(tasks_npm)


@contender("set, buffered", "opslog buffered", "within 100 ms; flushed at the end")
def buffered_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", durability="buffered", compact_after=None) as store:

        def run(timer: Timer) -> int:
            written = documents(scale.sets, timer.number)
            with timer:
                for id, value in written:
                    store.set(id, value)
                store.flush()
            return scale.sets

        yield run


@contender("set, buffered", "floor: write each, one fdatasync", "flushed at the end")
def buffered_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    return bare(folder, [line(number) for number in range(scale.sets)], scale.sets, each=False)


contend("set, buffered", QUICK, _set)


def buffered_npm_copies(folder: Path, scale: Scale) -> Iterator[Round]:
    """The same promise as opslog's: the caller may go on changing the object that it has set."""
    with Npm(folder, mode="async") as peer:

        def run(timer: Timer) -> int:
            timer.seconds = peer.call("setCopies", documents(scale.sets, timer.number))
            return scale.sets

        yield run


if npm_modules() is not None:
    contender("set, buffered", f"{NPM_COPIES}, async", "in memory")(buffered_npm_copies)


@contender("batch of 100", "opslog", "on disk")
def batch_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", compact_after=None) as store:

        def run(timer: Timer) -> int:
            written = _batches(scale, timer)
            with timer:
                for batch in written:
                    with store.batch():
                        for id, value in batch:
                            store.set(id, value)
            return len(written)

        yield run


@contender("batch of 100", "floor: write + fdatasync", "on disk")
def batch_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    lines = b"".join(line(number) for number in range(BATCH))
    count = _batch_count(scale)
    return bare(folder, [lines] * count, count)


def _batches_of(peer: Peer, scale: Scale, timer: Timer) -> int:
    written = _batches(scale, timer)
    timer.seconds += peer.batches(written)
    return len(written)


contend("batch of 100", DURABLE, _batches_of)


def _batch_count(scale: Scale) -> int:
    return max(1, scale.writes // 10)


def _batches(scale: Scale, timer: Timer) -> list[Documents]:
    count = _batch_count(scale)
    return [documents(BATCH, timer.number * count + place) for place in range(count)]
