"""An event loop for simulated processes: `run_tasks` is their `asyncio.run`.

Ready callbacks run in the order in which they came, as asyncio promises. Timers and sleeps are in simulated time, and
work for the thread pool runs in simulated threads. So the seed decides in which order tasks go on: it decides how long
each call takes.

When the process dies, each of its tasks ends where it waits, as its threads do.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from opslog.testing.simulation import Ambience, Died, Process
from opslog.testing.threads import Threading

if TYPE_CHECKING:
    from opslog.testing.simulation import Simulation, Thread

R = TypeVar("R")

# The most threads in the pool: as many as Python's own has on a machine with one processor.
_POOL_MAX = 5

# The resolution of simulated time, which is counted from 1970 on.
_RESOLUTION_SECONDS = 1e-6


def run_tasks(process: Process, main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine, in the running thread of the process, until it ends, as `asyncio.run` does."""
    loop = _Loop(process)
    thread = process.simulation.thread
    assert thread is not None
    thread.ambience = Ambience.now()
    try:
        return loop.run_until_complete(main)
    except Died:
        loop.die()
        raise
    finally:
        if not process.dead:
            loop.finish()
        loop.close()


async def drained() -> None:
    """Return when the thread pool of the running loop has nothing left to do."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, _Loop)
    await loop.drain()


class _Loop(asyncio.BaseEventLoop):
    def __init__(self, process: Process) -> None:
        super().__init__()
        self._owner = process
        self._simulation = process.simulation
        self._clock_resolution = _RESOLUTION_SECONDS
        self._selector = _Selector(process.simulation)
        # All of them, so that they end in the order in which they began.
        self._tasks: list[asyncio.Task[Any]] = []
        self._jobs: deque[tuple[Future[Any], Callable[[], object]]] = deque()
        self._pool = 0

    def time(self) -> float:
        return self._owner.environment.monotonic()

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        if self._owner.dead:
            coro.close()
            raise Died
        task: asyncio.Task[Any] = super().create_task(coro, **options)
        self._tasks = [known for known in self._tasks if not known.done()]
        self._tasks.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., R], *args: Any
    ) -> asyncio.Future[R]:
        self._simulation.check_alive()
        future: Future[R] = Future()
        self._jobs.append((future, partial(func, *args)))
        if self._pool < _POOL_MAX:
            Threading(self._owner.simulation).Thread(target=self._run_jobs, name="pool", daemon=True).start()
            self._pool += 1
        return asyncio.wrap_future(future, loop=self)

    async def drain(self) -> None:
        """Return when the pool has nothing left to do."""
        while self._pool:
            await asyncio.sleep(0.01)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await self.drain()

    def finish(self) -> None:
        """End all remaining tasks, as `asyncio.run` does."""
        left = [task for task in self._tasks if not task.done()]
        for task in left:
            task.cancel()
        self.run_until_complete(asyncio.wait_for(_ended(left), None))
        self.run_until_complete(self.shutdown_asyncgens())
        self.run_until_complete(self.shutdown_default_executor())

    def die(self) -> None:
        """End all tasks at their current points. Code that they still run finds that all its calls fail."""
        asyncio._set_running_loop(self)  # such code asks for it
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001  (they are destroyed)
                _end(task.get_coro())
        asyncio._set_running_loop(None)

    def _asyncgen_finalizer_hook(self, agen: Any) -> None:
        if not self._owner.dead:
            super()._asyncgen_finalizer_hook(agen)  # type: ignore[misc]

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """End the run with an error that no caller gets. (A MemoryError does not end it: asyncio only logs one.)"""
        error = context.get("exception")
        if not (self._owner.dead or isinstance(error, (Died, MemoryError))):
            self._simulation.fail(self._owner.main, error or RuntimeError(context["message"]))

    def _run_jobs(self) -> None:
        while self._jobs:
            future, call = self._jobs.popleft()
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except Died:
                    raise
                except BaseException as error:  # noqa: BLE001  (it is raised where the result is awaited)
                    future.set_exception(error)
        self._pool -= 1

    def _write_to_self(self) -> None:
        self._selector.wake()

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none: nothing here waits for files."""


class _Selector:
    """Lets the event loop wait for its next timer, or for a call from another thread."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._woken = False
        self._waiting: Thread | None = None

    def __str__(self) -> str:
        return "the event loop"

    def select(self, timeout: float | None) -> list[Any]:
        self._simulation.check_alive()
        self._simulation.point()
        if not self._woken and (timeout is None or timeout > 0):
            self._waiting = self._simulation.thread
            try:
                self._simulation.block(self, None if timeout is None else max(timeout, _RESOLUTION_SECONDS))
            finally:
                self._waiting = None
        self._woken = False
        return []

    def wake(self) -> None:
        self._woken = True
        if self._waiting is not None:
            self._simulation.wake(self._waiting)


async def _ended(tasks: list[asyncio.Task[Any]]) -> None:
    await asyncio.gather(*tasks, return_exceptions=True)


def _end(coroutine: Any) -> None:
    try:
        while True:
            coroutine.throw(Died)
    except (Died, StopIteration, RuntimeError, ValueError):
        """It has ended; or it holds a context of its own, and ends with it."""
