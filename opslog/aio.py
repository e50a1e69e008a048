"""The store for asyncio: `opslog.aio.open`. It uses the same replica as `opslog.Store`.

    async with opslog.aio.open("./tasks", agent="planner") as store:
        await store.set("task-1", {"title": "Build API"})

The event loop's own thread queues commits, and one more thread writes them. So all tasks that write at the same time
share an append (one fdatasync, or one PUT). Other calls that wait for storage run in asyncio's thread pool. A cancelled
call may or may not have happened. The store stays usable, and commits that were queued are written.

A store belongs to the event loop that opened it.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from opslog import opening
from opslog.compaction.compact import Compaction, KeepHistory
from opslog.concurrency.loop_worker import LoopWorker
from opslog.concurrency.pool import in_thread, to_its_end
from opslog.concurrency.soon import Soon
from opslog.errors import ClosedError, OpslogError, SealedError, UsageError
from opslog.format.commits import Commit, Record, Set
from opslog.format.documents import Document
from opslog.history import Revision
from opslog.lease import AsyncLease
from opslog.log.writer import LogWriter, Pending
from opslog.options import OpenOptions
from opslog.query.question import Group, OrderBy, Where
from opslog.replica import transaction
from opslog.replica.async_watching import async_waiting
from opslog.replica.batch import OpenBatch
from opslog.replica.feed import Change, Changes
from opslog.replica.found import Found
from opslog.replica.terms import ATTEMPTS, NO_CONDITION, Condition, Never, check_attempts
from opslog.replica.transaction import Transaction
from opslog.stats import Stats
from opslog.store import Store, replica_of

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["AsyncBatch", "AsyncChanges", "AsyncLease", "AsyncStore", "open"]

T = TypeVar("T")
R = TypeVar("R")

# How many documents an iteration decodes before it lets other tasks run.
_AT_ONCE = 1000


@overload
def open(url: str | os.PathLike[str], *, type: type[T], **options: Unpack[OpenOptions]) -> Opening[T]: ...


@overload
def open(url: str | os.PathLike[str], *, type: None = ..., **options: Unpack[OpenOptions]) -> Opening[Document]: ...


def open(url: str | os.PathLike[str], **options: Any) -> Opening[Any]:
    """Open a store: ``async with opslog.aio.open(…) as store``, or ``store = await opslog.aio.open(…)`` and, at the
    end, ``await store.close()``. Options and errors are those of `opslog.open`."""
    return Opening(partial(opening.open, url, **options))


class Opening(Generic[T]):
    """What `open` returns. Await it, or use it with ``async with``."""

    def __init__(self, open_store: Callable[[], Store[T]]) -> None:
        self._open_store = open_store
        self._store: AsyncStore[T] | None = None

    def __await__(self) -> Generator[Any, None, AsyncStore[T]]:
        return self._open().__await__()

    async def _open(self) -> AsyncStore[T]:
        opened = asyncio.ensure_future(in_thread(self._open_store))
        try:
            return AsyncStore(await asyncio.shield(opened))
        except asyncio.CancelledError:
            # The thread continues. The store that it opens must not stay open: it holds the agent's name.
            opened.add_done_callback(_close_opened)
            raise

    async def __aenter__(self) -> AsyncStore[T]:
        self._store = await self._open()
        return self._store

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._store is not None
        await self._store.close()


def _close_opened(opened: asyncio.Future[Store[Any]]) -> None:
    if not opened.cancelled() and opened.exception() is None:
        opened.result().close()


class AsyncStore(Generic[T]):
    """Like `opslog.Store`, with calls that are awaited. Made by `open`."""

    def __init__(self, store: Store[T]) -> None:
        self._store = store  # for calls that wait, made in threads
        self._replica = replica_of(store)
        self._loop = asyncio.get_running_loop()
        # The tasks that wait until their commits are durable, in the order of the queue.
        self._waiting: deque[tuple[Pending, asyncio.Future[None]]] = deque()
        self._writer = LoopWorker(self._loop, "opslog-aio", self._write, what="writing for tasks", in_pool=False)
        self._decider = LoopWorker(
            self._loop, "opslog-aio-decide", self._decide_all, what="deciding transactions for tasks", in_pool=True
        )
        # The tasks whose transactions have ended.
        self._ended: deque[asyncio.Future[None]] = deque()
        self._wake_tasks = Soon(self._loop.call_soon_threadsafe, self._loop.time, self._wake_ended)
        # A lookup that may be a request to a server must not block the event loop.
        backend = self._replica.backend
        self._reads_are_quick = backend.segments_grow and not backend.requests

    # -- reading

    async def get(self, id: str, default: T | None = None) -> T | None:
        """The document, or `default`."""
        return await self._read(lambda: self._store.get(id, default))

    async def contains(self, id: str) -> bool:
        return await self._read(lambda: id in self._store)

    async def find(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Found[T]:
        """As `Store.find`."""
        return await in_thread(partial(self._store.find, where, order_by=order_by, limit=limit, offset=offset))

    async def filter(self, predicate: Callable[[T], object]) -> list[tuple[str, T]]:
        """The (id, document) pairs whose document fulfils the predicate, which is called in another thread."""
        return await in_thread(partial(self._store.filter, predicate))

    async def count(self, where: Where | Callable[[T], object] | None = None) -> int:
        """Like `Store.count`; a predicate is called in another thread."""
        if where is None:
            return await self._read(lambda: len(self._store))
        return await in_thread(partial(self._store.count, where))

    async def group(self, by: str, where: Where | None = None) -> list[Group]:
        """As `Store.group`."""
        return await in_thread(partial(self._store.group, by, where))

    async def index(self, *paths: str) -> None:
        """As `Store.index`."""
        await in_thread(partial(self._store.index, *paths))

    async def items(self) -> AsyncIterator[tuple[str, T]]:
        """(id, document) pairs in order of id, as they were when the iteration began."""
        found = await in_thread(lambda: iter(self._store.items()))
        while some := await in_thread(lambda: list(islice(found, _AT_ONCE))):
            for item in some:
                yield item

    async def __aiter__(self) -> AsyncIterator[str]:
        async for id, _ in self.items():
            yield id

    # -- writing

    async def set(self, id: str, document: T, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Give a document a new value. When this returns it is durable; parameters and errors as in `Store.set`."""
        replica = self._replica
        if if_stamp is not NO_CONDITION:
            return await self._decide("set with if_stamp", partial(transaction.set_if, id, document, if_stamp))
        reads = replica.schema.reads_replaced
        await self._commit(
            await self._read(partial(replica.prepare_set, id, document)) if reads else replica.prepare_set(id, document)
        )

    async def delete(self, id: str, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Delete a document; parameters and errors as in `Store.delete`.

        :raises NotFoundError: there is no document with this id.
        """
        if if_stamp is not NO_CONDITION:
            return await self._decide("delete with if_stamp", partial(transaction.delete_if, id, if_stamp))
        await self._commit(await self._read(partial(self._replica.prepare_delete, id)))

    @asynccontextmanager
    async def batch(self) -> AsyncIterator[AsyncBatch[T]]:
        """A block that collects sets and deletes, and commits them as one at its end; after an exception, none.

        Only the calls of the returned batch belong to it; other tasks can write meanwhile.
        """
        self._replica.check_writable()
        batch = OpenBatch(None)
        try:
            yield AsyncBatch(self._store, batch, self._read)
        finally:
            commit = batch.end()
        await self._commit(commit)

    # -- transactions: the functions are called in another thread, and those of tasks that wait at once share an append

    async def record(self, id: str) -> Set | None:
        """As `Store.record`."""
        return await self._read(lambda: self._store.record(id))

    async def create(self, id: str, document: T) -> None:
        """As `Store.create`."""
        await self._decide("create", partial(transaction.create, id, document))

    async def modify(self, id: str, function: Callable[[T | None], T | None]) -> T | None:
        """As `Store.modify`."""
        return await self._decide("modify", partial(transaction.modify, id, function), ATTEMPTS)

    async def transact(self, function: Callable[[Transaction[T]], R], *, attempts: int = ATTEMPTS) -> R:
        """As `Store.transact`."""
        return await self._decide("transact", function, check_attempts(attempts))

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction[T]]:
        """As `Store.transaction`. Its reads and writes do not wait, except for documents that have to be read from an
        object storage."""
        deciding = self._replica.deciding_of("transaction")
        made = await in_thread(deciding.begin)
        try:
            yield made
            made.end()  # what another task wrote from now on would be in no commit
            await self._decide("transaction", partial(deciding.repeat, made))
        finally:
            made.end()  # also if this is cancelled while it waits
            await self._read(partial(deciding.leave, made))

    async def _decide(self, call: str, decide: Callable[[Transaction[T]], R], attempts: int | None = None) -> R:
        deciding = self._replica.deciding_of(call)
        waiter: asyncio.Future[None] = self._loop.create_future()
        waiting = deciding.submit(decide, attempts, partial(self._note_end, waiter))
        try:
            self._decider.wake()
            await waiter
        except BaseException:
            waiting.is_cancelled = True
            deciding.cancel(waiting)
            raise
        return waiting.outcome()

    def _note_end(self, waiter: asyncio.Future[None]) -> None:
        """In the thread that decides: have the event loop wake a task whose transaction has ended, and those of its
        group with it."""
        self._ended.append(waiter)
        with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
            self._wake_tasks()

    def _wake_ended(self) -> None:
        try:
            while self._ended:
                waiter = self._ended.popleft()
                if not waiter.done():
                    waiter.set_result(None)
        finally:
            if self._ended:  # the handler of a signal raised
                self._wake_tasks()

    async def to_arrow(self, schema: pa.Schema | Iterable[str] | None = None) -> pa.Table:
        """As `Store.to_arrow`."""
        return await in_thread(partial(self._store.to_arrow, schema))

    async def sql(self, query: str, parameters: Sequence[object] | Mapping[str, object] | None = None) -> pa.Table:
        """As `Store.sql`."""
        return await in_thread(partial(self._store.sql, query, parameters))

    async def undo(self) -> bool:
        """As `Store.undo`."""
        return await to_its_end(asyncio.ensure_future(in_thread(self._store.undo)))

    async def flush(self) -> None:
        """Return when everything written so far is durable. Errors as of `Store.flush`."""
        await in_thread(self._store.flush)

    async def _commit(self, commit: Commit | None) -> None:
        if commit is None:
            return
        replica = self._replica
        replica.check_writable()
        if (log := replica.log) is None:
            await self._decide("set", partial(transaction.write, commit))
            return
        if replica.freshness.is_stale:
            await in_thread(partial(replica.refresh_before, commit))
        while True:
            guards = replica.unguarded(commit, at_once=True)
            if guards is None:
                guards = await self._read(partial(replica.unguarded, commit))
            if guards is None:
                await self._decide("set", partial(transaction.write, commit))
                return
            try:
                pending = await self._queue(log, commit, guards)
                if not replica.is_buffered:
                    await self._written(pending)
                    if pending.error is not None:
                        raise pending.error
            except SealedError:
                continue  # a transaction may have come in between
            break
        if replica.compaction.is_far_behind:
            await in_thread(replica.compaction.wait)

    async def _queue(self, log: LogWriter, commit: Commit, guards: int) -> Pending:
        """Queue a commit. With a buffer, wait until there is room for it."""
        buffered = self._replica.is_buffered
        if self._reads_are_quick or not (self._replica.in_state or log.is_queueing):
            pending = log.queue(commit, guards)
            if buffered and log.is_full:
                await in_thread(partial(log.finish, pending))
            elif buffered:
                log.finish(pending)
            return pending

        # A thread is reading, maybe from the storage, and this may have to wait for it.
        def queue() -> Pending:
            pending = log.queue(commit, guards)
            if buffered:
                log.finish(pending)
            return pending

        queued = asyncio.ensure_future(in_thread(queue))
        try:
            return await to_its_end(queued)
        except asyncio.CancelledError:
            if not (buffered or queued.cancelled() or queued.exception()):
                self._written(queued.result())
            raise

    def _written(self, pending: Pending) -> asyncio.Future[None]:
        """Has a result when the outcome of what was queued is known."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append((pending, waiter))
        self._writer.wake()
        return waiter

    def _write(self) -> None:
        """In the writer's thread: write what is queued, and wake those who wait for it."""
        log = self._replica.log
        assert log is not None
        try:
            log.flush()
        finally:
            with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake_waiters)

    def _decide_all(self) -> None:
        """In the decider's thread: decide what is queued."""
        deciding = self._replica.transactions
        assert deciding is not None
        try:
            deciding.decide_all()
        except BaseException:
            with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
                self._wake_tasks()  # it may have come while a task was woken
            raise

    def _wake_waiters(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0].done:
            _, waiter = waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _read(self, query: Callable[[], R]) -> R:
        return query() if self._reads_are_quick else await in_thread(query)

    # -- others' writes, and the past

    async def refresh(self) -> list[Commit]:
        """Read what other agents wrote, and return those commits. If a call is cancelled, the next one returns its
        commits."""
        await in_thread(self._replica.refresh_for_news)
        return self._replica.news.take_all()

    async def watch(self, poll_seconds: float = 0.2) -> AsyncIterator[Commit]:
        """The commits of other agents as they come in, until the store is closed. Errors as in `Store.watch`. Each
        commit is returned once, as there, even if this is left early or cancelled."""
        replica = self._replica
        if replica.is_closed:
            return
        with async_waiting(replica.backend) as waits:
            while not replica.is_closed:
                try:
                    await in_thread(replica.refresh_for_news)
                except ClosedError:
                    return  # closed while it was reading
                is_quiet = True
                while (commit := replica.next_news()) is not None:
                    is_quiet = False
                    yield commit
                if is_quiet:
                    await waits.wait(poll_seconds)

    async def changes(self, since: str | None = None, limit: int | None = None) -> AsyncChanges[T]:
        """As `Store.changes`."""
        return AsyncChanges(await in_thread(partial(self._replica.changes, since, limit)))

    async def follow(self, since: str | None = None, poll_seconds: float = 0.2) -> AsyncIterator[AsyncChanges[T]]:
        """Like `Store.follow`, until the store is closed."""
        replica = self._replica
        if replica.is_closed:
            return
        with async_waiting(replica.backend) as waits:
            while not replica.is_closed:
                try:
                    found = await self.changes(since)
                except ClosedError:
                    return  # closed while it was reading
                if found.reset or found.token != since:
                    yield found
                else:
                    await waits.wait(poll_seconds)
                since = found.token

    async def ops(self, since: int | None = None) -> list[Commit]:
        """All agents' commits with a clock greater than `since`, in the order of their stamps. To follow a store, use
        `changes`: a clock is no cursor (see `opslog.Store.ops`)."""
        return await in_thread(lambda: list(self._store.ops(since)))

    async def history(self, id: str) -> list[Revision]:
        """The revisions of one document, oldest first."""
        return await in_thread(partial(self._store.history, id))

    # -- maintenance

    async def compact(self, *, full: bool = False, keep_history: KeepHistory | None = None) -> Compaction:
        """As `Store.compact`."""
        return await in_thread(partial(self._store.compact, full=full, keep_history=keep_history))

    async def archive(
        self, where: Where | Callable[[T], object], period: str | None = None, *, older_than: timedelta | None = None
    ) -> int:
        """Like `Store.archive`; a predicate is called in another thread."""
        return await in_thread(partial(self._store.archive, where, period, older_than=older_than))

    async def archives(self) -> list[str]:
        """The periods that have archives, in order."""
        return await in_thread(self._store.archives)

    async def load_archive(self, period: str) -> dict[str, T]:
        """The documents of an archive by id."""
        return await in_thread(partial(self._store.load_archive, period))

    async def stats(self) -> Stats:
        """Figures of the store."""
        return await in_thread(self._store.stats)

    # -- life

    async def close(self) -> None:
        """Write what is queued and give the agent's name back. Idempotent.

        :raises OpslogError: buffered commits were not written. Raised even if another call has raised it, since that
            call may have been cancelled.
        """
        closing = asyncio.ensure_future(in_thread(self._close))
        try:
            try:
                await asyncio.shield(closing)
            except asyncio.CancelledError:
                # Queued commits belong to their callers, and the name must become free.
                await closing
                raise
        except OpslogError:
            self._replica.failure_was_raised = True  # not in the thread: the caller may be cancelled once more
            raise
        finally:
            self._wake_waiters()
            self._wake_ended()

    def _close(self) -> None:
        # Nobody saw the error of a cancelled call, so close reports it again.
        try:
            self._replica.close(repeat_failure=True)
        finally:
            if self._replica.is_closed:  # otherwise it failed before it began, and the threads have to go on
                self._end_threads()

    def _end_threads(self) -> None:
        try:
            if (deciding := self._replica.transactions) is not None:
                deciding.close()  # again, since an exception may have ended it early: no thread decides from here on
        finally:
            self._writer.close()
            self._decider.close()
            with suppress(RuntimeError):  # the event loop was closed, and nobody waits any more
                self._loop.call_soon_threadsafe(self._wake_waiters)

    def __repr__(self) -> str:
        """As in `opslog.Store`; without a count if that may take a request, for which the event loop would wait."""
        from opslog.replica.description import describe

        return describe(self._replica, "opslog.aio.AsyncStore", counts=self._reads_are_quick)


