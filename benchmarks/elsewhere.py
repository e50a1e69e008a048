"""The workloads of stores elsewhere: the cost of calls through a server, beside an append to one of its streams."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import opslog
from benchmarks.material import document
from benchmarks.peers import ON_DISK
from benchmarks.runner import Round, Scale, Start, Timer, contender, workload
from opslog.server.client import Client
from opslog.store import replica_of
from tests.support.servers import Server, serving

SET = "set, durable, through a server"
STREAM = "append to a stream of the server"
REQUESTS = workload("requests through a server", unit="requests")
GET, REFRESH = "opslog, get", "opslog, refresh with nothing new"

Store = opslog.Store[dict[str, Any]]


def _serving(folder: Path) -> Any:
    return serving("--store", f"tasks={folder}/tasks", "--data", f"{folder}/streams")


def _opened(server: Server) -> Store:
    return opslog.open(f"{server.root}/tasks", agent="writer", compact_after=None)


@contender(SET, "opslog", ON_DISK)
def set_opslog(folder: Path, scale: Scale) -> Iterator[Round]:
    with _serving(folder) as server, _opened(server) as store:

        def run(timer: Timer) -> int:
            for number in range(scale.writes):
                value = document(number)
                with timer:
                    store.set(f"{timer.number}-{number}", value)
            return scale.writes

        yield run


@contender(SET, STREAM, ON_DISK)
def append_to_stream(folder: Path, scale: Scale) -> Iterator[Round]:
    with _serving(folder) as server, Client(server.url) as client:
        stream = client.stream("peer")
        stream.create(content_type="application/json")

        def run(timer: Timer) -> int:
            for number in range(scale.writes):
                value = document(number)
                with timer:
                    stream.append(value)
            return scale.writes

        yield run


def _requests(call: Callable[[Store], object]) -> Start:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with _serving(folder) as server, _opened(server) as store:
            store.set("a", document(1))

            def run(timer: Timer) -> int:
                before = replica_of(store).backend.requests
                for _ in range(scale.writes):
                    call(store)
                timer.measured = (replica_of(store).backend.requests - before) / scale.writes
                return 1

            yield run

    return start


contender(REQUESTS, GET, ON_DISK)(_requests(lambda store: store["a"]))
contender(REQUESTS, REFRESH, ON_DISK)(_requests(lambda store: store.refresh()))
