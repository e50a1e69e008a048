"""The waiting of `opslog.replica.watching` for asyncio. In a module of its own, so that only asyncio programs load
asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from opslog.backends import Backend, Subscription
from opslog.replica.watching import AT_LEAST_SECONDS, subscribed


class AsyncWaiting:
    """Waits for new commits, in one task that refreshes."""

    def __init__(self, subscription: Subscription | None, changed: asyncio.Event) -> None:
        self._subscription = subscription
        self._changed = changed

    async def wait(self, seconds: float) -> None:
        """Like `opslog.replica.watching.Waiting.wait`."""
        subscription = self._subscription
        if subscription is None or not (subscription.is_live or self._changed.is_set()):
            await asyncio.sleep(seconds)
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(AT_LEAST_SECONDS):
                await self._changed.wait()
        self._changed.clear()


@contextmanager
def async_waiting(backend: Backend) -> Iterator[AsyncWaiting]:
    """Subscribe to what is written, for the duration of the block. Does not block."""
    changed, loop = asyncio.Event(), asyncio.get_running_loop()

    def note() -> None:
        with suppress(RuntimeError):  # the loop has ended, and so has the task that waited
            loop.call_soon_threadsafe(changed.set)

    with subscribed(backend, note) as subscription:
        yield AsyncWaiting(subscription, changed)
