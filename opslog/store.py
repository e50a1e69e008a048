"""The store: documents under ids, shared by many agents."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Generic, Self, TypeVar

import msgspec

from opslog import archive, history
from opslog.backends import Appender, Backend
from opslog.compaction import compact as compaction
from opslog.compaction.automatic import AutoCompaction
from opslog.compaction.compact import Compaction, KeepHistory, Progress
from opslog.concurrency import exiting
from opslog.concurrency.background import logger
from opslog.environment import Environment, format_ts
from opslog.errors import (
    ClosedError,
    NotFoundError,
    OpslogError,
    ReadOnlyError,
    ReopenError,
    SealedError,
)
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Set, Undo
from opslog.format.documents import Schema, check_id
from opslog.format.layout import ARCHIVE, check_name
from opslog.history import Revision
from opslog.log.reader import Cursor, list_segments
from opslog.log.session import WriterSession
from opslog.log.writer import Buffer, LogWriter, Pending
from opslog.replica.batch import Block, OpenBatch
from opslog.replica.following import Following
from opslog.replica.state import Loader, State
from opslog.stats import Stats

T = TypeVar("T")


class Store(Following[T]):
    """An open store; made by `opslog.open`. A mutable mapping from ids to documents, iterated in order of id.

    Documents handed out are the caller's own. All methods may be called from many threads; a store does not survive a
    fork (`ClosedError`). Errors are drawn as a tree in `opslog.errors`.

    What other agents write is seen after `refresh`; what this store writes is seen at once. A view of a large snapshot
    that is older than the grace period may find it collected; reading refreshes it then.
    """

    def __init__(
        self,
        backend: Backend,
        loader: Loader,
        state: State,
        *,
        read_at: float,
        agent: str | None,
        appender: Appender | None,
        schema: Schema[T],
        buffer: Buffer | None,
        compact_after: int | None,
        environment: Environment,
        included: Callable[[Commit], bool] | None,
    ) -> None:
        super().__init__(
            backend,
            loader,
            state,
            schema,
            read_at=read_at,
            agent=agent,
            environment=environment,
            included=included,
        )
        self._buffered = buffer is not None
        self._failure_told = False
        self._log: LogWriter | None = None
        if agent and appender:
            own = state.cursors.get(agent, Cursor(agent))
            session = WriterSession(backend, appender, own, self._freshness, self._clock)
            self._log = LogWriter(session, _Replica(self), buffer)
        self._compaction = AutoCompaction(
            backend,
            environment,
            state.manifest,
            tail_cost=state.tail_cost,
            after=compact_after,
            compacted=self._forget_compacted,
        )
        if self._buffered:
            exiting.write_at_exit(self)

    # -- writing

    def set(self, id: str, document: T) -> None:
        """Give a document a new value. On return it is durable (`durability="fsync"`), or in memory and soon to be.

        :raises InvalidDocumentError: it cannot be stored exactly; or fields would be deleted that the store's type does
            not know.
        :raises InvalidNameError: no document can have this id.
        :raises WriteFailedError: nothing was written.
        :raises CommitUnknownError: it may have been; reopen and look.
        """
        self._commit(self._setting(id, document))

    def _setting(self, id: str, document: T) -> Set | None:
        """What a set commits, still without ts, clock and agent; None where it becomes a part of this thread's
        batch."""
        check_id(id)
        encoded = self._schema.encode(document)
        replaced = self._record(id) if self._schema.looks_back else None
        self._schema.check_known(encoded, replaced)
        data = msgspec.Raw(encoded)
        v = self._schema.version or (replaced.v if replaced is not None else 1)
        batch = self._open_batch
        if batch is None:
            return Set("", 0, "", id, data, v)
        self._check_open()
        batch.set(id, data, v)
        return None

    def delete(self, id: str) -> None:
        """Delete a document.

        :raises NotFoundError: there is none of this id. Otherwise as `set`.
        """
        self._commit(self._deleting(id))

    def _deleting(self, id: str) -> Delete | None:
        """Likewise for a delete."""
        if id not in self:
            raise NotFoundError(f"there is no document {id!r} in {self._backend.url}")
        batch = self._open_batch
        if batch is None:
            return Delete("", 0, "", id)
        batch.delete(id, None)
        return None

    __setitem__ = set
    __delitem__ = delete

    def clear(self) -> None:
        """Delete all documents, in one batch."""
        with self.batch():
            for id in list(self):
                self.delete(id)

    def batch(self) -> AbstractContextManager[Self]:
        """A block whose sets and deletes become one commit: all of them happen, or, after an exception, none.

        Inside the block its own thread sees them; nobody else does before the end. A block inside a block joins it, and
        can fail alone.
        """
        return Block(self, self._local, self._begin_batch, self._end_batch)

    def _begin_batch(self) -> OpenBatch | None:
        self._writable_log()
        return self._open_batch

    def _end_batch(self, batch: OpenBatch) -> None:
        if batch.outer is not None:
            batch.merge_into_outer()
        else:
            self._commit(self._batching(batch))

    def _batching(self, batch: OpenBatch) -> Batch | None:
        """What a batch commits, None if nothing."""
        return Batch("", 0, "", batch.ops) if batch.ops else None

    def undo(self) -> bool:
        """Cancel this agent's newest commit that is not cancelled yet, also one of an earlier session; a batch as a
        whole.

        Whatever would have won without it wins now; later writes of others stay. Reaches back over the store's undo
        window, counted in commits of this agent, undos included.

        :returns: False when there is nothing left to undo.
        """
        log = self._writable_log("undo")

        def undo(state: State) -> Undo | None:
            target = state.merge.undoable(log.agent)
            return None if target is None else Undo("", 0, "", target.clock)

        return self._commit_decided(log, undo)

    def _commit_decided(self, log: LogWriter, decide: Callable[[State], Commit | None]) -> bool:
        """Commit what `decide` makes of the state, called when all own commits are in it and nobody changes it before
        that commit has its clock.

        :returns: False: it made None of it, so nothing was committed.
        """
        self._refresh_if_stale()
        while True:
            self._mend_state()
            is_torn, pending = log.quiet(partial(self._queue_decided, decide))
            if is_torn:
                continue  # since just now
            if pending is None:
                return False
            with suppress(SealedError):
                log.wait(pending)  # also where others do not, since only now it is known whether a seal came first
                return True

    def _queue_decided(
        self, decide: Callable[[State], Commit | None], queue: Callable[[Commit], Pending]
    ) -> tuple[bool, Pending | None]:
        """Whether the state is torn, so that nobody can decide; otherwise the commit, None if there is none."""

        def queue_decided(state: State) -> Pending | None:
            commit = decide(state)
            return None if commit is None else queue(commit)

        return (True, None) if self._state.is_torn else (False, self._with_state(queue_decided))

    def flush(self) -> None:
        """Return when everything written so far is durable. Nothing to do unless `durability="buffered"`.

        :raises WriteFailedError: some of it is not in the log.
        :raises CommitUnknownError: it may not be.
        """
        self._check_open()
        self._check_may_wait()
        if self._log is not None:
            self._log.flush()
        self._check_open()

    def _commit(self, commit: Commit | None) -> None:
        if commit is None:
            return
        log = self._writable_log()
        self._refresh_if_stale()
        log.finish(log.queue(commit))
        if self._compaction.is_far_behind:
            self._compaction.wait()

    # -- the past

    def ops(self, since: int | None = None) -> Iterator[Commit]:
        """All agents' commits with a clock greater than `since`, in the order of their stamps, read from storage.

        :param since: None: everything that is retained.
        :raises HistoryGoneError: some of them were compacted away; says from which clock on all are there.
        """
        self.flush()
        commits = history.commits_since(self._backend, since)
        return commits if self._included is None else filter(self._included, commits)

    def history(self, id: str) -> list[Revision]:
        """What happened to one document, oldest first, as far as it is retained. Reads all retained logs."""
        self.flush()
        return history.revisions(self._backend, id, self._included or (lambda commit: True))

    # -- maintenance

    def compact(
        self, *, full: bool = False, keep_history: KeepHistory | None = None, progress: Progress | None = None
    ) -> Compaction:
        """Compact what is settled into the snapshot and collect garbage, while everyone writes. Needs no agent's
        cooperation.

        :param full: merge the whole snapshot into one run, and let expired tombstones go.
        :param keep_history: from now on keep superseded files this long for `as_of`: seconds, a timedelta or "forever".
            None leaves the store's setting as it is.
        :param progress: called with (records written, records to write at most).
        :raises LockedError: another compaction is running; there is nothing to do then.
        """
        self._writable_log("compact")
        self.flush()
        done = compaction.compact(
            self._backend, self._environment, full=full, keep_history=keep_history, progress=progress
        )
        if done.number is not None:
            self._compaction.note_manifest(self._freshness.read_newest())
            self._forget_compacted()
        return done

    def archive(
        self, predicate: Callable[[T], object], period: str | None = None, *, older_than: timedelta | None = None
    ) -> int:
        """Move the documents that fulfil the predicate into an archive, and return how many.

        They are written there first and then deleted with one commit; a crash in between leaves them in both places.
        A document that another thread writes to meanwhile stays in the store, as it is then, and does not count.

        :param period: a name for the archive; default the current quarter, ``2026-Q4``.
        :param older_than: only documents that were last written longer ago than this.
        """
        period = check_name(archive.quarter(self._environment.time()) if period is None else period, "period")
        log = self._writable_log("archive")
        self._refresh_quietly()
        # No document is from before 1970, however long ago "older" is.
        since = 0.0 if older_than is None else max(0.0, self._environment.time() - older_than.total_seconds())
        before = None if older_than is None else format_ts(since)
        state, winners, records = self._look(lambda state: (state, dict(state.winners), state.records()))
        chosen = archive.Chosen(
            state,
            winners,
            [
                msgspec.structs.replace(record, data=record.data.copy())  # not all of the block that it was read with
                for record in records
                if (before is None or record.ts < before) and predicate(self._schema.decode(record))
            ],
        )
        if not chosen.records:
            return 0
        archive.write_archive(self._backend, period, self._environment.nonce(), chosen.records)
        moved: list[Set] = []

        def delete(state: State) -> Batch | None:
            # What another thread wrote meanwhile, or a refresh brought, stays where it is.
            moved[:] = chosen.unchanged() if chosen.is_of(state) else ()
            return Batch("", 0, "", [DeleteOp(record.id, period) for record in moved]) if moved else None

        while not self._commit_decided(log, delete) and not chosen.is_of(self._state):
            chosen = chosen.in_another(self._state, self._record)
        return len(moved)

    def archives(self) -> list[str]:
        """The periods that have archives, in order."""
        self._check_open()
        return archive.list_periods(self._backend)

    def load_archive(self, period: str) -> dict[str, T]:
        """The documents of an archive by id, verified.

        :raises NotFoundError: nothing was archived under this period.
        """
        self._check_open()
        records = archive.read_archive(self._backend, check_name(period, "period"))
        return {id: self._schema.decode(record) for id, record in records.items()}

    def stats(self) -> Stats:
        """Figures of the store. Costs three listings."""
        self._check_open()
        segments = list_segments(self._backend)
        archives = self._backend.list(ARCHIVE)

        def figures(state: State) -> Stats:
            return Stats.of(
                state,
                segments,
                clock=self._clock.value,
                compacted=self._compaction.commits_compacted,
                archive_bytes=sum(entry.size for entry in archives),
                compaction_error=self._compaction.error,
                requests=self._backend.requests,
            )

        return self._look(figures)

    # -- life

    def close(self) -> None:
        """Write what is buffered, end a compaction under way, and give the agent's name back. Idempotent; what an
        interrupt kept from being closed, the next call closes."""
        if self._is_forked:
            self._closed = True
            return  # everything belongs to the parent
        self._check_may_wait()
        self._closed = True
        try:
            if self._log is not None:
                self._log.flush()
            self._compaction.close()
        finally:
            if self._log is not None:
                self._log.close()
            self._backend.close()
        failure = self._failure
        if failure is not None and not self._failure_told:
            self._failure_told = True
            raise failure

    def __repr__(self) -> str:
        return f"<opslog.Store {self._backend.url} agent={self._agent!r}{' closed' if self._closed else ''}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _write_at_exit(self) -> None:
        if self._log is None or self._log.is_closed or self._is_forked:
            return  # one whose `close` was interrupted before that has what is buffered still
        # Whatever writes later, as another function that runs at exit, must not rely on a thread any more.
        self._log.write_at_once()
        try:
            self._log.flush()
        except OpslogError as error:
            logger().error("buffered commits were not written when the program ended: %s", error)
        warnings.warn(f"unclosed {self!r}: its buffer was written at exit; close it", ResourceWarning, stacklevel=1)

    def _check_open(self) -> None:
        if self._closed:
            raise ClosedError(f"this store ({self._backend.url}) is closed: open it again")
        if self._is_forked:
            raise ClosedError(
                f"this store ({self._backend.url}) belongs to the parent of this process: open one here, under another "
                "agent name"
            )
        if self._log is not None and (failure := self._log.failure) is not None:
            self._failure_told = True
            raise ReopenError(f"buffered commits could not be written: close this store and open it again: {failure}")

    @property
    def _failure(self) -> OpslogError | None:
        """Why buffered commits are in memory and not in the log, or may not be. None while all is well."""
        return None if self._log is None else self._log.failure

    def _writable_log(self, call: str | None = None) -> LogWriter:
        """The log to write to.

        :param call: the name of a call that cannot be part of a batch.
        """
        self._check_open()
        self._check_not_in_state()
        if call is not None:
            self._not_in_batch(call)
        if self._log is None:
            raise ReadOnlyError(f"{self._backend.url} was opened for reading only: open it with an agent name to write")
        return self._log


class _Replica(Generic[T]):
    """A store as the writer of its log calls it (`opslog.log.writer.Replica`). Not the store itself, whose methods are
    all for its users."""

    def __init__(self, store: Store[T]) -> None:
        self._store = store
        self.apply = store._apply  # not by way of another call: it is one for each commit

    def invalidate(self) -> None:
        self._store._invalidate()

    def appended(self, cost: int) -> None:
        self._store._compaction.note_append(cost, self._store._state.commits)
