"""Both clients behind one set of blocking calls, so that each test runs on both."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from inspect import isawaitable
from typing import Any

import httpx

from opslog.server.client import AsyncClient, Batch, Client, Retrying
from tests.support.fake_streams import FakeServer

_NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
"""Without it, each client would load the certificates of the system."""

URL = "http://streams.example/v1/stream"
KINDS = ("threads", "asyncio")
QUICK = Retrying(seconds=60, first=0.0001, longest=0.001)


class Blocking:
    """Makes the calls of a client for asyncio block, so that one test serves both clients."""

    def __init__(self, runner: asyncio.Runner, it: Any) -> None:
        self._runner = runner
        self._it = it

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._it, name)
        if not callable(found):
            return found

        def called(*arguments: Any, **options: Any) -> Any:
            done = found(*arguments, **options)
            if isawaitable(done):
                done = self._runner.run(self._awaited(done))
            return Blocking(self._runner, done) if type(done).__name__.startswith("Async") else done

        return called

    async def _awaited(self, done: Any) -> Any:
        return await done

    def __enter__(self) -> Blocking:
        self.__getattr__("__aenter__")()
        return self

    def __exit__(self, *error: Any) -> None:
        self.__getattr__("__aexit__")(*error)


@contextmanager
def connected(kind: str, url: str, transport: Any = None, **options: Any) -> Iterator[Any]:
    """A client of either kind with blocking calls."""
    options.setdefault("retrying", QUICK)
    if kind == "threads":
        with httpx.Client(transport=transport, verify=_NO_TLS) as http:
            yield Client(url, http=http, **options)
        return
    with asyncio.Runner() as runner:
        later = httpx.AsyncClient(transport=transport, verify=_NO_TLS)
        yield Blocking(runner, AsyncClient(url, http=later, **options))
        runner.run(later.aclose())


class Driver:
    """:param server: None: a real one at `url`. :param options: of the client."""

    def __init__(
        self, kind: str, server: FakeServer | None, *, url: str = URL, retrying: Retrying = QUICK, **options: Any
    ) -> None:
        self.kind = kind
        self._server = server
        self.url = url
        self._options = {"retrying": retrying, **options}

    def call(self, path: str, name: str, *arguments: Any, **options: Any) -> Any:
        """A call on a stream. For `fork`, the result is a URL."""
        if self.kind == "threads":
            with self._client() as client:
                done = getattr(client.stream(path), name)(*arguments, **options)
                return done.url if name == "fork" else done

        async def called() -> Any:
            async with self._async_client() as client:
                done = await getattr(client.stream(path), name)(*arguments, **options)
                return done.url if name == "fork" else done

        return asyncio.run(called())

    def read(
        self,
        path: str,
        name: str = "read",
        *,
        until: Callable[[Batch], bool] = lambda batch: False,
        **options: Any,
    ) -> list[Batch]:
        """The batches of `read` or `follow`, up to and including the first one that `until` accepts."""
        batches = []
        if self.kind == "threads":
            with self._client() as client:
                for batch in getattr(client.stream(path), name)(**options):
                    batches.append(batch)
                    if until(batch):
                        break
            return batches

        async def followed() -> None:
            async with self._async_client() as client, aclosing(getattr(client.stream(path), name)(**options)) as found:
                async for batch in found:
                    batches.append(batch)
                    if await asyncio.to_thread(until, batch):
                        break

        asyncio.run(followed())
        return batches

    def produce(self, path: str, id: str, contents: list[Any], *, end: bool = False, **options: Any) -> tuple[int, Any]:
        """Append through a producer. Returns its epoch, and the end of the stream as the producer knows it."""
        if self.kind == "threads":
            with self._client() as client, client.stream(path).producer(id, **options) as producer:
                for content in contents:
                    producer.append(content)
                last = producer.end() if end else producer.flush()
                return producer.epoch, last

        async def produced() -> tuple[int, Any]:
            async with self._async_client() as client, client.stream(path).producer(id, **options) as producer:
                for content in contents:
                    await producer.append(content)
                last = await producer.end() if end else await producer.flush()
                return producer.epoch, last

        return asyncio.run(produced())

    @contextmanager
    def _client(self) -> Iterator[Client]:
        fake = httpx.MockTransport(self._server.handle) if self._server else None
        with httpx.Client(transport=fake, verify=_NO_TLS) as http:
            yield Client(self.url, http=http, **self._options)

    @asynccontextmanager
    async def _async_client(self) -> AsyncIterator[AsyncClient]:
        fake = httpx.MockTransport(self._server.handle_later) if self._server else None
        async with httpx.AsyncClient(transport=fake, verify=_NO_TLS) as http:
            yield AsyncClient(self.url, http=http, **self._options)
