"""A pool of threads for requests, and for what event loops leave to threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


class Executor(ThreadPoolExecutor):
    """A pool that takes work until the process ends.

    Pools take no work once the main thread ends. But another thread may still use a store then, and buffers are written
    at exit. From then on each call gets a thread of its own. Where no more threads can start, the caller makes it.
    """

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        # The pool itself is asked: it refuses work before the main thread counts as ended. If it has queued the call
        # before it failed to start a thread, the call may be made twice.
        with suppress(RuntimeError):
            return super().submit(fn, *args, **kwargs)
        done: Future[T] = Future()

        def run() -> None:
            if done.set_running_or_notify_cancel():
                try:
                    done.set_result(fn(*args, **kwargs))
                except BaseException as error:  # noqa: BLE001  (it is raised where the outcome is awaited)
                    done.set_exception(error)

        try:
            threading.Thread(target=run, name="opslog-executor", daemon=True).start()
        except RuntimeError:  # no more threads can start, which newer Pythons say of every thread at exit
            run()
        return done
