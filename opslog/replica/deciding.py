"""Deciding transactions: a process decides those of all its threads and tasks one after the other, in groups.

Callers queue their transactions. One caller leads: it takes everything that is queued as a group, and refreshes. It
decides each transaction on the state that it read and on the writes of those before it in the group. Then it appends
what the group writes with one append, which succeeds only if the shared log still ends where it was read
(`opslog.log.shared`).

If another process appended first, the leader reads the new commits. A transaction that has read nothing that changed
keeps its outcome and gets another stamp; all others are decided again. Users' functions run while the process holds no
lock that another process needs. A process that decides again takes a place in a queue (`opslog.replica.queueing`), for
which nobody waits long.

These guarantees hold, whatever ends a call:

1. A transaction sees everything that was acknowledged before it was queued: its group was complete before the group's
   refresh began.
2. Everything that a group's decisions depend on is durable before the group's lines are appended.
3. No caller gets an outcome, not even a refusal, before everything that it depends on is durable, the group's lines
   included.
4. A transaction that was interrupted before its append has not happened. If it was interrupted during the append, its
   outcome is unknown, and nothing is tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from copy import copy
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, cast

from opslog.backends import Backend
from opslog.concurrency.locking import Bell, Section, reentered, sleep, wake
from opslog.environment import Environment
from opslog.errors import (
    ClosedError,
    CommitUnknownError,
    MissingFileError,
    OpslogError,
    WriteFailedError,
)
from opslog.format.commits import Commit
from opslog.format.documents import Schema
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.log.reader import SEGMENT_COST, Cursor, mark_of
from opslog.log.shared import SharedLog
from opslog.replica.queueing import Queueing
from opslog.replica.sight import Overlay, Readable, Sight
from opslog.replica.state import State, View
from opslog.replica.transaction import Reads, Transaction, conflict, is_same, live

T = TypeVar("T")
R = TypeVar("R")


class Replica(Readable[T], Protocol[T]):
    """What deciding needs of an open store."""

    backend: Backend
    schema: Schema[T]
    environment: Environment

    # The thread that calls a user's function.
    deciding: int | None

    # Whether commits of this store may be in memory and not yet in its log.
    is_buffered: bool

    @property
    def is_forked(self) -> bool: ...
    def check_open(self) -> None: ...
    def unreported(self) -> AbstractContextManager[None]: ...
    def check_may_wait(self) -> None: ...
    def check_not_refreshing(self) -> None: ...
    def flush(self) -> None: ...
    def refresh(self) -> None: ...
    def read_logs(self) -> None: ...
    def check_own_log(self) -> None: ...
    def replace(self, state: State, missing: MissingFileError | None) -> None: ...
    def freeze(self) -> View: ...
    def between_refreshes(self, work: Callable[[], R]) -> R: ...
    def invalidate(self) -> None: ...
    def take_own(self, commits: Sequence[Commit], end: Cursor) -> None: ...
    def appended(self, cost: int) -> None: ...


class _Again(Exception):
    """Decide again: what was read is gone or newer than the view, or other processes come first."""


class Waiting(Generic[T, R]):
    """A transaction that waits for its decision.

    :ivar done: whether its outcome is known: `result`, or `error`.
    :ivar is_cancelled: whether its caller has left. The caller notes that itself before it calls `Deciding.cancel`: a
        second exception may keep it from making that call.
    """

    def __init__(self, decide: Callable[[Transaction[T]], R], attempts: int | None, notify: Callable[[], None]) -> None:
        self.decide = decide
        self.attempts = attempts
        self.notify = notify
        self.done = self.is_cancelled = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self.transaction: Transaction[T] | None = None
        self.sight: Sight[T] | None = None
        self.bell: Bell | None = None

    @property
    def commit(self) -> Commit | None:
        """The commit that it writes; None if it writes none."""
        return None if self.error is not None or self.transaction is None else self.transaction.commit

    def end(self, error: BaseException | None = None) -> None:
        """Note the outcome, unless there is one already, and wake the caller. Call it again if it was interrupted."""
        if not self.done:
            if self.transaction is not None:
                self.transaction.end()
            if error is not None:
                self.error = error
            self.done = True
        wake(self)
        self.notify()

    def forget(self) -> None:
        """Make it undecided again."""
        self.transaction = self.sight = self.result = self.error = None

    def outcome(self) -> R:
        """The result for the caller; raises the error instead, if there is one."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None is a result, too


