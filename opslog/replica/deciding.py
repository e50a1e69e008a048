"""Deciding transactions: those of all threads and tasks of a process, one after the other, in groups.

Callers queue what they want to decide. The first of them to come takes all that is queued as a group: it refreshes,
decides each on what is there and on what those before it in the group have changed, and appends what they write with
one append, if the shared log still ends where it was read (`opslog.log.shared`). If another process was faster, it
reads on: who has read nothing that has changed keeps what was decided, and gets another stamp; all others are decided
again. Functions of users run while no lock is held that another process needs; who decides again has a place in a
queue (`opslog.replica.queueing`), for which nobody waits long.

What holds, whatever ends a call:

1. A transaction is decided on everything that was acknowledged before it was queued: its group was closed before the
   group's refresh began.
2. What a group rests on is durable before its lines are appended.
3. Nobody hears an outcome, not even a refusal, before what it rests on is durable, the lines of the group included.
4. A transaction that was interrupted before its append has not happened. During it the outcome is unknown, and nothing
   is tried again.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
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
    RetryError,
    WriteFailedError,
)
from opslog.format.commits import Commit, Record, Set, Undo
from opslog.format.documents import Schema
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.log.reader import SEGMENT_COST, Cursor
from opslog.log.shared import SharedLog
from opslog.merge.undo import newest_undoable
from opslog.replica.questions import Frozen, Questions
from opslog.replica.queueing import Queueing
from opslog.replica.state import State, View
from opslog.replica.transaction import Reads, Transaction, conflict, is_same, live

T = TypeVar("T")
R = TypeVar("R")


class Replica(Protocol[T]):
    """What deciding needs of an open store."""

    backend: Backend
    schema: Schema[T]
    environment: Environment
    agent: str | None

    # The thread that calls a user's function.
    deciding: int | None

    # Whether what this store wrote may be in memory and not in its log yet.
    is_buffered: bool

    @property
    def questions(self) -> Questions[T]: ...
    def check_open(self) -> None: ...
    def check_may_wait(self) -> None: ...
    def check_not_refreshing(self) -> None: ...
    def flush(self) -> None: ...
    def refresh(self) -> None: ...
    def read_logs(self) -> None: ...
    def check_own_log(self) -> None: ...
    def replace(self, state: State, missing: MissingFileError | None) -> None: ...
    def freeze(self) -> View: ...
    def read_frozen(self, read: Callable[[], R]) -> R: ...
    def between_refreshes(self, work: Callable[[], R]) -> R: ...
    def invalidate(self) -> None: ...
    def take_own(self, commits: Sequence[Commit], end: Cursor) -> None: ...
    def appended(self, cost: int) -> None: ...


class _Again(Exception):
    """Decide again: what was read is not there any more, or others come first."""


class Sight(Generic[T]):
    """What one transaction reads: a view, under what those before it in its group write.

    :ivar agents: of whose commits something was read.
    :ivar undos: per agent the clock of the newest undo in its log without which something else would have been read.
    :ivar missing: the part of the snapshot that was replaced and collected before it was read.
    :ivar is_early: whether it asked for a stamp that those before it in its group will get by their append.
    """

    def __init__(self, replica: Replica[T], view: View, overlay: dict[str, Record]) -> None:
        self.view = view
        self.overlay = dict(overlay)
        self._replica = replica
        self.agents: set[str] = set()
        self.undos: dict[str, int] = {}
        self.missing: MissingFileError | None = None
        self.is_early = False

    def record(self, id: str) -> Record | None:
        record = self.overlay.get(id)
        if record is None:
            try:
                record, undos = self._replica.read_frozen(lambda: (self.view.record(id), self.view.undone(id)))
            except MissingFileError as error:
                raise self._gone(error) from error
            if record is not None:
                self.agents.add(record.agent)
            self._note_undos(undos)
        return record

    def records(self, overlay: dict[str, Record]) -> Iterator[Set]:
        self._note_undos(self._replica.read_frozen(self.view.undone))
        try:
            for record in self._replica.read_frozen(partial(self.view.records, self.overlay | overlay, self.agents)):
                self.agents.add(record.agent)
                yield record
        except MissingFileError as error:
            raise self._gone(error) from error

    def asking(self, overlay: dict[str, Record]) -> tuple[Questions[T], Frozen]:
        # An index does not say whose commits made all the others not match: those of any log may have.
        self._note_undos(self._replica.read_frozen(self.view.undone))
        self.agents |= self._replica.read_frozen(lambda: set(self.view.state.cursors))
        if self._replica.agent is not None:
            self.agents.add(self._replica.agent)
        return self._replica.questions, self._replica.questions.at(self.view, self.overlay | overlay)

    def rest_on(self, other: Sight[T]) -> None:
        """What was decided on another view is right on this one, too."""
        self.agents |= other.agents
        self._note_undos(other.undos.items())

    def _note_undos(self, undos: Iterable[tuple[str, int]]) -> None:
        for agent, clock in undos:
            self.undos[agent] = max(clock, self.undos.get(agent, 0))

    def undoable(self, author: str) -> Commit | None:
        self.is_early = self.is_early or bool(self.overlay)
        return self._replica.read_frozen(
            lambda: newest_undoable(self.view.state.merge.recent.get(TRANSACTIONS, ()), author)
        )

    def shared_end(self) -> Cursor:
        self.agents.add(TRANSACTIONS)
        return self.view.end

    def note_stamp(self, id: str) -> None:
        self.is_early = self.is_early or isinstance(self.overlay.get(id), Set)

    def _gone(self, error: MissingFileError) -> RetryError:
        """What to raise, once it is noted that this is missing."""
        self.missing = error
        return RetryError(f"{error.path} was replaced and collected before it was read: begin again")


class Waiting(Generic[T, R]):
    """A transaction that is to be decided.

    :ivar done: whether its outcome is known: `result`, or `error`.
    """

    def __init__(self, decide: Callable[[Transaction[T]], R], attempts: int | None, notify: Callable[[], None]) -> None:
        self.decide = decide
        self.attempts = attempts
        self.notify = notify
        self.done = False
        self.result: R | None = None
        self.error: BaseException | None = None
        self.transaction: Transaction[T] | None = None
        self.sight: Sight[T] | None = None
        self.bell: Bell | None = None

    @property
    def commit(self) -> Commit | None:
        """What it writes."""
        return None if self.error is not None or self.transaction is None else self.transaction.commit

    def end(self, error: BaseException | None = None) -> None:
        """The outcome is known."""
        if self.done:
            return
        if self.transaction is not None:
            self.transaction.end()
        if error is not None:
            self.error = error
        self.done = True
        wake(self)
        self.notify()

    def forget(self) -> None:
        """Decide it anew, as if it had not been decided yet."""
        self.transaction = self.sight = self.result = self.error = None

    def outcome(self) -> R:
        """What the caller gets."""
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]  # None is a result, too


class Deciding(Generic[T]):
    """Decides the transactions of one open store. Safe to use from many threads."""

    def __init__(self, replica: Replica[T], log: SharedLog) -> None:
        self._replica = replica
        self._log = log
        self._alone = Section()
        self._queueing = Queueing(replica.backend, replica.environment)
        self._queue: deque[Waiting[T, Any]] = deque()
        # What is under way, and whether its append is.
        self._group: list[Waiting[T, Any]] = []
        self._is_appending = False
        # Those whose outcome rests on that append, and whether it has happened.
        self._decided: list[Waiting[T, Any]] = []
        self._has_happened = False
        # What they read.
        self._views: list[View] = []
        # As they were appended last.
        self._lines: list[bytes] = []
        # Up to which clock the logs are known to be durable.
        self._durable: dict[str, int] = {}

    def run(self, decide: Callable[[Transaction[T]], R], attempts: int | None = None) -> R:
        """What `decide` returns, once what it wrote is in the shared log and durable. It may be called more than once,
        in any thread, and has no effects but on the transaction that it is given.

        :param attempts: how often it is called at most; None: until nothing that it has read has changed.
        :raises ConflictError: it was called so often.
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
            self.cancel(waiting)
            raise
        finally:
            self._wake_next()
        return waiting.outcome()

    def begin(self) -> Transaction[T]:
        """A transaction that the caller makes in its own time, and ends by `commit` or `leave`."""
        self._flush()
        self._replica.refresh()
        return Transaction(self._replica.schema, self._sight(self._replica.freeze(), {}), self._replica.backend.url)

    def commit(self, made: Transaction[T]) -> None:
        """Write what a transaction wrote, if all that it has read is still the same; errors as of `run`.

        :raises ConflictError: it is not.
        """
        self.run(partial(self.repeat, made))

    def leave(self, made: Transaction[T]) -> None:
        """Nobody uses this transaction any more."""
        made.end()
        self._release(cast(Sight[T], made.source).view)

    def _release(self, view: View) -> None:
        """Exclusively of whoever changes the state, and keeps what it was for the views of it."""
        self._replica.read_frozen(view.release)

    def repeat(self, made: Transaction[T], transaction: Transaction[T]) -> None:
        """What `commit` decides."""
        old, now = cast(Sight[T], made.source), cast(Sight[T], transaction.source)
        transaction.rest_on(made.reads)
        now.rest_on(old)
        changed = first_difference(made.reads, old, now)
        if changed is not None:
            raise conflict(changed, transaction.record(changed) if changed else None, "was written since it was read")
        transaction.repeat(made)

    def _sight(self, view: View, overlay: dict[str, Record]) -> Sight[T]:
        return Sight(self._replica, view, overlay)

    def submit(
        self,
        decide: Callable[[Transaction[T]], R],
        attempts: int | None = None,
        notify: Callable[[], None] = lambda: None,
    ) -> Waiting[T, R]:
        """Queue a transaction; somebody has to call `decide_all`.

        :raises ClosedError: the store is closed.
        :raises UsageError: called by a signal handler that interrupted another call of this store.
        """
        self._replica.check_open()
        self._replica.check_may_wait()
        self.check_entry()
        waiting = Waiting(decide, attempts, notify)
        self._queue.append(waiting)
        return waiting

    def check_entry(self) -> None:
        """:raises UsageError: the calling thread decides, or refreshes, for which whoever decides may be waiting; a
        signal's handler interrupted it, and now calls.
        """
        self._replica.check_not_refreshing()
        if self._alone.holder == threading.get_ident():
            raise reentered()

    def cancel(self, waiting: Waiting[T, Any]) -> None:
        """Forget what is still queued; what is being decided goes on."""
        with suppress(ValueError):
            self._queue.remove(waiting)

    def decide_all(self) -> None:
        """Decide everything that is queued."""
        self._alone.run(self._decide_queued)

    def close(self) -> None:
        """Let what is being decided end; nothing else that is queued will be decided any more."""
        self._alone.run(self._abandon)

    def _abandon(self) -> None:
        while self._queue:
            self._queue.popleft().end(ClosedError("this store was closed meanwhile, and nothing was written"))

    def _wake_next(self) -> None:
        """Who came meanwhile sleeps, and finds nobody deciding."""
        with suppress(IndexError):
            wake(self._queue[0])

    # -- inside `_alone`

    def _lead(self, waiting: Waiting[T, Any]) -> None:
        while not waiting.done:
            self._decide_group(waiting)

    def _decide_queued(self) -> None:
        while self._queue:
            self._decide_group(None)

    def _decide_group(self, leader: Waiting[T, Any] | None) -> None:
        self._group = group = []
        self._is_appending = self._has_happened = False
        while self._queue:
            group.append(self._queue.popleft())
        try:
            self._flush()
            while remaining := [waiting for waiting in group if not waiting.done]:
                with self._queueing.place(), suppress(_Again):
                    self._attempt(remaining)
        except OpslogError as error:
            for waiting in group:
                waiting.end(copy(error))
        except BaseException as error:
            self._interrupt(group, leader, error)
            raise
        finally:
            for view in self._views:
                self._release(view)
            self._group, self._decided, self._views = [], [], []

    def _flush(self) -> None:
        if self._replica.is_buffered:
            self._replica.flush()

    def _interrupt(self, group: list[Waiting[T, Any]], leader: Waiting[T, Any] | None, error: BaseException) -> None:
        """The thread that leads was interrupted. Others of the group go on without it, unless it leads for all of them:
        then nobody else would see the error."""
        if self._has_happened:
            self._replica.invalidate()  # or what is durable may not be in memory
            for waiting in self._decided:
                waiting.end()
        for waiting in reversed(group):
            if waiting.done:
                continue
            if self._is_appending and waiting.commit is not None:
                waiting.end(CommitUnknownError("the append of this transaction was interrupted: check what is there"))
            elif leader is None:
                waiting.end(copy(error))
            elif waiting is not leader:
                waiting.forget()
                self._queue.appendleft(waiting)

    def _attempt(self, group: list[Waiting[T, Any]]) -> None:
        """Decide a group on what is there now, and append what it writes. Some of it may remain to be decided."""
        self._is_appending = self._has_happened = False
        self._replica.read_logs()
        self._replica.check_own_log()  # which no refresh reads
        view = self._replica.freeze()
        self._views.append(view)
        try:
            overlay: dict[str, Record] = {}
            decided: list[Waiting[T, Any]] = []
            self._decided = decided
            for waiting in group:
                sight = self._sight(view, overlay)
                self._decide(waiting, sight)
                transaction = waiting.transaction
                if decided and sight.is_early:
                    waiting.forget()
                    break  # what it asks for is known after the append of those before it
                decided.append(waiting)
                if transaction is not None and waiting.error is None:
                    overlay.update(transaction.written)
                    if transaction.undone:
                        break
            commits = [waiting.commit for waiting in decided]
            writers = [commit for commit in commits if commit is not None]
            self._make_durable(decided, view, appends=bool(writers))
            if not writers or self._append(decided, commits, view):
                for waiting in decided:
                    waiting.end()
        finally:
            # Together: what was read in one view is compared with what is in another one.
            in_use = [waiting.sight.view for waiting in group if waiting.sight is not None]
            for view in [view for view in self._views if view not in in_use]:
                self._release(view)
                self._views.remove(view)

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
            # It is the outcome, and raised where that is awaited. In the main thread it may have come by a signal, and
            # is not the function's.
            if not isinstance(error, Exception) and threading.current_thread() is threading.main_thread():
                raise
            waiting.error = error
        finally:
            self._replica.deciding = None
        if sight.missing is not None:
            self._replica.replace(sight.view.state, sight.missing)
            raise _Again

    def _make_durable(self, group: list[Waiting[T, Any]], view: View, *, appends: bool) -> None:
        """What was read is durable before anything rests on it. (The append sees to the shared log itself.) What others
        have written to an object storage is so when it is there."""
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

    def _append(self, group: list[Waiting[T, Any]], commits: list[Commit | None], view: View) -> bool:
        """Append what a group writes; False where some of it remains to be decided."""
        writers = [waiting for waiting, commit in zip(group, commits, strict=True) if commit is not None]
        written = [commit for commit in commits if commit is not None]
        try:
            return self._replica.between_refreshes(partial(self._append_at_end, writers, written, view))
        except WriteFailedError as error:
            in_log = self._partly(error.durable)
            if in_log:
                self._replica.invalidate()  # they are read from there
            for waiting in writers[:in_log]:
                waiting.end()
            for waiting in writers:
                own = copy(error)
                own.durable = 0  # of the group, of which this is no part
                waiting.end(own)
        except CommitUnknownError as error:
            happened = False
            with suppress(OpslogError):  # nobody can say
                happened = not self._replica.backend.segments_grow and self._is_there(written[0])
            for waiting in writers:
                waiting.end(None if happened else copy(error))
        except OpslogError as error:
            if self._has_happened:
                self._replica.invalidate()  # they are read from the log
            for waiting in writers:
                waiting.end(None if self._has_happened else copy(error))
        self._is_appending = False
        return False

    def _append_at_end(self, writers: list[Waiting[T, Any]], commits: list[Commit], view: View) -> bool:
        before: Commit | None = None
        lines: list[bytes] = []
        for waiting, commit in zip(writers, commits, strict=True):
            try:
                assert waiting.transaction is not None
                key = waiting.transaction.key
                lines.append(self._log.stamp(commit, before, view.state.shared_ts, key=key))
                waiting.transaction.note_stamp(commit.stamp)
            except OpslogError as error:
                waiting.error = error  # its alone: too long a line
                return False
            before = commit
        data = b"".join(lines)
        self._lines = lines
        self._is_appending = True
        end = self._log.append(data, view.end)
        if end is not None:
            self._has_happened = True
            end.clock = commits[-1].clock
            self._replica.take_own(commits, end)
            self._durable[TRANSACTIONS] = end.clock
            self._replica.appended(len(data) + (SEGMENT_COST if end.offset in (0, len(data)) else 0))
        else:
            self._is_appending = False
        return end is not None

    def _partly(self, durable: int) -> int:
        """How many commits are in the log of those that were appended last, given how many bytes of them are."""
        count = 0
        for line in self._lines:
            durable -= len(line)
            count += durable >= 0
        return count

    def _is_there(self, commit: Commit) -> bool:
        """Whether the log, or the snapshot, has a commit whose append ended without saying so. False where that cannot
        be seen."""
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


def _changed(waiting: Waiting[T, Any], old: Sight[T], now: Sight[T]) -> str | None:
    """A document for which a transaction has to be decided again; None: there is none. Empty: nobody knows which."""
    assert waiting.transaction is not None
    if isinstance(waiting.commit, Undo) or waiting.transaction.is_searching:
        return ""
    return first_difference(waiting.transaction.reads, old, now)


def first_difference(reads: Reads, old: Sight[T], now: Sight[T]) -> str | None:
    """The first document that makes a difference to what was read, between two moments; None: none does. Empty: nobody
    knows which."""
    fault = reads.fault(lambda id: live(now.record(id)))
    if fault is not None or not reads.queries:
        return fault
    if now.view.state is not old.view.state or old.view.is_released:
        return ""
    for id in {*old.view.changed, *old.overlay, *now.overlay}:
        before, after = live(old.record(id)), live(now.record(id))
        if not is_same(before, after) and (reads.matches(before) or reads.matches(after)):
            return id
    return None
