"""The threads a store may have: one that flushes buffered commits, one that compacts a tail that grew too long, and,
with asyncio, one that writes.

They start with the first thing there is to do, never hold the interpreter's exit up, and end with `close`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger() -> logging.Logger:
    """Where such a thread tells what went wrong, because nobody waits for it. Nearly every process ends without having
    had to import this."""
    import logging

    return logging.getLogger("opslog")


class Worker:
    """Runs `work` in a thread of its own whenever it is woken, one run at a time.

    :param delay_seconds: how long after being woken it waits for more, unless it is hurried.
    """

    def __init__(self, name: str, work: Callable[[], None], delay_seconds: float = 0.0) -> None:
        self._work = work
        self._delay_seconds = delay_seconds
        self._condition = threading.Condition()
        self._woken = self._hurried = self._closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._started = False

    def wake(self, hurry: bool = False) -> None:
        """Have `work` run soon; with `hurry`, now. Cheap when it is awake already."""
        if self._woken and (self._hurried or not hurry):
            return
        with self._condition:
            self._woken = True
            self._hurried = self._hurried or hurry
            if not self._started and not self._closed:
                self._started = True
                self._thread.start()
            self._condition.notify()

    def close(self) -> None:
        """Let a run that is under way end, and then the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify()
        if self._started and threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while self._await_turn():
            self._work()

    def _await_turn(self) -> bool:
        with self._condition:
            self._condition.wait_for(lambda: self._woken or self._closed)
            if self._delay_seconds:
                self._condition.wait_for(lambda: self._hurried or self._closed, self._delay_seconds)
            self._woken = self._hurried = False
            return not self._closed
