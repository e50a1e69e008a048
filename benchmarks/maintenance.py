"""Workloads of upkeep: compaction, and how long it delays writers."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import opslog
from benchmarks.amplification import SIZES, grown
from benchmarks.material import DECODER, UPSERT, document, line, rows, sqlite
from benchmarks.npm import npm_modules
from benchmarks.peers import NPM, NPM_SYNCED, ON_DISK, Npm
from benchmarks.reading import settle, write_all
from benchmarks.runner import Round, Scale, Start, Timer, contender, workload

COMPACT = workload("compact a new log of 1,000,000 sets, per document", rounds=2)


@contender(COMPACT, "opslog", ON_DISK)
def compact_new_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        with opslog.open(folder / str(timer.number), durability="buffered", compact_after=None) as store:
            for number in range(scale.snapshot):
                store.set(f"task-{number}", document(number))
            settle(store)
            store.flush()
            with timer:
                assert store.compact().number is not None
        return scale.snapshot

    yield run


def compact_new_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        with Npm(folder / str(timer.number)) as peer:
            peer.fill(scale.snapshot, scale.snapshot)
            timer.seconds = peer.compact()
        return scale.snapshot

    yield run


def compact_new_npm_synced(folder: Path, scale: Scale) -> Iterator[Round]:
    """The same durability as opslog's: it is on disk when the call returns."""

    def run(timer: Timer) -> int:
        with Npm(folder / str(timer.number)) as peer:
            peer.fill(scale.snapshot, scale.snapshot)
            timer.seconds = peer.call("compactAndSync")
        return scale.snapshot

    yield run


COMPACT_AGAIN = workload(
    "compact 1,000,000 documents, in batches of 1,000, over a snapshot of as many, per document", rounds=2
)


@contender(COMPACT_AGAIN, "opslog", ON_DISK)
def compact_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", durability="buffered", compact_after=None) as store:

        def run(timer: Timer) -> int:
            write_all(store, scale.snapshot, timer.number)
            settle(store)
            store.flush()
            with timer:
                assert store.compact().number is not None
            return scale.snapshot

        yield run


@contender(COMPACT, "floor: read + msgspec + write + fdatasync", ON_DISK)
@contender(COMPACT_AGAIN, "floor: read + msgspec + write + fdatasync", ON_DISK)
def compact_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    log, snapshot = folder / "log", folder / "snapshot"
    with log.open("wb") as file:
        file.writelines(line(number) for number in range(scale.snapshot))

    def run(timer: Timer) -> int:
        with timer:
            data = log.read_bytes()
            commits = DECODER.decode_lines(data)
            with snapshot.open("wb", buffering=0) as file:
                file.write(data)
                os.fdatasync(file.fileno())
        return len(commits)

    yield run


@contender(COMPACT_AGAIN, "SQLite WAL, checkpoint", ON_DISK)
def compact_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder) as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")

        def run(timer: Timer) -> int:
            database.execute("BEGIN")
            database.executemany(UPSERT, rows(scale.snapshot, timer.number))
            database.execute("COMMIT")
            with timer:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return scale.snapshot

        yield run


def compact_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    with Npm(folder) as peer:

        def run(timer: Timer) -> int:
            peer.fill(scale.snapshot, scale.snapshot)
            timer.seconds = peer.compact()
            return scale.snapshot

        yield run


def compact_npm_synced(folder: Path, scale: Scale) -> Iterator[Round]:
    """The same durability as opslog's: it is on disk when the call returns."""
    with Npm(folder) as peer:

        def run(timer: Timer) -> int:
            peer.fill(scale.snapshot, scale.snapshot)
            timer.seconds = peer.call("compactAndSync")
            return scale.snapshot

        yield run


if npm_modules() is not None:  # after the floor, which comes second
    contender(COMPACT, NPM, "when the system writes it")(compact_new_npm)
    contender(COMPACT, NPM_SYNCED, ON_DISK)(compact_new_npm_synced)
    contender(COMPACT_AGAIN, NPM, "when the system writes it")(compact_npm)
    contender(COMPACT_AGAIN, NPM_SYNCED, ON_DISK)(compact_npm_synced)


