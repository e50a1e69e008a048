"""Served stores: each is opened once for all clients, and its blocking calls run in threads of its own."""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from copy import copy
from typing import TypeVar

import opslog
from opslog.doors.activity import Activity
from opslog.doors.metrics import StoreFigures, figures_of
from opslog.doors.once import Once
from opslog.doors.operations import Operations
from opslog.environment import REAL, Environment
from opslog.errors import ReopenError
from opslog.format.commits import Set
from opslog.format.documents import Document
from opslog.format.layout import TRANSACTIONS, check_name
from opslog.format.manifest import START
from opslog.history import Point
from opslog.log.reader import Cursor, mark_of, ts_of
from opslog.replica.feed import Changes, Feed
from opslog.replica.state import State
from opslog.server.protocol.refusals import Refused
from opslog.server.stores.contents import LogEnd, last_commit
from opslog.server.stores.remote_storage import StorageService
from opslog.server.stores.samples import Sample, Samples
from opslog.store import Store, replica_of

R = TypeVar("R")
# How many commits a store has ever had, and the number of its newest manifest.
Known = tuple[int, int]

# How many calls of one store run at once. Transactions that run at once share appends.
_THREADS = 16
# How many of those that may read much of the store run at once, beside the others. Python runs one thread at a time, so
# more of them would take longer, and delay the others.
_LONG_THREADS = 2
# How many views of the past stay open, so that the next request for the same view is fast.
_VIEWS = 4


