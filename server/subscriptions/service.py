"""The service of subscriptions: handles requests of clients, and changes of streams.

A subscription is kept in the storage and in memory (`opslog.server.subscriptions.entries`). It changes by steps, each
of which is one commit (`opslog.server.subscriptions.steps`). Workers are notified of its wakes
(`opslog.server.subscriptions.wakes`). A crash between an append and the wake that it causes loses nothing: the next
start compares all cursors with the ends of their streams. A matching stream without a link can only be a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from msgspec.structs import replace

from opslog.environment import Environment, format_ts
from opslog.server.background import Background
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset, parse_offset
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Events
from opslog.server.streams import Streams
from opslog.server.subscriptions import store as subscription_store
from opslog.server.subscriptions import subscription as subscriptions
from opslog.server.subscriptions.entries import Entries, Entry
from opslog.server.subscriptions.subscription import (
    PULL_WAKE,
    ZERO,
    Ack,
    Config,
    Link,
    Subscription,
    SubscriptionRefused,
    behind,
)
from opslog.server.subscriptions.wakes import Wakes, no_events_reason
from opslog.server.subscriptions.webhook_delivery import Delivery
from opslog.server.subscriptions.webhook_keys import Keys

_log = logging.getLogger("opslog.server.subscriptions.subscription")


class Subscriptions:
    """All subscriptions of a server. For one event loop, between `start` and `stop`.

    :param rotate_keys: whether to begin replacing the key that signs webhooks; see
        `opslog.server.subscriptions.webhook_keys`.
    :ivar keys: the keys that sign webhooks; known after `start`.
    """

    keys: Keys

    def __init__(
        self, streams: Streams, delivery: Delivery, environment: Environment, *, rotate_keys: bool = False
    ) -> None:
        self._streams = streams
        self._delivery = delivery
        self._environment = environment
        self._rotate_keys = rotate_keys
        self._entries = Entries()
        failed = "a step of a subscription failed, it is tried again soon"
        self._background = Background(_log, failed)
        self._wakes = Wakes(streams, delivery, environment, self._background)
        self._steps = self._wakes.steps

    async def start(self) -> None:
        """Load everything, and continue where the last process stopped. If there are subscriptions, this reads each
        stream's metadata once."""
        fresh = "".join(self._environment.nonce() for _ in range(4))
        secrets = await self._streams.transact(
            lambda transaction: subscription_store.secrets(transaction, fresh, rotate=self._rotate_keys)
        )
        self.keys = self._wakes.keys = Keys(secrets)
        if self._rotate_keys:
            newest = secrets[-1].since
            _log.info("a new key signs webhooks", extra={"kid": self.keys.kid(newest), "since": format_ts(newest)})
        for subscription, links in subscription_store.load(self._streams.storage.shards[0]):
            self._entries.add(Entry(subscription, links))
            path = subscription.config.wake_stream or ""
            if (reason := no_events_reason(path)) is not None:  # it was made by a version that did not refuse it
                text = "subscription %r has no events in its wake stream %r: %s; delete it, and make another"
                _log.warning(text, subscription.id, path, reason)
        self._streams.observers.append(self._observe)
        if self._entries:
            self._compare_all()
        for entry in self._entries:
            self._wakes.arm(entry)
            self._background.spawn(self._take_up(entry))

    async def stop(self) -> None:
        """Begin nothing more, and cancel running work. The next start takes it up again."""
        for entry in self._entries:
            entry.disarm()
        await self._background.stop()
        await self._delivery.close()

    async def _take_up(self, entry: Entry) -> None:
        async with entry.lock:
            if entry.deleted:
                return
            if entry.subscription.waits_for_claim:
                # Perhaps for the second time: it is unknown whether they were notified before.
                entry.unannounced = True
                self._background.spawn(self._wakes.announce(entry))
            await self._steps.commit(entry, subscriptions.taken_up(entry.subscription, self._environment.time()))

    def _compare_all(self) -> None:
        there: set[str] = set()
        for stream in self._streams.list():
            there.add(stream.path)
            for entry in self._entries.interested_in(stream.path):
                link = entry.links.get(stream.path)
                if link is None or link.stream_id != stream.id:
                    entry.news.add(stream.path)
                elif behind(link.acked_offset, format_offset(stream.tail)):
                    entry.pending.add(stream.path)
        for entry in self._entries:
            entry.news.update(path for path, link in entry.links.items() if link.stream_id and path not in there)

    # Requests of clients

    async def create(self, id: str, config: Config, base_url: str) -> tuple[Entry, bool]:
        """Create a subscription, or confirm that it exists. Returns it and whether it is new.

        :raises SubscriptionRefused: it exists with another configuration, its webhook may not be called, or its wake
            stream may not be written.
        """
        if (reason := no_events_reason(config.wake_stream or "")) is not None:
            raise subscriptions.invalid(f"the wake_stream cannot be {config.wake_stream!r}: {reason}")
        if (known := self._entries.get(id)) is not None:
            return await self._confirm(known, config), False
        if config.webhook_url is not None:
            await self._delivery.check(config.webhook_url)
            if (known := self._entries.get(id)) is not None:  # created while the webhook's name was resolved
                return await self._confirm(known, config), False
        entry = Entry(Subscription(id, config, format_ts(self._environment.time()), base_url), {})
        async with entry.lock:
            self._entries.add(entry)
            try:
                links = {path: self._explicit(path) for path in config.streams}
                for stream in self._streams.list():
                    if stream.path not in links and entry.matches(stream.path):
                        links[stream.path] = _caught_up(stream)
                await self._steps.commit(entry, entry.subscription, links, new=True)
            except BaseException:
                self._entries.remove(entry)
                raise
        return entry, True

    async def _confirm(self, entry: Entry, config: Config) -> Entry:
        async with entry.lock:
            if entry.deleted:
                raise SubscriptionRefused(409, "SUBSCRIPTION_ALREADY_EXISTS", "it is being deleted; try again")
            if entry.subscription.config != config:
                message = "this subscription exists with another configuration; delete it, or take another id"
                raise SubscriptionRefused(409, "SUBSCRIPTION_ALREADY_EXISTS", message)
        return entry

    def get(self, id: str) -> Entry:
        """:raises SubscriptionRefused: 404."""
        entry = self._entries.get(id)
        if entry is None:
            raise SubscriptionRefused(404, "SUBSCRIPTION_NOT_FOUND", "there is no such subscription")
        return entry

    async def delete(self, id: str) -> None:
        entry = self._entries.get(id)
        if entry is None:
            return
        async with entry.lock:
            if entry.deleted:
                return
            await self._streams.transact(lambda transaction: subscription_store.erase(transaction, id, entry.links))
            entry.subscription = subscriptions.released(entry.subscription)  # no wake is under way any more
            entry.disarm()
            self._entries.remove(entry)

    async def add_streams(self, id: str, paths: Iterable[str]) -> None:
        entry = self.get(id)
        async with entry.lock:
            self._check_there(entry)
            links: dict[str, Link | None] = {}
            for path in paths:
                known = entry.links.get(path)
                links[path] = self._explicit(path) if known is None else replace(known, explicit=True)
            await self._steps.commit(entry, entry.subscription, links)
            self._entries.links_changed()

    async def remove_stream(self, id: str, path: str) -> None:
        entry = self.get(id)
        async with entry.lock:
            self._check_there(entry)
            known = entry.links.get(path)
            if known is not None and known.explicit:
                glob = entry.matches(path) and known.stream_id != 0
                left = replace(known, explicit=False, glob=True) if glob else None
                await self._steps.commit(entry, entry.subscription, {path: left})
                self._entries.links_changed()

    async def claim(self, id: str, worker: str) -> tuple[Subscription, str, list[dict[str, object]]]:
        """Claim the wake for a worker. Returns the subscription, the token that acknowledges the wake, and the streams.

        :raises SubscriptionRefused: another worker has it, or there is nothing to do.
        """
        entry = self._pull_wake(id)
        async with entry.lock:
            self._check_there(entry)
            await self._steps.commit(entry, entry.subscription)
            now = self._environment.time()
            claimed = subscriptions.claimed(entry.subscription, worker, now)
            if not entry.pending:
                await self._steps.commit(entry, subscriptions.released(entry.subscription))
                raise SubscriptionRefused(409, "NO_PENDING_WORK", "all of its streams are processed")
            snapshot = {path: self._steps.tail(path) for path in entry.pending}
            await self._steps.commit(entry, replace(claimed, snapshot=snapshot))
            entry.sent = {path: self._steps.end(path).stream_id for path in entry.links}
            return entry.subscription, self.keys.token(id, claimed.generation, now), self.infos(entry)

    async def acknowledge(self, id: str, token: str, body: Mapping[str, object], *, pull_wake: bool) -> bool:
        """Move cursors, and extend the lease, or end it with ``done``. Returns whether that caused the next wake.

        :raises SubscriptionRefused: nothing was changed.
        """
        entry = self._pull_wake(id) if pull_wake else self.get(id)
        acks = subscriptions.parse_acks(body)
        async with entry.lock:
            self._check_fence(entry, token, body)
            moved = self._acknowledged(entry, acks)
            extended = subscriptions.extended(entry.subscription, self._environment.time())
            subscription = subscriptions.delivered(extended)
            if body.get("done") is True:
                subscription = subscriptions.released(subscription)
            return await self._steps.commit(entry, subscription, moved)

    async def release(self, id: str, token: str, body: Mapping[str, object]) -> None:
        entry = self._pull_wake(id)
        async with entry.lock:
            self._check_fence(entry, token, body)
            await self._steps.commit(entry, subscriptions.released(entry.subscription))

    def followers(self, path: str) -> Iterator[tuple[Subscription, Link]]:
        """The subscriptions of a stream, each with its link, which has the acknowledged position."""
        for entry in self._entries.interested_in(path):
            link = entry.links.get(path)
            if link is not None:
                yield entry.subscription, link

    def infos(self, entry: Entry) -> list[dict[str, object]]:
        """The streams of a subscription, as they are described to a worker."""
        return subscriptions.infos(entry.links.values(), {path: self._steps.tail(path) for path in entry.links})

    def _pull_wake(self, id: str) -> Entry:
        entry = self.get(id)
        if entry.subscription.config.type != PULL_WAKE:
            raise subscriptions.invalid("this subscription is not a pull-wake one")
        return entry

    def _check_there(self, entry: Entry) -> None:
        if entry.deleted:
            raise SubscriptionRefused(404, "SUBSCRIPTION_NOT_FOUND", "there is no such subscription")

    def _explicit(self, path: str) -> Link:
        stream = self._steps.stream(path)
        tail = ZERO if stream is None else format_offset(stream.tail)
        return subscriptions.new_link(path, explicit=True, stream_id=0 if stream is None else stream.id, tail=tail)

    def _check_fence(self, entry: Entry, token: str, body: Mapping[str, object]) -> None:
        self._check_there(entry)
        subscription = entry.subscription
        generation = self.keys.generation(token, subscription.id, self._environment.time())
        subscriptions.check_fence(subscription, generation, body.get("generation"), body.get("wake_id"))

    def _acknowledged(self, entry: Entry, acks: list[Ack]) -> dict[str, Link | None]:
        ends = {path: self._steps.end(path) for path, _ in acks}
        moved = subscriptions.acknowledged(entry.links, ends, acks, entry.sent)
        for path, link in moved.items():
            self._check_boundary(path, link.acked_offset)
        return {**moved}

    def _check_boundary(self, path: str, offset: str) -> None:
        """:raises SubscriptionRefused: the offset lies inside a message, so nobody could read on from it."""
        stream, position = self._steps.stream(path), parse_offset(offset)
        if stream is None or not stream.is_json or position is None or position < stream.earliest:
            return
        try:
            self._streams.read(stream, position, 1)
        except Refused as refused:
            raise SubscriptionRefused(409, "INVALID_OFFSET", f"{path!r}: {refused}") from None

    # Changes of streams

    def _observe(self, events: Events) -> None:
        if not self._entries:
            return
        for stream in events.created:
            for entry in self._entries:
                subscription = entry.subscription
                if subscription.config.wake_stream == stream.path and subscription.waits_for_claim:
                    self._background.spawn(self._wakes.announce(entry))
        for path in (*(stream.path for stream in events.deleted), *events.appended):
            for entry in self._entries.interested_in(path):
                self._note(entry, path, events.appended.get(path))

    def _note(self, entry: Entry, path: str, stream: Stream | None) -> None:
        """Note a change of a stream. This runs for every append, so it begins as little work as possible."""
        link = entry.links.get(path)
        known = stream is not None and link is not None and link.stream_id == stream.id
        if path in entry.news or (known and path in entry.pending):
            return
        entry.news.add(path)
        if not (known and entry.subscription.wake_id):  # the next step of the wake under way includes it
            self._stir(entry)

    def _stir(self, entry: Entry) -> None:
        if not entry.stirred and not self._background.stopping:
            entry.stirred = True
            self._background.spawn(self._steps.take_in(entry))


def _caught_up(stream: Stream) -> Link:
    return subscriptions.new_link(stream.path, explicit=False, stream_id=stream.id, tail=format_offset(stream.tail))
