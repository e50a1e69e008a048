"""How many requests a client may make."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

_CLIENTS = 10_000
_BURST_SECONDS = 2.0


class Rates:
    """A token bucket for each client. It gains `rate` requests a second, up to those of two seconds, or one if that is
    more.

    If there are too many clients, the one whose last request is the oldest is forgotten. A client that was forgotten
    begins with a full bucket.
    """

    def __init__(self, rate: float, monotonic: Callable[[], float]) -> None:
        self._rate = rate
        self._full = max(1.0, rate * _BURST_SECONDS)
        self._monotonic = monotonic
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str) -> float:
        """Count a request of this client. Returns 0 if it may be served, else the seconds after which to try again."""
        now = self._monotonic()
        left, seen = self._buckets.pop(client, (self._full, now))
        left = min(self._full, left + (now - seen) * self._rate)
        taken = 1.0 if left >= 1.0 else 0.0
        self._buckets[client] = (left - taken, now)
        if len(self._buckets) > _CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if taken else (1.0 - left) / self._rate
