"""Remote agents: stores opened through a server, by processes that really are killed and paused."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, aclosing, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec.structs import replace

import opslog
from opslog.backends import Range, open_backend
from opslog.backends.remote import protocol
from opslog.backends.remote.backend import RemoteBackend
from opslog.backends.remote.channel import Channel
from opslog.backends.remote.protocol import (
    SESSION_SECONDS,
)
from opslog.errors import AgentBusyError, AgentFencedError, MissingStoreError, ReadOnlyError, UsageError
from opslog.replica.watching import subscribed
from opslog.server.http.asgi import App
from opslog.server.http.budget import Budget
from opslog.server.options import Options
from opslog.server.protocol.refusals import Refused
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores import remote_storage
from opslog.server.stores.remote_storage import StorageService
from opslog.server.stores.rights import Client
from opslog.server.stores.served import ServedStores
from opslog.snapshot import runs
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.support import programs
from tests.support.processes import Process, start
from tests.support.served_storage import Clock, Handing
from tests.support.servers import Server, http, serving
from tests.support.waiting import until as wait_until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


@pytest.fixture
def server(url: str, tmp_path: Path) -> Iterator[Server]:
    with serving("--store", f"tasks={url}", "--data", str(tmp_path / "data")) as server:
        yield server


def restarted(server: Server, url: str, tmp_path: Path) -> Server:
    return Server("--store", f"tasks={url}", "--data", str(tmp_path / "data"), "--port", str(server.port))


def at(server: Server) -> str:
    return f"{server.root}/tasks"


def last_of(process: Process) -> dict[str, Any]:
    """The last line of a writer's output."""
    said = process.hear()
    while isinstance(said, int):
        said = process.hear()
    return dict(said)


def test_agents_here_and_elsewhere_share_a_store(server: Server, url: str) -> None:
    with (
        opslog.open(at(server), agent="far") as far,
        opslog.open(at(server), agent="buffered", durability="buffered") as buffered,
        opslog.open(url, agent="near") as near,
    ):
        far["a"] = {"by": "far"}
        near.refresh()
        near["a"] = {"by": "near"}
        buffered["b"] = {"by": "buffered"}
        with far.batch():
            far["c"] = {"n": 1}
            far["d"] = {"n": 1}
        assert far.undo()
        buffered.flush()
        far.create("counter", {"n": 0})
        for store in (near, far, buffered) * 2:
            store.modify("counter", lambda old: {"n": (old or {"n": 0})["n"] + 1})
        for store in (far, buffered, near):
            store.refresh()
        wanted = {"a": {"by": "near"}, "b": {"by": "buffered"}, "counter": {"n": 6}}
        assert dict(far) == dict(near) == dict(buffered) == wanted
        assert far.find("n = 6") == [("counter", {"n": 6})]
        far.compact()
        near.refresh()
        assert dict(near) == wanted
    assert verify(open_backend(url)).ok


