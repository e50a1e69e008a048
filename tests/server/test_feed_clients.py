"""The official client of the State Protocol from npm reads the feed of a store: it has the documents of the store,
through restarts of the server."""

from __future__ import annotations

import json
import random
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from tests.support.npm import installed
from tests.support.places import DIRECTORY, SERVERS, Place
from tests.support.servers import Server, http

READER = Path(__file__).with_name("feed_reader.mjs")
PACKAGES = ("@durable-streams/state@0.3.1", "@tanstack/db@0.6.0")


class Reader:
    """StreamDB, a StreamDB that starts anew each time, and MaterializedState."""

    def __init__(self, folder: Path, url: str) -> None:
        script = folder / READER.name
        script.write_bytes(READER.read_bytes())  # packages are found from the directory of the file
        self._process = subprocess.Popen(
            ["node", script, url, "tasks"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def after(self, txid: str) -> dict[str, Any]:
        """The state of the clients as soon as they have the commit."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{txid}\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, "the reader ended"
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def packages() -> Path:
    return installed("npm-state", *PACKAGES)


def act(store: opslog.Store[Any], chance: random.Random) -> None:
    id = f"d{chance.randrange(12)}"
    match chance.randrange(9):
        case 0:
            with suppress(opslog.ConflictError):  # others have written over a transaction
                store.undo()
        case 1 if id in store:
            with suppress(opslog.NotFoundError):  # a guarded document that another agent deleted
                del store[id]
        case 2:
            with store.batch():
                for other in range(3):
                    store[f"d{other}"] = {"batch": chance.randrange(100)}
        case 3:
            store.refresh()
        case 4:
            store.modify(id, lambda document: {"count": (document or {}).get("count", 0) + 1})
        case 5 if chance.random() < 0.2:
            store.compact()
        case _:
            store[id] = {field: [chance.randrange(10), "ä", None, {"n": 1.5}] for field in chance.sample("abcd", 2)}


@pytest.mark.timeout(280)
@pytest.mark.parametrize(
    ("place", "seed", "turns"),
    [
        (DIRECTORY, 1, 8),
        *(pytest.param(DIRECTORY, seed, 8, marks=pytest.mark.long) for seed in (2, 3)),
        pytest.param("moto-obstore", 1, 2, marks=pytest.mark.long),
        *(pytest.param(name, 1, 8, marks=pytest.mark.slow) for name in SERVERS),
    ],
    indirect=["place"],
)
def test_clients_have_what_the_store_has(packages: Path, tmp_path: Path, place: Place, seed: int, turns: int) -> None:
    chance = random.Random(seed)
    url = place.url("tasks")
    served = ["--data", str(tmp_path / "streams"), "--store", f"tasks={url}", "--feed-seconds", "0.02"]
    # A follower that is away must not miss more than is retained: StreamDB does not start again if its offset was
    # trimmed.
    served += ["--feed-snapshot-bytes", "12000", "--long-poll-seconds", "1"]
    stores = [opslog.open(url, agent=name, **place.options) for name in ("a", "b", "c")]
    server = Server(*served)
    reader = Reader(packages, f"{server.url}/stores/tasks")
    try:
        for turn in range(turns):
            for _ in range(40):
                act(chance.choice(stores), chance)
            if turn % 2:
                (server.kill if chance.random() < 0.5 else server.stop)()
                for _ in range(20):
                    act(chance.choice(stores), chance)
                server = Server(*served, "--port", str(server.port))
            stores[0]["last"] = {"turn": turn}
            stamp = stores[0].record("last")
            assert stamp is not None
            found = reader.after(f"{stamp.agent}:{stamp.clock}")
            stores[0].refresh()
            wanted = dict(stores[0])
            assert found["late"] == wanted
            assert found["materialized"] == wanted
            assert found["follower"] == wanted
        trimmed = "stream-earliest-offset" in http("HEAD", f"{server.url}/stores/tasks").headers
        assert trimmed or turns < 8, "it was never trimmed, though there was enough to trim"
    finally:
        reader.close()
        if server.process.poll() is None:
            server.kill()
        for store in stores:
            store.close()
