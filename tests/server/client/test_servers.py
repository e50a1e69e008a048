"""The client against real servers: ours, and the reference server of the protocol, from npm."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from opslog.server.client import (
    NOW,
    Batch,
    StreamClosedError,
    StreamConflictError,
    StreamGoneError,
    StreamNotFoundError,
)
from tests.server.client.driving import KINDS, Driver
from tests.support.node_streams import reference_server
from tests.support.servers import serving


@pytest.fixture(scope="module", params=["opslog", "reference"])
def address(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "opslog":
        with serving("--memory", "--long-poll-seconds", "0.3") as server:
            yield server.url
        return
    with reference_server(longPollTimeout=300) as url:
        yield f"{url}/v1/stream"


@pytest.fixture(params=KINDS)
def driver(request: pytest.FixtureRequest, address: str) -> Driver:
    """Each test has a folder of its own on the server."""
    return Driver(request.param, None, url=f"{address}/{request.node.name.replace('[', '-').rstrip(']')}")


def test_the_life_of_a_json_stream(driver: Driver) -> None:
    created = driver.call("ä b", "create", "application/json", {"first": True}, ttl=3600)
    assert not created.closed
    assert driver.call("ä b", "create", "application/json", ttl=3600) == created
    assert driver.call("ä b", "head").ttl == 3600
    driver.call("ä b", "append", {"n": 1}, [2, 3], seq="a")
    with pytest.raises(StreamConflictError, match="POST"):
        driver.call("ä b", "append", "late", seq="a")
    (batch,) = driver.read("ä b")
    assert batch.messages == [{"first": True}, {"n": 1}, [2, 3]]
    assert batch.up_to_date
    end = driver.call("ä b", "append", "last", close=True)
    assert end.closed
    assert driver.call("ä b", "close") == end
    with pytest.raises(StreamClosedError) as raised:
        driver.call("ä b", "append", "more")
    assert raised.value.next_offset == end.next_offset
    assert [one.messages for one in driver.read("ä b", offset=batch.next_offset)] == [["last"]]
    driver.call("ä b", "delete")
    with pytest.raises(StreamNotFoundError):
        driver.call("ä b", "head")


def test_forks(driver: Driver) -> None:
    created = driver.call("source", "create", "application/json", 1)
    driver.call("source", "append", 2, 3)
    driver.call("source", "fork", "copy")
    url = driver.call("source", "fork", "branch", at=created.next_offset, sub_offset=1)
    assert url.endswith("/branch")
    driver.call("branch", "append", "own")
    assert [batch.messages for batch in driver.read("branch")] == [[1, 2, "own"]]
    assert [batch.messages for batch in driver.read("copy")] == [[1, 2, 3]]
    driver.call("source", "delete")
    with pytest.raises(StreamGoneError):
        driver.call("source", "head")
    with pytest.raises(StreamNotFoundError, match="its source does not exist"):
        driver.call("nothing", "fork", "b")


CONTENTS: dict[str, list[Any]] = {
    "application/json": ["one", {"two": 2}, "three"],
    "application/octet-stream": [b"\x00one", b"\xfftwo\r\n", b"three"],
    "text/plain": [b"one\n", b"two\r\n", b"three"],
}


@pytest.mark.parametrize("live", ["sse", "long-poll", "auto"])
@pytest.mark.parametrize("content_type", CONTENTS)
def test_following_ends_where_the_stream_does(driver: Driver, live: str, content_type: str) -> None:
    contents = CONTENTS[content_type]
    driver.call("s", "create", content_type)
    driver.call("s", "append", contents[0])
    more = iter(contents[1:])

    def go_on(batch: Batch) -> bool:
        if (content := next(more, None)) is not None:
            driver.call("s", "append", content, close=content == contents[-1])
        return False

    batches = driver.read("s", "follow", live=live, until=go_on)
    assert [batch.closed for batch in batches][-1]
    if content_type == "application/json":
        assert [message for batch in batches for message in batch.messages] == contents
        return
    found, wanted = b"".join(batch.data for batch in batches), b"".join(contents)
    if content_type == "text/plain" and live == "sse":
        wanted = wanted.replace(b"\r\n", b"\n")  # events have no other line ends
    assert found == wanted


def test_following_from_now_skips_what_is_there(driver: Driver) -> None:
    driver.call("s", "create", "application/json", "old")

    def go_on(batch: Batch) -> bool:
        if not batch.data:
            driver.call("s", "append", "new", close=True)
        return False

    batches = driver.read("s", "follow", offset=NOW, until=go_on)
    assert [batch.messages for batch in batches if batch.data] == [["new"]]


def test_a_producer(driver: Driver) -> None:
    driver.call("s", "create", "application/json")
    epoch, _ = driver.produce("s", "p", list(range(1000)))
    assert epoch == 0
    epoch, end = driver.produce("s", "p", list(range(1000, 2000)), claim=True, end=True)
    assert epoch == 1
    batches = driver.read("s", "follow")
    assert [message for batch in batches for message in batch.messages] == list(range(2000))
    assert batches[-1].next_offset == end
