"""Following a store without end: refresh it whenever the storage announces a write, or else at regular intervals."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar

from opslog.backends import Announces, Backend, Subscription
from opslog.environment import Environment
from opslog.errors import ClosedError
from opslog.format.commits import Commit
from opslog.replica.replica import Replica

if TYPE_CHECKING:
    from opslog.replica.feed import Changes

T = TypeVar("T")

# A store is refreshed this often even if its storage announces writes. So a server that keeps an agent's name only as
# long as requests come keeps it, and a write that was not announced is not missed for long.
AT_LEAST_SECONDS = 20.0
# A thread that waits has its environment sleep for a moment after each such time.
_SLICE_SECONDS = 0.2


def watch(replica: Replica[Any], poll_seconds: float) -> Iterator[Commit]:
    """See `opslog.Store.watch`."""
    if replica.is_closed:
        return
    with waiting(replica.backend, replica.environment) as waits:
        while not replica.is_closed:
            try:
                replica.refresh_for_news()
            except ClosedError:
                if replica.is_forked:
                    raise
                return  # closed while it was reading
            is_quiet = True
            while (commit := replica.next_news()) is not None:
                is_quiet = False
                yield commit
            if is_quiet:
                waits.wait(poll_seconds)


def follow(replica: Replica[T], since: str | None, poll_seconds: float) -> Iterator[Changes[T]]:
    """See `opslog.Store.follow`."""
    if replica.is_closed:
        return
    with waiting(replica.backend, replica.environment) as waits:
        while not replica.is_closed:
            try:
                found = replica.changes(since, None)
            except ClosedError:
                if replica.is_forked:
                    raise
                return  # closed while it was reading
            if found.reset or found.token != since:
                yield found
            else:
                waits.wait(poll_seconds)
            since = found.token


class Waiting:
    """Waits for new commits, in one thread that refreshes. A write that is announced during a refresh ends the next
    wait at once."""

    def __init__(self, subscription: Subscription | None, changed: threading.Event, environment: Environment) -> None:
        self._subscription = subscription
        self._changed = changed
        self._environment = environment

    def wait(self, seconds: float) -> None:
        """Wait until there may be something new.

        :param seconds: how long to wait if the storage announces no writes.
        """
        environment, subscription = self._environment, self._subscription
        if subscription is None or not (subscription.is_live or self._changed.is_set()):
            environment.sleep(seconds)
            return
        end = environment.monotonic() + AT_LEAST_SECONDS
        while not self._changed.wait(_SLICE_SECONDS) and environment.monotonic() < end:
            environment.sleep(0.0)  # this may end the program: see `opslog watch`
        self._changed.clear()


@contextmanager
def waiting(backend: Backend, environment: Environment) -> Iterator[Waiting]:
    """Subscribe to what is written, for the duration of the block."""
    changed = threading.Event()
    with subscribed(backend, changed.set) as subscription:
        yield Waiting(subscription, changed, environment)


@contextmanager
def subscribed(backend: Backend, changed: Callable[[], None]) -> Iterator[Subscription | None]:
    """A subscription, for the duration of the block; None if the storage announces nothing."""
    subscription: Subscription | None = None
    if isinstance(backend, Announces):
        with suppress(ClosedError):  # the next refresh raises it, too
            subscription = backend.subscribe(changed)
    try:
        yield subscription
    finally:
        if subscription is not None:
            subscription.close()
