"""The floor that stream servers are measured over: uvicorn with an application that appends each body to one file and
answers when fdatasync has returned, one for all that came while the one before ran. No streams, no reading, no checks.

    python -m benchmarks.server_floor FILE
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import uvicorn

Message = MutableMapping[str, Any]


class Floor:
    def __init__(self, file: Path) -> None:
        self._file = os.open(file, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        body = bytes((await receive()).get("body", b""))
        if body:
            written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((body, written))
            if self._writing is None or self._writing.done():
                self._writing = asyncio.create_task(self._write())
            await written
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _write(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            await asyncio.to_thread(self._append, b"".join(body for body, _ in waiting))
            for _, written in waiting:
                written.set_result(None)

    def _append(self, data: bytes) -> None:
        os.write(self._file, data)
        os.fdatasync(self._file)


if __name__ == "__main__":
    listening = socket.create_server(("127.0.0.1", 0))
    print(f"http://127.0.0.1:{listening.getsockname()[1]}", flush=True)
    config = uvicorn.Config(Floor(Path(sys.argv[1])), loop="uvloop", http="httptools", lifespan="off", log_config=None)
    uvicorn.Server(config).run(sockets=[listening])
