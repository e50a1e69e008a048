"""Storages that a server serves: the contract, and a network that loses, repeats and delays."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import httpx
import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend, Position, Range, open_backend  # noqa: E402  (after the rewrite is registered)
from opslog.backends.remote import protocol  # noqa: E402
from opslog.backends.remote.backend import RemoteAppender, RemoteBackend  # noqa: E402
from opslog.backends.remote.protocol import LOCK_SECONDS, SESSION_SECONDS  # noqa: E402
from opslog.backends.testing import BackendContract  # noqa: E402
from opslog.backends.testing_names import log_of  # noqa: E402
from opslog.environment import REAL  # noqa: E402
from opslog.errors import (  # noqa: E402
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    OpslogError,
    RetryError,
    WriteFailedError,
)
from opslog.format.layout import segment_path  # noqa: E402
from opslog.server.stores import remote_storage  # noqa: E402
from opslog.server.stores.remote_storage import StorageService  # noqa: E402
from tests.support.served_storage import Clock, Handing, Network  # noqa: E402
from tests.support.servers import serving  # noqa: E402
from tests.support.waiting import until  # noqa: E402

URL = "http://server/tasks"


class Brief(Handing):
    """Ends each streamed answer at once.

    :ivar asked: when each was requested, by a clock that only goes forward."""

    def __init__(self, service: Callable[[], StorageService]) -> None:
        super().__init__(service)
        self.asked: list[float] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if request.method != "GET":
            return super().handle_request(request)
        self.asked.append(time.monotonic())
        return httpx.Response(200, content=b"event: written\ndata:\n\n")


def test_a_listener_does_not_ask_without_a_pause(tmp_path: Path) -> None:
    served = Served(str(tmp_path))
    transport = Brief(lambda: served.service)
    with closing(served.open(transport)) as backend:
        heard: list[bool] = []
        with closing(backend.subscribe(lambda: heard.append(True))):  # type: ignore[type-var]
            until(lambda: len(transport.asked) >= 4)
        assert transport.asked[3] - transport.asked[0] >= 0.05 + 0.1 + 0.2
        assert len(heard) >= 3, "and misses nothing"


class Served:
    """A storage behind a server, which can be restarted."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.clock = Clock()
        self.start()

    def start(self) -> None:
        self.service = StorageService(open_backend(self.url), "tasks", self.clock.environment)

    def restart(self) -> None:
        """As after a kill: the names and locks that it held are free, and what it remembered is gone."""
        self.service.close()
        self.start()

    def open(self, transport: httpx.BaseTransport | None = None) -> RemoteBackend:
        transport = transport or Handing(lambda: self.service)
        return RemoteBackend(URL, transport=transport, environment=self.clock.environment)


class OnServer(BackendContract):
    scheme = ""

    @pytest.fixture(autouse=True)
    def _servers(self) -> Iterator[None]:
        self.servers: dict[Path, Served] = {}
        yield
        for server in self.servers.values():
            server.service.close()

    def open_backend(self, space: Path) -> Backend:
        if space not in self.servers:
            self.servers[space] = Served(f"{self.scheme}{space}/store")
        return self.servers[space].open()


class TestRemoteDirectory(OnServer):
    pass


class TestRemoteMemory(OnServer):
    scheme = "memory://"


@pytest.fixture(params=["", "memory://"], ids=["directory", "memory"])
def served(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Served]:
    found = Served(f"{request.param}{tmp_path}/store")
    yield found
    found.service.close()


SEEDS = [*range(4), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(4, 20))]


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_each_append_is_in_the_log_once_whatever_the_network_does(served: Served, seed: int) -> None:
    """Acknowledged commits are in the log in order, commits of unknown outcome at most once, and refused ones never."""
    dice = random.Random(seed)
    network = Network(Handing(lambda: served.service), dice, served.restart)
    acknowledged, refused = [], []
    backend = open_patiently(served, network)
    appender = appender_patiently(backend)
    for number in range(80):
        line = f'{{"number":{number}}}\n'.encode()
        try:
            appender.append(line)
            acknowledged.append(line)
        except AgentFencedError:
            refused.append(line)
            appender.close()
            appender = appender_patiently(backend)
        except WriteFailedError:
            refused.append(line)
    appender.close()
    found = log_of(served.open(), "a").splitlines(keepends=True)
    assert [line for line in found if line in acknowledged] == acknowledged
    assert len(set(found)) == len(found)
    assert not set(found) & set(refused)
    assert len(network.happened) >= 5, "so all this was tried"
    assert len(acknowledged) > 40


