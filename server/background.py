"""Work of a service that no request waits for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any


class Background:
    """Tasks on the event loop, until it is stopped. One that fails is logged.

    :param log: where failures go.
    :param failed: what to say of one.
    :ivar stopping: nothing new is to begin.
    :ivar tasks: what is under way.
    """

    def __init__(self, log: logging.Logger, failed: str) -> None:
        self.stopping = False
        self.tasks: set[asyncio.Task[None]] = set()
        self._log = log
        self._failed = failed

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self.stopping:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Begin nothing more, and give up what is under way."""
        self.stopping = True
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._log.error(self._failed, exc_info=error)
