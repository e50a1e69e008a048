"""Cases of asyncio: a task is cancelled where it waits, and exceptions come into the threads behind it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import opslog
from opslog.aio import AsyncStore
from opslog.store import replica_of
from tests.interrupts.async_calls import ASYNC_CALLS, AsyncCall
from tests.interrupts.judging import Observed, Step, problems
from tests.interrupts.places import Place, stopping_threads
from tests.interrupts.running import Result, Runner, finish, forget_frames
from tests.interrupts.stage import SETTINGS_OF_ALL, Setting, Stage
from tests.interrupts.watching import EXCEPTIONS, complaints_of, resources

MOMENTS = ("at once", "soon", "when done")
"""When a waiting task is cancelled: right away; a little later; or when the awaited result is there, but the task has
not seen it yet."""


class AsyncCase(NamedTuple):
    """Which call is cancelled, at which of its waits, and at which moment of that wait."""

    call: str
    setting: str
    number: int
    moment: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> AsyncCase:
        call, setting, number, moment = text.split("/")
        return cls(call, setting, int(number), moment)


class _Watched:
    """Counts the waits of a coroutine, and cancels its task at one of them.

    :ivar waits: how many times it has waited so far.
    :ivar cancelled: whether its task was cancelled before its end.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, object], number: int = 0, moment: str = "") -> None:
        self._coroutine = coroutine
        self._number = number
        self._moment = moment
        self.waits = 0
        self.cancelled = False

    def __await__(self) -> Generator[Any, Any, object]:
        steps = self._coroutine.__await__()
        step = partial(steps.send, None)
        while True:
            try:
                waited = step()
            except StopIteration as end:
                return end.value
            self.waits += 1
            if self.waits == self._number:
                self._cancel(waited)
            try:
                yield waited
            except BaseException as error:  # noqa: BLE001  (passed on)
                step = partial(steps.throw, error)
            else:
                step = partial(steps.send, None)

    def _cancel(self, waited: asyncio.Future[Any] | None) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def cancel(done: object = None) -> None:
            self.cancelled = task.cancel()

        if self._moment == "at once" or waited is None:
            cancel()  # None: it only lets other tasks run
        elif self._moment == "soon":
            loop.call_soon(lambda: loop.call_soon(cancel))
        else:
            waited.add_done_callback(cancel)  # before the task itself learns of it


def _end_threads() -> None:
    """Wait for what the threads of asyncio's pool still do for cancelled calls."""
    loop = asyncio.get_running_loop()
    pool = getattr(loop, "_default_executor", None)
    if pool is not None:
        pool.shutdown()
        loop.set_default_executor(ThreadPoolExecutor())


async def _awaited(awaitable: Awaitable[object]) -> object:
    return await awaitable


def count_waits(runner: Runner, name: str, setting: Setting) -> int:
    """How often a call waits."""
    call = _call(name)

    async def run(stage: Stage) -> int:
        store = AsyncStore(stage.store)
        watched = _Watched(call.run(store, stage))
        await asyncio.create_task(_awaited(watched))
        await store.close()
        return watched.waits

    def case() -> int:
        stage = Stage(setting)
        call.prepare(stage)
        waits = asyncio.run(run(stage))
        stage.other.close()
        stage.remove()
        return waits

    return runner.first.call(case)


def run_async(runner: Runner, case: AsyncCase) -> Result:
    call = _call(case.call)
    setting = next(setting for setting in SETTINGS_OF_ALL if str(setting) == case.setting)
    return runner.watch(lambda where: _run(case, call, setting, where))


def _call(name: str) -> AsyncCall:
    return next(call for call in ASYNC_CALLS if call.name == name)


def _run(case: AsyncCase, call: AsyncCall, setting: Setting, where: list[str]) -> Result:
    with resources() as left, complaints_of() as complaints:
        stage = Stage(setting)
        call.prepare(stage)
        if not call.has_buffered:
            stage.store.flush()
        seen = Observed(
            asyncio.CancelledError(),
            is_buffered=setting.durability == "buffered",
            is_write=call.is_write,
            has_buffered=call.has_buffered,
            closes=call.closes,
            clears=False,
            undoes=False,
            error=None,
            possible=call.possible(stage.documents()),
        )
        asyncio.run(_interrupted(case, call, stage, seen, where), debug=True)
        forget_frames(seen.error, *(step.error for step in seen.steps))
        finish(stage, seen, lambda stage: [])
        stage.remove()
    if not where:
        return Result("", [])
    seen.left, seen.warnings = left, complaints.texts
    return Result(where[0], problems(seen), seen.is_lost)


async def _interrupted(case: AsyncCase, call: AsyncCall, stage: Stage, seen: Observed, where: list[str]) -> None:
    store = AsyncStore(stage.store)
    watched = _Watched(call.run(store, stage), case.number, case.moment)
    task = asyncio.create_task(_awaited(watched))
    try:
        await task
    except BaseException as error:  # noqa: BLE001  (judged)
        seen.error = error
    if watched.cancelled:
        where.append(f"wait {case.number}")
    await _go_on(store, stage, seen)


class ThreadCase(NamedTuple):
    """A call with threads behind it, the thread and place that something comes into, and what comes."""

    call: str
    setting: str
    thread: str
    number: int
    event: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> ThreadCase:
        call, setting, thread, number, event = text.split("/")
        return cls(call, setting, thread, int(number), event)


BESIDE = "a task beside it"

_BUSY = {"buffer_bytes": 1, "compact_after": 3}
"""Makes work for all threads that a store may have."""


