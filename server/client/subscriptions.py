"""Subscriptions and what workers hold of them, for threads and for asyncio. All of it is decided in
`opslog.server.client.subscribing`; each call here is one line, and the two kinds stand below each other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from opslog.server.client.errors import StreamError
from opslog.server.client.retrying import Steps
from opslog.server.client.subscribing import PendingStream, Subscribing, SubscriptionInfo, Wake

Run = Callable[[Steps[Any]], Any]
AsyncRun = Callable[[Steps[Any]], Awaitable[Any]]


class Subscription:
    """A handle on a subscription, whether it exists or not. What each call raises: see
    `opslog.server.client.errors`."""

    def __init__(self, run: Run, core: Subscribing) -> None:
        self._run = run
        self._core = core

    @property
    def id(self) -> str:
        return self._core.id

    def create(
        self,
        *,
        pattern: str | None = None,
        streams: Sequence[str] = (),
        webhook_url: str | None = None,
        wake_stream: str | None = None,
        lease_seconds: float | None = None,
        description: str | None = None,
    ) -> SubscriptionInfo:
        """Make the subscription, or find that it is there with the same configuration.

        :param pattern: of paths: ``*`` is one segment, ``**`` any number. Streams that exist are taken up at their end.
        :param streams: paths of streams, also ones that do not exist yet.
        :param webhook_url: what the server posts wakes to.
        :param wake_stream: or else the path of a JSON stream, to be created by you, in which the server writes an event
            for each wake, for workers who `claim`.
        :param lease_seconds: how long a worker may be silent, from 1 to 600; None: 30.
        :raises SubscriptionConflictError: it exists with another configuration.
        """
        found: SubscriptionInfo = self._run(
            self._core.create(
                pattern=pattern,
                streams=streams,
                webhook_url=webhook_url,
                wake_stream=wake_stream,
                lease_seconds=lease_seconds,
                description=description,
            )
        )
        return found

    def get(self) -> SubscriptionInfo:
        """:raises SubscriptionNotFoundError: there is none."""
        found: SubscriptionInfo = self._run(self._core.get())
        return found

    def delete(self) -> None:
        """Whether it exists or not. Whoever holds a wake of it has lost it."""
        self._run(self._core.delete())

    def add(self, *paths: str) -> None:
        """Link streams by hand, at their present end."""
        self._run(self._core.add(paths))

    def remove(self, path: str) -> None:
        """Undo `add`. A pattern that matches stays."""
        self._run(self._core.remove(path))

    def claim(self, worker: str) -> Claim:
        """Take what there is to do; of a subscription with a wake_stream.

        :param worker: a name that tells others who has it.
        :raises AlreadyClaimedError, NoPendingWorkError: wait for the next wake.
        """
        return Claim(self._run, self._core, self._run(self._core.claim(worker)))


class AsyncSubscription:
    """`Subscription` for asyncio: the same calls, to be awaited."""

    def __init__(self, run: AsyncRun, core: Subscribing) -> None:
        self._run = run
        self._core = core

    @property
    def id(self) -> str:
        return self._core.id

    async def create(
        self,
        *,
        pattern: str | None = None,
        streams: Sequence[str] = (),
        webhook_url: str | None = None,
        wake_stream: str | None = None,
        lease_seconds: float | None = None,
        description: str | None = None,
    ) -> SubscriptionInfo:
        found: SubscriptionInfo = await self._run(
            self._core.create(
                pattern=pattern,
                streams=streams,
                webhook_url=webhook_url,
                wake_stream=wake_stream,
                lease_seconds=lease_seconds,
                description=description,
            )
        )
        return found

    async def get(self) -> SubscriptionInfo:
        found: SubscriptionInfo = await self._run(self._core.get())
        return found

    async def delete(self) -> None:
        await self._run(self._core.delete())

    async def add(self, *paths: str) -> None:
        await self._run(self._core.add(paths))

    async def remove(self, path: str) -> None:
        await self._run(self._core.remove(path))

    async def claim(self, worker: str) -> AsyncClaim:
        return AsyncClaim(self._run, self._core, await self._run(self._core.claim(worker)))


class _Held:
    """What a claim knows without asking.

    :ivar wake: what is held.
    :ivar ended: it was given back, as done or by `release`.
    """

    def __init__(self, core: Subscribing, wake: Wake) -> None:
        self.wake = wake
        self.ended = False
        self._core = core

    @property
    def streams(self) -> tuple[PendingStream, ...]:
        """The streams of the subscription; those with `has_pending` have more."""
        return self.wake.streams

    def _all(self) -> dict[str, str]:
        return {stream.path: stream.tail_offset for stream in self.wake.streams if stream.has_pending}

    @property
    def _to_release(self) -> bool:
        return not self.ended and self.wake.type == "pull-wake"


class Claim(_Held):
    """What a worker holds, by a claim or by a webhook. Leaving its ``with`` block releases a claim that is not done, so
    that another worker gets it."""

    def __init__(self, run: Run, core: Subscribing, wake: Wake) -> None:
        super().__init__(core, wake)
        self._run = run

    def acknowledge(self, offsets: Mapping[str, str] | None = None, *, done: bool = False) -> bool:
        """Move cursors, and hold on; or with `done` give the wake back. Without arguments: a sign of life.

        :param offsets: by path, up to where each stream is processed. :return: there is more to do; workers are woken
            again.
        :raises WakeLostError: the lease ended, or a newer wake came.
        :raises OutcomeUnknownError: the same, after an answer was lost: `Subscription.get` says what is acknowledged.
        """
        more: bool = self._run(self._core.acknowledge(self.wake, offsets or {}, done=done))
        self.ended = self.ended or done
        return more

    def finish(self) -> bool:
        """Acknowledge all that the wake told of, as done."""
        return self.acknowledge(self._all(), done=True)

    def release(self) -> None:
        """Give a claim back without acknowledging; another worker is woken."""
        self._run(self._core.release(self.wake))
        self.ended = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._to_release:
            try:
                self.release()
            except StreamError as failure:
                if error is None:
                    raise
                error.add_note(f"and then: {failure}")


class AsyncClaim(_Held):
    """`Claim` for asyncio: the same calls, to be awaited."""

    def __init__(self, run: AsyncRun, core: Subscribing, wake: Wake) -> None:
        super().__init__(core, wake)
        self._run = run

    async def acknowledge(self, offsets: Mapping[str, str] | None = None, *, done: bool = False) -> bool:
        more: bool = await self._run(self._core.acknowledge(self.wake, offsets or {}, done=done))
        self.ended = self.ended or done
        return more

    async def finish(self) -> bool:
        return await self.acknowledge(self._all(), done=True)

    async def release(self) -> None:
        await self._run(self._core.release(self.wake))
        self.ended = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._to_release:
            try:
                await self.release()
            except StreamError as failure:
                if error is None:
                    raise
                error.add_note(f"and then: {failure}")
