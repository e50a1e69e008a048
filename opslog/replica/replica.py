"""An open store as one object, which `opslog.Store` and `opslog.aio.AsyncStore` share.

A replica does everything that an open store does, except wait for a commit. In a `Store` the calling thread waits, in
an `AsyncStore` the task. The parts of a replica are:

- `state`, and how threads share it (`opslog.replica.memory`);
- following what others write (`opslog.replica.following`): `refresh`, `news`;
- `log`, which writes (`opslog.log.writer`), and `compaction`, the automatic one;
- `batches` of the threads, which lie over the state until they are committed (`opslog.replica.batch`);
- `questions`, which finds documents by conditions (`opslog.replica.questions`);
- `feed`, which returns the changes since a token (`opslog.replica.feed`).

A write has three steps. `prepare_set`, `prepare_delete` or the end of a batch works out what to commit; the log's
`queue` stamps it; its `finish` returns when it is durable. `commit_decided` prepares and queues in one step. It is for
writes that have to be decided on the newest state, with no other commit of this process in between.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
import orjson

from opslog.backends import Appender, forking
from opslog.compaction.automatic import AutoCompaction
from opslog.concurrency.locking import made_once
from opslog.environment import Environment
from opslog.errors import ClosedError, NotFoundError, OpslogError, ReadOnlyError, ReopenError, SealedError, UsageError
from opslog.format.commits import Commit, Delete, Record, Set, Undo
from opslog.format.documents import Schema, check_id, plain_id
from opslog.format.layout import TRANSACTIONS
from opslog.kernel import find_document
from opslog.log.reader import Cursor
from opslog.merge.undo import not_ours
from opslog.replica.batch import Batches
from opslog.replica.decoded import DecodedDocuments
from opslog.replica.following import Following
from opslog.replica.loading import Loader
from opslog.replica.state import State

# Imported where they are used: many programs open a store for a few documents only, and wait for every import.
if TYPE_CHECKING:
    from opslog.log.writer import Buffer, Pending
    from opslog.replica.deciding import Deciding
    from opslog.replica.feed import Changes, Feed
    from opslog.replica.keys import Keys
    from opslog.replica.questions import Questions

T = TypeVar("T")


def _count(state: State, overlay: dict[str, Record]) -> int:
    return state.documents + sum(isinstance(record, Set) - state.contains(id) for id, record in overlay.items())


def _look_up(state: State, id: str) -> tuple[State, Record | None, Record | None]:
    winner = state.winners.get(id)
    return state, winner, state.record_over(id, winner)


class Replica(Following, Generic[T]):
    """An open store; made by `opslog.opening.open`. Safe to use from many threads.

    :param appender: holds the agent's name; `close` closes it. None: this store has no log of its own.
    :param author: as in `Following`. Without an `appender` everything that is written goes to the shared log.
    :param buffer: None: each write waits until it is durable.
    :param compact_after: as in `opslog.open`.
    :param cache_bytes: as in `opslog.open`.
    :ivar is_buffered: whether there is a buffer.
    """

    def __init__(
        self,
        loader: Loader,
        state: State,
        *,
        read_at: float,
        agent: str | None,
        author: str | None,
        appender: Appender | None,
        schema: Schema[T],
        buffer: Buffer | None,
        compact_after: int | None,
        cache_bytes: int,
        environment: Environment,
        included: Callable[[Commit], bool] | None,
    ) -> None:
        super().__init__(
            loader, state, read_at=read_at, agent=agent, author=author, environment=environment, included=included
        )
        self.schema = schema
        self._reads_replaced = schema.reads_replaced
        # Documents of this schema version are returned as stored; 0: of any version; None: each is converted to a type.
        self._as_stored = None if schema.type is not None else schema.version or 0
        self.decoded = DecodedDocuments(cache_bytes if schema.type is None else 0)
        self.batches = Batches()
        self._id = ""
        # The point in time of a view of the past, for `repr`.
        self.as_of: object = None
        self.is_buffered = buffer is not None
        self.is_closed = False
        self._generation = forking.generation
        # Whether a caller got `failure`, so that `close` need not raise it again.
        self.failure_was_raised = False
        self.log = None
        self.transactions: Deciding[T] | None = None
        self.deciding: int | None = None
        if agent and appender:
            from opslog.log.session import WriterSession
            from opslog.log.writer import LogWriter

            own = state.cursors.get(agent, Cursor(agent))
            session = WriterSession(self.backend, appender, own, self.freshness, self.clock)
            self.log = LogWriter(session, self, buffer)
        if author:
            from opslog.log.shared import SharedLog
            from opslog.replica.deciding import Deciding

            self.transactions = Deciding(self, SharedLog(self.backend, self.freshness, self.clock, author))
        self.compaction = AutoCompaction(
            self.backend,
            environment,
            state.manifest,
            tail_cost=state.tail_cost,
            after=compact_after,
            compacted=self.forget_compacted,
        )
        if self.is_buffered:
            from opslog.concurrency import exiting
            from opslog.replica.at_exit import write_buffer

            exiting.write_at_exit(self, write_buffer)

    @made_once
    def questions(self) -> Questions[T]:
        """Answers questions."""
        from opslog.replica.questions import Questions

        return Questions(self, self.schema, self.batches.listed)

    @made_once
    def feed(self) -> Feed[T]:
        """Computes changes."""
        from opslog.replica.feed import Feed

        return Feed(self.loader, self.schema.decode)

    @made_once
    def keys(self) -> Keys:
        """Finds the commit that an earlier attempt of a request wrote."""
        from opslog.replica.keys import Keys

        return Keys(self.backend)

    # -- reading: the state, with this thread's batch over it

    def record(self, id: str) -> Set | None:
        """The record of a document; None if there is no such document."""
        self.check_open()
        id = id if type(id) is str else plain_id(id)
        if self.batches.local.batch is not None and (batch := self.batches.current) is not None:
            if (record := batch.find(id)) is not None:
                return record if isinstance(record, Set) else None
            if (outer := self.batches.transaction) is not None:
                return outer.record(id)
        winner = self.winner(id)
        if winner is None:
            return self.read(State.get, id)
        return winner if type(winner) is Set else None

    def document(self, id: str) -> T | None:
        """A document, which then belongs to the caller; None if it does not exist. Errors as in `Schema.decode`."""
        self.check_open()
        id = id if type(id) is str else plain_id(id)
        if self.batches.local.batch is not None and self.batches.current is not None:
            written = self.record(id)
            return None if written is None else self.schema.decode(written)
        try:
            if not self.in_state:  # as `winner`, without its call
                state, decoded = self.state, self.decoded
                lines = state.lines
                if find_document is None:
                    # Take the winner first: when a state is replaced, `decoded` is cleared before the winners.
                    own: T | None = decoded.find(id, state.winners.get(id))
                else:
                    own = find_document(
                        id,
                        state.winners,
                        decoded.by_id,
                        decoded.read,
                        decoded.remembered,
                        None if lines is None else lines.table,
                        state.manifest.clock,
                        self._as_stored,
                        orjson.loads,
                        orjson.dumps,
                    )
                # A state that is replaced loses its lines first, then its winners. So if it still has its lines, it had
                # the winners, too.
                if own is not None and not state.is_torn and state.lines is lines:
                    return own
            state, winner, record = self._looked_up(id)
            if not isinstance(record, Set):
                return None
            document = self.schema.decode(record)
            if self.decoded.admits(id) and self.schema.is_current(record):
                return self._kept(state, winner, record, document)
        except MemoryError:
            with self._state_lock:
                self.decoded.clear()
            written = self.record(id)
            return None if written is None else self.schema.decode(written)
        return document

    def _looked_up(self, id: str) -> tuple[State, Record | None, Record | None]:
        """The state, the winner of the tail, and the record that counts for a document."""
        state, record = self.state, self.winner(id)
        if record is None:
            return self.read(_look_up, id)
        # A set that is kept as a line is not in `winners`. Check that it still wins: that may have changed meanwhile.
        is_line = state.lines is not None and state.lines.get(id) is record
        return state, None if is_line else record, record

    def _kept(self, state: State, winner: Record | None, record: Set, document: T) -> T:
        """Keep a document decoded and return a copy; or return it itself, if it may have changed meanwhile."""
        id = record.id
        with self._state_lock:
            if self.in_state or self.state is not state or state.is_torn or state.winners.get(id) is not winner:
                return document
            self.decoded.keep(id, winner, document, len(record.data))
            own: T | None = self.decoded.find(id, winner)
            return document if own is None else own

    def contains(self, id: object) -> bool:
        """Whether there is a document."""
        self.check_open()
        if not isinstance(id, str):
            return False
        id = id if type(id) is str else plain_id(id)
        if self.batches.local.batch is not None and (batch := self.batches.current) is not None:
            if (record := batch.find(id)) is not None:
                return isinstance(record, Set)
            if (outer := self.batches.transaction) is not None:
                return outer.record(id) is not None
        winner = self.winner(id)
        return self.read(State.contains, id) if winner is None else type(winner) is Set

    def count(self) -> int:
        """The number of documents."""
        self.check_open()
        return self.read(_count, self.batches.listed())

    def records(self) -> Iterator[Set]:
        """The records of all documents in order of id, as they are at the call."""
        self.check_open()
        return self.read(State.records, self.batches.listed())

    # -- writing

    def check_writable(self, call: str | None = None) -> None:
        """Check that this thread may write now.

        :param call: the name of the call, if it cannot be part of a batch.
        :raises ReadOnlyError: the store was opened for reading.
        """
        self.check_open()
        if self.in_state:
            self.check_not_in_state()
        if call is not None:
            self.batches.check_none(call)
        if self.transactions is None:
            if self.included is not None:
                raise ReadOnlyError(
                    f"{self.backend.url} was opened as_of a point in the past: to write, open it without as_of"
                )
            raise ReadOnlyError(
                f"{self.backend.url} was opened with read_only=True: to write, open it with an agent name (agent=…), "
                "and without read_only"
            )

    def prepare_set(self, id: str, document: T) -> Set:
        """The commit of a set, still without ts, clock and agent. Errors as in `Store.set`."""
        if type(id) is not str or not id.isascii():  # as `check_id`, without its call
            id = check_id(id)
        schema = self.schema
        encoded = schema.encode(document)
        v = schema.version or 1
        if self._reads_replaced and (replaced := self.record(id)) is not None:
            schema.check_known(encoded, replaced)
            v = schema.version or replaced.v
        return Set("", 0, "", id, msgspec.Raw(encoded), v)

    def prepare_delete(self, id: str) -> Delete:
        """The commit of a delete, like `prepare_set`.

        :raises NotFoundError: there is no such document.
        """
        if not self.contains(id):
            raise NotFoundError(f"there is no document {id!r} in {self.backend.url}")
        return Delete("", 0, "", plain_id(id))

    def add_to_batch(self, record: Record) -> bool:
        """Make a set or a delete a part of this thread's batch. Returns whether there is one."""
        while (batch := self.batches.current) is not None:
            self.check_open()
            if batch.add(record):
                return True
        return False

    def deciding_of(self, call: str) -> Deciding[T]:
        """The object that decides transactions.

        :param call: the name of the call, which cannot be part of a batch or of another transaction.
        :raises ReadOnlyError: the store was opened for reading.
        """
        self.check_writable(call)
        if self.batches.transaction is not None:
            raise UsageError(f"{call} cannot be part of another transaction: use that one")
        assert self.transactions is not None
        return self.transactions

    def unguarded(self, commit: Commit, *, at_once: bool = False) -> int | None:
        """Check whether a plain commit may go to the store's own log. None if not, because a transaction wrote one of
        its documents last: then it goes to the shared log. Otherwise the count `guards`, for the queue of the own log:
        the answer holds until the count changes.

        :param at_once: return None also if the answer would take a lookup or have to wait.
        """
        guards = self.guards
        if not guards:
            return guards
        # Without a lock. A thread that changes the state also increases `guards`. So either this sees the state as it
        # was at this count, or the count differs when the commit is queued, and this is checked again.
        if not self.in_state:
            state = self.state
            shared = state.shared_ids
            if shared is None:
                is_plain = TRANSACTIONS not in state.cursors
            else:
                is_plain = not any(shared.may_have(record.id) for record in commit.records)
            if is_plain and not state.is_torn:
                return guards
        if at_once:
            return None
        has_transactions = self.change(lambda state: state.has_transactions)
        if has_transactions and self.read(State.guards, [record.id for record in commit.records]):
            return None
        return guards

    def check_own_log(self) -> None:
        """Check that no other process writes this agent's log. Call this before deciding anything, and before saying
        that there is nothing to do: memory has only the commits that were written here.

        :raises ReopenError: another process writes it or may do so, or an earlier commit had an unknown outcome.
        :raises WriteFailedError: the store is gone.
        """
        if self.log is not None:
            self.log.check_writable()

    def refresh_before(self, commit: Commit) -> None:
        """Refresh if the state is stale, before a plain commit is stamped, and check the commit on what that has read.
        Errors as of `prepare_set`."""
        self.refresh_if_stale()
        self.schema.check_again(commit, self.record)

    def decide_plain(self, commit: Commit) -> None:
        """Write a plain commit to the shared log, whatever its documents are by then."""
        from opslog.replica.transaction import write

        self.check_writable()
        assert self.transactions is not None
        self.transactions.run(partial(write, commit))

    def undo(self) -> tuple[str, ...] | None:
        """See `Store.undo`.

        :returns: the ids of the documents that it gave back; None: nothing is left to undo.
        """
        self.check_writable("undo")
        author = self.author or ""
        undone: tuple[str, ...] | None = None
        while undone is None:  # again, if another thread undoes the same commit: the next one may be in the other log
            if self.log is None or self.state.has_transactions:
                self.flush()
                self.refresh()
            target = self.read(lambda state: state.merge.undoable(author))
            if target is None:
                # What was written by calls that were cancelled or interrupted may still be on its way, to either log.
                self.flush()
                target = self.deciding_of("undo").run(lambda transaction: transaction.undoable(author))
            if target is None:
                self.check_own_log()
                return None
            if target.agent == TRANSACTIONS:
                undone = self.deciding_of("undo").run(lambda transaction: transaction.undo(author))
            elif self.log is None:
                raise not_ours(author)
            else:
                undone = self._undo_own(author)
        return undone

    def _undo_own(self, author: str) -> tuple[str, ...] | None:
        """Undo the author's newest commit, if it is in the store's own log. Returns the ids as `undo` does."""
        undone: tuple[str, ...] | None = None

        def prepare(state: State) -> Undo | None:
            nonlocal undone
            target = state.merge.undoable(author)
            if target is None or target.agent == TRANSACTIONS:
                return None
            undone = tuple(record.id for record in target.records)
            return Undo("", 0, "", target.clock)

        return undone if self.commit_decided("undo", prepare) else None

    def commit_decided(self, call: str, decide: Callable[[State], Commit | None]) -> bool:
        """Decide a commit on the newest state and write it. `decide` is called when all of the store's own commits are
        in the state. The state does not change before the commit has its clock. Blocks until the commit is durable.

        :param call: the name of the call, which cannot be part of a batch or of a transaction.
        :returns: False: `decide` returned None, so nothing was committed.
        """
        self.check_writable(call)
        self.batches.check_no_transaction()
        log = self.log
        assert log is not None, "without a log of its own, a store decides transactions"
        self.refresh_if_stale()
        while True:
            if (state := self.state).is_torn:
                self.replace(state, None)
            is_torn, pending = log.quiet(partial(self._queue_decided, decide))
            if is_torn:
                continue  # it was torn just now
            if pending is None:
                self.check_own_log()
                return False
            with suppress(SealedError):
                log.wait(pending)  # in buffered mode, too: only now it is known whether a seal came first
                return True

    def _queue_decided(
        self, decide: Callable[[State], Commit | None], queue: Callable[[Commit], Pending]
    ) -> tuple[bool, Pending | None]:
        """Decide and queue. Returns (True, None) if the state is torn; otherwise False and the commit, if any."""

        def queue_decided(state: State) -> Pending | None:
            commit = decide(state)
            return None if commit is None else queue(commit)

        return (True, None) if self.state.is_torn else (False, self.change(queue_decided))

    def flush(self) -> None:
        """Write everything that is buffered. Blocks. Errors as in `Store.flush`."""
        self.check_open()
        self.check_may_wait()
        if self.log is not None:
            self.log.flush()
        self.check_open()

    # -- the feed

    def changes(self, since: str | None, limit: int | None, feed: Feed[T] | None = None) -> Changes[T]:
        """The changes since a token. Blocks. Arguments and errors as in `Store.changes`.

        :param feed: a feed of the caller's own, if it always continues from its last call.
        """
        self.check_open()
        if limit is not None and (type(limit) is not int or limit < 1):
            raise UsageError(f"limit is a number of commits from 1 on, or None, not {limit!r:.40}")
        self.batches.check_none("changes")
        if self.included is not None:
            raise UsageError("a view of the past does not change: open the store without as_of for its changes")
        found: list[Changes[T] | None] = []
        self.flush()
        while True:
            self.refresh()
            self._one_at_a_time(lambda: found.append(self._changes(since, limit, feed or self.feed)))
            if (changes := found.pop()) is not None:
                self.check_own_log()  # it is read from storage, and may have a commit that memory does not have
                return changes

    def _changes(self, since: str | None, limit: int | None, feed: Feed[T]) -> Changes[T] | None:
        from opslog.replica.feed import EVERYTHING

        own: dict[str, tuple[int, int]] = {}
        if self.log is not None:
            # If each append is a segment, the log ends where the next segment will begin.
            last = self.log.session.last_segment
            own = {self.log.agent: EVERYTHING if self.backend.segments_grow else (last + 1, 0)}
        # Not `read`: if another thread has torn the state since the refresh, this one cannot load it here.
        now = self.change(lambda state: None if state.is_torn else (state.passed, state.ends | own))
        return None if now is None else feed.changes(self._store_id(), since, *now, limit)

    def _store_id(self) -> str:
        if not self._id:
            from opslog.snapshot.identity import make_identity, read_identity

            self._id = read_identity(self.backend) or ""
            if not self._id and self.transactions is not None:
                self._id = make_identity(self.backend, self.environment.nonce())
        return self._id

    def appended(self, cost: int) -> None:
        """Note that the log has grown. `cost` is what the new part costs to read (`opslog.log.reader.cost_after`)."""
        self.compaction.note_append(cost, self.state.commits)

    # -- life

    @property
    def failure(self) -> OpslogError | None:
        """Why buffered commits are not in the log, or may not be, although they are in memory. None: all is well."""
        return None if self.log is None else self.log.failure

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a forked child of the process that opened the store."""
        return self._generation != forking.generation

    def check_open(self) -> None:
        """Check that this process may use the store.

        :raises ClosedError: the store is closed, or belongs to the parent of this process.
        :raises ReopenError: buffered commits could not be written.
        """
        if self.is_closed:
            raise ClosedError(f"this store ({self.backend.url}) is closed: open it again")
        if self._generation != forking.generation:  # as `is_forked`, without its call: every call passes here
            raise ClosedError(
                f"this store ({self.backend.url}) belongs to the parent of this process: open one here, under another "
                "agent name"
            )
        if self.deciding is not None and self.deciding == threading.get_ident():
            raise UsageError(
                "a function that decides a transaction reads and writes through the transaction it is given, and does "
                "not use the store"
            )
        if self.log is not None and (failure := self.log.failure) is not None:
            error = ReopenError(f"buffered commits could not be written: close this store and open it again: {failure}")
            self.failure_was_raised = True  # right before it: after an interrupt in between, `close` would not raise it
            raise error

    @contextmanager
    def unreported(self) -> Iterator[None]:
        """In this block, `failure` does not count as raised: whoever uses it suppresses the errors of the block."""
        was_raised = self.failure_was_raised
        try:
            yield
        finally:
            self.failure_was_raised = was_raised

    def close(self, *, repeat_failure: bool = False) -> None:
        """Write what is buffered, wait for a running compaction, and give the agent's name back. Blocks. Idempotent: if
        an interrupt ends it early, the next call closes the rest.

        :param repeat_failure: whether to raise `failure` even if another call has raised it already. Then the caller
            notes that it was raised, once somebody has got it.
        :raises OpslogError: as `failure` says.
        """
        if self.is_forked:
            self.is_closed = True
            return  # everything belongs to the parent
        self.check_may_wait()
        self.check_not_refreshing()  # a compaction that ends may wait for a refresh
        if self.transactions is not None:
            self.transactions.check_entry()
        self.is_closed = True
        try:
            try:
                if self.transactions is not None:
                    self.transactions.close()
                if self.log is not None:
                    self.log.flush()
            except Exception:  # not after Ctrl-C, which must not have to wait for a compaction
                self.compaction.close()
                raise
            self.compaction.close()
        finally:
            if self.log is not None:
                self.log.close()
            self.backend.close()
            # Otherwise Python's garbage collector frees them later, when a caller may be waiting for another store; or
            # not for long, since a store is few objects. (`questions` has a reference to this one.)
            self.state.indexes = None
            vars(self).pop("questions", None)
        failure = self.failure
        if failure is not None and (repeat_failure or not self.failure_was_raised):
            self.failure_was_raised = self.failure_was_raised or not repeat_failure
            raise failure

    def __repr__(self) -> str:
        from opslog.replica.description import describe

        return describe(self, "opslog.Store", counts=False)
