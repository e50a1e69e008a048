"""python -m benchmarks.s3: measures stores on S3 beside bare requests and npm @backloghq/opslog-s3.

    python -m benchmarks.s3 [--latency MS] [--small] [--rounds N] [--only TEXT] [--json FILE]

All contenders talk to one server: that of `OPSLOG_TEST_S3_URL`, or Ceph where it is installed, or moto; with
``--latency`` through a proxy that holds every answer back for so long. Each floor is the bare requests that the work
cannot do without, sent by the same driver. The npm package is installed for the run, and left out with a word where
that cannot be done. Requests are counted by opslog, and by hand for the floors.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from botocore.session import Session

import opslog
from benchmarks.material import document, line
from benchmarks.npm import Driver, npm_modules
from benchmarks.report import parser, run
from benchmarks.runner import Round, Scale, Timer, contender
from benchmarks.slow_network import slower
from opslog.backends import open_backend
from opslog.backends.objects.backend import ObjectBackend
from opslog.format.layout import segment_path
from tests.support import s3_servers

DRIVERS = ("obstore", "s3fs")
SIZES, LEAST = Scale(writes=200, threads=32, log=10_000), Scale(writes=3, threads=4, log=200)

_server: s3_servers.Server
_direct: dict[str, Any]
"""The options for filling a store without the latency."""
_numbers = itertools.count()


def new_url(driver: str) -> str:
    return f"{_server.url}/benchmark-{os.getpid()}-{next(_numbers)}?driver={driver}"


class Count:
    """How many requests a store has sent since this was made; printed in the first round."""

    def __init__(self, store: opslog.Store[Any]) -> None:
        self._store = store
        self._before = store.stats().requests
        self._own = store.stats().requests - self._before

    def report(self, timer: Timer, what: str) -> None:
        if timer.number == 0:
            print(f"{what}: {self._store.stats().requests - self._before - 2 * self._own} requests", flush=True)


@contextmanager
def bare_client() -> Iterator[tuple[Any, str, str]]:
    """boto's client, with a bucket and a prefix."""
    _, _, rest = _server.url.partition("://")
    bucket, _, prefix = rest.partition("/")
    client = Session().create_client("s3")
    try:
        yield client, bucket, f"{prefix}/bare-{os.getpid()}-{next(_numbers)}".lstrip("/")
    finally:
        client.close()


def filled(count: int) -> str:
    """The address of a store with the log of an agent, each commit an object of its own."""
    url = new_url("obstore")
    opslog.open(url, agent="first", **_direct).close()
    backend = open_backend(url, **_direct)
    with ThreadPoolExecutor(32) as pool:
        list(pool.map(lambda number: backend.create(segment_path("main", number + 1), line(number)), range(count)))
    return url.partition("?")[0]


@cache
def read_only(count: int) -> str:
    """As `filled`, the same store for all."""
    return filled(count)


@cache
def written(count: int) -> str:
    """A store after so many sets of one writer, as its automatic compactions left it."""
    url = new_url("obstore")
    with opslog.open(url, agent="main", **_direct) as store:
        for number in range(count):
            store.set(f"task-{number}", document(number))
        print(f"after {count} sets {store.stats().tail_commits} are not compacted", flush=True)
    return url.partition("?")[0]


# -- writing


