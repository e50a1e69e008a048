"""Requests to an event loop, of which many are answered by one call."""

from __future__ import annotations

import math
from collections.abc import Callable


class Soon:
    """Has the event loop make a call soon: one call for all requests until then.

    :param schedule: `call_soon` of the event loop, or `call_soon_threadsafe`.
    :param time: the event loop's clock.
    """

    def __init__(
        self, schedule: Callable[[Callable[[], None]], object], time: Callable[[], float], call: Callable[[], None]
    ) -> None:
        self._schedule = schedule
        self._time = time
        self._call = call
        # When it was scheduled last, if it has not begun since.
        self._scheduled = -math.inf

    def __call__(self) -> None:
        now = self._time()
        # After a second once more: the handler of a signal may have raised right before the call began.
        if now - self._scheduled > 1.0:
            self._scheduled = now
            try:
                self._schedule(self._run)
            except BaseException:
                self._scheduled = -math.inf
                raise

    def _run(self) -> None:
        self._scheduled = -math.inf
        self._call()