def count_thread_places(runner: Runner, name: str, setting: Setting) -> Counter[str]:
    """How many places there are in each thread behind a call, until the thread has ended. The numbers vary, since
    threads run as they like."""
    counts = Counter[str]()

    def case() -> None:
        stepped = _Stepped("", 0, None)
        with stopping_threads(stepped.at):
            _run_threads(_call(name), setting, stepped, [])
        counts.update(stepped.counts)

    runner.first.call(case)
    return counts


def run_thread(runner: Runner, case: ThreadCase) -> Result:
    setting = next(setting for setting in SETTINGS_OF_ALL if str(setting) == case.setting)
    injected = EXCEPTIONS[case.event]()

    def run(where: list[str]) -> Result:
        stepped = _Stepped(case.thread, case.number, injected)
        with resources() as left, complaints_of() as complaints, stopping_threads(stepped.at):
            seen = _run_threads(_call(case.call), setting, stepped, where)
            forget_frames(injected)
        if _call(case.call).decides and type(seen.error) is type(injected):
            seen.injected = injected
        seen.left = left
        seen.warnings = [text for text in complaints.texts if not _may_end(case.thread, injected, text)]
        return Result(where[0], problems(seen), seen.is_lost) if where else Result("", [])

    return runner.watch(run)


def _may_end(thread: str, injected: BaseException, complaint: str) -> bool:
    """Whether a thread may end by this exception: any thread by one that nobody should catch, and the thread that
    renews a lease by any, since a lease that runs out costs work and does no harm."""
    is_end = complaint.startswith(f"thread {thread} died") and complaint.endswith(repr(injected))
    return is_end and (not isinstance(injected, Exception) or thread == "opslog-lease")


class _Stepped:
    """Counts the places of threads once it `is_armed`, and raises at one of them."""

    def __init__(self, thread: str, number: int, injected: BaseException | None) -> None:
        self._thread, self._number, self.injected = thread, number, injected
        self.counts = Counter[str]()
        self.is_armed = False
        self.where = ""

    def at(self, name: str, place: Place) -> None:
        if not self.is_armed:
            return
        kind = name.partition("_")[0]  # threads of asyncio's pool have numbers
        self.counts[kind] += 1
        if kind == self._thread and self.counts[kind] == self._number and self.injected is not None:
            self.where = place.where
            raise self.injected


def _run_threads(call: AsyncCall, setting: Setting, stepped: _Stepped, where: list[str]) -> Observed:
    stage = Stage(setting, **_BUSY)
    _prepare(call, stage)
    if not call.has_buffered:
        stage.store.flush()
    before = stage.documents()
    seen = Observed(
        MemoryError(),
        is_buffered=setting.durability == "buffered",
        is_write=True,
        has_buffered=call.has_buffered,
        closes=call.closes,
        clears=False,
        undoes=False,
        error=None,
        possible=[*call.lost(before), *call.possible(before)],
    )

    async def run() -> None:
        store = AsyncStore(stage.store)
        stepped.is_armed = True
        try:
            await call.run(store, stage)
        except BaseException as error:  # noqa: BLE001  (judged)
            seen.error = error
        stepped.is_armed = False
        await _go_on(store, stage, seen)

    asyncio.run(run(), debug=True)
    forget_frames(seen.error, *(step.error for step in seen.steps))
    # It may have come into the work of a task beside it.
    seen.steps = [step for step in seen.steps if step.name != BESIDE or step.error is not stepped.injected]
    finish(stage, seen, lambda stage: [])
    stage.remove()
    if stepped.where:
        where.append(stepped.where)
    if seen.error is not None and seen.error is stepped.injected:
        seen.injected = seen.error
    return seen


def _prepare(call: AsyncCall, stage: Stage) -> None:
    """Prepare the call again if a compaction that the store had started by itself was in the way."""
    while True:
        try:
            return call.prepare(stage)
        except opslog.LockedError:
            replica_of(stage.store).compaction.wait()


async def _go_on(store: AsyncStore[Any], stage: Stage, seen: Observed) -> None:
    """Everything else that a program may do afterwards."""

    async def step(name: str, run: Callable[[], Coroutine[Any, Any, object]], *, is_write: bool = False) -> bool:
        try:
            await run()
        except Exception as error:  # noqa: BLE001  (judged)
            seen.steps.append(Step(name, is_write, error))
            return False
        seen.steps.append(Step(name, is_write, None))
        return True

    async def refresh() -> None:
        stage.hand_out(await store.refresh())

    async def batch() -> None:
        async with store.batch() as batch:
            await batch.set("left", {"v": 1})
            await batch.set("right", {"v": 1})

    for task in stage.tasks:
        await step(BESIDE, partial(_awaited, task), is_write=True)
    _end_threads()
    await step("refresh", refresh)
    stage.write_other("b-late")
    seen.others["b-late"] = {"v": 1}
    for name in ("here", "there"):
        if await step(f"set {name}", partial(store.set, name, {"v": 1}), is_write=True):
            seen.written[name] = {"v": 1}
    if await step("batch", batch, is_write=True):
        seen.written |= {"left": {"v": 1}, "right": {"v": 1}}
        if await step("undo", store.undo, is_write=True):
            del seen.written["left"], seen.written["right"]
    await step("refresh again", refresh)
    await step("flush", store.flush)
    with suppress(opslog.ReopenError, opslog.ClosedError):
        seen.memory = dict([item async for item in store.items()])
    await step("close", store.close)