@pytest.mark.parametrize("seed", SEEDS, ids=str)
def test_each_transaction_and_file_is_there_once_whatever_the_network_does(served: Served, seed: int) -> None:
    dice = random.Random(seed)
    network = Network(Handing(lambda: served.service), dice, served.restart)
    backend = open_patiently(served, network)
    end, written = Position(1, 0), []
    files: dict[str, bytes] = {}
    for number in range(60):
        data = f'{{"number":{number}}}\n'.encode()
        place = backend.append_at("shared", end, data)
        assert place is not None, "nobody else writes"
        written.append(data)
        end = Position(place.segment, place.offset + len(data))
        path = f"manifests/{dice.randrange(20)}"
        if path in files and dice.random() < 0.5:
            backend.delete([path])
            del files[path]
            continue
        try:
            backend.create(path, data)
            assert path not in files
            files[path] = data
        except AlreadyExistsError:
            assert path in files
    reader = served.open()
    assert log_of(reader, "shared").splitlines(keepends=True) == written
    assert {entry.path: reader.read(entry.path) for entry in reader.list("manifests/")} == files


def open_patiently(served: Served, network: Network) -> RemoteBackend:
    while True:
        try:
            return served.open(network)
        except OpslogError:
            continue


def appender_patiently(backend: RemoteBackend) -> RemoteAppender:
    while True:
        try:
            return backend.appender("a")
        except OpslogError:
            continue


def test_a_session_that_was_replaced_writes_nothing_any_more(served: Served) -> None:
    """Its client was paused. The next client has not written anything yet, and the server was restarted since."""
    stopped = served.open().appender("a")
    stopped.append(b"1\n")
    with pytest.raises(AgentBusyError):
        served.open().appender("a")
    served.clock.sleep(SESSION_SECONDS + 1)
    successor = served.open().appender("a")
    served.restart()
    with pytest.raises(AgentFencedError, match="another session has begun"):
        stopped.append(b"late\n")
    assert successor.append(b"2\n").segment == 2
    stopped.close()
    assert successor.append(b"3\n").segment == 2
    assert log_of(served.open(), "a") == b"1\n2\n3\n"


def test_a_session_continues_after_a_restart_of_the_server(served: Served) -> None:
    appender = served.open().appender("a")
    for number in range(3):
        served.restart()
        appender.append(b"%d\n" % number)
    assert log_of(served.open(), "a") == b"0\n1\n2\n"


def written_while_it_is_away(served: Served, line: bytes) -> Backend:
    """Restart the server after another process has appended to the log of agent `a`. Returns its storage."""
    served.service.close()
    own = open_backend(served.url)
    appender = own.appender("a")
    appender.append(line)
    appender.close()
    served.start()
    return own


def test_a_session_does_not_go_on_behind_what_somebody_else_wrote_there(served: Served) -> None:
    appender = served.open().appender("a")
    appender.append(b"1\n")
    own = written_while_it_is_away(served, b"2\n")
    with pytest.raises(AgentFencedError, match="continues after what this session has written"):
        appender.append(b"late\n")
    assert log_of(own, "a") == b"1\n2\n"
    own.close()


def test_a_name_that_is_used_on_the_servers_machine_is_in_use(served: Served) -> None:
    own = open_backend(served.url)
    appender = own.appender("a")
    with pytest.raises(AgentBusyError, match="agent 'a' of tasks is in use by pid") as caught:
        served.open().appender("a")
    assert served.url not in str(caught.value), "where the storage is stays on the server"
    assert caught.value.agent == "a"
    appender.close()
    remote = served.open().appender("a")
    with pytest.raises(AgentBusyError):
        own.appender("a")
    remote.close()
    own.close()


def test_a_session_that_asks_for_nothing_does_not_keep_a_name_for_ever(served: Served) -> None:
    remote = served.open().appender("a")
    remote.append(b"1\n")
    own = open_backend(served.url)
    served.clock.sleep(SESSION_SECONDS + 1)
    served.service.release_unused()
    assert own.is_free("a")
    remote.append(b"2\n")
    assert not own.is_free("a")
    assert log_of(own, "a") == b"1\n2\n"
    own.close()


def test_any_request_renews_a_session(served: Served) -> None:
    backend = served.open()
    appender = backend.appender("a")
    for _ in range(3):
        served.clock.sleep(SESSION_SECONDS - 1)
        backend.list("ops/")
    with pytest.raises(AgentBusyError):
        served.open().appender("a")
    appender.append(b"1\n")


def test_a_session_that_was_replaced_makes_no_transactions(served: Served) -> None:
    backend = served.open()
    backend.appender("a")
    served.clock.sleep(SESSION_SECONDS + 1)
    served.open().appender("a")
    for _ in range(2):
        with pytest.raises(AgentFencedError, match="another session has begun"):
            backend.append_at("shared", Position(1, 0), b"{}\n")
        served.restart()
    assert log_of(served.open(), "shared") == b""


