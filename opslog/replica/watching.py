"""Following a store without end: refreshing it whenever the storage says that there is something new, or else now and
then."""

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

# A store whose storage says what is written is refreshed this often all the same: so a name that its requests keep, as
# on a server, is kept, and what nobody has said is not missed for long.
AT_LEAST_SECONDS = 20.0
# After which time of waiting a thread has its environment sleep for a moment.
_SLICE_SECONDS = 0.2


def watch(replica: Replica[Any], poll_seconds: float) -> Iterator[Commit]:
    """See `opslog.Store.watch`."""
    if replica.is_closed:
        return
    with waiting(replica.backend, replica.environment) as waits:
        while not replica.is_closed:
            try:
                replica.refresh()
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
    """For one thread that refreshes, and waits when there was nothing new. What is written while it refreshes ends the
    wait that follows."""

    def __init__(self, subscription: Subscription | None, changed: threading.Event, environment: Environment) -> None:
        self._subscription = subscription
        self._changed = changed
        self._environment = environment

    def wait(self, seconds: float) -> None:
        """Until there may be something new.

        :param seconds: where the storage does not say so, for so long.
        """
        environment, subscription = self._environment, self._subscription
        if subscription is None or not (subscription.is_live or self._changed.is_set()):
            environment.sleep(seconds)
            return
        end = environment.monotonic() + AT_LEAST_SECONDS
        while not self._changed.wait(_SLICE_SECONDS) and environment.monotonic() < end:
            environment.sleep(0.0)  # which may end the program: see `opslog watch`
        self._changed.clear()


@contextmanager
def waiting(backend: Backend, environment: Environment) -> Iterator[Waiting]:
    """A subscription to what is written, as long as the block lasts."""
    changed = threading.Event()
    with subscribed(backend, changed.set) as subscription:
        yield Waiting(subscription, changed, environment)


@contextmanager
def subscribed(backend: Backend, changed: Callable[[], None]) -> Iterator[Subscription | None]:
    """A subscription, as long as the block lasts; None: the storage says nothing."""
    subscription: Subscription | None = None
    if isinstance(backend, Announces):
        with suppress(ClosedError):  # which whoever refreshes finds out, too
            subscription = backend.subscribe(changed)
    try:
        yield subscription
    finally:
        if subscription is not None:
            subscription.close()