class _Group(Generic[T]):
    """Transactions that are decided together.

    :ivar leader: the transaction of the thread that decides them; None if that thread has none of its own.
    :ivar waiting: all of them, in the order in which they came, until they are settled.
    :ivar decided: those of them whose outcome depends on the next append.
    :ivar appending: those of them whose lines are being appended, or may be appended already.
    :ivar has_happened: whether that append has succeeded.
    :ivar views: what they have read.
    :ivar error: how those end that have no other outcome; None: they are queued again. A copy: the traceback of the
        exception itself leads back to the group, so that nobody would free what it holds, such as a lock.
    """

    def __init__(self, leader: Waiting[T, Any] | None) -> None:
        self.leader = leader
        self.waiting: list[Waiting[T, Any]] = []
        self.decided: list[Waiting[T, Any]] = []
        self.appending: list[Waiting[T, Any]] = []
        self.has_happened = False
        self.views: list[View] = []
        self.error: BaseException | None = None


class Deciding(Generic[T]):
    """Decides the transactions of one open store. Safe to use from many threads."""

    def __init__(self, replica: Replica[T], log: SharedLog) -> None:
        self._replica = replica
        self._log = log
        self._alone = Section()
        self._queueing = Queueing(replica.backend, replica.environment)
        self._queue: deque[Waiting[T, Any]] = deque()
        # The group under way. An interrupted call leaves it here, and the next call settles it.
        self._group: _Group[T] | None = None
        # The lines of the last append.
        self._lines: list[bytes] = []
        # Per agent, the clock up to which its log is known to be durable.
        self._durable: dict[str, int] = {}

    def run(self, decide: Callable[[Transaction[T]], R], attempts: int | None = None) -> R:
        """Return what `decide` returns, once its writes are durable in the shared log. `decide` may be called more than
        once, in any thread. It must have no effects except on the transaction that it is given.

        :param attempts: how often it is called at most; None: until nothing that it has read has changed.
        :raises ConflictError: it was called that often, and what it had read changed each time.
        :raises CommitUnknownError: it may have happened.
        """
        waiting = self.submit(decide, attempts)
        try:
            while not waiting.done:
                if self._alone.holder is None:
                    self._alone.run(self._lead, waiting)
                else:
                    sleep(waiting)
        except BaseException:
            waiting.is_cancelled = True
            self.cancel(waiting)
            raise
        finally:
            self._wake_next()
        return waiting.outcome()

    def begin(self) -> Transaction[T]:
        """A transaction that the caller fills at its own pace, and ends with `commit` or `leave`."""
        self._flush()
        self._replica.refresh()
        return Transaction(
            self._replica.schema, Sight(self._replica, self._replica.freeze(), Overlay(), 0), self._replica.backend.url
        )

    def commit(self, made: Transaction[T]) -> None:
        """Commit the writes of a transaction, if nothing that it has read has changed; errors as of `run`.

        :raises ConflictError: something has.
        """
        made.end()  # what another thread wrote from now on would be in no commit
        self.run(partial(self.repeat, made))

    def leave(self, made: Transaction[T]) -> None:
        """End a transaction that nobody uses any more, without committing it."""
        made.end()
        if not self._replica.is_forked:  # there, a thread of the parent may have had the lock of the state
            self._release(cast(Sight[T], made.source).view)

    def _release(self, view: View) -> None:
        """Release a view, but not while another thread changes the state and records old values in its views."""
        self._replica.read_frozen(view.release)

    def repeat(self, made: Transaction[T], transaction: Transaction[T]) -> None:
        """The decision that `commit` runs: write again what `made` wrote, if nothing that it read has changed."""
        old, now = cast(Sight[T], made.source), cast(Sight[T], transaction.source)
        transaction.rest_on(made.reads)
        now.rest_on(old)
        changed = first_difference(made.reads, old, now)
        if changed is not None:
            raise conflict(changed, transaction.record(changed) if changed else None, "was written since it was read")
        transaction.repeat(made)

    def submit(
        self,
        decide: Callable[[Transaction[T]], R],
        attempts: int | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> Waiting[T, R]:
        """Queue a transaction. Some thread then has to call `decide_all`.

        :raises ClosedError: the store is closed.
        :raises UsageError: called by a signal handler that interrupted another call of this store.
        """
        self._replica.check_open()
        self._replica.check_may_wait()
        self.check_entry()
        waiting = Waiting(decide, attempts, notify)
        try:
            self._queue.append(waiting)
            self._replica.check_open()
        except OpslogError:
            # Closed in between. `close` may have ended what was queued before this, and then nobody would decide it.
            if self._dequeue(waiting):
                raise
        except BaseException:
            waiting.is_cancelled = True
            self.cancel(waiting)
            raise
        return waiting

    def check_entry(self) -> None:
        """:raises UsageError: a signal handler makes this call, and has interrupted its own thread, which was deciding
        or refreshing. The thread that decides may be waiting for that refresh.
        """
        self._replica.check_not_refreshing()
        if self._alone.holder == threading.get_ident():
            raise reentered()

    def cancel(self, waiting: Waiting[T, Any]) -> None:
        """The caller of a transaction leaves. It does not happen any more, unless it is being decided just now."""
        waiting.is_cancelled = True
        self._dequeue(waiting)

    def _dequeue(self, waiting: Waiting[T, Any]) -> bool:
        """Remove a transaction from the queue. Returns False if it is not there: it is being decided, or has ended."""
        try:
            self._queue.remove(waiting)
        except ValueError:
            return False
        return True

    def decide_all(self) -> None:
        """Decide all queued transactions."""
        try:
            self._alone.run(self._decide_queued)
        finally:
            self._wake_next()

    def close(self) -> None:
        """Wait for the group under way; the other queued transactions end with ClosedError."""
        self._alone.run(self._abandon)

    def _abandon(self) -> None:
        self._settle()
        while queued := tuple(self._queue):
            for waiting in queued:  # each is removed after its end, or an interrupt in between would lose it
                waiting.end(ClosedError("this store was closed meanwhile, and nothing was written"))
                self._dequeue(waiting)

    def _wake_next(self) -> None:
        """Wake a caller that came meanwhile: it sleeps, and no other thread decides for it."""
        with suppress(IndexError):
            wake(self._queue[0])

    # -- inside `_alone`

    def _lead(self, waiting: Waiting[T, Any]) -> None:
        while not waiting.done:
            self._decide_group(waiting)

    def _decide_queued(self) -> None:
        while self._queue or self._group is not None:
            self._decide_group(None)

    def _decide_group(self, leader: Waiting[T, Any] | None) -> None:
        self._settle()
        group = self._group = _Group(leader)
        try:
            group.waiting = list(self._queue)  # a copy first: each is in one of the two lists at any time, or in both
            for waiting in group.waiting:
                self._dequeue(waiting)
            self._flush()
            while remaining := [waiting for waiting in group.waiting if not (waiting.done or waiting.is_cancelled)]:
                with self._queueing.place(), suppress(_Again):
                    self._attempt(group, remaining)
            group.waiting.clear()
        except OpslogError as error:
            group.error = _copied(error)
        except BaseException as error:
            if leader is None:
                group.error = _copied(error)
            raise
        finally:
            self._settle()

    def _flush(self) -> None:
        if self._replica.is_buffered:
            self._replica.flush()

    def _settle(self) -> None:
        """End the transactions of the group under way, if its deciding is over, or queue them again.

        If an exception interrupted the thread that decides, that thread gets it, and the other transactions are queued
        again. But if that thread has no transaction of its own, all of them get the exception, which nobody would see
        otherwise. A second exception may interrupt this, and then the next call completes it.
        """
        group = self._group
        if group is None:
            return
        if group.waiting and group.appending:
            self._replica.invalidate()  # otherwise, durable commits might be missing in memory
            for waiting in group.decided if group.has_happened else ():
                waiting.end()
        while group.waiting:
            self._settle_last(group)
            group.waiting.pop()  # after it has ended or is queued: an interrupt in between would lose it
        while group.views:
            self._release(group.views[-1])
            group.views.pop()
        self._group = None

    def _settle_last(self, group: _Group[T]) -> None:
        waiting = group.waiting[-1]
        if waiting.done:
            waiting.end()
        elif waiting in group.appending:
            waiting.end(CommitUnknownError("the append of this transaction was interrupted: check what is there"))
        elif group.error is not None:
            waiting.end(_copied(group.error))
        elif waiting is not group.leader and not waiting.is_cancelled and waiting not in self._queue:
            waiting.forget()
            self._queue.appendleft(waiting)

    def _attempt(self, group: _Group[T], remaining: list[Waiting[T, Any]]) -> None:
        """Decide what remains of a group on the current state, and append what it writes. Some of it may remain to be
        decided again."""
        group.decided, group.appending, group.has_happened = [], [], False
        self._replica.read_logs()
        self._replica.check_own_log()  # no refresh reads it
        view = self._replica.freeze()
        group.views.append(view)
        try:
            overlay = Overlay()
            decided = group.decided
            for waiting in remaining:
                sight = Sight(self._replica, view, overlay, len(decided))
                self._decide(waiting, sight)
                transaction = waiting.transaction
                if decided and sight.is_early:
                    waiting.forget()
                    break  # the stamp that it needs is known only after the append of those before it
                decided.append(waiting)
                if transaction is not None and waiting.error is None:
                    overlay.add(sight.place, transaction.written)
                    if transaction.undone:
                        break
            commits = [waiting.commit for waiting in decided]
            writers = [commit for commit in commits if commit is not None]
            self._make_durable(decided, view, appends=bool(writers))
            if not writers or self._append(group, commits, view):
                for waiting in decided:
                    waiting.end()
        finally:
            # Here, after all of them: a transaction that is decided again compares its old view with the new one.
            in_use = [waiting.sight.view for waiting in remaining if waiting.sight is not None]
            for view in [view for view in group.views if view not in in_use]:
                self._release(view)
                group.views.remove(view)

    def _decide(self, waiting: Waiting[T, Any], sight: Sight[T]) -> None:
        old = waiting.sight
        changed = None if old is None else _changed(waiting, old, sight)
        if old is not None and changed is None:
            sight.rest_on(old)
        else:
            if old is not None and self._queueing.has_to_queue():
                raise _Again
            if waiting.attempts is not None and old is not None:
                waiting.attempts -= 1
            waiting.error = waiting.result = None
            waiting.transaction = transaction = Transaction(self._replica.schema, sight, self._replica.backend.url)
            if waiting.attempts is not None and waiting.attempts < 1:
                sight.note_stamp(changed or "")
                waiting.error = conflict(
                    changed or "", live(sight.record(changed)) if changed else None, "was written since it was read"
                )
            else:
                self._call(waiting, transaction, sight)
        waiting.sight = sight

    def _call(self, waiting: Waiting[T, Any], transaction: Transaction[T], sight: Sight[T]) -> None:
        try:
            self._replica.deciding = threading.get_ident()
            waiting.result = waiting.decide(transaction)
            _ = transaction.commit
        except BaseException as error:
            # The error is the outcome, and is raised where the outcome is awaited. In the main thread, however, it may
            # come from a signal handler and not from the function.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            waiting.error = error
        finally:
            self._replica.deciding = None
        if sight.missing is not None:
            self._replica.replace(sight.view.state, sight.missing)
        if sight.missing is not None or sight.is_late:
            raise _Again

    def _make_durable(self, group: list[Waiting[T, Any]], view: View, *, appends: bool) -> None:
        """Make durable what was read, before anything depends on it. (If the group appends, the append does so for the
        shared log.) On an object storage, everything that can be read is durable."""
        sights = [waiting.sight for waiting in group if waiting.sight is not None]
        agents = {agent for sight in sights for agent in sight.agents}
        agents |= {
            agent for sight in sights for agent, clock in sight.undos.items() if clock > self._durable.get(agent, 0)
        }
        if self._replica.agent in agents:
            self._flush()  # another thread may have written since
        if not self._replica.backend.segments_grow:
            return
        paths, known = [], {}
        for agent in sorted(agents - {self._replica.agent or "", "" if not appends else TRANSACTIONS}):
            cursor = view.end if agent == TRANSACTIONS else view.state.cursors.get(agent)
            if cursor is not None and cursor.offset and cursor.clock > self._durable.get(agent, 0):
                paths.append(segment_path(agent, cursor.segment))
                known[agent] = cursor.clock
        for path in paths:
            with suppress(MissingFileError):  # compacted, and so durable
                self._replica.backend.persist([path])
        self._durable |= known

    def _append(self, group: _Group[T], commits: list[Commit | None], view: View) -> bool:
        """Append what the decided transactions of a group write. Returns whether it is appended; if not, some of them
        may remain to be decided."""
        writers = [waiting for waiting, commit in zip(group.decided, commits, strict=True) if commit is not None]
        written = [commit for commit in commits if commit is not None]
        try:
            return self._replica.between_refreshes(partial(self._append_at_end, group, writers, written, view))
        except WriteFailedError as error:
            in_log = self._partly(error.durable)
            if in_log:
                self._replica.invalidate()  # loading again reads them from the log
            for waiting in writers[:in_log]:
                waiting.end()
            for waiting in writers:
                own = copy(error)
                own.durable = 0  # the error counts bytes of the group, and this transaction is not among them
                waiting.end(own)
        except CommitUnknownError as error:
            happened = False
            with suppress(OpslogError), self._replica.unreported():  # then it stays unknown
                happened = not self._replica.backend.segments_grow and self._is_there(written[0])
            if not happened:
                self._replica.invalidate()  # otherwise, commits that turn out to be durable might be missing in memory
            for waiting in writers:
                waiting.end(None if happened else copy(error))
        except OpslogError as error:
            if group.has_happened:
                self._replica.invalidate()  # loading again reads them from the log
            for waiting in writers:
                waiting.end(None if group.has_happened else copy(error))
        group.appending = []
        return False

    def _append_at_end(
        self, group: _Group[T], writers: list[Waiting[T, Any]], commits: list[Commit], view: View
    ) -> bool:
        before: Commit | None = None
        lines: list[bytes] = []
        for waiting, commit in zip(writers, commits, strict=True):
            try:
                assert waiting.transaction is not None
                key = waiting.transaction.key
                lines.append(self._log.stamp(commit, before, view.state.shared_ts, key=key))
                waiting.transaction.note_stamp(commit.stamp)
            except OpslogError as error:
                waiting.error = error  # of this transaction alone: its line is too long
                return False
            before = commit
        data = b"".join(lines)
        self._lines = lines
        group.appending = writers
        end = self._log.append(data, view.end)
        if end is not None:
            group.has_happened = True
            end.clock, end.mark = commits[-1].clock, mark_of(commits[-1])
            self._replica.take_own(commits, end)
            self._durable[TRANSACTIONS] = end.clock
            self._replica.appended(len(data) + (SEGMENT_COST if end.offset in (0, len(data)) else 0))
        else:
            group.appending = []
        return end is not None

    def _partly(self, durable: int) -> int:
        """How many commits of the last append are in the log, given how many of its bytes are."""
        count = 0
        for line in self._lines:
            durable -= len(line)
            count += durable >= 0
        return count

    def _is_there(self, commit: Commit) -> bool:
        """Whether the log or the snapshot has a commit whose append ended without an answer. False also where that
        cannot be found out."""
        self._replica.refresh()
        view = self._replica.freeze()
        try:
            recent = self._replica.read_frozen(lambda: list(view.state.merge.recent.get(TRANSACTIONS, ())))
            if any(entry.commit.tx == commit.tx for entry in recent):
                return True
            found = (self._replica.read_frozen(partial(view.record, record.id)) for record in commit.records)
            return any(record is not None and record.tx == commit.tx for record in found)
        finally:
            self._release(view)


def _copied(error: BaseException) -> BaseException:
    """A copy of an exception; the exception itself if its class cannot be copied."""
    try:
        return copy(error)
    except Exception:  # noqa: BLE001  (of a class of others, whose constructor may take anything)
        return error


def _changed(waiting: Waiting[T, Any], old: Sight[T], now: Sight[T]) -> str | None:
    """The document whose change makes it necessary to decide a transaction again. None: there is none. Empty: there is
    one, but it is unknown which."""
    assert waiting.transaction is not None
    if waiting.transaction.is_searching:
        return ""
    return first_difference(waiting.transaction.reads, old, now)


def first_difference(reads: Reads, old: Sight[T], now: Sight[T]) -> str | None:
    """The first document whose change between two moments affects what was read. None: there is none. Empty: there may
    be one, but it is unknown which."""
    fault = reads.fault(lambda id: live(now.record(id)))
    if fault is not None or not reads.queries:
        return fault
    if now.view.state is not old.view.state or old.view.is_released:
        return ""
    for id in {*old.view.changed, *old.before, *now.before}:
        before, after = live(old.record(id)), live(now.record(id))
        if not is_same(before, after) and (reads.matches(before) or reads.matches(after)):
            return id
    return None
