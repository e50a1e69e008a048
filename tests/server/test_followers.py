"""Live reads: what is shared between followers, and those who do not take what they are sent."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from opslog.server.http.requests import Message
from opslog.server.protocol.model import Stream
from opslog.server.protocol.ranges import Range
from tests.server.conftest import Make

TEXT = {"content-type": "text/plain"}
JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("path", ["/v1/stream/a", "/page/events"])
@pytest.mark.parametrize("stuck_at", [1, 2, 3])
def test_a_follower_that_takes_nothing_is_left(make: Make, path: str, stuck_at: int) -> None:
    """Its connection is closed by the server: the application ends without a complete answer."""
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


def test_a_follower_that_takes_its_time_is_not_left(make: Make) -> None:
    """The limit is for one part of an answer, not for all of them together."""
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
def test_new_bytes_are_read_once_for_all_who_follow(
    make: Make, monkeypatch: pytest.MonkeyPatch, kind: dict[str, str]
) -> None:
    """Of each form, that is: as they are, and as server-sent events."""
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
