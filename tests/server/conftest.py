from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from opslog.environment import Environment
from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.protocol.storage import Storage
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.storage.memory import MemoryStorage
from tests.support.asgi import Caller
from tests.support.browsers import browsing
from tests.support.rest import Rest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

MAP_BYTES = 2**30


@pytest.fixture(params=["memory", "lmdb"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Storage]:
    """Each kind of storage, empty. The directory has several shards, so that their differences show."""
    opened: Storage = MemoryStorage()
    if request.param == "lmdb":
        opened = DirectoryStorage(tmp_path / "data", shards=3, map_bytes=MAP_BYTES)
    yield opened
    opened.close()


@pytest.fixture
def reopen(tmp_path: Path) -> Callable[..., DirectoryStorage]:
    """Opens the durable storage of a test."""

    def open_it(**options: object) -> DirectoryStorage:
        return DirectoryStorage(tmp_path / "data", map_bytes=MAP_BYTES, **options)  # type: ignore[arg-type]

    return open_it


@pytest.fixture
def certificate(tmp_path: Path) -> tuple[Path, Path]:
    """The TLS certificate of a server at localhost, and its key."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=localhost -days 2"
    made = subprocess.run([*command.split(), "-keyout", key, "-out", certificate], capture_output=True, check=False)
    if made.returncode:
        pytest.skip("there is no openssl here to make a certificate")
    return certificate, key


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


class Clock:
    """Wall-clock time and monotonic time that pass only when a test says so."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


Make = Callable[..., Caller]


@pytest.fixture
def make(storage: Storage, clock: Clock) -> Iterator[Make]:
    """Makes a client of an application with these options."""
    opened: list[Caller] = []

    def make_it(**options: object) -> Caller:
        environment = Environment(time=clock, monotonic=clock)
        application = App(storage, Options(**options), environment=environment)  # type: ignore[arg-type]
        client = Caller(application)
        opened.append(client)
        return client

    yield make_it
    for client in opened:
        client.close()


@pytest.fixture
def client(make: Make) -> Caller:
    return make(long_poll_seconds=0.05)


@pytest.fixture(params=["directory", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Two kinds: segments grow, or each append is a segment of its own, as on object storages."""
    return str(tmp_path / "tasks") if request.param == "directory" else f"memory://rest-{tmp_path.name}"


@pytest.fixture
def rest(url: str) -> Iterator[Rest]:
    """A client of the store at `url`."""
    client = Rest(url)
    yield client
    client.close()
