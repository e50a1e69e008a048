"""Stores that are served: each is opened once, for all who ask, and what blocks runs in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from typing import TypeVar

import opslog
from opslog.doors.activity import Activity
from opslog.doors.metrics import StoreFigures, figures_of
from opslog.doors.once import Once
from opslog.doors.operations import Operations
from opslog.environment import REAL, Environment
from opslog.format.documents import Document
from opslog.format.layout import check_name
from opslog.history import Point
from opslog.replica.feed import Changes, Feed
from opslog.server.protocol.refusals import Refused
from opslog.server.stores.remote_storage import StorageService
from opslog.server.stores.samples import Sample, Samples
from opslog.store import Store, replica_of

R = TypeVar("R")

# How many calls of one store are under way at once: transactions among them share appends.
_THREADS = 16
# How many views of the past are kept open, for whoever asks for the same one again.
_VIEWS = 4


class ServedStore:
    """One store that is served.

    Everything but construction, `call`, `call_in_turn`, `call_for_feed` and `named` blocks.

    :ivar storage: for agents elsewhere that have a replica of their own.
    :param name: in addresses.
    :param agent: in whose name is written for those who name none.
    :raises OpslogError: as of `opslog.open`.
    """

    def __init__(self, name: str, url: str, agent: str, environment: Environment = REAL) -> None:
        self.name = name
        self.url = url
        self.agent = agent
        self._environment = environment
        self._store: Store[Document] = opslog.open(
            url, agent=agent, log="shared", version=None, environment=environment
        )
        replica = replica_of(self._store)
        self._feed = Feed(replica.loader, replica.schema.decode)
        self.storage = StorageService(replica.backend, name, environment)
        self._threads = ThreadPoolExecutor(_THREADS, f"opslog-store-{name}")
        self._feed_thread = ThreadPoolExecutor(1, f"opslog-feed-{name}")
        self._turns_thread = ThreadPoolExecutor(1, f"opslog-turns-{name}")
        self._views: OrderedDict[Point, _View] = OrderedDict()
        self._lock = threading.Lock()
        self._samples = Samples()
        # The newest summary of the commits, and where in the store it was made: who asks again gets the same.
        self._activity: tuple[object, Activity] | None = None

    async def call(self, function: Callable[[], R]) -> R:
        """What a function returns that blocks; called in a thread."""
        return await _in(self._threads, function)

    async def call_in_turn(self, function: Callable[[], R]) -> R:
        """The same, one after the other: for what takes long, and would take all threads where many ask for it."""
        return await _in(self._turns_thread, function)

    async def call_for_feed(self, function: Callable[[], R]) -> R:
        """The same, one after the other, and beside those of clients."""
        return await _in(self._feed_thread, function)

    def operations(self, author: str | None = None, once: Once | None = None) -> Operations:
        """What a client may ask for, in the name of an author.

        :param once: the request that it is for, if it has a key.
        """
        return Operations(self._store, author or self.agent, once)

    def once(self, key: str, content: bytes) -> Once:
        """A request with a key.

        :param content: all that the request says.
        :raises UsageError: it cannot be a key.
        """
        now = self._environment.time()
        grace = replica_of(self._store).state.manifest.settings.grace_seconds
        return Once(key, content, now, grace)

    def named(self, message: str) -> str:
        """A message with the store's name in place of where it is. Does not block."""
        return message.replace(replica_of(self._store).backend.url, self.name)

    def figures(self) -> StoreFigures:
        """Figures of the store, from memory."""
        return figures_of(self.name, self._store)

    def changes(self, since: str | None, limit: int) -> Changes[Document]:
        """For the feed, which goes on from its own last call. It asks for as long as the store is served, so this is
        also when the names and locks are let go of that nobody uses, and when a sample is taken of its figures."""
        self.storage.release_unused()
        replica = replica_of(self._store)
        found = replica.changes(since, limit, self._feed)
        figures = self.figures()
        self._samples.note(
            self._environment.time(),
            commits=figures.commits,
            tail=figures.tail_commits,
            documents=figures.documents,
            manifest=replica.read(lambda state: state.passed.number),
        )
        return found

    def samples(self) -> Sequence[Sample]:
        """Figures since the store is served."""
        return self._samples.all()

    def activity(self, most: int) -> Activity:
        """As of `Operations.activity`, for `call_in_turn`. Asked again before there is anything new, it reads
        nothing."""
        replica = replica_of(self._store)
        self._store.refresh()
        where = replica.read(lambda state: (state.commits, state.passed.number, most))
        if self._activity is None or self._activity[0] != where:
            self._activity = where, self.operations().activity(most)
        return self._activity[1]

    @contextmanager
    def as_of(self, point: Point) -> Iterator[Operations]:
        """The operations on the store as it was.

        :raises OpslogError: as of `opslog.open` with `as_of`.
        """
        view = self._take(point)
        try:
            yield Operations(view.store)
        finally:
            self._give_back(view)

    def _take(self, point: Point) -> _View:
        with self._lock:
            view = self._views.get(point)
            if view is not None:
                self._views.move_to_end(point)
                view.users += 1
                return view
        store = opslog.open(self.url, as_of=point, version=None, environment=self._environment)
        with self._lock:
            view = _View(store, users=1)
            # Another thread may have opened the same meanwhile: the older one is closed when nobody uses it.
            old = self._views.pop(point, None)
            self._views[point] = view
            closing = [] if old is None else [old]
            while len(self._views) > _VIEWS:
                closing.append(self._views.popitem(last=False)[1])
            for each in closing:
                each.is_dropped = True
            unused = [each for each in closing if not each.users]
        for each in unused:
            each.store.close()
        return view

    def _give_back(self, view: _View) -> None:
        with self._lock:
            view.users -= 1
            is_over = view.is_dropped and not view.users
        if is_over:
            view.store.close()

    def close(self) -> None:
        """Wait for the calls that are under way, and close the store."""
        self._feed_thread.shutdown()
        self._turns_thread.shutdown()
        self._threads.shutdown()
        self.storage.close()
        for view in self._views.values():
            view.store.close()
        self._store.close()


async def _in(threads: ThreadPoolExecutor, function: Callable[[], R]) -> R:
    """With the context of the task that waits, so that what is logged there has the id of its request."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)


class _View:
    """A store as of a point in the past.

    :ivar users: how many calls use it now.
    :ivar is_dropped: the last of them closes it.
    """

    def __init__(self, store: Store[Document], users: int) -> None:
        self.store = store
        self.users = users
        self.is_dropped = False


class ServedStores:
    """All stores that a server serves.

    :param urls: by name. All of them are opened at once.
    :raises OpslogError: as of `opslog.open`; also for a name that cannot be one.
    """

    def __init__(self, urls: Mapping[str, str], agent: str, environment: Environment = REAL) -> None:
        self._stores: dict[str, ServedStore] = {}
        try:
            for name, url in urls.items():
                check_name(name, "name of a served store")
                self._stores[name] = ServedStore(name, url, agent, environment)
        except BaseException:
            self.close()
            raise

    def __iter__(self) -> Iterator[ServedStore]:
        return iter(self._stores.values())

    @property
    def names(self) -> list[str]:
        return list(self._stores)

    def close(self) -> None:
        """Close all of them. Blocks until the calls that are under way have ended."""
        while self._stores:
            self._stores.popitem()[1].close()

    def find(self, name: str) -> ServedStore:
        """:raises Refused: 404."""
        if (store := self._stores.get(name)) is None:
            raise Refused(404, "there is no such store here")
        return store
