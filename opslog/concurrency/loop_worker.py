"""Work that the tasks of an event loop wait for, done in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from opslog.concurrency.background import RETRY_SECONDS, Worker
from opslog.concurrency.soon import Soon


class LoopWorker:
    """A `Worker` that the tasks of an event loop wake, and that does its work even if no thread can be started for it.
    Tasks that are ready at the same time wake it once.

    :param what: names `work`, as the subject of a sentence in the log.
    :param in_pool: whether asyncio's thread pool does the work before the event loop does, if it has no thread.
    :ivar wake: call it to have `work` run soon, in the thread of the event loop alone.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, name: str, work: Callable[[], None], *, what: str, in_pool: bool
    ) -> None:
        self._loop = loop
        self._work = work
        self._in_pool = in_pool
        self._worker = Worker(name, work, what=what, subject="aio")
        # Not at once: the tasks that are ready now come first, and share what the work costs.
        self.wake = Soon(loop.call_soon, loop.time, self._start)

    def close(self) -> None:
        """Wait for a run that is under way, and end the thread."""
        self._worker.close()

    def _start(self) -> None:
        try:
            if self._worker.wake():
                return
        except Exception:  # noqa: BLE001  (nobody would get it, and the tasks would wait for ever)
            """No memory to start a thread. The tasks that wait for an answer come before all others."""
        if self._in_pool:
            try:
                self._loop.run_in_executor(None, self._work_here)
            except Exception:  # noqa: BLE001  (as above)
                self._work_here()
        else:
            self._work_here()

    def _work_here(self) -> None:
        """Do the work without the worker's thread. If it fails, wake the worker later, as that would do itself."""
        try:
            self._work()
        except Exception:
            with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._loop.call_later, RETRY_SECONDS, self.wake)
            raise
