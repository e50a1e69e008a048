"""Cursors: numbers that live reads repeat, so that a cache in between does not give the same answer for ever."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# 2024-10-09T00:00:00Z, from which the protocol counts the intervals.
_EPOCH = 1728432000.0

_JITTER_SECONDS = 3600


@dataclass(frozen=True, slots=True)
class Cursors:
    """:ivar interval_seconds: how long a cursor stays the same.
    :ivar epoch: seconds since 1970 of interval 0, which also covers all times before.
    """

    interval_seconds: float = 20.0
    epoch: float = _EPOCH

    def next(self, given: str | None, now: float, random: Callable[[int], int]) -> str:
        """The cursor of a response: the number of the interval. But if the client's own cursor is not smaller, a number
        that is greater than the client's.

        :param random: returns a number from 0 up to its argument.
        """
        current = max(0, int((now - self.epoch) // self.interval_seconds))
        if given is None or not given.isdecimal() or len(given) > 18 or int(given) < current:
            return str(current)
        jitter_seconds = 1 + random(_JITTER_SECONDS)
        return str(int(given) + max(1, round(jitter_seconds / self.interval_seconds)))