PAUSE = workload("slowest in a thousand sets beside a compaction of 1,000,000", rounds=5, unit="ms")
# How often a set is due beside it.
_DUE_SECONDS = 0.002


def slowest_in_a_thousand(seconds: list[float]) -> float:
    """The 99.9th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return ordered[min(len(ordered) - 1, int(len(ordered) * 0.999))] * 1000


def beside(call: Callable[[int], object], running: Callable[[], bool]) -> float:
    """For calls that are due every `_DUE_SECONDS` while something is running: milliseconds from the due time to the
    end, in the slowest of a thousand. So a delay of one call counts for all that are due meanwhile."""
    took: list[float] = []
    due = time.perf_counter()
    while running():
        if (early := due - time.perf_counter()) > 0:
            time.sleep(early)
        call(len(took))
        took.append(time.perf_counter() - due)
        due += _DUE_SECONDS
    return slowest_in_a_thousand(took)


@contender(PAUSE, "opslog, compaction in a thread", ON_DISK)
def pause_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", agent="writer", compact_after=None) as store:

        def run(timer: Timer) -> int:
            write_all(store, scale.snapshot, timer.number)
            settle(store)
            compaction = threading.Thread(target=store.compact)
            compaction.start()
            timer.measured = beside(lambda number: store.set("beside", document(number)), compaction.is_alive)
            compaction.join()
            return 1

        yield run


_WRITER = """
import os, sys
from benchmarks.material import line
data = b"".join(map(line, range(1000)))
with open(sys.argv[1], "wb", buffering=0) as file:
    for _ in range(int(sys.argv[2]) // 1000 + 1):
        for part in range(0, len(data), 4 << 20):
            file.write(data[part:])
            os.fdatasync(file.fileno())
"""


@contender(PAUSE, "floor: write + fdatasync, beside a process that writes as much", ON_DISK)
def pause_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    lines = [line(number) for number in range(100)]
    with (folder / "floor").open("ab", buffering=0) as file:

        def run(timer: Timer) -> int:
            command = [sys.executable, "-c", _WRITER, str(folder / "other"), str(scale.snapshot)]
            with subprocess.Popen(command) as other:

                def write(number: int) -> None:
                    file.write(lines[number % 100])
                    os.fdatasync(file.fileno())

                timer.measured = beside(write, lambda: other.poll() is None)
            return 1

        yield run


@contender(PAUSE, "opslog, compaction in another process", ON_DISK)
def pause_processes(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", agent="writer", compact_after=None) as store:

        def run(timer: Timer) -> int:
            write_all(store, scale.snapshot, timer.number)
            settle(store)
            command = [str(Path(sys.executable).parent / "opslog"), "compact", "--store", str(folder / "store")]
            with subprocess.Popen(command, stdout=subprocess.DEVNULL) as compaction:
                timer.measured = beside(
                    lambda number: store.set("beside", document(number)), lambda: compaction.poll() is None
                )
            assert compaction.returncode == 0
            return 1

        yield run


def pause_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    with Npm(folder) as peer:

        def run(timer: Timer) -> int:
            peer.fill(scale.snapshot, scale.snapshot)
            timer.measured = slowest_in_a_thousand(peer.sets_beside_compact(_DUE_SECONDS))
            return 1

        yield run


if npm_modules() is not None:
    contender(PAUSE, NPM, "when the system writes it")(pause_npm)


AMPLIFICATION = workload("bytes written per byte set, while growing to 10,000,000", rounds=1, unit="x")


def _at(size: int) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        written = grown(scale.huge).written

        def run(timer: Timer) -> int:
            timer.measured = written.get(size) or written[max(written)]
            return 1

        yield run

    return start


for _size in reversed(SIZES):
    contender(AMPLIFICATION, f"opslog, at {_size:,} documents", "within 100 ms")(_at(_size))