def test_a_lock_of_a_client_that_is_gone_is_free_after_a_while(served: Served) -> None:
    gone, own = served.open(), open_backend(served.url)
    holding = gone.lock("compaction")
    holding.__enter__()
    with pytest.raises(LockedError), own.lock("compaction"):
        pytest.fail("the lock was held twice")
    served.clock.sleep(LOCK_SECONDS + 1)
    served.service.release_unused()
    with own.lock("compaction"):
        pass
    holding.__exit__(None, None, None)
    own.close()


class Breaking(Handing):
    """Writes only the first bytes of an append to its log, as a server does that is killed in the middle. Then another
    server answers."""

    def __init__(self, served: Served, part: bytes, path: str) -> None:
        super().__init__(lambda: served.service)
        self._served, self._part, self._path = served, part, path

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        call = protocol.decode_request(request.read()).call
        if isinstance(call, protocol.Append | protocol.AppendAt) and self._part:
            part, self._part = self._part, b""
            self._served.service.close()
            own = open_backend(self._served.url)
            own.create(self._path, part)
            own.close()
            self._served.start()
            raise httpx.ReadError("killed", request=request)
        return super().handle_request(request)


LINES = b'{"number":1}\n{"number":2}\n'


@pytest.mark.parametrize("part", [LINES[:13], LINES[:20]], ids=["line", "torn"])
def test_a_partial_write_of_a_killed_server_is_partly_in_the_log(served: Served, part: bytes) -> None:
    for number, agent in enumerate(["a", "shared"]):
        backend = served.open(Breaking(served, part, segment_path(agent, 1)))
        append = partial(backend.append_at, agent, Position(1, 0)) if number else backend.appender(agent).append
        with pytest.raises(WriteFailedError) as caught:
            append(LINES)
        assert caught.value.durable == 13
        reader = open_backend(served.url)
        assert log_of(reader, agent) == part
        reader.close()