def test_a_lookup_that_is_a_request_does_not_hold_an_event_loop_up(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    with opslog.open(at(server), agent="writer") as store:
        store.update({f"{number}": {"number": number} for number in range(100)})
        for number in range(40):  # so many that no undo can reach the first commit
            store["later"] = {"number": number}
        store.compact()

    async def read() -> set[int]:
        async with opslog.aio.open(at(server), agent="reader") as store:
            asking: set[int] = set()
            backend = store._replica.backend
            read_many = backend.read_many

            def noted(ranges: Sequence[Range]) -> list[bytes | None]:
                asking.add(threading.get_ident())
                return read_many(ranges)

            monkeypatch.setattr(backend, "read_many", noted)
            assert await store.get("7") == {"number": 7}
            return asking

    asked = asyncio.run(read())
    assert asked
    assert threading.get_ident() not in asked


def test_the_cost_of_a_read(server: Server) -> None:
    with opslog.open(at(server), agent="a") as store:
        store["a"] = {}
        backend = replica_of(store).backend

        def requests(work: Any) -> int:
            before = backend.requests
            work()
            return backend.requests - before

        assert requests(lambda: store["a"]) == 0
        assert requests(lambda: store.set("a", {"n": 1})) == 1
        assert requests(store.refresh) == 1
        store.create("guarded", {})
        assert requests(lambda: store.modify("guarded", lambda old: {"n": 1})) == 2


def test_a_refresh_through_a_server_that_knows_no_listing_of_both(
    server: Server, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a server of 0.2.0."""
    described = RemoteBackend._describe
    monkeypatch.setattr(RemoteBackend, "_describe", lambda self: replace(described(self), lists_with_logs=False))
    with opslog.open(at(server), agent="far") as far, opslog.open(url, agent="near") as near:
        near["a"] = {}
        before = replica_of(far).backend.requests
        assert [commit.agent for commit in far.refresh()] == ["near"]
        assert replica_of(far).backend.requests - before == 4, "three listings and a read"


def test_an_append_of_a_client_that_was_stopped_while_its_name_was_taken(
    server: Server, url: str, tmp_path: Path
) -> None:
    """No lock waits for it. When it continues, what it writes is refused."""
    with start(programs.write_numbered, at(server), "a") as stopped:
        assert stopped.hear() == 1
        with pytest.raises(AgentBusyError):
            opslog.open(at(server), agent="a")
        os.kill(stopped.pid, signal.SIGSTOP)
        server.kill()
        with ExitStack() as stack:
            again = restarted(server, url, tmp_path)
            stack.callback(again.kill)
            store = stack.enter_context(opslog.open(at(again), agent="a"))
            known = dict(store)
            os.kill(stopped.pid, signal.SIGCONT)
            end = last_of(stopped)
            assert end["refusal"] == AgentFencedError.__name__
            assert end["count"] == len(known), "also of a last one whose answer came to nobody while it was stopped"
            stopped.resume()
            store["mine"] = {}
            with opslog.open(url, read_only=True) as reader:
                assert dict(reader) == known | {"mine": {}}
        stopped.end()


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_server_that_is_killed_loses_nothing(server: Server, url: str, tmp_path: Path, kills: int) -> None:
    """Clients continue with the next server, without an error, and each of their commits counts once."""
    with ExitStack() as stack:
        agents = [
            stack.enter_context(start(programs.write_numbered, at(server), f"agent-{number}")) for number in range(3)
        ]
        current = server
        for _ in range(kills):
            for agent in agents:
                heard = agent.hear()
                assert isinstance(heard, int), heard
            current.kill()
            current = restarted(current, url, tmp_path)
            stack.callback(current.kill)
        acknowledged = {}
        for agent in agents:
            agent.resume()
            end = last_of(agent)
            assert end["refusal"] is None
            acknowledged[end["agent"]] = end["count"]
            agent.end()
    found: dict[str, list[str]] = {name: [] for name in acknowledged}
    with opslog.open(url, read_only=True) as reader:
        for commit in reader.ops():
            found[commit.agent] += [record.id for record in commit.records]
    assert found == {name: [f"{name}-{number}" for number in range(count)] for name, count in acknowledged.items()}
    assert verify(open_backend(url)).ok


def test_a_token_writes_in_one_name_alone(url: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        "\n".join(
            f'[[token]]\nname = "{name}"\nsha256 = "{sha256(name.encode()).hexdigest()}"\n{rights}\n'
            for name, rights in {
                "writer": 'read = [""]\nwrite = ["stores/tasks"]',
                "reader": 'read = ["stores/tasks"]',
                "operator": 'read = [""]\nwrite = [""]\noperate = ["stores/tasks"]',
                "other": 'read = ["stores/others"]',
            }.items()
        )
    )
    with serving("--store", f"tasks={url}", "--data", str(tmp_path / "data"), "--tokens", str(tokens)) as server:
        with opslog.open(at(server), agent="writer", token="writer") as store:
            store["a"] = {"n": 1}
            store.create("b", {"n": 1})
            assert store.archive("n = 1", "old") == 2
            store["a"] = {"n": 2}
            with pytest.raises(UsageError, match="may not operate"):
                store.compact()
            with pytest.raises(AgentBusyError, match="in use by pid"):
                opslog.open(at(server), agent="writer", token="writer")
        with pytest.raises(UsageError, match="in the name of 'writer', and of nobody else"):
            opslog.open(at(server), agent="operator", token="writer")
        with pytest.raises(UsageError, match="may not write"):
            opslog.open(at(server), agent="reader", token="reader")
        with opslog.open(at(server), read_only=True, token="reader") as store:
            assert dict(store) == {"a": {"n": 2}}
            assert sorted(store.load_archive("old")) == ["a", "b"]
            with pytest.raises(ReadOnlyError):
                store["c"] = {}
        with opslog.open(at(server), agent="operator", token="operator") as store:
            assert store.compact() is not None
        with pytest.raises(UsageError, match="wants a token"):
            opslog.open(at(server), read_only=True)
        with pytest.raises(UsageError, match="wants a token"):
            opslog.open(at(server), read_only=True, token="unknown")
        with pytest.raises(UsageError, match="may not read"):
            opslog.open(at(server), read_only=True, token="other")
        with pytest.raises(MissingStoreError, match="no store at"):
            opslog.open(f"{server.root}/nothing", read_only=True, token="operator")


def test_nobody_renews_the_session_of_another_agent() -> None:
    """A client that may read finds the session's name in the storage."""
    clock = Clock()
    backend = open_backend("memory://renewed")
    service = StorageService(backend, "tasks", clock.environment)

    def open_store(client: Client) -> RemoteBackend:
        handing = Handing(lambda: service, client)
        return RemoteBackend("http://server/tasks", transport=handing, environment=clock.environment)

    victim = open_store(Client("victim", writes=True, operates=False))
    victim.appender("victim")
    other = open_store(Client("other", writes=False, operates=False))
    other.channel.sessions |= victim.channel.sessions
    for _ in range(3):
        clock.sleep(SESSION_SECONDS / 2)
        other.list("ops/")
    service.release_unused()
    assert backend.is_free("victim")
    service.close()


def test_answers_count_in_what_a_server_keeps_in_memory(url: str, tmp_path: Path) -> None:
    """If there is no room for an answer, the client asks again."""
    stores = ServedStores({"tasks": url}, "main")
    application = App(MemoryStorage(), Options(), stores=stores)
    held: list[int] = []
    service = next(iter(stores)).storage
    service.backend.create("archive/large/1.jsonl", b"x" * 1_000_000)
    request = protocol.Request(protocol.VERSION, protocol.Read([("archive/large/1.jsonl", 0, None)]))

    async def run() -> list[int]:
        statuses: list[int] = []

        async def send(message: Any) -> None:
            held.append(application.budget.held)
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Any:
            return {"type": "http.request", "body": protocol.encode(request), "more_body": False}

        scope = {
            "type": "http",
            "method": "POST",
            "path": "/v1/store/tasks/storage",
            "headers": [],
            "query_string": b"",
        }
        await application(scope, receive, send)
        assert max(held) >= 1_000_000
        assert application.budget.held == 0
        with application.budget.holding() as rest:
            rest.hold(application.budget.bytes_max - 1000)
            await application(scope, receive, send)
        await application.stop()
        return statuses

    assert asyncio.run(run()) == [200, 503]


def test_a_call_names_a_limited_number_of_ranges() -> None:
    """Each takes more memory than its bytes in the request. A client asks in several calls."""
    request = protocol.Request(protocol.VERSION, protocol.Read([("a", 0, 0)] * (protocol.RANGES_MAX + 1)))
    service = StorageService(open_backend("memory://ranges"), "tasks")
    with pytest.raises(UsageError, match="no request for a storage"):
        service.answer(protocol.encode(request))
    calls: list[int] = []

    def asked(request: httpx.Request) -> httpx.Response:
        call = protocol.decode_request(request.read()).call
        calls.append(len(call.ranges) if isinstance(call, protocol.Read) else 0)
        return httpx.Response(200, content=service.answer(request.read())[0])

    backend = RemoteBackend("http://server/tasks", transport=httpx.MockTransport(asked))
    assert backend.read_many([Range("archive/old/1.jsonl")] * (protocol.RANGES_MAX + 1)) == [None] * 10_001
    assert [count for count in calls if count] == [10_000, 1]
    backend.close()


def test_the_parts_of_one_answer_are_counted_before_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small request for the same file again and again takes no more memory than others."""
    monkeypatch.setattr(remote_storage, "_ANSWER_BYTES", 2500)
    backend = open_backend("memory://counted")
    backend.create("archive/large/1.jsonl", b"x" * 1000)
    service = StorageService(backend, "tasks")
    happened: list[object] = []
    read_many = backend.read_many

    def noted(ranges: Sequence[Range]) -> list[bytes | None]:
        happened.append(len(ranges))
        return read_many(ranges)

    monkeypatch.setattr(backend, "read_many", noted)

    def ask(stop: int | None, hold: Callable[[int], None]) -> list[bytes | None]:
        call = protocol.Read([("archive/large/1.jsonl", 0, stop)] * 64)
        body, _ = service.answer(protocol.encode(protocol.Request(protocol.VERSION, call)), hold=hold)
        answer = protocol.decode_answer(body)
        assert isinstance(answer, protocol.Contents)
        return answer.parts

    assert ask(None, lambda count: happened.append(f"hold {count}")) == [b"x" * 1000] * 2
    assert ask(500, lambda count: happened.append(f"hold {count}")) == [b"x" * 500] * 5
    assert happened == ["hold 2000", 2, "hold 2500", 5]
    del happened[:]
    alone = protocol.Request(protocol.VERSION, protocol.Read([("archive/large/1.jsonl", 300, None)]))
    service.answer(protocol.encode(alone), hold=lambda count: happened.append(f"hold {count}"))
    assert happened == ["hold 700", 1]
    with Budget(1000).holding() as holding, pytest.raises(Refused):
        ask(None, holding.hold)
    assert len(happened) == 2, "nothing was read"
    service.close()


# -- what is written is said


class Watched:
    """A thread that watches a store until the store is closed.

    :ivar seen: the documents of the commits that came.
    :ivar error: the exception that ended it.
    """

    def __init__(self, store: opslog.Store[Any]) -> None:
        self.seen: list[str] = []
        self.error: BaseException | None = None
        self._came = threading.Condition()
        self._store = store
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()

    def _watch(self) -> None:
        try:
            for commit in self._store.watch(NEVER):
                with self._came:
                    self.seen += commit.ids
                    self._came.notify_all()
        except BaseException as error:  # noqa: BLE001  (the test raises it)
            self.error = error
        with self._came:
            self._came.notify_all()

    def wait_for(self, *ids: str) -> None:
        with self._came:
            assert self._came.wait_for(lambda: {*ids} <= {*self.seen} or not self.thread.is_alive(), 30), self.seen
        assert self.error is None
        assert self.seen.count(ids[-1]) == 1


NEVER = 1e6
"""How long to wait between polls, in seconds."""


def listening(store: opslog.Store[Any]) -> bool:
    return bool(replica_of(store).backend._listener.is_live)  # type: ignore[attr-defined]


@contextmanager
def watching(store: opslog.Store[Any], count: int = 1) -> Iterator[list[Watched]]:
    """Starts threads that watch a store through a server that announces what is written. Closes the store at the
    end."""
    with subscribed(replica_of(store).backend, lambda: None) as kept:
        wait_until(lambda: listening(store))
        watched = [Watched(store) for _ in range(count)]
        try:
            assert kept is not None
            yield watched
        finally:
            store.close()
            for each in watched:
                each.thread.join()
    assert [each.error for each in watched] == [None] * count
    assert not [thread for thread in threading.enumerate() if thread.name == "opslog-listener"]


def test_a_watch_learns_of_others_writes(server: Server, url: str) -> None:
    """Through the server, and beside it."""
    far = opslog.open(at(server), read_only=True)
    with (
        opslog.open(at(server), agent="writer") as writer,
        opslog.open(url, agent="near") as near,
        watching(far) as (watched,),
    ):
        for number in range(5):
            writer[f"far-{number}"] = {}
            watched.wait_for(f"far-{number}")
            near[f"near-{number}"] = {}
            watched.wait_for(f"near-{number}")
        http("PUT", f"{server.root}/v1/store/tasks/documents/rest", json={})
        watched.wait_for("rest")


def test_watches_share_one_open_request(server: Server) -> None:
    """And they send no requests while nothing happens."""
    far = opslog.open(at(server), read_only=True)
    asked: list[str] = []
    channel = replica_of(far).backend.channel  # type: ignore[attr-defined]
    channel._client.event_hooks["request"].append(lambda request: asked.append(request.method))
    with opslog.open(at(server), agent="writer") as writer, watching(far, 3) as watched:
        writer["a"] = {}
        wait_until(lambda: sum(each.seen == ["a"] for each in watched) == 1)
        assert asked.count("GET") == 1
        wait_until(lambda: "\nopslog_server_followers 1.0\n" in http("GET", f"{server.root}/metrics").text)


def test_a_close_is_announced_before_announcements_end(server: Server) -> None:
    """Otherwise a watch that is about to wait polls instead, and notices only then that the store is closed."""
    far = opslog.open(at(server), read_only=True)
    was_live: list[bool] = []
    with subscribed(replica_of(far).backend, lambda: was_live.append(listening(far))):
        wait_until(lambda: listening(far))
        was_live.clear()
        far.close()
    assert was_live
    assert all(was_live)


def test_a_watch_survives_a_server_that_is_killed(server: Server, url: str, tmp_path: Path) -> None:
    """And it misses nothing that was written meanwhile."""
    far = opslog.open(at(server), read_only=True)
    with watching(far) as (watched,), opslog.open(url, agent="near") as near:
        current = server
        with ExitStack() as stack:
            for number in range(3):
                current.kill()
                near[f"away-{number}"] = {}
                current = restarted(current, url, tmp_path)
                stack.callback(current.kill)
                watched.wait_for(f"away-{number}")
            wait_until(lambda: listening(far))
            near["later"] = {}
            watched.wait_for("later")
            far.close()


def test_a_task_that_watches_learns_of_others_writes(server: Server, url: str) -> None:
    async def run() -> None:
        async with opslog.aio.open(at(server), read_only=True) as far:
            with subscribed(far._replica.backend, lambda: None):
                while not listening(far._store):
                    await asyncio.sleep(0.01)
                async with aclosing(far.watch(NEVER)) as watched, asyncio.timeout(30):  # type: ignore[type-var]
                    for number in range(3):
                        with opslog.open(url, agent="near") as near:
                            near[f"{number}"] = {}
                        assert (await anext(watched)).ids == (f"{number}",)

    asyncio.run(run(), debug=True)


def test_a_watch_asks_where_the_server_says_nothing(server: Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For example a server of 0.2.0, or one that a proxy keeps from announcing."""
    described = RemoteBackend._describe
    for announces in (False, True):
        monkeypatch.setattr(RemoteBackend, "_describe", lambda self, a=announces: replace(described(self), announces=a))
        if announces:
            monkeypatch.setattr(Channel, "listen", refused)
        with opslog.open(at(server), read_only=True) as far, opslog.open(url, agent="near") as near:
            near["a"] = {"announces": announces}
            assert [commit.ids for commit in islice(far.watch(0.001), 1)] == [("a",)]


def refused(channel: Channel) -> Any:
    raise UsageError("no way there")


def test_a_client_without_the_right_to_read_gets_no_events(url: str, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.toml"
    tokens.write_text(
        f'[[token]]\nname = "other"\nsha256 = "{sha256(b"other").hexdigest()}"\nread = ["stores/others"]\n'
    )
    with serving("--store", f"tasks={url}", "--memory", "--tokens", str(tokens)) as server:
        address = f"{server.root}/v1/store/tasks/storage"
        assert http("GET", address).status_code == 401
        assert http("GET", address, headers={"authorization": "Bearer other"}).status_code == 403