def set_with(driver: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with opslog.open(new_url(driver), compact_after=None) as store:

            def run(timer: Timer) -> int:
                count = Count(store)
                with timer:
                    for number in range(scale.writes):
                        store.set(f"task-{number}", document(number, timer.number))
                count.report(timer, f"{scale.writes} sets, {driver}")
                return scale.writes

            yield run

    return start


def put_with(driver: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        backend = open_backend(new_url(driver))
        assert isinstance(backend, ObjectBackend)
        bare, keys = backend.driver, itertools.count()

        def run(timer: Timer) -> int:
            with timer:
                for number in range(scale.writes):
                    bare.put_new(f"bare-{os.getpid()}-{id(backend)}/{next(keys)}", line(number))
            return scale.writes

        yield run
        backend.close()

    return start


def set_at_once_with(driver: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        with (
            opslog.open(new_url(driver), compact_after=None) as store,
            ThreadPoolExecutor(scale.threads) as pool,
        ):

            def run(timer: Timer) -> int:
                counted, count = Count(store), scale.writes * 4
                with timer:
                    sets = (pool.submit(store.set, f"task-{n}", document(n, timer.number)) for n in range(count))
                    for one in list(sets):
                        one.result()
                counted.report(timer, f"{count} sets by {scale.threads} threads, {driver}")
                return count

            yield run

    return start


for _driver in DRIVERS:
    contender("set", f"opslog, {_driver}", "in S3")(set_with(_driver))
for _driver in DRIVERS:
    contender("set", f"floor: conditional PUT, {_driver}", "in S3")(put_with(_driver))


@contender("set", "floor: PUT, boto3's client", "in S3")
def put_boto(folder: Path, scale: Scale) -> Iterator[Round]:
    with bare_client() as (client, bucket, prefix):
        keys = itertools.count()

        def run(timer: Timer) -> int:
            with timer:
                for number in range(scale.writes):
                    client.put_object(Bucket=bucket, Key=f"{prefix}/{next(keys)}", Body=line(number))
            return scale.writes

        yield run


for _driver in DRIVERS:
    contender("set, 32 at once", f"opslog, {_driver}", "in S3")(set_at_once_with(_driver))


@contender("set, 32 at once", "floor: PUT, boto3's client", "in S3")
def put_boto_at_once(folder: Path, scale: Scale) -> Iterator[Round]:
    with bare_client() as (client, bucket, prefix), ThreadPoolExecutor(scale.threads) as pool:
        keys = itertools.count()

        def put(number: int) -> None:
            client.put_object(Bucket=bucket, Key=f"{prefix}/{next(keys)}", Body=line(number))

        def run(timer: Timer) -> int:
            with timer:
                list(pool.map(put, range(scale.writes * 4)))
            return scale.writes * 4

        yield run


# -- reading


def open_with(driver: str, prepare: Callable[[int], str], what: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        url = f"{prepare(scale.log)}?driver={driver}"

        def run(timer: Timer) -> int:
            with timer:
                store = opslog.open(url, read_only=True)
            assert len(store) == scale.log
            if timer.number == 0:
                before = store.stats().requests
                own = store.stats().requests - before
                print(f"open {what}, {driver}: {before - own} requests", flush=True)
            store.close()
            return 1

        yield run

    return start


def refresh_with(driver: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        url = f"{filled(scale.log)}?driver={driver}"
        with (
            opslog.open(url, agent="writer", compact_after=None) as writer,
            opslog.open(url, read_only=True) as reader,
        ):

            def run(timer: Timer) -> int:
                writer["new"] = document(timer.number)
                count = Count(reader)
                with timer:
                    assert len(reader.refresh()) == 1
                count.report(timer, f"refresh, 1 new of {scale.log}, {driver}")
                return 1

            yield run

    return start


def compacted(scale: Scale) -> int:
    return scale.log // 5


def compact_with(driver: str) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        def run(timer: Timer) -> int:
            url = f"{filled(compacted(scale))}?driver={driver}"
            with opslog.open(url, agent="first", compact_after=None) as store:
                count = Count(store)
                with timer:
                    assert store.compact().number is not None
                count.report(timer, f"compact {compacted(scale)} objects, {driver}")
            return 1

        yield run

    return start


for _driver in DRIVERS:
    contender("open, 10,000 objects", f"opslog, {_driver}", "")(open_with(_driver, read_only, "all objects"))


@contender("open, 10,000 objects", "floor: LIST and GET, boto3's client, 32 threads", "")
def get_boto(folder: Path, scale: Scale) -> Iterator[Round]:
    with bare_client() as (client, bucket, _), ThreadPoolExecutor(32) as pool:
        prefix = read_only(scale.log).removeprefix(f"s3://{bucket}/") + "/ops/main/"

        def run(timer: Timer) -> int:
            with timer:
                pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
                keys = [found["Key"] for page in pages for found in page["Contents"]]
                read = pool.map(lambda key: json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read()), keys)
                assert len({commit["id"]: commit for commit in read}) == scale.log
            return 1

        yield run


for _driver in DRIVERS:
    contender("open after 10,000 sets", f"opslog, {_driver}", "")(open_with(_driver, written, "after all sets"))
for _driver in DRIVERS:
    contender("refresh, 1 new of 10,000", f"opslog, {_driver}", "")(refresh_with(_driver))
for _driver in DRIVERS:
    contender("compact, 2,000 objects", f"opslog, {_driver}", "in S3")(compact_with(_driver))


# -- the npm package


class Npm:
    """One store of the package, in a process of its own. :ivar call: a command of `npm_s3.mjs`, and its result."""

    def __init__(self, prefix: str, agent: str, endpoint: str | None = None) -> None:
        bucket = _server.url.partition("://")[2].partition("/")[0]
        self._driver = Driver(
            "npm_s3.mjs", bucket, prefix, agent, environment={"AWS_ENDPOINT_URL": endpoint} if endpoint else None
        )

    def call(self, *command: Any) -> Any:
        return self._driver.call(*command)["result"]

    def open(self, *, compacts: bool = False) -> int:
        """:param compacts: by itself every 100 sets, which is its default. Returns the number of documents."""
        count: int = self.call("open", {} if compacts else {"checkpointThreshold": 10**9})
        return count

    def __enter__(self) -> Npm:
        return self

    def __exit__(self, *_: object) -> None:
        self._driver.close()


NPM = "npm @backloghq/opslog-s3 0.4.1"


def new_prefix() -> str:
    return f"npm-{os.getpid()}-{next(_numbers)}"


def some(first: int, count: int, revision: int = 0) -> list[tuple[str, dict[str, Any]]]:
    return [(f"task-{number}", document(number, revision)) for number in range(first, first + count)]


def npm_filled(count: int) -> str:
    """The prefix of a store with so many sets, each an object; its process ended without the compaction of a close."""
    at = new_prefix()
    with Npm(at, "main", _direct.get("endpoint_url")) as store:
        store.open()
        for first in range(0, count, 32):
            store.call("setAtOnce", some(first, min(32, count - first)))
    return at


npm_read_only = cache(npm_filled)


@cache
def npm_written(count: int) -> str:
    """The prefix of a store with so many sets, as its automatic compactions and its close left it."""
    at = new_prefix()
    with Npm(at, "main", _direct.get("endpoint_url")) as store:
        store.open(compacts=True)
        store.call("set", some(0, count))
        store.call("close")
    return at


def set_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    with Npm(new_prefix(), "a") as store:
        store.open()

        def run(timer: Timer) -> int:
            with timer:
                store.call("set", some(0, scale.writes, timer.number))
            return scale.writes

        yield run


def set_npm_at_once(folder: Path, scale: Scale) -> Iterator[Round]:
    with Npm(new_prefix(), "a") as store:
        store.open()

        def run(timer: Timer) -> int:
            with timer:
                for first in range(0, scale.writes * 4, scale.threads):
                    store.call("setAtOnce", some(first, scale.threads, timer.number))
            return scale.writes * 4

        yield run


def open_npm_with(prepare: Callable[[int], str]) -> Callable[[Path, Scale], Iterator[Round]]:
    def start(folder: Path, scale: Scale) -> Iterator[Round]:
        at = prepare(scale.log)

        def run(timer: Timer) -> int:
            with Npm(at, f"reader-{timer.number}") as store:
                with timer:
                    count = store.open()
                assert count == scale.log, f"{NPM}: {count} of {scale.log} documents"
            return 1

        yield run

    return start


def refresh_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    at = npm_filled(scale.log)
    with Npm(at, "writer") as writer, Npm(at, "reader") as reader:
        writer.open()
        reader.open()

        def run(timer: Timer) -> int:
            writer.call("set", [("new", document(timer.number))])
            with timer:
                reader.call("refresh")
            return 1

        yield run


def compact_npm(folder: Path, scale: Scale) -> Iterator[Round]:
    def run(timer: Timer) -> int:
        with Npm(npm_filled(compacted(scale)), "main") as store:
            store.open()
            with timer:
                store.call("compact")
        return 1

    yield run


def register_npm() -> None:
    contender("set", NPM, "in S3")(set_npm)
    contender("set, 32 at once", NPM, "in S3")(set_npm_at_once)
    contender("open, 10,000 objects", NPM, "")(open_npm_with(npm_read_only))
    contender("open after 10,000 sets", NPM, "")(open_npm_with(npm_written))
    contender("refresh, 1 new of 10,000", NPM, "")(refresh_npm)
    contender("compact, 2,000 objects", NPM, "in S3")(compact_npm)


if __name__ == "__main__":
    _parser = parser("python -m benchmarks.s3", rounds=3)
    _parser.add_argument("--latency", type=float, default=0.0, metavar="MS", help="hold every answer back for so long")
    _arguments = _parser.parse_args()
    ceph = "ceph" if shutil.which("radosgw") else "moto"
    chosen = "named" if "OPSLOG_TEST_S3_URL" in os.environ else ceph
    with ExitStack() as _stack:
        place = Path(_stack.enter_context(tempfile.TemporaryDirectory(prefix="opslog-bench-s3-")))
        _server = _stack.enter_context(s3_servers.running(chosen, place))
        os.environ.update(_server.environment)
        _endpoint = os.environ.get("AWS_ENDPOINT_URL")
        _direct = {"endpoint_url": _endpoint} if _endpoint else {}
        if _arguments.latency:
            if not _endpoint:
                sys.exit("--latency needs a server in AWS_ENDPOINT_URL, and is for those that are near")
            os.environ["AWS_ENDPOINT_URL"] = _stack.enter_context(slower(_endpoint, _arguments.latency))
        if npm_modules() is not None:
            register_npm()
        run(_arguments, SIZES, LEAST, extra={"server": chosen, "latency": f"{_arguments.latency:g} ms"})