class AsyncChanges(Generic[T]):
    """Like `opslog.Changes`, for ``async for``."""

    def __init__(self, changes: Changes[T]) -> None:
        self._changes = changes
        self.token = changes.token
        self.reset = changes.reset
        self.commits = changes.commits
        self.has_more = changes.has_more

    async def __aiter__(self) -> AsyncIterator[Change[T]]:
        found = iter(self._changes)
        while some := await in_thread(lambda: list(islice(found, _AT_ONCE))):
            for change in some:
                yield change

    def __repr__(self) -> str:
        return f"<opslog.aio.AsyncChanges of {self._changes!r}>"


class AsyncBatch(Generic[T]):
    """Sets and deletes that will be one commit; see `AsyncStore.batch`. Its reads see its own changes.

    :param read: makes a call that reads, in a thread if it may have to wait, and returns its result.
    """

    def __init__(self, store: Store[T], batch: OpenBatch, read: Callable[[Callable[[], Any]], Awaitable[Any]]) -> None:
        self._store = store
        self._replica = replica_of(store)
        self._batch = batch
        self._read = read

    async def get(self, id: str, default: T | None = None) -> T | None:
        document: T | None = await self._inside(lambda: self._store.get(id, default))
        return document

    async def set(self, id: str, document: T) -> None:
        self._add(await self._inside(partial(self._replica.prepare_set, id, document)))

    async def delete(self, id: str) -> None:
        """:raises NotFoundError: there is no document with this id."""
        prepare = partial(self._replica.prepare_delete, id)
        record: Record = await self._inside(prepare)
        if record.id in self._batch.written:  # another task may have deleted it meanwhile; that needs no storage
            record = self._replica.batches.inside(self._batch, prepare)
        self._add(record)

    async def _inside(self, call: Callable[[], Any]) -> Any:
        """Make a call that reads, as if it stood in the block of this batch, and return its result."""
        self._check()
        return await self._read(partial(self._replica.batches.inside, self._batch, call))

    def _add(self, record: Record) -> None:
        """In the event loop, and not in the thread that has read: a cancelled call must not come in later, behind a
        newer one, or after the batch was committed."""
        self._check()
        self._batch.add(record)

    def _check(self) -> None:
        self._replica.check_open()
        if self._batch.has_ended:
            raise UsageError("this batch has ended, and what is done to it now would be lost: begin another one")
