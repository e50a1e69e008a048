"""The ASGI application: which request goes where."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

from opslog.environment import REAL, Environment
from opslog.server import requests
from opslog.server.memory import MemoryStorage
from opslog.server.options import Options
from opslog.server.reading import Reading
from opslog.server.refusals import Refused
from opslog.server.replies import METHODS, PREFLIGHT, refuse, reply
from opslog.server.requests import DisconnectedError, Receive, Scope, Send
from opslog.server.storage import Storage
from opslog.server.streams import Streams
from opslog.server.writing import Writing

_log = logging.getLogger("opslog.server")
_Handler = Callable[[str, Scope, Receive, Send], Awaitable[None]]


class App:
    """An ASGI application that serves a storage.

    Streams are dispatched by hand and answered without a framework in between: an append costs what parsing it costs.
    """

    def __init__(self, storage: Storage, options: Options, environment: Environment = REAL) -> None:
        self.streams = Streams(storage, environment)
        self.options = options
        self._storage = storage
        self._started: asyncio.Task[None] | None = None
        writing = Writing(self.streams, options)
        reading = Reading(self.streams, options, lambda below: int(environment.nonce(), 16) % below, private=False)
        self._handlers: dict[str, _Handler] = {
            "POST": writing.append,
            "GET": reading.get,
            "PUT": writing.create,
            "HEAD": reading.head,
            "DELETE": writing.delete,
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise NotImplementedError(f"{scope['type']} is not served here")
        if self._started is None or not self._started.done():
            await self.start()
        method = scope["method"]
        try:
            path: str = scope["path"]
            if method == "OPTIONS":
                await reply(send, 204, PREFLIGHT)
                return
            if not path.startswith(self.options.root):
                raise Refused(404, f"streams are below {self.options.root}")
            name = requests.check_path(path[len(self.options.root) :])
            handler = self._handlers.get(method)
            if handler is None:
                raise Refused(405, f"{method} is not a method of streams", [(b"allow", METHODS)])
            await handler(name, scope, receive, send)
        except Refused as refused:
            await refuse(send, refused, head=method == "HEAD")
        except (DisconnectedError, TimeoutError):
            pass  # nobody is there to be answered

    async def start(self) -> None:
        """Open for requests. A server that sends lifespan events does this by itself; the first request does it,
        too."""
        if self._started is None:
            self._started = asyncio.get_running_loop().create_task(self.streams.start())
        await asyncio.shield(self._started)

    async def stop(self) -> None:
        """End live reads, finish what was begun, and close the storage."""
        if self._started is not None:
            await self.streams.stop()
        self._storage.close()

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as error:
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            raise
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.stop()
        await send({"type": "lifespan.shutdown.complete"})


def app(data: str | Path | None = None, *, options: Options | None = None) -> App:
    """An ASGI application that serves streams over HTTP by the Durable Streams protocol.

    :param data: the directory where streams are kept; None keeps them in memory.
    """
    if data is None:
        return App(MemoryStorage(), options or Options())
    from opslog.server.directory import DirectoryStorage

    return App(DirectoryStorage(data), options or Options())
