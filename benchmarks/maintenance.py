"""Workloads of upkeep: compaction."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import opslog
from benchmarks.material import DECODER, UPSERT, document, line, rows, sqlite
from benchmarks.runner import Round, Scale, Timer, contender


@contender("compact, per new commit", "opslog", "on disk")
def compact_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(folder / "store", durability="buffered", compact_after=None) as store:

        def run(timer: Timer) -> int:
            for number in range(scale.documents):
                store.set(f"task-{number}", document(number, timer.number))
            store.flush()
            with timer:
                assert store.compact().number is not None
            return scale.documents

        yield run


@contender("compact, per new commit", "floor: read + msgspec + write + fdatasync", "on disk")
def compact_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    log, snapshot = folder / "log", folder / "snapshot"
    log.write_bytes(b"".join(line(number) for number in range(scale.documents)))

    def run(timer: Timer) -> int:
        with timer:
            data = log.read_bytes()
            commits = DECODER.decode_lines(data)
            with snapshot.open("wb", buffering=0) as file:
                file.write(data)
                os.fdatasync(file.fileno())
        return len(commits)

    yield run


@contender("compact, per new commit", "SQLite WAL, checkpoint", "on disk")
def compact_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder) as database:
        database.execute("PRAGMA wal_autocheckpoint = 0")

        def run(timer: Timer) -> int:
            database.execute("BEGIN")
            database.executemany(UPSERT, rows(scale.documents, timer.number))
            database.execute("COMMIT")
            with timer:
                database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            return scale.documents

        yield run
