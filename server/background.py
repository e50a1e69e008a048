"""Background tasks of a service, for which no request waits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any

from opslog.errors import OpslogError


class Background:
    """Runs tasks on the event loop, until `stop`. Logs their failures.

    :param log: the logger for failures.
    :param failed: the message for a failure.
    :ivar stopping: no new task may begin.
    :ivar tasks: the running tasks.
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
        # The task does not inherit the context of the request that spawned it: what the task logs, or a timer that it
        # sets, is not about that request.
        context = Context()
        task = asyncio.get_running_loop().create_task(coroutine, context=context)
        self.tasks.add(task)
        task.add_done_callback(self._ended, context=context)

    async def stop(self) -> None:
        """Begin no more tasks, and cancel the running ones."""
        self.stopping = True
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log_failure(self._log, self._failed, error)


async def happens(event: asyncio.Event, seconds: float) -> None:
    """Wait for an event, for so long at most."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


def log_failure(log: logging.Logger, message: str, error: BaseException, **known: str) -> None:
    """Log a failure: an expected one, such as a full disk, without its traceback."""
    surprise = None if isinstance(error, OpslogError) else error
    log.error(message, extra={"error": str(error) or repr(error), **known}, exc_info=surprise)
