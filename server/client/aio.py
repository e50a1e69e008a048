"""The client for asyncio. The core makes all decisions; this module sends requests, waits, and runs tasks."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator
from contextlib import suppress
from inspect import isawaitable
from types import TracebackType
from typing import Any, Concatenate, Generic, Literal, ParamSpec, Self, TypeVar

import httpx

from opslog.errors import UsageError
from opslog.server.client.calls import Calls
from opslog.server.client.computed import AsyncValues, Computed
from opslog.server.client.endpoint import Endpoint
from opslog.server.client.following import Following, Live
from opslog.server.client.messages import START, Batch, Reply, Request
from opslog.server.client.producing import Options, Producing, Until
from opslog.server.client.retrying import Pause, Retrying, described
from opslog.server.client.subscribing import Held, Holding, Subscribing
from opslog.server.client.transport import FAILURES, lost, patience, settings

Step = TypeVar("Step")
Core = TypeVar("Core")
T = TypeVar("T")
P = ParamSpec("P")


async def drive(steps: Generator[Step, Any, T], perform: Callable[[Step], Awaitable[Any]]) -> T:
    """Perform each step, and send or throw the result into it."""
    try:
        step = next(steps)
        while True:
            try:
                result = await perform(step)
            except Exception as error:  # noqa: BLE001  (the steps let through what they do not know)
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]  # a generator's return value has no type there


class Connection:
    """Performs the steps of the calls on one server."""

    def __init__(self, endpoint: Endpoint, http: httpx.AsyncClient | None) -> None:
        self._endpoint = endpoint
        self._own = http is None
        self._http = http or httpx.AsyncClient(**settings())

    async def perform(self, step: Request | Pause | Computed) -> Any:
        if isinstance(step, Request):
            return await self.send(step)
        if isinstance(step, Pause):
            return await asyncio.sleep(step.seconds)
        return await step.returned if isawaitable(step.returned) else step.returned

    async def send(self, request: Request) -> Reply:
        url, headers = await self._prepared(request)
        try:
            answer = await self._http.request(request.method, url, headers=headers, content=request.content)
        except FAILURES as error:
            raise lost(error) from error
        return Reply(answer.status_code, answer.headers, answer.content)

    async def read(self, following: Following) -> AsyncIterator[Batch]:
        while (request := following.request()) is not None:
            url, headers = await self._prepared(request)
            timeout = patience(self._http, live=following.is_live)
            try:
                async with self._http.stream(request.method, url, headers=headers, timeout=timeout) as answer:
                    following.opened(answer.status_code, answer.headers)
                    async for chunk in answer.aiter_bytes():
                        for batch in following.received(chunk):
                            yield batch
                        if following.ended:
                            return
                for batch in following.finished():
                    yield batch
            except FAILURES as error:
                following.lost(lost(error))
            if following.pause:
                await asyncio.sleep(following.pause)

    async def close(self) -> None:
        if self._own:
            await self._http.aclose()

    async def _prepared(self, request: Request) -> tuple[str, dict[str, str]]:
        if self._http.is_closed:
            raise UsageError("this client is closed: make another one")
        return await drive(self._endpoint.extras.prepared(request), self.perform)


class Handle(Generic[Core]):
    """The base of the public classes: performs the calls of the core."""

    def __init__(self, connection: Connection, core: Core) -> None:
        self._connection = connection
        self._core = core

    async def _run(self, steps: Generator[Any, Any, T]) -> T:
        return await drive(steps, self._connection.perform)


def awaitable(
    method: Callable[Concatenate[Core, P], Generator[Any, Any, T]],
) -> Callable[Concatenate[Handle[Core], P], Coroutine[Any, Any, T]]:
    """The same call on a handle, to be awaited."""

    async def call(self: Handle[Core], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._run(method(self._core, *args, **kwargs))

    return described(call, method)


class AsyncClient(Handle[Endpoint]):
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
        endpoint = Endpoint(url, token, headers, params, retrying)
        super().__init__(Connection(endpoint, http), endpoint)

    def stream(self, path: str) -> AsyncStream:
        """A handle on a stream, whether it exists or not; sends no request.

        :raises UsageError: the path is invalid.
        """
        return AsyncStream(self._connection, self._core.stream(path))

    def subscription(self, id: str) -> AsyncSubscription:
        """See `opslog.server.client.Client.subscription`."""
        return AsyncSubscription(self._connection, self._core.subscription(id))

    async def verify_webhook(self, body: bytes, signature: str) -> AsyncClaim:
        """See `opslog.server.client.Client.verify_webhook`."""
        return AsyncClaim(self._connection, await self._run(self._core.verified(body, signature)))

    async def close(self) -> None:
        await self._connection.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncStream(Handle[Calls]):
    """One stream of an `AsyncClient`. The calls and their errors are those of `opslog.server.client.Stream`."""

    @property
    def url(self) -> str:
        return self._core.url

    create = awaitable(Calls.create)
    append = awaitable(Calls.append)
    close = awaitable(Calls.close)
    delete = awaitable(Calls.delete)
    head = awaitable(Calls.head)

    async def fork(
        self,
        path: str,
        *,
        at: str | None = None,
        sub_offset: int = 0,
        ttl: int | None = None,
        expires_at: str | None = None,
    ) -> AsyncStream:
        return AsyncStream(self._connection, await self._run(self._core.fork(path, at, sub_offset, ttl, expires_at)))

    def read(self, offset: str = START) -> AsyncIterator[Batch]:
        return self._connection.read(self._core.read(offset))

    def follow(self, offset: str = START, live: Live | Literal["auto"] = "auto") -> AsyncIterator[Batch]:
        return self._connection.read(self._core.follow(offset, live))

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
        return AsyncProducer(self._connection, Producing(self._core, options))


class AsyncProducer(Handle[Producing]):
    """Appends in tasks of its own, in batches, exactly once. An error ends the producer: the next call raises it, and
    so does the end of the block."""

    def __init__(self, connection: Connection, core: Producing) -> None:
        super().__init__(connection, core)
        self._changed = asyncio.Condition()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Self:
        await drive(self._core.begin(), self._connection.perform)
        workers = range(self._core.options.max_in_flight)
        self._tasks = [asyncio.create_task(self._run(self._core.work())) for _ in workers]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                await self.flush()
        finally:
            self._core.closed = True
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def epoch(self) -> int:
        return self._core.epoch

    append = awaitable(Producing.append)
    flush = awaitable(Producing.flush)
    end = awaitable(Producing.end)

    async def _run(self, steps: Generator[Any, Any, T]) -> T:
        try:
            return await drive(steps, self._perform)
        finally:
            await self._notify()

    async def _perform(self, step: Request | Until) -> Any:
        await self._notify()
        if isinstance(step, Request):
            return await self._connection.send(step)
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(step.seconds):
                    return await self._changed.wait_for(step.condition)

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class AsyncSubscription(Handle[Subscribing]):
    """`Subscription` for asyncio: the same calls, to be awaited."""

    @property
    def id(self) -> str:
        return self._core.id

    create = awaitable(Subscribing.create)
    get = awaitable(Subscribing.get)
    delete = awaitable(Subscribing.delete)
    add = awaitable(Subscribing.add)
    remove = awaitable(Subscribing.remove)

    async def claim(self, worker: str) -> AsyncClaim:
        return AsyncClaim(self._connection, await self._run(self._core.claim(worker)))


class AsyncClaim(Held, Handle[Holding]):
    """`Claim` for asyncio: the same calls, to be awaited."""

    acknowledge = awaitable(Holding.acknowledge)
    finish = awaitable(Holding.finish)
    release = awaitable(Holding.release)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._run(self._core.leave(error))
