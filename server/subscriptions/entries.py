"""The subscriptions of a running server, in memory; and which of them are interested in a stream."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from opslog.server.subscriptions import globs
from opslog.server.subscriptions.subscription import Link, Subscription

# The interested subscriptions are cached for this many paths. When the cache is full, it is emptied.
_INTERESTED_MAX = 100_000


class Entry:
    """A subscription in memory: the committed state, and later events.

    :ivar pending: the paths of streams that have more than was acknowledged.
    :ivar news: the paths of streams with changes that no commit includes yet.
    :ivar stirred: a step that includes them is about to run.
    :ivar lock: held while a step of this subscription runs.
    :ivar unannounced: a wake began, and workers may not have been notified of it yet.
    :ivar retry_at: the time of the event loop at which what has failed is tried again; None: nothing has failed.
    :ivar sent: the ids of the streams that the worker of the wake under way was sent, by path. They are not stored, so
        a new process begins with those of the links.
    :ivar post: posts its webhook. The next post ends this one, whose wake is over, so that no answer to it counts.
    :ivar timer: fires when the subscription has to act by itself.
    """

    def __init__(self, subscription: Subscription, links: dict[str, Link]) -> None:
        self.subscription = subscription
        self.links = links
        self.sent = {path: link.stream_id for path, link in links.items()}
        self.pending: set[str] = set()
        self.news: set[str] = set()
        self.stirred = False
        self.deleted = False
        self.unannounced = False
        self.lock = asyncio.Lock()
        self.retry_at: float | None = None
        self.post: asyncio.Future[bool] | None = None
        self.timer: asyncio.TimerHandle | None = None

    def matches(self, path: str) -> bool:
        config = self.subscription.config
        # Its own wake events must not wake it.
        return config.pattern is not None and path != config.wake_stream and globs.matches(config.pattern, path)

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Entries:
    """All subscriptions, by id."""

    def __init__(self) -> None:
        self._by_id: dict[str, Entry] = {}
        self._interested: dict[str, tuple[Entry, ...]] = {}

    def __iter__(self) -> Iterator[Entry]:
        return iter(self._by_id.values())

    def __len__(self) -> int:
        return len(self._by_id)

    def get(self, id: str) -> Entry | None:
        return self._by_id.get(id)

    def add(self, entry: Entry) -> None:
        self._by_id[entry.subscription.id] = entry
        self.links_changed()

    def remove(self, entry: Entry) -> None:
        entry.deleted = True
        del self._by_id[entry.subscription.id]
        self.links_changed()

    def links_changed(self) -> None:
        """Forget the cached interests. Called when a subscription was created, deleted, or linked explicitly with other
        streams."""
        self._interested.clear()

    def interested_in(self, path: str) -> tuple[Entry, ...]:
        """The subscriptions that a stream with this path is linked with, or would be."""
        found = self._interested.get(path)
        if found is None:
            found = tuple(entry for entry in self if path in entry.links or entry.matches(path))
            if len(self._interested) >= _INTERESTED_MAX:
                self._interested.clear()
            self._interested[path] = found
        return found
