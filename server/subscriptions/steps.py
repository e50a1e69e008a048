"""Carries out the steps of subscriptions, which `opslog.server.subscriptions.subscription` defines.

A step takes effect once the storage has it. Every step is one commit. The commit also includes the changes of streams
since the last one, and begins a wake if there is work and no wake is under way. The caller holds the lock of the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opslog.environment import Environment
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset
from opslog.server.protocol.refusals import Refused
from opslog.server.streams import Streams
from opslog.server.subscriptions import store as subscription_store
from opslog.server.subscriptions import subscription as subscriptions
from opslog.server.subscriptions.entries import Entry
from opslog.server.subscriptions.subscription import ZERO, End, Link, Subscription, behind

# Called after each committed step, with the entry and whether the step began a wake.
After = Callable[[Entry, bool], None]
# Called after each step that failed, with the entry. The changes of streams that the step was to include need another.
Failed = Callable[[Entry], None]


class Steps:
    """:param after: see `After`.
    :param failed: see `Failed`.
    :param may_wake: whether a wake may begin now.
    """

    def __init__(
        self, streams: Streams, environment: Environment, after: After, failed: Failed, may_wake: Callable[[], bool]
    ) -> None:
        self._streams = streams
        self._environment = environment
        self._after = after
        self._failed = failed
        self._may_wake = may_wake

    async def commit(
        self,
        entry: Entry,
        subscription: Subscription,
        links: Mapping[str, Link | None] | None = None,
        *,
        new: bool = False,
    ) -> bool:
        """Carry out a step, together with all changes since the last one. Begin a wake if none is under way and there
        is work.

        :param links: the links that change, by path; None removes the link.
        :param new: the storage does not have the subscription yet.
        :returns: whether a new wake began.
        :raises OpslogError: it could not be stored, and nothing was changed.
        """
        news, entry.news = entry.news, set()
        try:
            woken = await self._commit(entry, subscription, dict(links or {}), news, new)
        except BaseException:
            entry.news |= news
            self._failed(entry)
            raise
        self._after(entry, woken)
        return woken

    async def _commit(
        self, entry: Entry, subscription: Subscription, links: dict[str, Link | None], news: Iterable[str], new: bool
    ) -> bool:
        changed = self._with_news(entry, links, news)
        after = {**{path: entry.links[path] for path in entry.pending if path in entry.links}, **changed}
        pending = {path for path, link in after.items() if link and behind(link.acked_offset, self.tail(path))}
        woken = subscription.wake_id is None and bool(pending) and self._may_wake()
        if woken:
            wake_id = f"w_{self._environment.nonce()}"
            tails = {path: self.tail(path) for path in pending}
            subscription = subscriptions.wake(subscription, wake_id, tails, self._environment.time())
        if new or changed or subscription != entry.subscription:
            await self._streams.transact(
                lambda transaction: subscription_store.store(transaction, subscription, changed)
            )
        entry.subscription = subscription
        for path, link in changed.items():
            if link is None:
                entry.links.pop(path, None)
            else:
                entry.links[path] = link
        entry.pending = pending
        return woken

    async def take_in(self, entry: Entry) -> None:
        """Carry out a step that only includes the changes of streams."""
        async with entry.lock:
            entry.stirred = False
            if not entry.deleted:
                await self.commit(entry, entry.subscription)

    def _with_news(self, entry: Entry, links: dict[str, Link | None], news: Iterable[str]) -> dict[str, Link | None]:
        """The links that a step changes: `links`, and the changed links of streams with news."""
        for path in news:
            known = links.get(path, entry.links.get(path))
            stream = self.stream(path)
            matched = entry.matches(path)
            link = subscriptions.refreshed(known, path, matched=matched, stream_id=stream.id if stream else None)
            if link is not None and link == entry.links.get(path):
                entry.pending.add(path)  # the caller compares it with the end of the stream
            elif link is not None or path in entry.links:
                links[path] = link
        return links

    def stream(self, path: str) -> Stream | None:
        try:
            return self._streams.stream(path)
        except Refused:
            return None

    def tail(self, path: str) -> str:
        """The end of the stream; if there is no stream, the offset of the beginning."""
        return self.end(path).offset

    def end(self, path: str) -> End:
        stream = self.stream(path)
        return End(0, ZERO) if stream is None else End(stream.id, format_offset(stream.tail))
