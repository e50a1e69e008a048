"""Group commit: changes requested while a commit is under way are committed together in the next one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any, TypeVar

from opslog.environment import Environment
from opslog.errors import CommitUnknownError, OpslogError, WriteFailedError
from opslog.server.metrics import Metrics
from opslog.server.protocol.storage import Changes, Shard
from opslog.server.protocol.transaction import Events, Transaction

T = TypeVar("T")
# Reads and changes a transaction, on the event loop. It must be short, and must not change anything before the last
# statement that can raise.
Work = Callable[[Transaction], T]

# How long the event loop waits at most while changes are made, of one group in each shard; see `Writer`. All shards
# share it.
WAIT_SECONDS = 0.005
# It does not wait for more bytes: they take longer than the handing over, and other clients would have to wait.
_WAIT_BYTES_MAX = 1024 * 1024

_Pending = tuple[Work[Any], "asyncio.Future[Any]"]
_Answer = tuple["asyncio.Future[Any]", Any, Exception | None]


class Writer:
    """The one writer of a shard. It runs the works of a group on the event loop, one after the other. Each work sees
    the committed state and the changes of the works before it. Then the writer commits the changes of the group at
    once; if the shard is durable, in a thread of its own. The callers get their results when the group is durable.

    While that thread makes the changes of several callers, the event loop waits, and goes on while the disk writes.
    LMDB lets go of the interpreter at every change. If the event loop took it each time, both threads would mostly hand
    it to each other, and 64 appends to 64 streams would take a fifth more processor time.

    :ivar failure: what went wrong in a commit with an unknown outcome; None: there was none. After it, the state on
        disk may differ from the one in memory, so nothing more is written.
    :param notify: called on the event loop with the effects of each commit, once the results of its callers are set,
        and before the callers resume.
    :param wait_seconds: how long the event loop waits for one group at most.
    """

    def __init__(
        self,
        shard: Shard,
        environment: Environment,
        metrics: Metrics,
        notify: Callable[[Events], None],
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._shard = shard
        self._environment = environment
        self._metrics = metrics
        self._notify = notify
        self._wait_seconds = wait_seconds
        self._others = 0  # calls for the thread that are no commits, and have not ended
        self._loop = asyncio.get_running_loop()
        self._pending: list[_Pending] = []
        self._busy = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._thread = Thread(target=self._run_thread, name="opslog-writer", daemon=True)
        # Only the text: the traceback of an error refers to the changes and the transaction.
        self.failure: str | None = None
        if shard.durable:
            self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of works that wait for a commit to begin."""
        return len(self._pending)

    async def run(self, work: Work[T]) -> T:
        """Run the work in the next group.

        :raises Exception: raised by the work; nothing was changed, unless the error says so.
        :raises WriteFailedError: the group could not be committed.
        :raises CommitUnknownError: see `Shard.commit`.
        """
        if self.failure is not None:
            raise CommitUnknownError(self.failure)
        future: asyncio.Future[T] = self._loop.create_future()
        self._pending.append((work, future))
        if not self._busy:
            self._busy = True
            self._idle.clear()
            self._loop.call_soon(self._next_group)
        return await future

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread that commits, between two commits."""
        if not self._shard.durable:
            return function()
        future: asyncio.Future[T] = self._loop.create_future()

        def call() -> None:
            try:
                value = function()
            except Exception as error:  # noqa: BLE001  (whoever asked gets it)
                self._loop.call_soon_threadsafe(future.set_exception, error)
            else:
                self._loop.call_soon_threadsafe(future.set_result, value)

        self._others += 1
        self._queue.put(call)
        try:
            return await future
        finally:
            self._others -= 1

    async def close(self) -> None:
        """Wait until the requested changes are committed, and end the thread."""
        while self._busy:
            await self._idle.wait()
        if self._shard.durable:
            self._queue.put(None)
            await asyncio.to_thread(self._thread.join)

    def _next_group(self) -> None:
        pending, self._pending = self._pending, []
        transaction = Transaction(self._shard, self._environment.time())
        answers: list[_Answer] = []
        for work, future in pending:
            try:
                answers.append((future, work(transaction), None))
            except OpslogError as error:
                answers.append((future, None, error))
            except Exception as error:  # noqa: BLE001  (a fault of the work: what it changed must not be committed)
                self._finish([(future, None, None) for _, future in pending], transaction, error)
                return
        if not transaction.changes:
            self._finish(answers, transaction, None)
        elif self._shard.durable:
            applied = Event()
            self._queue.put(partial(self._commit_in_thread, answers, transaction, applied.set))
            if len(answers) > 1 and not self._others and transaction.changes.bytes <= _WAIT_BYTES_MAX:
                applied.wait(self._wait_seconds)
        else:
            self._finish(answers, transaction, self._commit(transaction.changes))

    def _commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> Exception | None:
        began = self._environment.monotonic()
        try:
            self._shard.commit(changes, applied)
            # Inside the `try`: an error that ended the thread would leave all later callers waiting for ever.
            self._metrics.commits.observe(self._environment.monotonic() - began)
        except Exception as error:  # noqa: BLE001  (those who wait get it)
            if not isinstance(error, WriteFailedError):
                self.failure = str(error) if isinstance(error, OpslogError) else repr(error)
            return error
        return None

    def _commit_in_thread(self, answers: list[_Answer], transaction: Transaction, applied: Callable[[], None]) -> None:
        failure = self._commit(transaction.changes, applied)
        applied()  # it may have failed before
        self._loop.call_soon_threadsafe(self._finish, answers, transaction, failure)

    def _finish(self, answers: list[_Answer], transaction: Transaction, failure: Exception | None) -> None:
        if failure is not None:
            self._metrics.failed_commits += 1
        elif transaction.changes:
            self._metrics.changes += sum(error is None for _, _, error in answers)
        # The loop resumes tasks in the order of these calls: callers that wait for a response before all followers.
        for future, value, error in answers:
            if future.done():  # the caller has gone
                continue
            if failure is not None or error is not None:
                future.set_exception(failure or error or AssertionError)
            else:
                future.set_result(value)
        if failure is None and transaction.events:
            self._notify(transaction.events)
        if self._pending:
            self._loop.call_soon(self._next_group)
        else:
            self._busy = False
            self._idle.set()

    def _run_thread(self) -> None:
        while (task := self._queue.get()) is not None:
            task()
