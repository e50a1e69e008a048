"""Live reads: what followers share, and followers that do not take what the server sends."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from opslog.doors.access import Message
from opslog.server.followers import Followers
from opslog.server.protocol.model import Stream
from opslog.server.protocol.ranges import Range
from tests.server.conftest import Make
from tests.support.asgi import Caller

TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/v1/stream/a", "/page/events"])
@pytest.mark.parametrize("stuck_at", [1, 2, 3])
def test_a_follower_that_reads_nothing_is_disconnected(make: Make, path: str, stuck_at: int) -> None:
    """The server closes its connection: the application ends without a complete answer."""
    client = make(send_seconds=0.05, long_poll_seconds=0.01)
    client.put("a", headers=TEXT)
    sent: list[Message] = []

    async def scenario() -> None:
        async def send(message: Message) -> None:
            if len(sent) == stuck_at:
                await asyncio.Event().wait()
            sent.append(message)

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        scope = {"type": "http", "method": "GET", "path": path, "query_string": b"offset=-1&live=sse", "headers": []}
        await asyncio.wait_for(client.application(scope, receive, send), 30)

    client.run(scenario())
    assert len(sent) == stuck_at
    assert all(message.get("more_body", True) for message in sent)
    assert client.application.streams.followers.count == 0


@pytest.mark.parametrize("query", ["", "&live=long-poll", "&live=sse"])
def test_an_offset_inside_a_message_is_refused(make: Make, query: str) -> None:
    client = make(sse_seconds=0.01)
    client.put("a", headers=JSON, content=b'[{"n":1},{"n":2}]')
    whole = client.get(f"a?offset=-1{query}")
    assert whole.status_code == 200
    end = client.head("a").headers["stream-next-offset"]
    offset = end[:-1] + str(int(end[-1]) - 1)
    assert client.get(f"a?offset={offset}{query}").status_code == 400


EVENTS = {"type": "http", "method": "GET", "path": "/page/events", "query_string": b"", "headers": []}


async def stay() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


def test_a_page_is_sent_what_happens_while_its_answer_begins(make: Make) -> None:
    """The page asks for the current state as soon as it gets the head of the answer."""
    client = make()
    came = asyncio.Event()
    sent = bytearray()

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            assert (await client.client.put("a", headers=TEXT)).status_code == 201
        sent.extend(message.get("body", b""))
        if b"data:" in sent:
            came.set()

    async def scenario() -> None:
        answering = asyncio.ensure_future(client.application(EVENTS, stay, send))
        async with asyncio.timeout(30):
            await came.wait()
        client.application.end_live_reads()
        await answering

    client.run(scenario())
    assert b'"a":{' in sent


def test_a_page_that_is_requested_while_the_server_stops_does_not_delay_it(make: Make) -> None:
    client = make(long_poll_seconds=1e6)
    client.application.end_live_reads()
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    async def scenario() -> None:
        async with asyncio.timeout(30):
            await client.application(EVENTS, stay, send)

    client.run(scenario())
    assert sent[-1] == {"type": "http.response.body", "body": b""}


def test_a_slow_follower_is_not_disconnected(make: Make) -> None:
    """The time limit is for one part of an answer, not for the whole answer."""
    client = make(send_seconds=0.2, long_poll_seconds=0.01, sse_seconds=0.6)
    client.put("a", headers=TEXT)
    sent: list[Message] = []

    async def scenario() -> None:
        async def send(message: Message) -> None:
            await asyncio.sleep(0.02)
            sent.append(message)

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        query = b"offset=-1&live=sse"
        scope = {"type": "http", "method": "GET", "path": "/v1/stream/a", "query_string": query, "headers": []}
        await asyncio.wait_for(client.application(scope, receive, send), 30)

    client.run(scenario())
    assert sent[-1] == {"type": "http.response.body", "body": b""}
    assert len(sent) > 4


@pytest.mark.parametrize("kind", [TEXT, JSON])
def test_new_bytes_are_read_once_for_all_followers(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    """Once for each form: plain, and as server-sent events."""
    client = make(long_poll_seconds=100.0)
    client.put("s", headers=kind)
    streams = client.application.streams
    read, places = streams.read, []

    def counted(stream: Stream, position: int, limit: int) -> Range:
        places.append(position)
        return read(stream, position, limit)

    monkeypatch.setattr(streams, "read", counted)

    async def scenario() -> list[httpx.Response]:
        asked = [
            asyncio.create_task(client.client.get("s", params={"offset": "now", "live": live}))
            for live in ("sse", "long-poll")
            for _ in range(20)
        ]
        while streams.followers.count < len(asked):
            await asyncio.sleep(0)
        await client.client.post("s", headers={**kind, "stream-closed": "true"}, content=b"[1]")
        return await asyncio.gather(*asked)

    answers = client.run(scenario())
    events, polls = answers[:20], answers[20:]
    assert {answer.content for answer in polls} == {b"[1]"}
    assert len({answer.content for answer in events}) == 1
    assert b"[1]" in events[0].content
    assert places == [0, 0]


def test_live_readers_are_known_with_their_positions_as_long_as_they_read(make: Make) -> None:
    client = make(long_poll_seconds=100.0)
    client.put("s", headers={"content-type": "text/plain"})
    client.post("s", headers={"content-type": "text/plain"}, content=b"12345")
    followers = client.application.streams.followers

    async def scenario() -> tuple[list[tuple[str, int]], list[httpx.Response]]:
        asked = [
            asyncio.create_task(client.client.get("s", params={"offset": offset, "live": live}))
            for live, offset in (("sse", "-1"), ("long-poll", "now"))
        ]
        while followers.count < len(asked):
            await asyncio.sleep(0)
        found = sorted((reader.kind, reader.position) for reader in followers.readers("s"))
        await client.client.post("s", headers={"content-type": "text/plain", "stream-closed": "true"}, content=b"6")
        return found, await asyncio.gather(*asked)

    found, answers = client.run(scenario())
    assert found == [("long-poll", 5), ("sse", 5)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert not followers.readers("s"), "nobody is there any more"


def test_the_waits_of_a_follower_share_a_timer_and_each_has_its_time() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        followers, gone = Followers(), loop.create_future()
        with followers.following("a", gone) as follower:
            for _ in range(3):
                waiting = loop.create_task(follower.wait(1000.0))
                await asyncio.sleep(0)
                followers.wake("a")
                assert await waiting
            for seconds in (0.01, 0.03, 0.02):  # shorter than the one before, and longer
                began = loop.time()
                assert not await follower.wait(seconds)
                assert loop.time() - began > seconds / 2
            waiting = loop.create_task(follower.wait(1000.0))
            await asyncio.sleep(0)
            gone.set_result(None)
            assert await waiting
            assert await follower.wait(1000.0), "nobody is there"
        assert followers.count == 0

    asyncio.run(scenario())


def test_an_event_never_ends_between_a_carriage_return_and_its_line_feed(client: Caller) -> None:
    before = b"a" * (256 * 1024 - 1)
    client.put("text", content=before + b"\r\nb\r", headers={"content-type": "text/plain", "stream-closed": "true"})
    body = client.get("text", params={"offset": "-1", "live": "sse"}).content
    events = [event for event in body.split(b"\n\n") if event.startswith(b"event: data\n")]
    assert events == [b"event: data\ndata:" + before, b"event: data\ndata:\ndata:b\ndata:"]