def test_an_append_that_a_killed_server_has_made_is_durable_before_it_is_acknowledged(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    persisted: list[str] = []
    start = served.start

    def start_and_note() -> None:
        start()
        backend = served.service.backend
        persist = backend.persist

        def noted(paths: Iterable[str]) -> None:
            found = list(paths)
            persisted.extend(found)
            persist(found)

        monkeypatch.setattr(backend, "persist", noted)

    monkeypatch.setattr(served, "start", start_and_note)
    for agent in ("a", "shared"):
        backend = served.open(Breaking(served, LINES, segment_path(agent, 1)))
        if agent == "a":
            assert backend.appender(agent).append(LINES) == Position(1, 0)
        else:
            assert backend.append_at(agent, Position(1, 0), LINES) == Position(1, 0)
        assert segment_path(agent, 1) in persisted


def test_a_session_goes_on_behind_a_seal_that_its_client_has_seen(served: Served) -> None:
    appender = served.open().appender("a")
    appender.append(b"1\n")
    own = written_while_it_is_away(served, b"seal\n")
    with pytest.raises(AgentFencedError) as caught:
        appender.append(b"2\n")
    assert caught.value.path == segment_path("a", 2)
    appender.advance(2)
    assert appender.append(b"2\n").segment == 3
    assert log_of(own, "a") == b"1\nseal\n2\n"
    own.close()


def test_the_shared_log_is_sealed_elsewhere(served: Served) -> None:
    backend = served.open()
    place = backend.append_at("transactions", Position(1, 0), b"1\n")
    appender = backend.appender("transactions")
    appender.append(b"seal\n")
    appender.close()
    assert place == (1, 0)
    assert backend.append_at("transactions", Position(2, 5), b"2\n") is not None
    assert log_of(served.open(), "transactions") == b"1\nseal\n2\n"


def test_large_answers_come_in_parts(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_storage, "_ANSWER_BYTES", 1000)
    monkeypatch.setattr(remote_storage, "_RANGES", 3)
    backend = served.open()
    files = {f"{number:02}": bytes([number]) * 150 for number in range(40)}
    for path, data in files.items():
        backend.create(path, data)
    before = backend.requests
    assert backend.read_many([Range(path) for path in ["none", *files]]) == [None, *files.values()]
    assert backend.requests - before > 4


def test_where_no_server_listens_is_said_at_once() -> None:
    """There is no pause first. Otherwise a user who mistyped the address, or forgot to start the server, would see
    nothing for a while."""

    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    def unknown(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("unknown", request=request) from socket.gaierror(-2, "Name or service not known")

    says = r"no server listens at http.*: start `opslog serve --store tasks="
    with socket.socket() as bound:  # nobody listens
        bound.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{bound.getsockname()[1]}/tasks"
        for transport in (None, httpx.MockTransport(unknown)):
            with pytest.raises(RetryError, match=says):
                RemoteBackend(url, environment=replace(REAL, sleep=sleep), transport=transport)


def test_a_name_server_that_does_not_answer_may_answer_later(served: Served) -> None:
    """For example, a container may start before the network does."""
    asked = 0

    class Late(Handing):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            nonlocal asked
            asked += 1
            if asked == 1:
                error = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
                raise httpx.ConnectError("later", request=request) from error
            return super().handle_request(request)

    served.open(Late(lambda: served.service)).close()
    assert asked == 2


def test_what_a_caller_is_handling_is_no_cause_of_a_lost_answer(served: Served) -> None:
    """A program that failed to reach something else writes that into the store. The server carries the write out, and
    disappears before it answers."""
    lost = False

    class Losing(Handing):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            response = super().handle_request(request)
            if lost:
                try:
                    raise ConnectionResetError
                except ConnectionResetError as error:
                    raise httpx.ReadError("lost", request=request) from error
            return response

    backend = served.open(Losing(lambda: served.service))
    appender = backend.appender("a")
    lost = True
    try:
        raise ConnectionRefusedError
    except ConnectionRefusedError:
        with pytest.raises(CommitUnknownError):
            appender.append(b"1\n")
    lost = False
    assert log_of(backend, "a") == b"1\n"


@pytest.mark.parametrize(
    ("url", "right"),
    [
        ("http://h:4437/v1/store/tasks", "http://h:4437/tasks"),
        ("http://h/v1/store/tasks/documents/a", "http://h/tasks"),
        ("https://h/behind/v1/store/tasks/", "https://h/behind/tasks"),
    ],
)
def test_an_address_for_rest_is_refused_with_the_right_one(url: str, right: str) -> None:
    with pytest.raises(InvalidNameError, match=f"take '{right}'$"):
        RemoteBackend(url)


def test_a_server_that_does_not_answer(served: Served) -> None:
    def nothing(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(RetryError, match="http://server/tasks does not answer"):
        served.open(httpx.MockTransport(nothing))
    gone = False

    class Going(Handing):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            return nothing(request) if gone else super().handle_request(request)

    backend = served.open(Going(lambda: served.service))
    appender = backend.appender("a")
    appender.append(b"1\n")
    gone = True
    with pytest.raises(WriteFailedError, match="nothing was written"):
        appender.append(b"2\n")
    with pytest.raises(RetryError):
        backend.read("x")
    gone = False
    appender.append(b"3\n")
    assert log_of(backend, "a") == b"1\n3\n"


@pytest.mark.parametrize(
    "url",
    [
        *("http://host", "http://host/", "https:///x", "http://host/a?b=c", "http://host/a#b", "http://[::1/x"),
        *("http://host/a%3Fb", "http://host/%61", "http://host/-a", "http://user:secret@host/a"),
    ],
)
def test_urls_that_name_no_store(url: str) -> None:
    with pytest.raises(InvalidNameError) as caught:
        open_backend(url)
    assert "secret" not in str(caught.value)


def test_a_path_before_the_name_is_kept_as_it_is(served: Served) -> None:
    asked: list[str] = []

    class Noting(Handing):
        def handle_request(self, request: httpx.Request) -> httpx.Response:
            asked.append(str(request.url))
            return super().handle_request(request)

    RemoteBackend("http://host:1/p%2Fq/tasks/", transport=Noting(lambda: served.service)).close()
    assert asked == ["http://host:1/p%2Fq/v1/store/tasks/storage"]


STORES = 200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with many stores."""
    place = tmp_path_factory.mktemp("stores")
    stores = [text for number in range(STORES) for text in ("--store", f"s{number}={place}/{number}")]
    with serving(*stores, "--memory", "--feed-seconds", "3600") as server:
        yield server.root


@pytest.fixture(scope="module")
def numbers() -> dict[Path, int]:
    return {}


@pytest.mark.long
class TestRemoteServer(BackendContract):
    """Over real connections."""

    @pytest.fixture(autouse=True)
    def _in_a_store_of_its_own(self, root: str, numbers: dict[Path, int]) -> None:
        self.root, self.numbers, self.lock = root, numbers, threading.Lock()

    def open_backend(self, space: Path) -> Backend:
        with self.lock:  # no other thread may write there before it is empty
            is_new = space not in self.numbers
            number = self.numbers.setdefault(space, len(self.numbers))
            backend = open_backend(f"{self.root}/s{number}")
            if is_new:  # what the server has written there
                backend.delete([entry.path for entry in backend.list("")])
            return backend
