"""Workloads that read: one document, what is new, and a whole log at opening."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import orjson

import opslog
from benchmarks.material import DECODER, UPSERT, document, line, rows, sqlite
from benchmarks.runner import Round, Scale, Timer, contender

SEED = 7


def _ids(count: int) -> list[str]:
    chosen = random.Random(SEED)
    return [f"task-{chosen.randrange(count)}" for _ in range(count)]


def _fill(url: Path, count: int) -> None:
    with opslog.open(url, durability="buffered", compact_after=None) as store:
        for number in range(count):
            store.set(f"task-{number}", document(number))


@contender("get, random", "opslog", "reads only")
def get_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    _fill(folder / "store", scale.documents)
    ids = _ids(scale.documents)
    with opslog.open(folder / "store", read_only=True) as store:

        def run(timer: Timer) -> int:
            with timer:
                for id in ids:
                    store.get(id)
            return len(ids)

        yield run


@contender("get, random", "floor: dict lookup + orjson", "reads only")
def get_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    ids, held = _ids(scale.documents), dict(rows(scale.documents))

    def run(timer: Timer) -> int:
        with timer:
            for id in ids:
                orjson.loads(held[id])
        return len(ids)

    yield run


@contender("get, random", "SQLite WAL, select + orjson", "reads only")
def get_sqlite(folder: Path, scale: Scale) -> Iterator[Round]:
    ids = _ids(scale.documents)
    with sqlite(folder) as database:
        database.execute("BEGIN")
        database.executemany(UPSERT, rows(scale.documents))
        database.execute("COMMIT")

        def run(timer: Timer) -> int:
            with timer:
                for id in ids:
                    (data,) = database.execute("SELECT data FROM documents WHERE id = ?", (id,)).fetchone()
                    orjson.loads(data)
            return len(ids)

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
    _fill(folder / "store", scale.log)

    def run(timer: Timer) -> int:
        with timer, opslog.open(folder / "store", read_only=True) as store:
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
        database.execute("BEGIN")
        database.executemany(UPSERT, rows(scale.log))
        database.execute("COMMIT")

    def run(timer: Timer) -> int:
        with timer, sqlite(folder) as database:
            return len(database.execute("SELECT id, data FROM documents").fetchall())

    yield run
