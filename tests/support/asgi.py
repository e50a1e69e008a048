"""Calls an ASGI application without a server, one request after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import httpx

from opslog.server.http.asgi import App

T = TypeVar("T")


class Caller:
    """A client of an application that runs on a loop of its own. The loop only runs while a request is answered.

    :ivar client: for `run`.
    """

    def __init__(self, application: App) -> None:
        self.application = application
        self._runner = asyncio.Runner()
        transport = httpx.ASGITransport(application)
        self.client = httpx.AsyncClient(transport=transport, base_url="http://test/v1/stream/")
        self.run(application.start())

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def close(self) -> None:
        """Stop the application, and close its storage."""
        self.run(self.application.stop())
        self.run(self.client.aclose())
        self._runner.close()

    def request(
        self, method: str, path: str | httpx.URL, *, content: bytes | Iterable[bytes] = b"", **options: Any
    ) -> httpx.Response:
        """:param content: in one message, or in several."""
        body = content if isinstance(content, bytes) else _chunks(content)
        answer = self.run(self.client.request(method, path, content=body, **options))
        names = [name.lower() for name, _ in answer.headers.raw]
        assert len(set(names)) == len(names), f"a header of an answer comes twice: {answer.headers.raw}"
        return answer

    def raw(self, path: str, headers: Mapping[str, str] | Sequence[tuple[str, str]]) -> tuple[httpx.Response, bytes]:
        """A GET. Returns the raw body."""

        async def get() -> tuple[httpx.Response, bytes]:
            async with self.client.stream("GET", path, headers=headers) as answer:
                return answer, b"".join([chunk async for chunk in answer.aiter_raw()])

        return self.run(get())

    def get(self, path: str | httpx.URL, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def head(self, path: str | httpx.URL, **options: Any) -> httpx.Response:
        return self.request("HEAD", path, **options)

    def put(self, path: str | httpx.URL, **options: Any) -> httpx.Response:
        return self.request("PUT", path, **options)

    def post(self, path: str | httpx.URL, **options: Any) -> httpx.Response:
        return self.request("POST", path, **options)

    def delete(self, path: str | httpx.URL, **options: Any) -> httpx.Response:
        return self.request("DELETE", path, **options)


async def _chunks(content: Iterable[bytes]) -> AsyncIterator[bytes]:
    for chunk in content:
        yield chunk
