"""Workloads that read: one document, what is new, and a whole log at opening."""

from __future__ import annotations

import mmap
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from sqlite3 import Connection
from typing import NamedTuple

import orjson

import opslog
from benchmarks.material import DECODER, UPSERT, document, line, rows, sqlite
from benchmarks.runner import Round, Scale, Timer, contender

SEED = 7


def _ids(count: int) -> list[str]:
    chosen = random.Random(SEED)
    return [f"task-{chosen.randrange(count)}" for _ in range(count)]


def _fill(folder: Path, count: int) -> Path:
    """A store with so many documents, all of them in the log."""
    with opslog.open(folder / "store", durability="buffered", compact_after=None) as store:
        for number in range(count):
            store.set(f"task-{number}", document(number))
    return folder / "store"


def _compacted(folder: Path, count: int) -> Path:
    """A store with so many documents in its snapshot, and a tail of 32 commits."""
    with opslog.open(folder / "store", durability="buffered", compact_after=None) as store:
        for first in range(0, count, 1000):
            with store.batch():
                for number in range(first, min(first + 1000, count)):
                    store.set(f"task-{number}", document(number))
        for number in range(32):
            store.set("last", document(number))
        store.compact()
    return folder / "store"


class _Gets(NamedTuple):
    """A workload of random gets.

    :ivar prepare: makes the store; `documents`: how many it has.
    """

    name: str
    prepare: Callable[[Path, int], Path]
    documents: Callable[[Scale], int]

    def register(self) -> None:
        contender(self.name, "opslog", "reads only")(self.opslog)
        contender(self.name, "floor: dict lookup + orjson", "reads only")(self.floor)
        contender(self.name, "SQLite WAL, select + orjson", "reads only")(self.sqlite)

    def ids(self, scale: Scale) -> list[str]:
        return _ids(self.documents(scale))[: scale.documents]

    def opslog(self, folder: Path, scale: Scale) -> Iterator[Round]:
        ids = self.ids(scale)
        with opslog.open(self.prepare(folder, self.documents(scale)), read_only=True) as store:

            def run(timer: Timer) -> int:
                with timer:
                    for id in ids:
                        store.get(id)
                return len(ids)

            yield run

    def floor(self, folder: Path, scale: Scale) -> Iterator[Round]:
        ids, held = self.ids(scale), dict(rows(self.documents(scale)))

        def run(timer: Timer) -> int:
            with timer:
                for id in ids:
                    orjson.loads(held[id])
            return len(ids)

        yield run

    def sqlite(self, folder: Path, scale: Scale) -> Iterator[Round]:
        ids = self.ids(scale)
        with sqlite(folder) as database:
            _insert(database, self.documents(scale))

            def run(timer: Timer) -> int:
                with timer:
                    for id in ids:
                        (data,) = database.execute("SELECT data FROM documents WHERE id = ?", (id,)).fetchone()
                        orjson.loads(data)
                return len(ids)

            yield run


def _insert(database: Connection, count: int) -> None:
    database.execute("BEGIN")
    database.executemany(UPSERT, rows(count))
    database.execute("COMMIT")


_Gets("get, random", _fill, lambda scale: scale.documents).register()
_Gets("get, random, large snapshot", _compacted, lambda scale: scale.snapshot).register()


@contender("open a snapshot, one get", "opslog", "reads only")
def open_snapshot_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    path, ids = _compacted(folder, scale.snapshot), iter(_ids(scale.snapshot))

    def run(timer: Timer) -> int:
        with timer, opslog.open(path, read_only=True) as store:
            assert store.get(next(ids)) is not None
        return 1

    yield run


@contender("open a snapshot, one get", "floor: mmap + orjson", "reads only")
def open_snapshot_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    """Lines of one length, in order: nothing to open."""
    width, path = 300, folder / "floor"
    path.write_bytes(b"".join(line(number).ljust(width) for number in range(scale.snapshot)))
    chosen = random.Random(SEED)

    def run(timer: Timer) -> int:
        with timer, path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = chosen.randrange(scale.snapshot) * width
            orjson.loads(data[at : at + width])
        return 1

    yield run


@contender("open a snapshot, one get", "SQLite WAL, select + orjson", "reads only")
def open_snapshot_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder) as database:
        _insert(database, scale.snapshot)
    ids = iter(_ids(scale.snapshot))

    def run(timer: Timer) -> int:
        with timer, sqlite(folder) as database:
            found = database.execute("SELECT data FROM documents WHERE id = ?", (next(ids),)).fetchone()
            orjson.loads(found[0])
        return 1

    yield run


@contender("refresh after 1 commit", "opslog", "reads only")
def refresh_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with (
        opslog.open(folder / "store", agent="writer", durability="buffered", compact_after=None) as writer,
        opslog.open(folder / "store", read_only=True) as reader,
    ):

        def run(timer: Timer) -> int:
            for number in range(scale.writes):
                writer.set("task", document(number))
                writer.flush()
                with timer:
                    assert len(reader.refresh()) == 1
            return scale.writes

        yield run


@contender("refresh after 1 commit", "floor: stat + read + msgspec", "reads only")
def refresh_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    path, lines = folder / "floor", [line(number) for number in range(scale.writes)]
    with path.open("ab", buffering=0) as written, path.open("rb", buffering=0) as file:

        def run(timer: Timer) -> int:
            for new in lines:
                written.write(new)
                with timer:
                    size = path.stat().st_size
                    assert len(DECODER.decode_lines(file.read(size - file.tell()))) == 1
            return len(lines)

        yield run


@contender("refresh after 1 commit", "SQLite WAL, select what is new", "reads only")
def refresh_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder, "OFF") as writer, sqlite(folder) as reader:
        writer.execute("CREATE TABLE log (number INTEGER PRIMARY KEY, line BLOB)")
        last = 0

        def run(timer: Timer) -> int:
            nonlocal last
            for number in range(scale.writes):
                writer.execute("INSERT INTO log (line) VALUES (?)", (line(number),))
                with timer:
                    new = reader.execute("SELECT number, line FROM log WHERE number > ?", (last,)).fetchall()
                    ((last, data),) = new
                    DECODER.decode(data)
            return scale.writes

        yield run


@contender("open a log, per commit", "opslog, then one get", "reads only")
def open_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    path = _fill(folder, scale.log)

    def run(timer: Timer) -> int:
        with timer, opslog.open(path, read_only=True) as store:
            assert store.get("task-0") is not None
        return scale.log

    yield run


@contender("open a log, per commit", "floor: read + msgspec", "reads only")
def open_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    path = folder / "floor"
    path.write_bytes(b"".join(line(number) for number in range(scale.log)))

    def run(timer: Timer) -> int:
        with timer:
            commits = DECODER.decode_lines(path.read_bytes())
        return len(commits)

    yield run


@contender("open a log, per commit", "SQLite WAL, then read all rows", "reads only")
def open_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    with sqlite(folder) as database:
        _insert(database, scale.log)

    def run(timer: Timer) -> int:
        with timer, sqlite(folder) as database:
            return len(database.execute("SELECT id, data FROM documents").fetchall())

    yield run
