"""Workloads of transactions: one caller, many tasks, and eight processes that count in one document.

python -m benchmarks.transactions counter opslog FOLDER AGENT COUNT    one of those processes
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import opslog
from benchmarks.material import document, sqlite
from benchmarks.peers import ON_DISK
from benchmarks.runner import Round, Scale, Timer, contender, workload
from opslog import Settings
from opslog.format.commits import Commit
from opslog.store import replica_of
from tests.support import bucket

MODIFY = "modify, one caller"
MODIFY_TASKS = "modify, 64 tasks of one process"
COUNTER = workload("count in one document, 8 processes", rounds=3)
FAIRNESS = workload("slowest of 8 counting processes, against the fastest", rounds=3, unit="times as long")
GUARDED = workload("plain sets with 1 % of the documents guarded, against none guarded", unit="times as long")
UNUSED = workload("plain sets without any transaction, against sets that know of none", unit="times as long")
GUARDED_REQUESTS = workload("requests of 100 plain sets on S3, 1 % guarded", rounds=3, unit="requests")

TASKS = 64
PROCESSES = 8

ONE_CALLER = "opslog, durable set"
WITHOUT = "opslog, a store without transactions"


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


# -- plain sets of documents that nobody guards, in a store where others are guarded


Durability = Literal["fsync", "buffered"]


def _with_snapshot(url: str, scale: Scale, *, guarded: bool) -> list[str]:
    """A store whose documents are in its snapshot, each hundredth of them guarded, or none. Returns the ids of the
    unguarded ones."""
    count = scale.log // 10
    ids = [f"task-{number}" for number in range(count)]
    with opslog.open(
        url, agent="first", durability="buffered", compact_after=None, settings=Settings(undo_window=1)
    ) as store:
        if guarded:
            with store.transaction() as transaction:
                for number in range(0, count, 100):
                    transaction[ids[number]] = document(number)
        for number, id in enumerate(ids):
            if number % 100 or not guarded:
                store.set(id, document(number))
        store.compact(full=True)
    return [id for number, id in enumerate(ids) if number % 100]


def _beside_guarded(durability: Durability, folder: Path, scale: Scale) -> Iterator[Round]:
    places = {guarded: str(folder / ("guarded" if guarded else "plain")) for guarded in (True, False)}
    ids = {guarded: _with_snapshot(place, scale, guarded=guarded) for guarded, place in places.items()}[True]
    with ExitStack() as stack:
        stores = {
            guarded: stack.enter_context(opslog.open(place, durability=durability, compact_after=None))
            for guarded, place in places.items()
        }

        yield _compared({guarded: (store, store.set) for guarded, store in stores.items()}, ids, scale)


Sets = tuple[opslog.Store[dict[str, Any]], Callable[[str, dict[str, Any]], None]]
"""A store, and what sets a document of it."""


def _compared(sets: dict[bool, Sets], ids: list[str], scale: Scale) -> Round:
    """How many times as long the sets of `True` take as those of `False`. They take turns, a few sets each, so that
    other work on the machine affects both."""

    def seconds(kind: bool, turn: int) -> float:
        (store, set), timer = sets[kind], Timer(0)
        with timer:
            for number in range(turn * _IN_A_TURN, (turn + 1) * _IN_A_TURN):
                set(ids[number * 7919 % len(ids)], document(number, turn))
        store.flush()
        return timer.seconds

    def run(timer: Timer) -> int:
        turns = range(2 * scale.writes)
        with timer:
            pairs = [[seconds(kind, turn) for kind in _in_turn(turn)][:: 1 - 2 * (turn % 2)] for turn in turns]
        timer.measured = statistics.median(one / other for one, other in pairs)
        return 1

    return run


# So many that the clock is exact, and so few that both are measured in the same circumstances.
_IN_A_TURN = 50


def _in_turn(turn: int) -> tuple[bool, bool]:
    return (True, False) if turn % 2 == 0 else (False, True)


class _KnowingOfNone:
    """`Store.set` as it would be without transactions. (What is left of them is in the queue and the merge: a
    comparison for each commit.)"""

    def __init__(self, store: opslog.Store[dict[str, Any]]) -> None:
        self._replica = replica_of(store)

    def set(self, id: str, document: dict[str, Any]) -> None:
        self._commit(self._replica.prepare_set(id, document))

    def _commit(self, commit: Commit | None) -> None:
        if commit is None:
            return
        replica = self._replica
        replica.check_writable()
        log = replica.log
        assert log is not None
        if replica.freshness.is_stale:
            replica.refresh()
        log.finish(log.queue(commit))
        if replica.compaction.is_under_way and replica.compaction.is_far_behind:
            replica.compaction.wait()


def _without_any(durability: Durability, folder: Path, scale: Scale) -> Iterator[Round]:
    with ExitStack() as stack:
        opened = (opslog.open(folder / name, durability=durability, compact_after=None) for name in ("one", "other"))
        one, other = (stack.enter_context(store) for store in opened)
        ids = [f"task-{number}" for number in range(scale.log // 10)]
        yield _compared({True: (one, one.set), False: (other, _KnowingOfNone(other).set)}, ids, scale)


contender(UNUSED, "opslog, buffered", "within 100 ms")(partial(_without_any, "buffered"))
contender(UNUSED, "opslog, fsync", "on disk")(partial(_without_any, "fsync"))


contender(GUARDED, "opslog, buffered", "within 100 ms")(partial(_beside_guarded, "buffered"))
contender(GUARDED, "opslog, fsync", "on disk")(partial(_beside_guarded, "fsync"))


def _requests(guarded: bool, folder: Path, scale: Scale) -> Iterator[Round]:
    url = f"bucket://benchmark-{guarded}"
    others = _with_snapshot(url, scale, guarded=guarded)

    def run(timer: Timer) -> int:
        with opslog.open(url, agent=f"agent-{timer.number}", compact_after=None) as store:
            asked = bucket.BUCKETS[url.removeprefix("bucket://")].asked
            before = len(asked)
            with timer:
                for number in range(100):
                    store.set(others[number * 7919 % len(others)], document(number, 1))
            timer.measured = len(asked) - before
        return 1

    yield run


contender(GUARDED_REQUESTS, "opslog", "in memory")(partial(_requests, True))
contender(GUARDED_REQUESTS, WITHOUT, "in memory")(partial(_requests, False))


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
