"""Simultaneous changes of one stream: nothing that was acknowledged is lost, and nothing deleted comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from opslog.server.protocol.appending import Append, Appended
from opslog.server.protocol.creation import Create, ForkOf
from opslog.server.protocol.model import Stream
from opslog.server.protocol.producers import Stamp
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.storage import Storage
from opslog.server.streams import Streams

TYPE = "text/plain"
Scenario = Callable[[Streams], Awaitable[None]]


@pytest.fixture
def run(storage: Storage) -> Callable[[Scenario], None]:
    """Runs a scenario on the streams of a storage."""

    async def with_streams(scenario: Scenario) -> None:
        streams = Streams(storage)
        await streams.start()
        try:
            await scenario(streams)
        finally:
            await streams.stop()

    return lambda scenario: asyncio.run(with_streams(scenario))


def content(streams: Streams, path: str) -> bytes:
    stream, position, found = streams.stream(path), 0, b""
    while position < stream.tail:
        read = streams.read(stream, position, 1000)
        found += b"".join(read.chunks)
        position = read.stop
    return found


async def append_all(streams: Streams, path: str, count: int, *, pause: int = 7) -> list[tuple[bytes, Appended | int]]:
    """Append numbered messages, some at once. Returns for each the answer, or the status of the refusal."""

    async def one(number: int) -> tuple[bytes, Appended | int]:
        data = b"<%04d>" % number
        try:
            return data, await streams.append(Append(path, TYPE, data))
        except Refused as refused:
            return data, refused.status

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(one(number)))
        if number % pause == 0:
            await asyncio.sleep(0)
    return list(await asyncio.gather(*tasks))


def acknowledged(answers: list[tuple[bytes, Appended | int]]) -> bytes:
    return b"".join(data for data, answer in answers if isinstance(answer, Appended))


def test_appends_to_one_stream_keep_their_order(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        await streams.create(Create("a", TYPE))
        answers = await append_all(streams, "a", 300)
        assert content(streams, "a") == acknowledged(answers) == b"".join(b"<%04d>" % number for number in range(300))
        tails = [answer.stream.tail for _, answer in answers if isinstance(answer, Appended)]
        assert tails == list(range(6, 1801, 6)), "each learns where it ended"

    run(scenario)


def test_closing_among_appends(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        for number in range(10):
            path = f"a{number}"
            await streams.create(Create(path, TYPE))
            appending = asyncio.create_task(append_all(streams, path, 60))
            for _ in range(number):
                await asyncio.sleep(0)
            closing = await streams.append(Append(path, None, b"", close=True))
            answers = await appending
            assert content(streams, path) == acknowledged(answers)
            assert closing.stream.tail == streams.stream(path).tail, "what the closing got is the end"
            assert {answer for _, answer in answers if not isinstance(answer, Appended)} <= {409}
            assert streams.stream(path).closed

    run(scenario)


def test_deleting_among_appends(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        for number in range(10):
            await streams.create(Create("a", TYPE))
            appending = asyncio.create_task(append_all(streams, "a", 60))
            for _ in range(number):
                await asyncio.sleep(0)
            await streams.delete("a")
            answers = await appending
            refused = [isinstance(answer, int) for _, answer in answers]
            assert refused == sorted(refused), "after the first that found no stream, no other found one"
            with pytest.raises(Refused):
                streams.stream("a")
            created = await streams.create(Create("a", TYPE))
            assert (created.new, content(streams, "a")) == (True, b"")
            await streams.delete("a")
        await streams.sweep()
        assert streams.usage().bytes == 0

    run(scenario)


def test_forking_among_appends(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        await streams.create(Create("a", TYPE))
        appending = asyncio.create_task(append_all(streams, "a", 200))
        forks = []
        for number in range(20):
            await asyncio.sleep(0)
            forks.append(asyncio.create_task(streams.create(Create(f"f{number}", fork=ForkOf("a")))))
        created = await asyncio.gather(*forks)
        answers = await appending
        everything = acknowledged(answers)
        assert content(streams, "a") == everything
        for fork in created:
            assert content(streams, fork.stream.path) == everything[: fork.stream.tail]
        assert streams.stream("a").forks == 20
        await asyncio.gather(streams.delete("a"), *(streams.delete(f"f{number}") for number in range(20)))
        await streams.sweep()
        assert (streams.usage().streams, streams.usage().bytes) == (0, 0)

    run(scenario)


def test_forking_and_deleting_the_source(run: Callable[[Scenario], None]) -> None:
    """Either the fork has everything of the source, or it was refused. The source is never removed while a fork needs
    it."""

    async def scenario(streams: Streams) -> None:
        for number in range(20):
            await streams.create(Create("a", TYPE, data=b"abc"))
            work = [streams.delete("a"), streams.create(Create("f", fork=ForkOf("a")))]
            results = await asyncio.gather(*work[:: 1 if number % 2 else -1], return_exceptions=True)
            fork = results[number % 2] if number % 2 else results[0]
            if isinstance(fork, Refused):
                assert fork.status == 404
            else:
                assert content(streams, "f") == b"abc"
                await streams.delete("f")
            assert [stream.path for stream in streams.list()] == []

    run(scenario)


def test_creating_one_path_in_many_ways(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        await streams.create(Create("source", TYPE, data=b"abc"))
        wanted = [Create("a", TYPE, data=b"1"), Create("a", "text/html"), Create("a", fork=ForkOf("source"))] * 5
        results = await asyncio.gather(*map(streams.create, wanted), return_exceptions=True)
        new = [result for result in results if not isinstance(result, BaseException) and result.new]
        assert len(new) == 1
        assert sum(1 for shard in streams.storage.shards for found in shard.streams() if found.path == "a") == 1
        same = [result for result in results if not isinstance(result, BaseException) and not result.new]
        assert len(same) == 4
        assert all(
            isinstance(result, Refused) and result.status == 409
            for result in results
            if isinstance(result, BaseException)
        )

    run(scenario)


def test_the_same_append_of_a_producer_many_times_at_once(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        await streams.create(Create("a", TYPE))
        for seq in range(5):
            request = Append("a", TYPE, b"<%d>" % seq, stamp=Stamp("p", 0, seq))
            answers = await asyncio.gather(*(streams.append(request) for _ in range(8)))
            assert sorted(answer.duplicate for answer in answers) == [False] + [True] * 7
        assert content(streams, "a") == b"<0><1><2><3><4>"

    run(scenario)


def test_followers_are_woken_by_all_that_concerns_them(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await streams.create(Create("a", TYPE))
        for change in (
            lambda: streams.append(Append("a", TYPE, b"x")),
            lambda: streams.append(Append("a", None, b"", close=True)),
            lambda: streams.delete("a"),
        ):
            waiting = [asyncio.create_task(streams.followers.wait("a", 100, gone)) for _ in range(3)]
            await asyncio.sleep(0)
            assert streams.followers.count == 3
            await change()
            await asyncio.gather(*waiting)
        assert streams.followers.count == 0

    run(scenario)


def test_an_append_is_answered_before_its_followers_are_served(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await streams.create(Create("a", TYPE))
        order: list[str] = []

        async def follow() -> None:
            await streams.followers.wait("a", 100, gone)
            order.append("follower")

        following = [asyncio.create_task(follow()) for _ in range(200)]
        while streams.followers.count < len(following):
            await asyncio.sleep(0)
        await streams.append(Append("a", TYPE, b"x"))
        order.append("answer")
        await asyncio.sleep(0)
        order.append("other work")
        await asyncio.gather(*following)
        assert order[0] == "answer"
        assert order.index("other work") < 100, "followers are served in turns"
        assert len(order) == 202

    run(scenario)


def test_followers_do_not_read_what_was_committed(run: Callable[[Scenario], None]) -> None:
    """They get what the commit appended, without reading it."""

    async def scenario(streams: Streams) -> None:
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await streams.create(Create("a", TYPE))
        stream = streams.stream("a")
        shard = streams.storage.shards[streams.shard_number("a")]
        reads: list[str] = []
        original = shard.stream

        def counted(path: str, *, is_checked: bool = False) -> Stream | None:
            reads.append(path)
            return original(path, is_checked=is_checked)

        async def follow() -> int:
            await streams.followers.wait("a", 100, gone)
            return streams.again(stream).tail

        following = [asyncio.create_task(follow()) for _ in range(100)]
        while streams.followers.count < len(following):
            await asyncio.sleep(0)
        shard.stream = counted  # type: ignore[method-assign]
        await streams.append(Append("a", TYPE, b"x"))
        assert set(await asyncio.gather(*following)) == {1}
        assert len(reads) <= 3
        assert streams.followers.newest("a") is None, "nothing is kept of streams that nobody follows"

    run(scenario)


def test_followers_see_that_another_stream_took_the_path(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await streams.create(Create("a", TYPE))
        stream = streams.stream("a")

        async def follow() -> Stream:
            await streams.followers.wait("a", 100, gone)
            return streams.again(stream)

        following = [asyncio.create_task(follow()) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.gather(
            streams.append(Append("a", TYPE, b"x")),
            streams.delete("a"),
            streams.create(Create("a", content_type=TYPE, data=b"other")),
            return_exceptions=True,
        )
        for answer in await asyncio.gather(*following, return_exceptions=True):
            if isinstance(answer, Stream):
                assert (answer.id, answer.tail) == (stream.id, 1), "as it was before it was deleted"
            else:
                assert isinstance(answer, Refused)
        await asyncio.sleep(0)
        with_another = streams.stream("a")
        assert with_another.id != stream.id

    run(scenario)


def test_a_source_does_not_wake_the_followers_of_its_fork(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        gone: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        await streams.create(Create("a", TYPE))
        await streams.create(Create("f", fork=ForkOf("a")))
        waiting = asyncio.create_task(streams.followers.wait("f", 100, gone))
        await asyncio.sleep(0)
        await streams.append(Append("a", TYPE, b"x"))
        await asyncio.sleep(0)
        assert not waiting.done()
        gone.set_result(None)
        await waiting

    run(scenario)


def test_a_task_that_fails_affects_no_other(run: Callable[[Scenario], None]) -> None:
    async def scenario(streams: Streams) -> None:
        await streams.create(Create("a", TYPE))

        def broken(transaction: object) -> None:
            raise ZeroDivisionError

        results = await asyncio.gather(
            streams.append(Append("a", TYPE, b"x")), streams.transact(broken), return_exceptions=True
        )
        assert any(isinstance(result, ZeroDivisionError) for result in results)
        assert content(streams, "a") in {b"", b"x"}
        await streams.append(Append("a", TYPE, b"y"))
        assert content(streams, "a").endswith(b"y")

    run(scenario)
