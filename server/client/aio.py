"""The client for asyncio. Everything that it decides is decided by the core; this sends, waits, and counts tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from inspect import isawaitable
from types import TracebackType
from typing import Literal, Self, TypeVar

import httpx

from opslog.errors import UsageError
from opslog.server.client import arguments
from opslog.server.client.calls import Calls
from opslog.server.client.computed import Asking, AsyncValues, Extras
from opslog.server.client.following import Following, Live
from opslog.server.client.messages import START, Appended, Batch, Content, Metadata, Reply, Request, stream_url
from opslog.server.client.producing import Options, Producing, Sending
from opslog.server.client.retrying import Lost, Pause, Retrying, Steps
from opslog.server.client.subscribing import Subscribing
from opslog.server.client.subscriptions import AsyncClaim, AsyncSubscription
from opslog.server.client.transport import FAILURES, head_of, lost, patience, settings
from opslog.server.client.webhooks import Webhooks

T = TypeVar("T")


class AsyncClient:
    """`opslog.server.client.Client` for asyncio: the same calls, to be awaited.

    async with AsyncClient("http://127.0.0.1:4437/v1/stream") as client:
        stream = client.stream("events/build")
        async for batch in stream.follow():
            print(batch.messages, batch.next_offset)
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        headers: AsyncValues | None = None,
        params: AsyncValues | None = None,
        retrying: Retrying | None = None,
        http: httpx.AsyncClient | None = None,
    ) -> None:
        self._url = arguments.address(url)
        self._policy = retrying or Retrying()
        self._extras = Extras(token, headers, params)
        self._webhooks = Webhooks(self._url, self._policy)
        self._own = http is None
        self._http = http or httpx.AsyncClient(**settings())

    def stream(self, path: str) -> AsyncStream:
        """A handle on a stream, whether it exists or not; asks nothing.

        :raises UsageError: that is no path.
        """
        return AsyncStream(self, Calls(stream_url(self._url, path), self._policy))

    def subscription(self, id: str) -> AsyncSubscription:
        """See `opslog.server.client.Client.subscription`."""
        return AsyncSubscription(self._run, Subscribing(self._url, id, self._policy))

    async def verify_webhook(self, body: bytes, signature: str) -> AsyncClaim:
        """See `opslog.server.client.Client.verify_webhook`."""
        wake = await self._run(self._webhooks.verified(body, signature))
        return AsyncClaim(self._run, Subscribing(self._url, wake.subscription_id, self._policy), wake)

    async def close(self) -> None:
        if self._own:
            await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _run(self, steps: Steps[T]) -> T:
        try:
            step = next(steps)
            while True:
                if isinstance(step, Pause):
                    await asyncio.sleep(step.seconds)
                    step = next(steps)
                    continue
                try:
                    reply = await self._send(step)
                except Lost as failure:
                    step = steps.throw(failure)
                else:
                    step = steps.send(reply)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there

    def _check_open(self) -> None:
        if self._http.is_closed:
            raise UsageError("this client is closed: make another one")

    async def _send(self, request: Request) -> Reply:
        self._check_open()
        url, headers = await _asked(self._extras.prepared(request))
        try:
            answer = await self._http.request(request.method, url, headers=headers, content=request.content)
        except FAILURES as error:
            raise lost(error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    async def _read(self, following: Following) -> AsyncIterator[Batch]:
        while (request := following.request()) is not None:
            self._check_open()
            url, headers = await _asked(self._extras.prepared(request))
            timeout = patience(self._http, live=following.is_live)
            try:
                async with self._http.stream(request.method, url, headers=headers, timeout=timeout) as answer:
                    following.opened(*head_of(answer))
                    async for piece in answer.aiter_bytes():
                        for batch in following.received(piece):
                            yield batch
                        if following.ended:
                            return
                for batch in following.finished():
                    yield batch
            except FAILURES as error:
                following.lost(lost(error))
            if following.pause:
                await asyncio.sleep(following.pause)


async def _asked(asking: Asking[T]) -> T:
    """What comes of the functions of the caller; those that are coroutine functions are awaited."""
    try:
        found = next(asking)
        while True:
            found = asking.send(await found if isawaitable(found) else found)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there


class AsyncStream:
    """One stream of an `AsyncClient`. The calls, and what they raise, are those of `opslog.server.client.Stream`."""

    def __init__(self, client: AsyncClient, calls: Calls) -> None:
        self._client = client
        self._calls = calls

    @property
    def url(self) -> str:
        return self._calls.url

    async def create(
        self,
        content_type: str = "application/octet-stream",
        content: Content | None = None,
        *,
        ttl: int | None = None,
        expires_at: str | None = None,
        closed: bool = False,
    ) -> Metadata:
        return await self._client._run(self._calls.create(content_type, content, ttl, expires_at, closed=closed))

    async def append(
        self, *contents: Content, seq: str | None = None, close: bool = False, at_least_once: bool = False
    ) -> Appended:
        return await self._client._run(
            self._calls.append(list(contents), seq, close=close, at_least_once=at_least_once)
        )

    async def close(self) -> Appended:
        return await self._client._run(self._calls.close())

    async def delete(self) -> None:
        await self._client._run(self._calls.delete())

    async def head(self) -> Metadata:
        return await self._client._run(self._calls.head())

    async def fork(
        self,
        path: str,
        *,
        at: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> AsyncStream:
        made = self._client.stream(path)
        await self._client._run(made._calls.fork(self.url, at, sub_offset, ttl, expires_at))
        return made

    def read(self, offset: str = START) -> AsyncIterator[Batch]:
        return self._client._read(Following(self.url, offset, None, self._calls.policy))

    def follow(self, offset: str = START, live: Live | Literal["auto"] = "auto") -> AsyncIterator[Batch]:
        arguments.choice("live", live, ("auto", "sse", "long-poll"))
        return self._client._read(Following(self.url, offset, live, self._calls.policy))

    def producer(
        self,
        id: str,
        *,
        epoch: int = 0,
        claim: bool = False,
        max_in_flight: int = Options.max_in_flight,
        max_batch_bytes: int = Options.max_batch_bytes,
        max_buffered_bytes: int = Options.max_buffered_bytes,
    ) -> AsyncProducer:
        """For use in an ``async with`` block; see `opslog.server.client.Stream.producer`."""
        options = Options(id, epoch, claim, max_in_flight, max_batch_bytes, max_buffered_bytes)
        return AsyncProducer(self._client, self._calls, options)


class AsyncProducer:
    """Appends in tasks of its own, in batches, exactly once. An error ends it: it is raised by the next call, and by
    leaving the block."""

    def __init__(self, client: AsyncClient, calls: Calls, options: Options) -> None:
        self._client = client
        self._calls = calls
        self._options = options
        self._changed = asyncio.Condition()
        self._closed = False
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        content_type = await self._client._run(self._calls.typed())
        self._core = Producing(self._calls.url, content_type, self._options, self._calls.policy)
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._options.max_in_flight)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            self._closed = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def epoch(self) -> int:
        return self._core.epoch if self._tasks else self._options.epoch

    def _check_open(self) -> None:
        if not self._tasks:
            raise UsageError("enter a producer before you use it: async with stream.producer(...) as producer")
        if self._closed and self._core.failed is None:
            raise UsageError("this producer is closed: make another one, with a greater epoch or claim=True")

    async def append(self, *contents: Content) -> None:
        async with self._changed:
            self._check_open()
            for body in self._core.encoded(contents):
                await self._changed.wait_for(lambda: not self._core.full or self._core.failed is not None)
                self._core.add(body)
                self._changed.notify_all()

    async def flush(self) -> str | None:
        async with self._changed:
            if not self._tasks or not self._core.idle:
                self._check_open()
            added = self._core.added
            await self._changed.wait_for(lambda: self._core.reached(added) or self._core.failed is not None)
            if self._core.failed is not None:
                raise self._core.failed
            return self._core.next_offset

    async def end(self) -> str | None:
        async with self._changed:
            self._check_open()
            self._core.end()
            self._changed.notify_all()
        return await self.flush()

    async def _work(self) -> None:
        while True:
            async with self._changed:
                while (sending := self._core.take()) is None:
                    if self._core.failed is not None:
                        return
                    await self._changed.wait()
            try:
                await self._deliver(sending)
            except Exception as error:  # noqa: BLE001  (raised where somebody appends or flushes)
                self._core.fail(error)
            async with self._changed:
                self._changed.notify_all()

    async def _deliver(self, sending: Sending) -> None:
        while not sending.settled and self._core.failed is None:
            if sending.waits:
                async with self._changed:
                    await self._changed.wait_for(lambda: self._core.ready(sending))
            if sending.pause:
                await asyncio.sleep(sending.pause)
            try:
                reply = await self._client._send(self._core.request(sending))
            except Lost as failure:
                self._core.lost(sending, str(failure), sent=failure.sent)
            else:
                self._core.replied(sending, reply)
