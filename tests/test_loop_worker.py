"""A worker of an event loop does its work even if it has no thread, and tries again if that fails."""

from __future__ import annotations

import asyncio

import pytest

from opslog.concurrency import loop_worker
from opslog.concurrency.background import Worker
from opslog.concurrency.loop_worker import LoopWorker


@pytest.mark.parametrize("in_pool", [True, False])
@pytest.mark.parametrize("wake", ["no thread", "no memory"])
def test_work_that_fails_without_a_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, in_pool: bool, wake: str
) -> None:
    def no_thread(worker: Worker, hurry: bool = False) -> bool:
        if wake == "no memory":
            raise MemoryError
        return False

    monkeypatch.setattr(Worker, "wake", no_thread)
    monkeypatch.setattr(loop_worker, "RETRY_SECONDS", 0.001)
    failures = [MemoryError(), OSError()]
    reported: list[object] = []

    async def run() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: reported.append(context.get("exception")))
        done = asyncio.Event()

        def work() -> None:
            if failures:
                raise failures.pop()
            loop.call_soon_threadsafe(done.set)

        worker = LoopWorker(loop, "test", work, what="testing", in_pool=in_pool)
        worker.wake()
        await asyncio.wait_for(done.wait(), 30)
        worker.close()

    asyncio.run(run())
    assert [type(error) for error in reported] == [OSError, MemoryError]
