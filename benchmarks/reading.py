"""Workloads that read: get and scan, in memory and in a large snapshot; and the stores they read."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson

import opslog
from benchmarks.material import document, line, prepared, rows
from benchmarks.npm import npm_modules
from benchmarks.peers import LARGE, NPM, NPM_COPIES, QUICK, Npm, Open, Peer, Sqlite, Tinydb, Work, contend, filled_peer
from benchmarks.runner import Round, Scale, Start, Timer, contender, workload
from opslog.format.commits import Set

SEED = 7
READS = "reads only"
WIDTH = 300
SETS = msgspec.json.Decoder(Set)


def some_ids(count: int, chosen: int) -> list[str]:
    numbers = random.Random(SEED)
    return [f"task-{numbers.randrange(count)}" for _ in range(chosen)]


# -- stores to read


def logged(count: int, ids: int) -> Path:
    """A store with so many commits over so many ids, all of them in one log."""

    def fill(folder: Path) -> None:
        with opslog.open(folder, durability="buffered", compact_after=None) as store:
            for number in range(count):
                store.set(f"task-{number * 7919 % ids}", document(number))

    return prepared(f"opslog, {count} commits over {ids} ids", fill)


def compacted(count: int) -> Path:
    """A store with so many documents in its snapshot, and a tail of 32 commits."""

    def fill(folder: Path) -> None:
        with opslog.open(folder, durability="buffered", compact_after=None) as store:
            write_all(store, count)
            settle(store)
            store.compact()

    return prepared(f"opslog, {count} documents", fill)


def write_all(store: opslog.Store[dict[str, Any]], count: int, revision: int = 0) -> None:
    """Set so many documents, a thousand in each commit."""
    for first in range(0, count, 1000):
        with store.batch():
            for number in range(first, min(first + 1000, count)):
                store.set(f"task-{number}", document(number, revision))


def settle(store: opslog.Store[dict[str, Any]]) -> None:
    """Write as many commits as an undo window, so that everything before them can be compacted."""
    for number in range(32):
        store.set("last", document(number))


def fixed_lines(count: int) -> Path:
    """The floor of a large snapshot: a file of lines of one length, in order of their numbers."""

    def fill(folder: Path) -> None:
        with (folder / "lines").open("wb") as file:
            for number in range(count):
                file.write(line(number).rstrip().ljust(WIDTH - 1) + b"\n")

    return prepared(f"floor, {count} lines", fill) / "lines"


def with_large(name: str, open_peer: Open, work: Work) -> Start:
    """A contender that works on a peer with a large store."""

    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with open_peer(filled_peer(name, open_peer, scale.snapshot)) as peer:
            yield lambda timer: work(peer, scale, timer)

    return start


# -- get


class _Gets(NamedTuple):
    """A workload of random gets.

    :ivar prepare: makes the store; `documents`: how many it has.
    """

    name: str
    prepare: Callable[[int], Path]
    documents: Callable[[Scale], int]

    def register(self) -> None:
        contender(self.name, "opslog", READS)(self.opslog)
        contender(self.name, "floor: dict lookup + orjson", READS)(self.floor)

    def ids(self, scale: Scale) -> list[str]:
        return some_ids(self.documents(scale), scale.documents)

    def opslog(self, folder: Path, scale: Scale) -> Iterator[Round]:
        ids = self.ids(scale)
        with opslog.open(self.prepare(self.documents(scale)), read_only=True) as store:

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

    def peer(self, peer: Peer, scale: Scale, timer: Timer) -> int:
        ids = self.ids(scale)[: 10 if isinstance(peer, Tinydb) else None]
        timer.seconds += peer.get(ids)
        return len(ids)


_small = _Gets("get, random", lambda count: logged(count, count), lambda scale: scale.documents)
_small.register()
contend(_small.name, QUICK, _small.peer, lambda scale: scale.documents)
# -- the same, of many documents, of which a field is read

TOUCHED = workload("get, random, of 200,000 documents, and read a field")


def _touched_ids(scale: Scale, timer: Timer) -> list[str]:
    """Different ids in each round, so that documents read in the round before are of no use."""
    numbers = random.Random(SEED + timer.number)
    return [f"task-{numbers.randrange(scale.questions)}" for _ in range(scale.questions)]


@contender(TOUCHED, "opslog", READS)
def touched_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(logged(scale.questions, scale.questions), read_only=True) as store:

        def run(timer: Timer) -> int:
            ids, length = _touched_ids(scale, timer), 0
            with timer:
                for id in ids:
                    length += len(store[id]["title"])
            assert length >= len(ids)
            return len(ids)

        yield run


@contender(TOUCHED, "floor: dict lookup + orjson", READS)
def touched_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    held = dict(rows(scale.questions))

    def run(timer: Timer) -> int:
        ids, length = _touched_ids(scale, timer), 0
        with timer:
            for id in ids:
                length += len(orjson.loads(held[id])["title"])
        assert length >= len(ids)
        return len(ids)

    yield run


def _touched_npm(command: str) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with Npm(folder, mode="async") as peer:
            peer.fill(scale.questions, scale.questions)

            def run(timer: Timer) -> int:
                ids = _touched_ids(scale, timer)
                timer.seconds = peer.call(command, ids)
                return len(ids)

            yield run

    return start


if npm_modules() is not None:
    contender(TOUCHED, NPM, "in memory; hands out its own object")(_touched_npm("getTouched"))
    contender(TOUCHED, NPM_COPIES, "in memory")(_touched_npm("getCopies"))

_large = _Gets("get, random, large snapshot", compacted, lambda scale: scale.snapshot)
_large.register()


for _name, _open_peer in LARGE.items():
    contender(_large.name, _name, READS)(with_large(_name, _open_peer, _large.peer))


# -- scan

SCAN = workload("scan with a predicate, per document", rounds=3)


@contender(SCAN, "opslog", READS)
def scan_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with opslog.open(compacted(scale.snapshot), read_only=True) as store:

        def run(timer: Timer) -> int:
            with timer:
                assert store.count(lambda document: document["priority"] == 0)
            return scale.snapshot

        yield run


@contender(SCAN, "floor: read + msgspec + orjson", READS)
def scan_floor(folder: Path, scale: Scale) -> Iterator[Round]:
    path = fixed_lines(scale.snapshot)

    def run(timer: Timer) -> int:
        found = 0
        with timer, path.open("rb") as file:
            while lines := file.read(WIDTH * 1000):
                sets = SETS.decode_lines(lines)
                found += sum(orjson.loads(bytes(record.data))["priority"] == 0 for record in sets)
        assert found
        return scale.snapshot

    yield run


@contender(SCAN, "opslog, a condition", READS)
def scan_by_condition(folder: Path, scale: Scale) -> Iterator[Round]:
    # Said in a way that no index answers: every round reads every document.
    condition = {"not": {"priority": {"!=": 0}}}
    with opslog.open(compacted(scale.snapshot), read_only=True) as store:
        assert store.find(condition, limit=1).explain == "every document was read"

        def run(timer: Timer) -> int:
            with timer:
                assert store.count(condition)
            return scale.snapshot

        yield run


def _scan(peer: Peer, scale: Scale, timer: Timer) -> int:
    timer.seconds += peer.scan()
    return scale.snapshot


for _name, _open_peer in LARGE.items():
    contender(SCAN, _name, READS)(with_large(_name, _open_peer, _scan))

SQLITE_JSON = "SQLite JSON: WAL, json_extract"


def _scan_in_sql(peer: Peer, scale: Scale, timer: Timer) -> int:
    assert isinstance(peer, Sqlite)
    query = "SELECT count(*) FROM documents WHERE json_extract(CAST(data AS TEXT), '$.priority') = 0"
    with timer:
        assert peer.database.execute(query).fetchone()[0]
    return scale.snapshot


contender(SCAN, SQLITE_JSON, READS)(with_large("SQLite WAL", Sqlite, _scan_in_sql))
