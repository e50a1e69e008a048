"""Subscriptions at work: kept in the storage, told of appends, with their timers and deliveries.

Each subscription has a lock, and every step of it is one commit: what `opslog.server.subscriptions` says becomes true
here once the storage has it. Nothing is lost by a crash between an append and the wake it causes: at the start all
cursors are compared with the ends of their streams, and matching streams without a link can only be new ones.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
from msgspec.structs import replace

from opslog.environment import Environment, format_ts
from opslog.server import globs, requests, subscription_store, subscriptions
from opslog.server.model import Stream
from opslog.server.offsets import format_offset
from opslog.server.refusals import Refused
from opslog.server.streams import Streams
from opslog.server.subscriptions import (
    PULL_WAKE,
    WEBHOOK,
    ZERO,
    Ack,
    Config,
    Link,
    Subscription,
    SubscriptionRefused,
    behind,
)
from opslog.server.transaction import Events
from opslog.server.webhook_delivery import Delivery
from opslog.server.webhook_keys import Keys

_log = logging.getLogger("opslog.server.subscriptions")

_INTERESTED_MAX = 100_000
"""Paths of which it is remembered who is interested; then all is forgotten, and found again."""


class _Entry:
    """A subscription in memory: as committed, and what came since.

    :ivar pending: paths whose streams have more. :ivar news: paths at which something happened that no commit has
    looked at. :ivar heard: the wake whose worker has called back. :ivar stirred: somebody is about to look.
    """

    def __init__(self, subscription: Subscription, links: dict[str, Link]) -> None:
        self.subscription = subscription
        self.links = links
        self.pending: set[str] = set()
        self.news: set[str] = set()
        self.heard: str | None = None
        self.stirred = False
        self.deleted = False
        self.lock = asyncio.Lock()
        self.timer: asyncio.TimerHandle | None = None

    def matches(self, path: str) -> bool:
        config = self.subscription.config
        # Its own wake events must not wake it.
        return config.pattern is not None and path != config.wake_stream and globs.matches(config.pattern, path)


class Subscriptions:
    """All subscriptions of a server. For one event loop, between `start` and `stop`.

    :ivar keys: sign webhooks; known after `start`.
    """

    keys: Keys

    def __init__(self, streams: Streams, delivery: Delivery, environment: Environment) -> None:
        self._streams = streams
        self._delivery = delivery
        self._environment = environment
        self._entries: dict[str, _Entry] = {}
        self._interested: dict[str, tuple[_Entry, ...]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    async def start(self) -> None:
        """Load everything and go on where the last process stopped. Reads each stream's metadata once if there are
        subscriptions."""
        fresh = "".join(self._environment.nonce() for _ in range(4))
        secret = await self._streams.transact(lambda transaction: subscription_store.secret(transaction, fresh))
        self.keys = Keys(secret)
        for subscription, links in subscription_store.load(self._streams.storage.shards[0]):
            self._entries[subscription.id] = _Entry(subscription, links)
        self._streams.observers.append(self._observe)
        if self._entries:
            self._compare_all()
        for entry in self._entries.values():
            self._arm(entry)
            self._stir(entry)
            subscription = entry.subscription
            if subscription.config.type == PULL_WAKE and subscription.wake_id and not subscription.holder:
                self._spawn(self._tell_workers(entry))  # perhaps again: it is not known whether they were told

    async def stop(self) -> None:
        """Begin nothing more; what is under way is given up, and taken up again by the next start."""
        self._stopping = True
        for entry in self._entries.values():
            _disarm(entry)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._delivery.close()

    def _compare_all(self) -> None:
        there: set[str] = set()
        for stream in self._streams.list():
            there.add(stream.path)
            for entry in self._interested_in(stream.path):
                link = entry.links.get(stream.path)
                if link is None or link.stream_id != stream.id:
                    entry.news.add(stream.path)
                elif behind(link.acked_offset, format_offset(stream.tail)):
                    entry.pending.add(stream.path)
        for entry in self._entries.values():
            entry.news.update(path for path, link in entry.links.items() if link.stream_id and path not in there)

    # What clients ask for

    async def create(self, id: str, config: Config, base_url: str) -> tuple[_Entry, bool]:
        """The subscription, and whether it is a new one.

        :raises SubscriptionRefused: it exists with another configuration, or its webhook may not be called.
        """
        if (known := self._entries.get(id)) is not None:
            return await self._confirm(known, config), False
        if config.webhook_url is not None:
            await self._delivery.check(config.webhook_url)
            if (known := self._entries.get(id)) is not None:  # made while the name was resolved
                return await self._confirm(known, config), False
        entry = _Entry(Subscription(id, config, format_ts(self._environment.time()), base_url), {})
        async with entry.lock:
            self._entries[id] = entry
            self._interested.clear()
            try:
                links = {path: self._explicit(path) for path in config.streams}
                for stream in self._streams.list():
                    if stream.path not in links and entry.matches(stream.path):
                        links[stream.path] = _caught_up(stream)
                await self._commit(entry, entry.subscription, links, new=True)
            except BaseException:
                entry.deleted = True
                del self._entries[id]
                self._interested.clear()
                raise
        return entry, True

    async def _confirm(self, entry: _Entry, config: Config) -> _Entry:
        async with entry.lock:
            if entry.deleted:
                raise SubscriptionRefused(409, "SUBSCRIPTION_ALREADY_EXISTS", "it is being deleted; try again")
            if entry.subscription.config != config:
                message = "this subscription exists with another configuration; delete it, or take another id"
                raise SubscriptionRefused(409, "SUBSCRIPTION_ALREADY_EXISTS", message)
        return entry

    def get(self, id: str) -> _Entry:
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
            entry.deleted = True
            entry.subscription = subscriptions.released(entry.subscription)  # no wake is under way any more
            _disarm(entry)
            del self._entries[id]
            self._interested.clear()

    async def add_streams(self, id: str, paths: Iterable[str]) -> None:
        entry = self.get(id)
        async with entry.lock:
            self._check_there(entry)
            links: dict[str, Link | None] = {}
            for path in paths:
                known = entry.links.get(path)
                links[path] = self._explicit(path) if known is None else replace(known, explicit=True)
            await self._commit(entry, entry.subscription, links)
            self._interested.clear()

    async def remove_stream(self, id: str, path: str) -> None:
        entry = self.get(id)
        async with entry.lock:
            self._check_there(entry)
            known = entry.links.get(path)
            if known is not None and known.explicit:
                glob = entry.matches(path) and known.stream_id != 0
                left = replace(known, explicit=False, glob=True) if glob else None
                await self._commit(entry, entry.subscription, {path: left})
                self._interested.clear()

    async def claim(self, id: str, worker: str) -> tuple[Subscription, str, list[dict[str, object]]]:
        """The claimed wake, the token to speak for it, and what there is to do.

        :raises SubscriptionRefused: somebody else has it, or there is nothing to do.
        """
        entry = self._pull_wake(id)
        async with entry.lock:
            self._check_there(entry)
            await self._commit(entry, entry.subscription)
            now = self._environment.time()
            claimed = subscriptions.claimed(entry.subscription, worker, now)
            if not entry.pending:
                await self._commit(entry, subscriptions.released(entry.subscription))
                raise SubscriptionRefused(409, "NO_PENDING_WORK", "all of its streams are processed")
            snapshot = {path: self._tail(path) for path in entry.pending}
            await self._commit(entry, replace(claimed, snapshot=snapshot))
            return entry.subscription, self.keys.token(id, claimed.generation, now), self.infos(entry)

    async def acknowledge(self, id: str, token: str, body: Mapping[str, object], *, pull_wake: bool) -> bool:
        """Move cursors, and extend or, with ``done``, end the lease. Whether that caused the next wake.

        :raises SubscriptionRefused: nothing was changed.
        """
        entry = self._pull_wake(id) if pull_wake else self.get(id)
        acks = subscriptions.parse_acks(body)
        async with entry.lock:
            self._check_fence(entry, token, body)
            moved = self._acknowledged(entry, acks)
            entry.heard = entry.subscription.wake_id
            extended = subscriptions.extended(entry.subscription, self._environment.time())
            subscription = subscriptions.delivered(extended)
            if body.get("done") is True:
                subscription = subscriptions.released(subscription)
            return await self._commit(entry, subscription, moved)

    async def release(self, id: str, token: str, body: Mapping[str, object]) -> None:
        entry = self._pull_wake(id)
        async with entry.lock:
            self._check_fence(entry, token, body)
            await self._commit(entry, subscriptions.released(entry.subscription))

    def infos(self, entry: _Entry) -> list[dict[str, object]]:
        """What a worker is told about the streams of a subscription."""
        return subscriptions.infos(entry.links.values(), {path: self._tail(path) for path in entry.links})

    def _pull_wake(self, id: str) -> _Entry:
        entry = self.get(id)
        if entry.subscription.config.type != PULL_WAKE:
            raise subscriptions.invalid("this subscription is not a pull-wake one")
        return entry

    def _check_there(self, entry: _Entry) -> None:
        if entry.deleted:
            raise SubscriptionRefused(404, "SUBSCRIPTION_NOT_FOUND", "there is no such subscription")

    def _check_fence(self, entry: _Entry, token: str, body: Mapping[str, object]) -> None:
        self._check_there(entry)
        subscription = entry.subscription
        generation = self.keys.generation(token, subscription.id, self._environment.time())
        subscriptions.check_fence(subscription, generation, body.get("generation"), body.get("wake_id"))

    def _acknowledged(self, entry: _Entry, acks: list[Ack]) -> dict[str, Link | None]:
        tails = {path: self._tail(path) for path, _ in acks}
        return {**subscriptions.acknowledged(entry.links, tails, acks)}

    # What streams tell

    def _observe(self, events: Events) -> None:
        if not self._entries:
            return
        for stream in events.created:
            for entry in self._entries.values():
                subscription = entry.subscription
                if subscription.config.wake_stream == stream.path and subscription.wake_id and not subscription.holder:
                    self._spawn(self._tell_workers(entry))
        for path in (*(stream.path for stream in events.deleted), *events.appended):
            for entry in self._interested_in(path):
                self._note(entry, path, events.appended.get(path))

    def _note(self, entry: _Entry, path: str, stream: Stream | None) -> None:
        """Something happened to a stream. This runs with every append, so it begins as little as possible."""
        link = entry.links.get(path)
        known = stream is not None and link is not None and link.stream_id == stream.id
        if path in entry.news or (known and path in entry.pending):
            return
        entry.news.add(path)
        if not (known and entry.subscription.wake_id):  # the next step of a wake under way looks at it
            self._stir(entry)

    def _interested_in(self, path: str) -> tuple[_Entry, ...]:
        found = self._interested.get(path)
        if found is None:
            found = tuple(entry for entry in self._entries.values() if path in entry.links or entry.matches(path))
            if len(self._interested) >= _INTERESTED_MAX:
                self._interested.clear()
            self._interested[path] = found
        return found

    def _stir(self, entry: _Entry) -> None:
        if not entry.stirred and not self._stopping:
            entry.stirred = True
            self._spawn(self._look(entry))

    async def _look(self, entry: _Entry) -> None:
        async with entry.lock:
            entry.stirred = False
            if not entry.deleted:
                await self._commit(entry, entry.subscription)

    # Steps

    async def _commit(
        self,
        entry: _Entry,
        subscription: Subscription,
        links: Mapping[str, Link | None] | None = None,
        *,
        new: bool = False,
    ) -> bool:
        """Make a step true: with what happened since the last one, and with a new wake if it is idle and has work.

        :returns: whether a new wake began. :raises OpslogError: it could not be stored, and nothing was changed.
        """
        news, entry.news = entry.news, set()
        changed = self._with_news(entry, dict(links or {}), news)
        after = {**{path: entry.links[path] for path in entry.pending if path in entry.links}, **changed}
        pending = {path for path, link in after.items() if link and behind(link.acked_offset, self._tail(path))}
        woken = subscription.wake_id is None and bool(pending) and not self._stopping
        if woken:
            wake_id = f"w_{self._environment.nonce()}"
            tails = {path: self._tail(path) for path in pending}
            subscription = subscriptions.wake(subscription, wake_id, tails, self._environment.time())
        if new or changed or subscription != entry.subscription:
            try:
                await self._streams.transact(
                    lambda transaction: subscription_store.store(transaction, subscription, changed)
                )
            except BaseException:
                entry.news |= news
                raise
        entry.subscription = subscription
        for path, link in changed.items():
            if link is None:
                entry.links.pop(path, None)
            else:
                entry.links[path] = link
        entry.pending = pending
        self._arm(entry)
        if woken:
            self._spawn(self._deliver(entry) if subscription.config.type == WEBHOOK else self._tell_workers(entry))
        return woken

    def _with_news(self, entry: _Entry, links: dict[str, Link | None], news: Iterable[str]) -> dict[str, Link | None]:
        """The links to change. Those of streams at which something happened are there in any case if they exist."""
        for path in news:
            known = links.get(path, entry.links.get(path))
            stream = self._stream(path)
            matched = entry.matches(path)
            link = subscriptions.refreshed(known, path, matched=matched, stream_id=stream.id if stream else None)
            if link is not None and link == entry.links.get(path):
                entry.pending.add(path)  # to be compared below
            elif link is not None or path in entry.links:
                links[path] = link
        return links

    def _explicit(self, path: str) -> Link:
        stream = self._stream(path)
        tail = ZERO if stream is None else format_offset(stream.tail)
        return subscriptions.new_link(path, explicit=True, stream_id=0 if stream is None else stream.id, tail=tail)

    def _stream(self, path: str) -> Stream | None:
        try:
            return self._streams.stream(path)
        except Refused:
            return None

    def _tail(self, path: str) -> str:
        stream = self._stream(path)
        return ZERO if stream is None else format_offset(stream.tail)

    # Timers

    def _arm(self, entry: _Entry) -> None:
        _disarm(entry)
        due = entry.subscription.due
        if due is not None and not self._stopping:
            delay = max(0.0, due - self._environment.time())
            loop = asyncio.get_running_loop()
            entry.timer = loop.call_later(delay, lambda: self._spawn(self._time_has_come(entry)))

    async def _time_has_come(self, entry: _Entry) -> None:
        async with entry.lock:
            subscription = entry.subscription
            if entry.deleted or subscription.due is None or subscription.due > self._environment.time():
                self._arm(entry)
            elif subscription.next_attempt_at is not None:
                self._spawn(self._deliver(entry))
            else:
                _log.info("lease over: subscription %r, generation %d", subscription.id, subscription.generation)
                await self._commit(entry, subscriptions.released(subscription))

    # Telling workers

    async def _deliver(self, entry: _Entry) -> None:
        """Post the wake under way; again, if it was tried before."""
        async with entry.lock:
            if entry.deleted or entry.subscription.wake_id is None:
                return
            await self._commit(entry, entry.subscription)
            subscription = replace(entry.subscription, snapshot={path: self._tail(path) for path in entry.pending})
            if subscription.next_attempt_at is not None:
                subscription = subscriptions.extended(subscription, self._environment.time())
            await self._commit(entry, subscription)
            body = self._wake_body(entry)
        url = subscription.config.webhook_url
        assert url is not None, "only webhook subscriptions are delivered"
        done, problem = False, None
        try:
            done = await self._delivery.post(url, body, self.keys.signature(body, self._environment.time()))
        except (OSError, httpx.HTTPError, TimeoutError, SubscriptionRefused) as error:
            problem = str(error) or type(error).__name__
        async with entry.lock:
            current = entry.subscription
            if current.wake_id != subscription.wake_id:
                return
            if problem is not None and entry.heard != current.wake_id:
                _log.warning("the webhook of subscription %r was not delivered: %s", current.id, problem)
                chance = int(self._environment.nonce(), 16) / 16**16
                await self._commit(entry, subscriptions.failed(current, self._environment.time(), chance))
            elif done:
                moved = subscriptions.snapshot_acked(current, entry.links)
                await self._commit(entry, subscriptions.released(subscriptions.delivered(current)), moved)
            elif problem is None:
                await self._commit(entry, subscriptions.delivered(current))

    def _wake_body(self, entry: _Entry) -> bytes:
        subscription = entry.subscription
        # What `done` acknowledges is what was told, so nothing is told that came after the snapshot.
        tails = {**{path: max(link.acked_offset, ZERO) for path, link in entry.links.items()}, **subscription.snapshot}
        return msgspec.json.encode(
            {
                "subscription_id": subscription.id,
                "wake_id": subscription.wake_id,
                "generation": subscription.generation,
                "streams": subscriptions.infos(entry.links.values(), tails),
                "callback_url": f"{subscription.base_url}__ds/subscriptions/{quote(subscription.id, safe='')}/callback",
                "callback_token": self.keys.token(subscription.id, subscription.generation, self._environment.time()),
            }
        )

    async def _tell_workers(self, entry: _Entry) -> None:
        """Write a wake event."""
        subscription = entry.subscription
        path = subscription.config.wake_stream or ""
        stream = self._stream(path)
        if stream is None:
            _log.warning("the wake stream %r of subscription %r does not exist yet", path, subscription.id)
            return
        event = {
            "type": "wake",
            "subscription_id": subscription.id,
            "stream": min(subscription.snapshot, default=""),
            "generation": subscription.generation,
            "ts": int(self._environment.time() * 1000),
        }
        line = msgspec.json.encode(event) + (b"" if stream.is_json else b"\n")
        try:
            await self._streams.append(requests.append_of(path, {b"content-type": stream.content_type}, line))
        except Refused as refused:
            _log.warning("the wake stream %r of subscription %r takes no event: %s", path, subscription.id, refused)

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        if self._stopping:
            coroutine.close()
            return
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a step of a subscription failed, it is taken up at its next event or start", exc_info=error)


def _caught_up(stream: Stream) -> Link:
    return subscriptions.new_link(stream.path, explicit=False, stream_id=stream.id, tail=format_offset(stream.tail))


def _disarm(entry: _Entry) -> None:
    if entry.timer is not None:
        entry.timer.cancel()
        entry.timer = None
