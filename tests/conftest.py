from __future__ import annotations

import os
import re
import signal
import subprocess
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import cache
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.snapshot import runs
from tests.support import s3_servers, served_storage  # noqa: F401  (stores at lossy+http://)
from tests.support.places import DIRECTORY, LOSSY, REMOTE, REMOTE_STORES, Place
from tests.support.s3_servers import Server
from tests.support.servers import Restarting

# Rewrite these before anybody imports them: other tests than those of the contract use them, too.
pytest.register_assert_rewrite("opslog.backends.testing_names", "opslog.backends.testing_turns")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in a job that a script started in the background. Tests of Ctrl-C, and their children, would never see it.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Processes that share the work must give each test the same name. So no name may contain the address of an
    object."""
    unstable = [item.nodeid for item in items if re.search(r"\bat 0x[0-9a-f]", item.nodeid)]
    if unstable:
        raise pytest.UsageError(f"give the parameters of these tests names that stay: {unstable}")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small filesystem")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield place
    # Lazily: a test that failed may still have files open.
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture(params=["loaded", "on-storage"])
def snapshots(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the tests of a module twice: all snapshots in memory, as small ones are, and on storage, as large ones."""
    if request.param == "on-storage":
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)


@pytest.fixture(scope="session")
def _servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Server]]:
    """S3 servers by name, each started when the first test wants it."""
    with ExitStack() as stack:
        running = cache(lambda name: stack.enter_context(s3_servers.running(name, tmp_path_factory.mktemp(name))))
        yield running


@pytest.fixture
def s3_server(
    request: pytest.FixtureRequest, _servers: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> Server:
    """A running S3 server, named by an indirect parameter, that this process and its children talk to."""
    server = _servers(request.param)
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return server


@pytest.fixture
def place(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    _servers: Callable[[str], Server],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Place]:
    """Room for stores: a directory, or the place that an indirect parameter names (see `tests.support.places`)."""
    name = getattr(request, "param", DIRECTORY)
    if name == DIRECTORY:
        yield Place(str(tmp_path), "", {})
        return
    if name in (REMOTE, LOSSY):
        stores = {name: f"{tmp_path}/{name}" for name in REMOTE_STORES}
        for name, settings in REMOTE_STORES.items():
            opslog.open(stores[name], agent="first", settings=settings).close()
        remote = Restarting("--memory", *(text for name in stores for text in ("--store", f"{name}={stores[name]}")))
        try:
            yield Place(f"lossy+{remote.root}" if name == LOSSY else remote.root, "", {}, remote.restart)
        finally:
            remote.kill()
        return
    server_name, driver = name.split("-")
    server = _servers(server_name)
    for variable, value in server.environment.items():
        monkeypatch.setenv(variable, value)
    place = Place(f"{server.url}/{uuid.uuid4().hex}", f"?driver={driver}", {"lease_seconds": 1.0})
    yield place
    backend = open_backend(place.base)
    backend.delete([entry.path for entry in backend.list("")])
    backend.close()


@pytest.fixture
def forked(capfd: pytest.CaptureFixture[str]) -> Callable[[Callable[[], None]], None]:
    """Runs a function in a forked child. The test fails if the function fails there."""

    def run(function: Callable[[], None]) -> None:
        with warnings.catch_warnings():
            # These tests are about a fork while other threads run, such as a buffered store's own.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            code = 1
            try:
                function()
                code = 0
            except SystemExit as ended:
                code = int(ended.code or 0)
            except BaseException as error:  # noqa: BLE001  (nothing of the child's may reach the test runner)
                os.write(2, repr(error).encode())
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, capfd.readouterr().err

    return run