class ServedStore:
    """One served store.

    All methods block, except for `named` and those that begin with `call`.

    :ivar storage: serves remote agents that have a replica of their own.
    :param name: the store's name in addresses.
    :param agent: the author of writes for which the client names none.
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
        self.storage = StorageService(replica.backend, name, environment, store=self)
        self._threads = ThreadPoolExecutor(_THREADS, f"opslog-store-{name}")
        self._feed_thread = ThreadPoolExecutor(1, f"opslog-feed-{name}")
        self._long_threads = ThreadPoolExecutor(_LONG_THREADS, f"opslog-long-{name}")
        self._turns_thread = ThreadPoolExecutor(1, f"opslog-turns-{name}")
        self._views: OrderedDict[Point, _View] = OrderedDict()
        self._lock = threading.Lock()
        self._samples = Samples()
        # The newest summary of the commits, and the state that it was made from. As long as that state is the newest,
        # it is returned again.
        self._activity: tuple[object, Activity] | None = None

    async def call(self, function: Callable[[], R]) -> R:
        """Call a blocking function in a thread, and return its result."""
        return await _in(self._threads, function)

    async def call_long(self, function: Callable[[], R]) -> R:
        """Like `call`, but few calls at a time: for those that may read much of the store, and could otherwise occupy
        all threads."""
        return await _in(self._long_threads, function)

    async def call_in_turn(self, function: Callable[[], R]) -> R:
        """Like `call_long`, but one call at a time: for calls that share what they find."""
        return await _in(self._turns_thread, function)

    async def call_for_feed(self, function: Callable[[], R]) -> R:
        """Like `call`, but in the feed's own thread, one call at a time."""
        return await _in(self._feed_thread, function)

    def operations(self, author: str | None = None, once: Once | None = None) -> Operations:
        """The operations for a client, in the name of an author.

        :param once: the request that they are for, if it has a key.
        """
        return Operations(self._store, author or self.agent, once)

    def once(self, key: str, content: bytes) -> Once:
        """A request with a key.

        :param content: the whole content of the request.
        :raises UsageError: `key` is not a valid key.
        """
        now = self._environment.time()
        grace = replica_of(self._store).state.manifest.settings.grace_seconds
        return Once(key, content, now, grace)

    def named(self, message: str) -> str:
        """A message with the store's name in place of its URL. Does not block."""
        return message.replace(replica_of(self._store).backend.url, self.name)

    def figures(self) -> StoreFigures:
        """Figures of the store, from memory."""
        return figures_of(self.name, self._store)

    def changes(self, since: str | None, limit: int) -> Changes[Document]:
        """The changes since a token, for the feed. The feed calls this again and again as long as the store is served.
        So this call also releases unused names and locks, and takes a sample of the figures."""
        self.storage.release_unused()
        replica = replica_of(self._store)
        found = replica.changes(since, limit, self._feed)
        figures = self.figures()
        self._samples.note(
            self._environment.time(),
            self._environment.monotonic(),
            commits=figures.commits,
            tail=figures.tail_commits,
            documents=figures.documents,
            manifest=replica.read(lambda state: state.passed.number),
        )
        return found

    def samples(self) -> Sequence[Sample]:
        """The samples since the start of serving."""
        return self._samples.all()

    def newest_clock(self, least: int) -> int:
        """See `opslog.server.stores.contents.Written`."""
        replica = replica_of(self._store)
        if (known := replica.read(lambda state: state.clock)) >= least:
            return known
        replica.refresh()
        return replica.read(lambda state: state.clock)

    def log_end(self, agent: str, known: tuple[int, int] | None = None) -> LogEnd:
        """See `opslog.server.stores.contents.Written`."""
        replica = replica_of(self._store)

        def find(state: State) -> tuple[Cursor, str]:
            latest = max(state.shared_ts, state.passed.ts)
            return copy(state.cursors.get(agent, Cursor(agent))), latest

        cursor, latest = replica.read(find)
        if cursor.position != known:
            replica.refresh()
            cursor, latest = replica.read(find)
        clock, mark = cursor.clock, cursor.mark
        if not clock and cursor.position != START.position:  # the store was loaded, and has read nothing of this log
            last = last_commit(replica.backend, agent, cursor.position)
            clock, mark = (0, "") if last is None else (last.clock, mark_of(last))
        return LogEnd(cursor.position, clock, ts_of(mark) if agent == TRANSACTIONS else "", latest)

    def records(self, ids: Sequence[str]) -> list[Set | None]:
        """See `opslog.server.stores.contents.Written`."""
        replica = replica_of(self._store)
        replica.refresh()
        return replica.read(lambda state: [state.get(id) for id in ids])

    def may_undo(self, author: str, target: int) -> bool:
        """See `opslog.server.stores.contents.Written`."""
        replica = replica_of(self._store)
        replica.refresh()

        def decide(state: State) -> bool:
            cursor = state.cursors.get(TRANSACTIONS)
            if cursor is None or target > cursor.clock:
                return False  # it may be somebody else's by the time that the undo is written
            recent = state.merge.recent.get(TRANSACTIONS, ())
            by_others = (entry.commit.clock for entry in recent if entry.is_undoable and entry.commit.by != author)
            return target not in by_others

        return replica.read(decide)

    def activity(self, most: int) -> Activity:
        """As `Operations.activity`; call it through `call_in_turn`. If nothing is new since the last call, it reads
        nothing."""
        where = (*self._known(), most)
        if self._activity is None or self._activity[0] != where:
            self._activity = where, self.operations().activity(most)
        return self._activity[1]

    def as_of(self, point: Point, read: Callable[[Operations], R]) -> R:
        """The result of reading the store as it was at `point`.

        :raises OpslogError: as for `opslog.open` with `as_of`.
        """
        try:
            return self._read_view(point, self._known(), read)
        except ReopenError:
            # Files of a kept view were collected. Opened anew, it may find what is left, or says that it is gone.
            self._drop(point)
            return self._read_view(point, self._known(), read)

    def _read_view(self, point: Point, known: Known, read: Callable[[Operations], R]) -> R:
        view = self._take(point, known)
        try:
            return read(Operations(view.store))
        finally:
            self._give_back(view)

    def _known(self) -> Known:
        """What shows whether anything was written or compacted since."""
        replica = replica_of(self._store)
        replica.refresh()
        return replica.read(lambda state: (state.commits, state.passed.number))

    def _take(self, point: Point, known: Known) -> _View:
        """A view of the store that has everything that `known` was read from. The past may still change: a commit may
        come late, with a clock or a time that has passed, and a time in the near future is accepted, too."""
        with self._lock:
            view = self._views.get(point)
            if view is not None and view.known == known:
                self._views.move_to_end(point)
                view.users += 1
                return view
        view = _View(opslog.open(self.url, as_of=point, version=None, environment=self._environment), known)
        with self._lock:
            # Another thread may have opened the same view meanwhile. The older one is closed when nobody uses it any
            # more.
            old = self._views.pop(point, None)
            self._views[point] = view
            closing = [] if old is None else [old]
            while len(self._views) > _VIEWS:
                closing.append(self._views.popitem(last=False)[1])
        self._close_unused(closing)
        return view

    def _drop(self, point: Point) -> None:
        with self._lock:
            view = self._views.pop(point, None)
        self._close_unused([] if view is None else [view])

    def _close_unused(self, views: Sequence[_View]) -> None:
        """Close views that were removed, each as soon as nobody uses it any more."""
        with self._lock:
            for each in views:
                each.is_dropped = True
            unused = [each for each in views if not each.users]
        for each in unused:
            each.store.close()

    def _give_back(self, view: _View) -> None:
        with self._lock:
            view.users -= 1
            is_over = view.is_dropped and not view.users
        if is_over:
            view.store.close()

    def close(self) -> None:
        """Wait for the calls under way, and close the store."""
        self._feed_thread.shutdown()
        self._long_threads.shutdown()
        self._turns_thread.shutdown()
        self._threads.shutdown()
        self.storage.close()
        for view in self._views.values():
            view.store.close()
        self._store.close()


async def _in(threads: ThreadPoolExecutor, function: Callable[[], R]) -> R:
    """Runs the function in the context of the waiting task, so that log lines have the id of the request."""
    return await asyncio.get_running_loop().run_in_executor(threads, copy_context().run, function)


class _View:
    """A store as of a point in the past, in use by its first call.

    :ivar known: what of the store was known before this was opened.
    :ivar users: how many calls use it now.
    :ivar is_dropped: whether the last of these calls closes it.
    """

    def __init__(self, store: Store[Document], known: Known) -> None:
        self.store = store
        self.known = known
        self.users = 1
        self.is_dropped = False


class ServedStores:
    """All stores of a server.

    :param urls: the stores' URLs by name. All of them are opened at construction.
    :raises OpslogError: as for `opslog.open`, and for an invalid name.
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
        """Close all of them. Blocks until the calls under way have ended."""
        while self._stores:
            self._stores.popitem()[1].close()

    def find(self, name: str) -> ServedStore:
        """:raises Refused: 404."""
        if (store := self._stores.get(name)) is None:
            raise Refused(404, "there is no such store here")
        return store
