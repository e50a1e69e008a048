"""Calls in asyncio's thread pool."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

R = TypeVar("R")


async def in_thread(call: Callable[[], R]) -> R:
    """Make a call that may have to wait in asyncio's thread pool, and return its result. If the pool cannot start a
    thread, the call is made here, and the event loop waits."""
    done: concurrent.futures.Future[R] = concurrent.futures.Future()
    claim = threading.Lock()

    def run() -> None:
        # Call it once only: a call that the pool refused can still be in its queue.
        if claim.acquire(blocking=False) and done.set_running_or_notify_cancel():
            try:
                done.set_result(call())
            except BaseException as error:  # noqa: BLE001  (it is raised where the outcome is awaited)
                done.set_exception(error)

    try:
        ran = asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, run)
    except RuntimeError:
        run()
    else:
        ran.add_done_callback(partial(_deliver_error, done))
    return await asyncio.wrap_future(done)


def _deliver_error(done: concurrent.futures.Future[Any], ran: asyncio.Future[None]) -> None:
    """If a call could not be made at all, for example for lack of memory, raise that where its outcome is awaited."""
    if not ran.cancelled() and (error := ran.exception()) is not None and not done.done():
        done.set_exception(error)


async def to_its_end(running: asyncio.Future[R]) -> R:
    """The result of a write that a thread makes. If this is cancelled, it ends when the thread is ready: what the
    caller writes after that must come after it."""
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        if not running.cancelled():
            running.exception()  # the caller has left, and nobody else asks for it
        raise
