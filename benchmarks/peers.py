"""The peers: other embedded stores, each behind the same few calls, with the settings its makers recommend.

Each call does its work and returns the seconds that took, measured where the work is done: those of the npm package in
its own process, so that the communication with it does not count.
"""

from __future__ import annotations

import sqlite3
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import diskcache
import lmdb
import orjson
import tinydb

from benchmarks.material import UPSERT, Documents, document, documents, prepared, sqlite
from benchmarks.npm import Driver, npm_modules
from benchmarks.runner import Round, Scale, Timer, contender


class Peer(ABC):
    """An open store."""

    @abstractmethod
    def set(self, documents: Documents) -> float:
        """Set one document after the other."""

    @abstractmethod
    def batches(self, batches: list[Documents]) -> float:
        """Set the documents of each batch together."""

    @abstractmethod
    def get(self, ids: list[str]) -> float:
        """Get one document after the other."""

    @abstractmethod
    def scan(self) -> float:
        """Go through all documents and count those of priority 0."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


Open = Callable[[Path], AbstractContextManager[Peer]]


class _PythonPeer(Peer):
    """One that runs in this process."""

    @abstractmethod
    def put(self, id: str, document: dict[str, Any]) -> None: ...

    @abstractmethod
    def put_all(self, documents: Documents) -> None: ...

    @abstractmethod
    def find(self, id: str) -> dict[str, Any]: ...

    @abstractmethod
    def all(self) -> Iterable[dict[str, Any]]: ...

    def set(self, documents: Documents) -> float:
        start = time.perf_counter()
        for id, value in documents:
            self.put(id, value)
        return time.perf_counter() - start

    def batches(self, batches: list[Documents]) -> float:
        start = time.perf_counter()
        for batch in batches:
            self.put_all(batch)
        return time.perf_counter() - start

    def get(self, ids: list[str]) -> float:
        start = time.perf_counter()
        for id in ids:
            self.find(id)
        return time.perf_counter() - start

    def scan(self) -> float:
        start = time.perf_counter()
        assert sum(document["priority"] == 0 for document in self.all())
        return time.perf_counter() - start


class Sqlite(_PythonPeer):
    """WAL mode, one row per document. :param synchronous: FULL syncs each transaction, NORMAL only checkpoints."""

    def __init__(self, folder: Path, synchronous: str = "FULL") -> None:
        self._stack = ExitStack()
        self.database: sqlite3.Connection = self._stack.enter_context(sqlite(folder, synchronous))

    def put(self, id: str, document: dict[str, Any]) -> None:
        self.database.execute(UPSERT, (id, orjson.dumps(document)))

    def put_all(self, documents: Documents) -> None:
        self.database.execute("BEGIN")
        self.database.executemany(UPSERT, [(id, orjson.dumps(document)) for id, document in documents])
        self.database.execute("COMMIT")

    def find(self, id: str) -> dict[str, Any]:
        (data,) = self.database.execute("SELECT data FROM documents WHERE id = ?", (id,)).fetchone()
        found: dict[str, Any] = orjson.loads(data)
        return found

    def all(self) -> Iterable[dict[str, Any]]:
        return (orjson.loads(data) for (data,) in self.database.execute("SELECT data FROM documents"))

    def close(self) -> None:
        self._stack.close()


class Lmdb(_PythonPeer):
    """:param sync: whether a transaction is on disk when it ends."""

    def __init__(self, folder: Path, sync: bool = True) -> None:
        self._environment = lmdb.open(str(folder), map_size=64 * 1024**3, sync=sync, metasync=sync)

    def put(self, id: str, document: dict[str, Any]) -> None:
        with self._environment.begin(write=True) as transaction:
            transaction.put(id.encode(), orjson.dumps(document))

    def put_all(self, documents: Documents) -> None:
        with self._environment.begin(write=True) as transaction:
            for id, document in documents:
                transaction.put(id.encode(), orjson.dumps(document))

    def find(self, id: str) -> dict[str, Any]:
        with self._environment.begin(buffers=True) as transaction:
            data = transaction.get(id.encode())
            assert data is not None
            found: dict[str, Any] = orjson.loads(data)
            return found

    def all(self) -> Iterator[dict[str, Any]]:
        with self._environment.begin(buffers=True) as transaction:
            for data in transaction.cursor().iternext(keys=False):
                yield orjson.loads(data)

    def close(self) -> None:
        self._environment.close()


class Diskcache(_PythonPeer):
    """As a plain store: nothing is evicted. Its default is SQLite in WAL mode, synchronous NORMAL."""

    def __init__(self, folder: Path) -> None:
        self._cache = diskcache.Cache(str(folder), eviction_policy="none", size_limit=2**40)

    def put(self, id: str, document: dict[str, Any]) -> None:
        self._cache[id] = orjson.dumps(document)

    def put_all(self, documents: Documents) -> None:
        with self._cache.transact():
            for id, document in documents:
                self._cache[id] = orjson.dumps(document)

    def find(self, id: str) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self._cache[id])
        return found

    def all(self) -> Iterable[dict[str, Any]]:
        return (orjson.loads(self._cache[id]) for id in self._cache)

    def close(self) -> None:
        self._cache.close()


class Tinydb(_PythonPeer):
    """A JSON file that is written anew by each call, and searched document by document."""

    def __init__(self, folder: Path) -> None:
        self._database = tinydb.TinyDB(folder / "db.json")

    def put(self, id: str, document: dict[str, Any]) -> None:
        self._database.upsert({**document, "id": id}, tinydb.where("id") == id)

    def put_all(self, documents: Documents) -> None:
        self._database.insert_multiple({**document, "id": id} for id, document in documents)

    def find(self, id: str) -> dict[str, Any]:
        found = self._database.get(tinydb.where("id") == id)
        assert isinstance(found, dict)
        return found

    def all(self) -> Iterable[dict[str, Any]]:
        return iter(self._database)

    def close(self) -> None:
        self._database.close()


NPM = "npm @backloghq/opslog 0.8.1"
# With a copy (structuredClone) of its arguments and results, which then belong to the caller, as with opslog.
NPM_COPIES = "copies: npm @backloghq/opslog 0.8.1"
# With an fsync of each of its files.
NPM_SYNCED = "synced: npm @backloghq/opslog 0.8.1"


class Npm(Peer):
    """The npm package, in a process of its own.

    :param mode: "immediate" writes with each call, "async" in the background; it never syncs. :param agent: a name to
        write under beside others; the package has no modes then. :param reads: open it for reading only.
    """

    def __init__(self, folder: Path, mode: str = "immediate", agent: str | None = None, *, reads: bool = False) -> None:
        self._driver = Driver("npm_peer.mjs")
        self._folder = str(folder)
        self.opening = self.open({"agentId": agent} if agent else {"readOnly": True} if reads else {"writeMode": mode})

    def open(self, options: dict[str, Any]) -> float:
        """Open the store, also a second time with other options; later calls go to this one."""
        return self.call("open", self._folder, options)

    def call(self, *command: Any) -> float:
        """A command of `npm_peer.mjs`, and its measured time."""
        measured: float = self._driver.call(*command)
        return measured

    def set(self, documents: Documents) -> float:
        return self.call("set", documents)

    def set_at_once(self, documents: Documents) -> float:
        return self.call("setAtOnce", documents)

    def batches(self, batches: list[Documents]) -> float:
        return self.call("batches", batches)

    def get(self, ids: list[str]) -> float:
        return self.call("get", ids)

    def scan(self) -> float:
        return self.call("scan")

    def use(self, number: int) -> None:
        """Work on another of the stores that were opened, the first being 0."""
        self.call("use", number)

    def fill(self, count: int, ids: int) -> float:
        """Set this many documents, over this many ids; documents as `material.document` makes them."""
        return self.call("fill", count, ids)

    def undo(self) -> float:
        return self.call("undo")

    def refresh(self) -> float:
        return self.call("refresh")

    def compact(self) -> float:
        return self.call("compact")

    def sets_beside_compact(self, interval: float) -> list[float]:
        """The seconds of each set, with one set due at every `interval` beside a compaction."""
        took: list[float] = self._driver.call("setsBesideCompact", interval * 1000)
        return took

    def memory(self) -> int:
        """As `own_memory`, of its process."""
        return own_memory(str(self._driver.pid))

    def close(self) -> None:
        self._driver.close()


def own_memory(process: str = "self") -> int:
    """Bytes of a process's own memory. Pages of mapped files do not count: the system can take
    those back at any time."""
    fields = dict(line.split(":") for line in Path(f"/proc/{process}/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) * 1024


ON_DISK = "on disk"
DURABLE: dict[str, tuple[Open, str]] = {
    "SQLite WAL FULL": (Sqlite, ON_DISK),
    "LMDB": (Lmdb, ON_DISK),
}
QUICK: dict[str, tuple[Open, str]] = {
    "SQLite WAL NORMAL": (partial(Sqlite, synchronous="NORMAL"), "at the next checkpoint"),
    "LMDB, no sync": (partial(Lmdb, sync=False), "when the system writes it"),
    "diskcache": (Diskcache, "at the next checkpoint"),
    "TinyDB": (Tinydb, "when the system writes it"),
}
if npm_modules() is not None:
    DURABLE[NPM] = (Npm, "when the system writes it")
    QUICK[f"{NPM}, async"] = (partial(Npm, mode="async"), "in memory")

LARGE: dict[str, Open] = {"SQLite WAL": Sqlite, "LMDB": Lmdb}
"""Those that take a million documents. The others would need hours, or all of the memory, to begin with."""
if npm_modules() is not None:
    LARGE[NPM] = Npm


Work = Callable[[Peer, Scale, Timer], int]
"""The work of a peer in a round; returns the number of operations."""


def contend(
    workload: str,
    peers: Mapping[str, tuple[Open, str]],
    work: Work,
    filled: Callable[[Scale], int] | None = None,
) -> None:
    """Register peers for a workload, each with an empty store, or one that is `filled` with so many documents."""
    for name, (open_peer, durability) in peers.items():
        contender(workload, name, durability)(partial(_work, open_peer, work, filled))


def _work(
    open_peer: Open, work: Work, filled: Callable[[Scale], int] | None, folder: Path, scale: Scale
) -> Iterator[Round]:
    with open_peer(folder) as peer:
        if filled is not None:
            peer.batches([documents(filled(scale))])
        yield lambda timer: work(peer, scale, timer)


def filled_peer(name: str, open_peer: Open, count: int) -> Path:
    """A folder with a store of so many documents, made once."""

    def fill(folder: Path) -> None:
        with open_peer(folder) as peer:
            if isinstance(peer, Npm):
                peer.fill(count, count)
                peer.compact()
                return
            for first in range(0, count, 10_000):
                some = range(first, min(first + 10_000, count))
                peer.batches([[(f"task-{number}", document(number)) for number in some]])

    return prepared(f"{name}, {count}", fill)
