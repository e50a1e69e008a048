"""Workloads of transactions: one caller, many tasks, and eight processes that count in one document.

python -m benchmarks.transactions counter opslog FOLDER AGENT COUNT    one of those processes
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import opslog
from benchmarks.material import sqlite
from benchmarks.peers import ON_DISK
from benchmarks.runner import Round, Scale, Timer, contender, workload

MODIFY = "modify, one caller"
MODIFY_TASKS = "modify, 64 tasks of one process"
COUNTER = workload("count in one document, 8 processes", rounds=3)
FAIRNESS = workload("slowest of these processes, against the fastest", rounds=3, unit="times as long")

TASKS = 64
PROCESSES = 8

ONE_CALLER = "opslog, durable set"


def increment(document: dict[str, Any] | None) -> dict[str, Any]:
    return {"n": (document or {"n": 0})["n"] + 1}


@contender(MODIFY, "opslog", ON_DISK)
def modify_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store") as store:

        def run(timer: Timer) -> int:
            with timer:
                for _ in range(scale.writes):
                    store.modify("counter", increment)
            return scale.writes

        yield run


@contender(MODIFY, ONE_CALLER, ON_DISK)
def set_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store") as store:

        def run(timer: Timer) -> int:
            with timer:
                for number in range(scale.writes):
                    store.set("counter", {"n": number})
            return scale.writes

        yield run


@contender(MODIFY, "SQLite WAL, BEGIN IMMEDIATE", ON_DISK)
def modify_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with _counting(folder) as count:

        def run(timer: Timer) -> int:
            with timer:
                count(scale.writes)
            return scale.writes

        yield run


@contender(MODIFY_TASKS, "opslog.aio", ON_DISK)
def tasks_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with asyncio.Runner() as runner:

        async def opened() -> opslog.aio.AsyncStore[dict[str, Any]]:
            return await opslog.aio.open(folder / "store")

        store = runner.run(opened())

        async def modify(id: str, times: int) -> None:
            for _ in range(times):
                await store.modify(id, increment)

        async def modify_all() -> None:
            await asyncio.gather(*(modify(f"counter-{task}", scale.writes) for task in range(TASKS)))

        def run(timer: Timer) -> int:
            with timer:
                runner.run(modify_all())
            return TASKS * scale.writes

        yield run
        runner.run(store.close())


contender(MODIFY_TASKS, "opslog, one caller", ON_DISK)(modify_opslog)


def _count_in_processes(kind: str, folder: Path, scale: Scale, timer: Timer) -> list[float]:
    """How long each process took for its share of the increments; all begin at once."""
    count = max(1, scale.writes // 3)
    with ExitStack() as stack:
        command = [sys.executable, "-m", "benchmarks.transactions", "counter", kind, str(folder)]
        processes = [
            stack.enter_context(
                subprocess.Popen(
                    [*command, f"agent-{number}", str(count)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for number in range(PROCESSES)
        ]
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        with timer:
            for process in processes:
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
            outputs = [process.communicate()[0] for process in processes]
    return [float(output) for output in outputs]


def _counter(kind: str, folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        _count_in_processes(kind, folder, scale, timer)
        return PROCESSES * max(1, scale.writes // 3)

    yield run


def _fairness(kind: str, folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        seconds = _count_in_processes(kind, folder, scale, timer)
        timer.measured = max(seconds) / min(seconds)
        return 1

    yield run


@contender(COUNTER, "opslog", ON_DISK)
def counter_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    return _counter("opslog", folder, scale)


@contender(COUNTER, "SQLite WAL, BEGIN IMMEDIATE", ON_DISK)
def counter_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    return _counter("sqlite", folder, scale)


@contender(FAIRNESS, "opslog", ON_DISK)
def fairness_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    return _fairness("opslog", folder, scale)


@contender(FAIRNESS, "SQLite WAL, BEGIN IMMEDIATE", ON_DISK)
def fairness_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    return _fairness("sqlite", folder, scale)


@contextmanager
def _counting(folder: Path) -> Iterator[Any]:
    with sqlite(folder) as database:
        database.execute("PRAGMA busy_timeout = 120000")
        database.execute("INSERT OR IGNORE INTO documents VALUES ('counter', '{\"n\": 0}')")

        def count(times: int) -> None:
            for _ in range(times):
                database.execute("BEGIN IMMEDIATE")
                (data,) = database.execute("SELECT data FROM documents WHERE id = 'counter'").fetchone()
                changed = json.dumps(increment(json.loads(data)))
                database.execute("UPDATE documents SET data = ? WHERE id = 'counter'", (changed,))
                database.execute("COMMIT")

        yield count


@contextmanager
def _counting_opslog(folder: Path, agent: str) -> Iterator[Any]:
    with opslog.open(folder / "store", agent=agent) as store:

        def count(times: int) -> None:
            for _ in range(times):
                store.modify("counter", increment)

        yield count


def main(kind: str, folder: str, agent: str, count: str) -> None:
    """Be one of the processes: count when a line comes in, and print how many seconds that took."""
    opened = _counting_opslog(Path(folder), agent) if kind == "opslog" else _counting(Path(folder))
    with opened as work:
        print("ready", flush=True)
        sys.stdin.readline()
        timer = Timer(0)
        with timer:
            work(int(count))
    print(timer.seconds)


if __name__ == "__main__":
    main(*sys.argv[2:])
