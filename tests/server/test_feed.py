"""The feed of a store has every change once, whatever happens to the server and the store in between."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

import opslog
from opslog.environment import Environment
from opslog.errors import ClosedError, UsageError, WriteFailedError
from opslog.replica.feed import Changes
from opslog.replica.feed import Feed as StoreFeed
from opslog.server import Options
from opslog.server.http.asgi import App
from opslog.server.protocol import json_mode
from opslog.server.protocol.creation import Create, ForkOf
from opslog.server.protocol.model import JSON
from opslog.server.protocol.storage import Storage
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.storage.memory import MemoryStorage
from opslog.server.stores import feed
from opslog.server.stores.feed import Feed
from opslog.server.stores.messages import COMMIT
from opslog.server.stores.served import ServedStores
from opslog.server.streams import Streams
from opslog.store import Store, replica_of
from tests.server.conftest import Clock
from tests.support.asgi import Caller
from tests.support.waiting import until

Documents = dict[str, Any]
PATH = "stores/tasks"
MAP_BYTES = 2**28


class Server:
    """Streams with a feed that the test moves forward by hand."""

    def __init__(self, storage: Storage, store: Store[Any], snapshot_bytes: int = 3000) -> None:
        self.storage = storage
        self._runner = asyncio.Runner()
        self.failing = False
        replica = replica_of(store)
        taken = StoreFeed(replica.loader, replica.schema.decode)

        def changes(since: str | None, limit: int) -> Changes[Any]:
            if self.failing:
                raise WriteFailedError("the storage of the store is away")
            return replica.changes(since, limit, taken)

        async def make() -> tuple[Streams, Feed]:
            streams = Streams(storage)
            await streams.start()
            feed = Feed(
                "tasks",
                streams,
                changes=changes,
                in_thread=asyncio.to_thread,
                poll_seconds=0.01,
                snapshot_bytes=snapshot_bytes,
            )
            return streams, feed

        self.streams, self.feed = self.run(make())

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._runner.run(coroutine)

    def step(self) -> bool:
        return bool(self.run(self.feed.step()))

    def catch_up(self) -> None:
        while self.step():
            pass

    def read(self, position: int | None = None) -> tuple[list[Any], int]:
        """The messages from a position on, and the position after them."""
        stream = self.streams.stream(PATH)
        position = stream.earliest if position is None else position
        messages: list[Any] = []
        while position < stream.tail:
            found = self.streams.read(stream, position, 1000)
            messages += orjson.loads(json_mode.array(found.chunks))
            position = found.stop
        return messages, position

    def close(self) -> None:
        """End like a crash: only what was committed remains."""
        self.run(self.streams.stop())
        self._runner.close()


class Reader:
    """Applies messages, and checks each one against the documents before it."""

    def __init__(self) -> None:
        self.documents: Documents = {}
        self.position: int | None = None
        self.txids: list[str] = []
        self._in_snapshot = False

    def take(self, server: Server) -> None:
        messages, self.position = server.read(self.position)
        for message in messages:
            self._apply(message)

    def _apply(self, message: Any) -> None:
        headers = message["headers"]
        if "control" in headers:
            self._in_snapshot = headers["control"] == "snapshot-start"
            assert headers["control"] in {"snapshot-start", "snapshot-end"}
            return
        assert message.keys() == {"type", "key", "value", "headers"}
        assert headers.keys() <= {"operation", "txid", "timestamp"}
        if "txid" in headers:
            self.txids.append(headers["txid"])
        if message["type"] == COMMIT:
            assert (headers["operation"], message["value"]) == ("delete", None)
            return
        assert message["type"] == "tasks"
        id, value = message["key"], message["value"]
        if self._in_snapshot:
            assert self.documents.setdefault(id, value) == value, "a snapshot says what was there before it"
            return
        assert (id in self.documents) == (headers["operation"] != "insert"), message
        if headers["operation"] == "delete":
            del self.documents[id]
        else:
            if headers["operation"] == "update":
                assert self.documents[id].keys() <= value.keys(), "who merges would keep a field that is gone"
            self.documents[id] = value


def act(store: Store[Any], chance: random.Random) -> None:
    id = f"d{chance.randrange(8)}"
    match chance.randrange(10):
        case 0 | 1:
            with suppress(opslog.ConflictError):
                store.undo()
        case 2:
            with suppress(opslog.NotFoundError):
                del store[id]
        case 3:
            with store.batch():
                store["d0"] = {"batch": chance.randrange(100)}
                store["d1"] = {"batch": chance.randrange(100)}
        case 4:
            store.refresh()
        case 5:
            store.modify(id, lambda document: {"count": (document or {}).get("count", 0) + 1})
        case 6 if chance.random() < 0.3:
            store.compact()
        case _:
            store[id] = {field: chance.randrange(10) for field in chance.sample("abcd", 2)}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return str(tmp_path / "tasks")


@pytest.fixture
def store(url: str) -> Iterator[Store[Any]]:
    with opslog.open(url, agent="a") as opened:
        yield opened


Start = Callable[..., Server]


@pytest.fixture
def start(tmp_path: Path, store: Store[Any]) -> Iterator[Start]:
    """Starts a server, and ends the one before it."""
    running: list[Server] = []

    def end() -> None:
        while running:
            server = running.pop()
            server.close()
            server.storage.close()

    def begin(of: Store[Any] = store, **options: Any) -> Server:
        end()
        running.append(Server(DirectoryStorage(tmp_path / "streams", map_bytes=MAP_BYTES), of, **options))
        return running[0]

    yield begin
    end()


@pytest.mark.parametrize("seed", range(4))
def test_readers_have_the_documents_of_the_store_whatever_happens(
    start: Start, store: Store[Any], url: str, seed: int
) -> None:
    chance = random.Random(seed)
    server, always = start(), Reader()
    server.catch_up()  # commits in the first snapshot are not named
    with opslog.open(url, agent="b") as second, opslog.open(url, agent="c") as third:
        for _ in range(12):
            for _ in range(chance.randrange(1, 60)):
                act(chance.choice([store, second, third]), chance)
                if chance.random() < 0.1:
                    server.step()
                    always.take(server)
            if chance.random() < 0.5:
                server = start()
            server.catch_up()
            always.take(server)
            late = Reader()
            late.take(server)
            store.refresh()
            assert always.documents == late.documents == dict(store)
        assert server.streams.stream(PATH).earliest > 0, "there was more than one snapshot"
        made = {f"{commit.agent}:{commit.clock}" for commit in store.ops()}
        assert made <= {*always.txids}, "every commit is named"


def test_a_commit_that_loses_is_named_and_changes_nothing(start: Start, store: Store[Any], url: str) -> None:
    server, reader = start(), Reader()
    with opslog.open(url, agent="b") as late:
        for number in range(5):
            store["x"] = {"n": number}
        server.catch_up()
        reader.take(server)
        late["x"] = {"n": "late"}  # under clock 1: its agent had not read the others
        server.catch_up()
        messages, _ = server.read(reader.position)
    assert [(each["type"], each["headers"]["txid"]) for each in messages] == [(COMMIT, "b:1")]


def test_an_undo_sends_the_document_as_it_is_again(start: Start, store: Store[Any]) -> None:
    server, reader = start(), Reader()
    store["x"] = {"n": 1}
    store["x"] = {"n": 2}
    server.catch_up()
    reader.take(server)
    store.undo()
    server.catch_up()
    (message,), _ = server.read(reader.position)
    assert (message["value"], message["headers"]["operation"], message["headers"]["txid"]) == (
        {"n": 1},
        "update",
        "a:3",
    )


def test_commits_collected_before_they_were_read_are_made_up_for(start: Start, tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(tmp_path / "short", agent="a", settings=settings, compact_after=None) as store:
        server, reader = start(store), Reader()
        for id in ("stays", "changes", "goes"):
            store[id] = {"n": 1}
        server.catch_up()
        reader.take(server)
        del store["goes"]
        store["changes"] = {"m": 2}
        store["comes"] = {"n": 3}
        for _ in range(3):
            store.compact()
            store["stays"] = {"n": 1}
        server.catch_up()
        reader.take(server)
        assert reader.documents == dict(store) == {"stays": {"n": 1}, "changes": {"m": 2}, "comes": {"n": 3}}


def test_another_store_under_the_same_name_takes_the_place_of_the_first(
    start: Start, store: Store[Any], tmp_path: Path
) -> None:
    server, reader = start(), Reader()
    store["both"], store["first"] = {"n": 1}, {"n": 1}
    server.catch_up()
    reader.take(server)
    with opslog.open(tmp_path / "other", agent="a") as other:
        other["both"], other["second"] = {"n": 2}, {"n": 2}
        server = start(other)
        server.catch_up()
        reader.take(server)
        assert reader.documents == dict(other)


def test_a_step_that_fails_is_done_later(start: Start, store: Store[Any]) -> None:
    server, reader = start(), Reader()
    store["x"] = {"n": 1}
    server.failing = True
    with pytest.raises(WriteFailedError):
        server.step()
    server.failing = False
    server.catch_up()
    reader.take(server)
    assert reader.documents == {"x": {"n": 1}}


def test_while_there_are_forks_nothing_is_trimmed(start: Start, store: Store[Any]) -> None:
    server, reader = start(), Reader()
    store["x"] = {"n": 0}
    server.catch_up()
    first = server.streams.stream(PATH).earliest
    server.run(server.streams.create(Create("fork", content_type=JSON, fork=ForkOf(PATH))))
    for number in range(200):
        store["x"] = {"n": number}
        server.catch_up()
    assert server.streams.stream(PATH).earliest == first
    reader.take(server)
    assert reader.documents == dict(store)
    server.run(server.streams.delete("fork"))
    for number in range(200):
        store["x"] = {"n": number}
        server.catch_up()
    assert server.streams.stream(PATH).earliest > first


def test_many_documents_come_in_several_answers(start: Start, store: Store[Any]) -> None:
    store.update({f"d{number}": {"text": "x" * 1000} for number in range(1500)})
    server, reader = start(), Reader()
    server.catch_up()
    stream = server.streams.stream(PATH)
    first = server.streams.read(stream, stream.earliest, 1000)
    assert 200_000 < first.stop - stream.earliest < 400_000 < stream.tail - stream.earliest
    reader.take(server)
    assert reader.documents == dict(store)


def test_a_stream_of_somebody_else_is_left_alone(start: Start, store: Store[Any]) -> None:
    server = start()
    server.run(server.streams.create(Create(PATH, content_type=JSON)))
    with pytest.raises(UsageError, match="not the feed of a store"):
        server.feed.start()


# -- over HTTP


@pytest.fixture
def client(url: str) -> Iterator[Caller]:
    options = Options(feed_seconds=0.01, long_poll_seconds=5)
    opened = Caller(App(MemoryStorage(), options, stores=ServedStores({"tasks": url}, "main")))
    yield opened
    opened.close()


def test_a_writer_finds_its_write_in_the_feed(client: Caller) -> None:
    for number in range(20):
        written = client.put("http://test/v1/store/tasks/documents/a", content=b'{"n": %d}' % number).json()
        last = client.get(PATH).json()[-1]
        clock, _, agent = written["stamp"].partition("@")
        assert (last["value"], last["headers"]["txid"]) == ({"n": number}, f"{agent}:{clock}")


def test_an_offset_of_a_feed_that_was_in_memory_is_refused_after_a_restart(
    url: str, store: Store[Any], clock: Clock
) -> None:
    """Its reader may have missed anything."""

    def serve() -> Caller:
        environment = Environment(time=clock, monotonic=clock)
        stores = ServedStores({"tasks": url}, "main")
        return Caller(App(MemoryStorage(), Options(feed_seconds=0.01), environment=environment, stores=stores))

    store["a"] = {"n": 1}
    client = serve()
    offset = client.get(PATH).headers["stream-next-offset"]
    client.close()
    store["a"] = {"n": 2}
    clock.now += 1
    client = serve()
    assert client.get(f"{PATH}?offset={offset}").status_code == 410
    answer = client.get(f"{PATH}?offset=-1")
    assert [message["value"] for message in answer.json() if "value" in message] == [{"n": 2}]
    assert answer.headers["stream-next-offset"] > offset
    (shown,) = client.get("http://test/page/streams").json()["streams"]
    assert shown["bytes"] < 1000, "positions do not count"
    client.close()


def test_writes_are_collected_until_somebody_reads(client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """At most two steps: one may have begun before the first of these writes."""
    monkeypatch.setattr(feed, "_COLLECT_SECONDS", 3600)
    steps, step = [], Feed.step

    async def counted(self: Feed) -> bool:
        steps.append(self)
        return await step(self)

    monkeypatch.setattr(Feed, "step", counted)
    for number in range(5):
        client.put(f"http://test/v1/store/tasks/documents/before-{number}", content=b"{}")
        client.get(PATH)
    before = len(steps)
    for number in range(20):
        client.put(f"http://test/v1/store/tasks/documents/{number}", content=b"{}")
    assert len(client.get(PATH).json()) > 20
    assert 1 <= len(steps) - before <= 2


def test_a_waiting_client_is_notified_of_writes_of_other_processes(client: Caller, url: str) -> None:
    offset = client.get(PATH).headers["stream-next-offset"]
    with opslog.open(url, agent="beside") as beside:
        beside["x"] = {"n": 1}
    (message,) = client.get(f"{PATH}?offset={offset}&live=long-poll").json()
    assert (message["key"], message["headers"]["txid"]) == ("x", "beside:1")


@pytest.mark.parametrize("error", [WriteFailedError("disk full"), MemoryError(), RuntimeError("no more threads")])
def test_a_feed_goes_on_after_a_step_that_failed(
    client: Caller, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failures, step = [error, error], Feed.step

    async def failing(self: Feed) -> bool:
        if failures:
            raise failures.pop()
        return await step(self)

    monkeypatch.setattr(feed, "_RETRY_SECONDS", 0.001)
    monkeypatch.setattr(Feed, "step", failing)
    until(lambda: client.get("http://test/healthz").is_success and not failures)  # the loop runs during requests
    client.put("http://test/v1/store/tasks/documents/a", content=b"{}")
    assert client.get(PATH).json()[-1]["key"] == "a"
    assert client.get("http://test/readyz").status_code == 200


def test_a_feed_that_has_ended_makes_the_server_not_ready(client: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    async def closed(self: Feed) -> bool:
        raise ClosedError("the store is closed")

    monkeypatch.setattr(Feed, "step", closed)
    until(lambda: client.get("http://test/readyz").status_code == 503)
    assert client.get("http://test/readyz").text == "the feed stores/tasks has ended\n"


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_only_the_server_writes_a_feed(client: Caller, method: str) -> None:
    answer = client.request(method, PATH, content=b"[1]", headers={"content-type": JSON})
    assert answer.status_code == 405
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"
    assert client.request(method, "stores/other", content=b"[1]", headers={"content-type": JSON}).status_code in {
        201,
        404,
    }


def test_a_feed_whose_store_is_not_served_any_more_can_only_be_deleted(tmp_path: Path, url: str) -> None:
    def serve(stores: dict[str, str]) -> Caller:
        storage = DirectoryStorage(tmp_path / "streams", map_bytes=MAP_BYTES)
        return Caller(App(storage, Options(feed_seconds=0.01), stores=ServedStores(stores, "main")))

    client = serve({"tasks": url})
    client.get(PATH)
    client.close()
    client = serve({})
    assert client.get(PATH).status_code == 200
    for method in ("PUT", "POST"):
        assert client.request(method, PATH, content=b"[1]", headers={"content-type": JSON}).status_code == 405
    assert client.delete(PATH).status_code == 204
    # A stream that is made there now is no feed.
    for method, status in (("PUT", 201), ("POST", 204), ("DELETE", 204)):
        answer = client.request(method, PATH, content=b"[1]", headers={"content-type": JSON})
        assert (method, answer.status_code) == (method, status)
    client.close()
    client = serve({"tasks": url})
    assert client.get(PATH).status_code == 200
    client.close()
