"""Notifying workers of wakes, by webhooks and by events in wake streams, with retries; and ending leases in time."""

from __future__ import annotations

import asyncio
import logging
from urllib.parse import quote

import httpx
import msgspec
from msgspec.structs import replace

from opslog.doors.tokens import STORES
from opslog.environment import Environment
from opslog.server.background import Background
from opslog.server.protocol import json_mode
from opslog.server.protocol.appending import Append
from opslog.server.protocol.refusals import Refused
from opslog.server.streams import REGISTRY, Streams
from opslog.server.subscriptions import subscription as subscriptions
from opslog.server.subscriptions.entries import Entry
from opslog.server.subscriptions.steps import Steps
from opslog.server.subscriptions.subscription import WEBHOOK, ZERO, SubscriptionRefused
from opslog.server.subscriptions.webhook_delivery import Delivery
from opslog.server.subscriptions.webhook_keys import Keys

_log = logging.getLogger("opslog.server.subscriptions.subscription")
# How long to wait before trying again what the storage did not take.
_RETRY_SECONDS = 1.0


def no_events_reason(wake_stream: str) -> str | None:
    """Why this stream gets no events of wakes; None: it does get them.

    The server alone writes feeds and the registry, and their readers rely on the form of what is there.
    """
    if wake_stream.startswith(STORES):
        return f"streams below {STORES} are for the feeds of stores"
    return "this stream is the registry" if wake_stream == REGISTRY else None


class Wakes:
    """Does what has to follow each step of a subscription.

    :ivar steps: carries out the steps.
    :ivar keys: the keys that sign webhooks; must be set before the first step.
    """

    keys: Keys

    def __init__(self, streams: Streams, delivery: Delivery, environment: Environment, background: Background) -> None:
        self.steps = Steps(streams, environment, self._follow, self._retry, lambda: not background.stopping)
        self._streams = streams
        self._delivery = delivery
        self._environment = environment
        self._background = background

    def _follow(self, entry: Entry, woken: bool) -> None:
        self.arm(entry)
        if woken:
            entry.unannounced = True
            self._background.spawn(self.announce(entry))

    def _retry(self, entry: Entry) -> None:
        entry.retry_at = asyncio.get_running_loop().time() + _RETRY_SECONDS
        self.arm(entry)

    def arm(self, entry: Entry) -> None:
        """Set the timer of an entry for the next time it has to act by itself."""
        entry.disarm()
        if self._background.stopping:
            return
        loop = asyncio.get_running_loop()
        when = entry.retry_at  # after a failure for that alone: what is due has failed, and must not be tried at once
        if when is None and (due := entry.subscription.due) is not None:
            when = loop.time() + max(0.0, due - self._environment.time())
        if when is not None:
            entry.timer = loop.call_at(when, lambda: self._background.spawn(self._time_has_come(entry)))

    async def _time_has_come(self, entry: Entry) -> None:
        async with entry.lock:
            if entry.deleted:
                return
            subscription = entry.subscription
            retrying, entry.retry_at = entry.retry_at is not None, None
            is_due = subscription.due is not None and subscription.due <= self._environment.time()
            if is_due and subscription.next_attempt_at is not None:
                self._background.spawn(self.announce(entry))
                return
            if is_due:
                _log.info("lease over: subscription %r, generation %d", subscription.id, subscription.generation)
                subscription = subscriptions.released(subscription)
            woken = await self.steps.commit(entry, subscription)  # sets the timer again, even if it fails
            if retrying and entry.unannounced and not woken:
                self._background.spawn(self.announce(entry))

    async def announce(self, entry: Entry) -> None:
        """Notify workers of the wake under way."""
        webhook = entry.subscription.config.type == WEBHOOK
        try:
            await (self._deliver(entry) if webhook else self._notify_workers(entry))
        except Exception:
            self._retry(entry)
            raise

    async def _deliver(self, entry: Entry) -> None:
        """Post the webhook of the wake under way, for the first time or again."""
        async with entry.lock:
            if entry.deleted or entry.subscription.wake_id is None:
                return
            await self.steps.commit(entry, entry.subscription)
            sent = {path: self.steps.end(path) for path in entry.pending}
            snapshot = {path: end.offset for path, end in sent.items()}
            subscription = replace(entry.subscription, snapshot=snapshot)
            if subscription.next_attempt_at is not None:
                subscription = subscriptions.extended(subscription, self._environment.time())
            await self.steps.commit(entry, subscription)
            body = self._body(entry)
            entry.sent = {path: link.stream_id for path, link in entry.links.items()}
            entry.sent.update({path: end.stream_id for path, end in sent.items()})
            # From here on, the wake is tried again by its own rules: after a failed delivery, and after its lease.
            entry.unannounced = False
        url = subscription.config.webhook_url
        assert url is not None, "only webhook subscriptions are delivered"
        signature = self.keys.signature(body, self._environment.time())
        if entry.post is not None:
            entry.post.cancel()
        entry.post = asyncio.ensure_future(self._delivery.post(url, body, signature))
        done, problem = False, None
        try:
            done = await entry.post
        except (OSError, httpx.HTTPError, TimeoutError, SubscriptionRefused) as error:
            problem = str(error) or type(error).__name__
        async with entry.lock:
            current = entry.subscription
            if current.wake_id != subscription.wake_id:
                return
            if problem is not None and not current.taken:
                _log.warning("the webhook of subscription %r was not delivered: %s", current.id, problem)
                chance = int(self._environment.nonce(), 16) / 16**16
                await self.steps.commit(entry, subscriptions.failed(current, self._environment.time(), chance))
            elif done:
                moved = subscriptions.sent_acked(entry.links, sent)
                await self.steps.commit(entry, subscriptions.released(subscriptions.delivered(current)), moved)
            elif problem is None:
                await self.steps.commit(entry, subscriptions.delivered(current))

    def _body(self, entry: Entry) -> bytes:
        subscription = entry.subscription
        # With `done` a worker acknowledges what it was sent. So nothing that came after the snapshot is sent.
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

    async def _notify_workers(self, entry: Entry) -> None:
        """Write an event for the wake into the wake stream."""
        subscription = entry.subscription
        if entry.deleted or not subscription.waits_for_claim:
            return
        path = subscription.config.wake_stream or ""
        if no_events_reason(path) is not None:
            entry.unannounced = False
            return
        stream = self.steps.stream(path)
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
        message = msgspec.json.encode(event)
        data = json_mode.record(message) if stream.is_json else message + b"\n"
        try:
            await self._streams.append(Append(path, stream.content_type, data))
        except Refused as refused:
            _log.warning("the wake stream %r of subscription %r takes no event: %s", path, subscription.id, refused)
        entry.unannounced = False
