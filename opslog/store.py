"""The store: documents under ids, shared by many agents. Its public calls; what they are made of is a `Replica`."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, MutableMapping, ValuesView
from contextlib import AbstractContextManager
from datetime import timedelta
from functools import partial
from types import TracebackType
from typing import Generic, Protocol, Self, TypeVar, overload

from opslog import archive, history
from opslog.compaction import compact as compaction
from opslog.compaction.compact import Compaction, KeepHistory, Progress
from opslog.errors import ClosedError, NotFoundError, UsageError
from opslog.format.commits import Commit, Set
from opslog.format.layout import check_name
from opslog.history import Revision
from opslog.replica import transaction
from opslog.replica.batch import Block
from opslog.replica.deciding import ATTEMPTS, check_attempts
from opslog.replica.feed import Changes
from opslog.replica.replica import Replica
from opslog.replica.transaction import NO_CONDITION, Condition, Never, Transaction
from opslog.replica.views import Items, Values
from opslog.stats import Stats

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")


class Store(MutableMapping[str, T], Generic[T]):
    """An open store; made by `opslog.open`. A mutable mapping from ids to documents, iterated in order of id.

    Documents handed out are the caller's own. All methods may be called from many threads; a store does not survive a
    fork (`ClosedError`). Errors are drawn as a tree in `opslog.errors`.

    What other agents write is seen after `refresh`; what this store writes is seen at once. A view of a large snapshot
    that is older than the grace period may find it collected; reading refreshes it then.
    """

    def __init__(self, replica: Replica[T]) -> None:
        self._replica = replica

    # -- reading

    def __getitem__(self, id: str) -> T:
        record = self._replica.record(id)
        if record is None:
            raise NotFoundError(f"there is no document {id!r} in {self._replica.backend.url}")
        return self._replica.schema.decode(record)

    @overload
    def get(self, id: str, /) -> T | None: ...

    @overload
    def get(self, id: str, /, default: T | D) -> T | D: ...

    def get(self, id: str, /, default: object = None) -> object:
        """The document, or the default where there is none."""
        record = self._replica.record(id)
        return default if record is None else self._replica.schema.decode(record)

    def __contains__(self, id: object) -> bool:
        return self._replica.contains(id)

    def __len__(self) -> int:
        return self._replica.count()

    def __iter__(self) -> Iterator[str]:
        return (record.id for record in self.records())

    def items(self) -> ItemsView[str, T]:
        """(id, document) pairs in order of id, all of them as they were when the iteration began."""
        return Items(self, self._documents)

    def values(self) -> ValuesView[T]:
        """Documents in order of id, all of them as they were when the iteration began."""
        return Values(self, self._documents)

    def filter(self, predicate: Callable[[T], object]) -> list[tuple[str, T]]:
        """The (id, document) pairs whose document fulfils the predicate, in order of id. Decodes every document."""
        return [(id, document) for id, document in self._documents() if predicate(document)]

    def count(self, predicate: Callable[[T], object] | None = None) -> int:
        """How many documents fulfil the predicate; without one, how many there are."""
        if predicate is None:
            return len(self)
        return sum(1 for _, document in self._documents() if predicate(document))

    def records(self) -> Iterator[Set]:
        """What was last written of each document, in order of id, all of it as it was at the call: agent, clock, ts and
        schema version, with the document as JSON text.

        In a batch its own sets are there, still without agent, clock and ts.
        """
        return self._replica.records()

    def _documents(self) -> Iterator[tuple[str, T]]:
        decode = self._replica.schema.decode
        return ((record.id, decode(record)) for record in self.records())

    # -- writing

    def set(self, id: str, document: T, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Give a document a new value. On return it is durable (`durability="fsync"`), or in memory and soon to be.

        :param if_stamp: only if the document still has this stamp (see `record`; its text does as well); None: only if
            there is none. Left out: whatever is there.
        :raises ConflictError: it was written since; has the record that is there now. Nothing was written.
        :raises InvalidDocumentError: it cannot be stored exactly; or fields would be deleted that the store's type does
            not know.
        :raises InvalidNameError: no document can have this id.
        :raises WriteFailedError: nothing was written.
        :raises CommitUnknownError: it may have been; reopen and check.
        """
        if if_stamp is NO_CONDITION:
            self._commit(self._replica.prepare_set(id, document))
        else:
            self._replica.deciding_of("set with if_stamp").run(partial(transaction.set_if, id, document, if_stamp))

    def delete(self, id: str, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Delete a document.

        :param if_stamp: as of `set`.
        :raises NotFoundError: there is none of this id. Otherwise as `set`.
        """
        if if_stamp is NO_CONDITION:
            self._commit(self._replica.prepare_delete(id))
        else:
            self._replica.deciding_of("delete with if_stamp").run(partial(transaction.delete_if, id, if_stamp))

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
        return Block(self, self._replica.batches, self._replica.writable_log, self._commit)

    def undo(self) -> bool:
        """Cancel this agent's newest commit that is not cancelled yet, also one of an earlier session; a batch as a
        whole.

        Whatever would have won without it wins now; later writes of others stay. Reaches back over the store's undo
        window, counted in commits of this agent, undos included.

        :returns: False when there is nothing left to undo.
        """
        return self._replica.undo()

    def flush(self) -> None:
        """Return when everything written so far is durable. Nothing to do unless `durability="buffered"`.

        :raises WriteFailedError: some of it is not in the log.
        :raises CommitUnknownError: it may not be.
        """
        self._replica.flush()

    def _commit(self, commit: Commit | None) -> None:
        """Write a commit, if there is one, and have the caller wait."""
        if commit is None:
            return
        replica = self._replica
        log = replica.writable_log()
        replica.refresh_if_stale()
        if replica.guards(commit):
            replica.decide_plain(commit)
            return
        log.finish(log.queue(commit))
        if replica.compaction.is_far_behind:
            replica.compaction.wait()

    # -- transactions: what takes effect only if nothing that it rests on was changed meanwhile

    def record(self, id: str) -> Set | None:
        """Who wrote a document last (`author`), when (`ts`), and its `stamp`; None where there is no document. A stamp
        compares equal as long as nobody has written the document, and can be kept as text. Reads memory, as `get`."""
        return self._replica.record(id)

    def create(self, id: str, document: T) -> None:
        """Set a document that does not exist: of all who try, on all machines, one succeeds. Costs a refresh and an
        append; the document is guarded from then on.

        :raises ExistsError: it exists; has its record. Nothing was written.
        """
        self._replica.deciding_of("create").run(partial(transaction.create, id, document))

    def modify(self, id: str, function: Callable[[T | None], T | None]) -> T | None:
        """Replace a document by what a function makes of it, and nothing comes in between.

        :param function: gets the document, None where there is none; returns the new one, None to delete it. It may be
            called more than once, in any thread; it has no side effects and does not use the store.
        :returns: what the function returned last.
        :raises ConflictError: others were faster each time, `opslog.replica.deciding.ATTEMPTS` times.
        """
        decide = partial(transaction.modify, id, function)
        return self._replica.deciding_of("modify").run(decide, ATTEMPTS)

    def transact(self, function: Callable[[Transaction[T]], R], *, attempts: int = ATTEMPTS) -> R:
        """What a function returns that reads and writes any documents through the transaction that it is given: all of
        its writes happen, or none, and nothing that it has read has changed in between. An exception leaves nothing.

        :param function: as of `modify`.
        :param attempts: how often it is called at most.
        :raises ConflictError: others were faster each time.
        """
        return self._replica.deciding_of("transact").run(function, check_attempts(attempts))

    def transaction(self) -> AbstractContextManager[Transaction[T]]:
        """A block that reads and writes through a transaction, which is committed at its end, unless it was left by an
        exception.

        :raises ConflictError: at the end of the block; something that it has read was changed meanwhile. Nothing was
            written.
        """
        return InTransaction(self._replica)

    # -- others' writes, and the past

    def refresh(self) -> list[Commit]:
        """Take in what other agents wrote, and return those commits, log by log. Costs what is new.

        Each commit is returned once, by `refresh` or by `watch`. After an absence longer than the grace period, commits
        that were compacted and collected meanwhile are in the state but not in the list; `watch` reports that.

        :raises UsageError: called by a signal handler that came while its own thread was refreshing.
        """
        self._replica.batches.check_none("refresh")
        self._replica.refresh()
        return self._replica.news.take_all()

    def watch(self, poll_seconds: float = 0.2) -> Iterator[Commit]:
        """The commits of other agents as they come in, without end; looks for them every `poll_seconds`.

        Each commit is returned once, by one `watch` or by `refresh`: what a watch that is left has not given is there
        for the next one. Ends when the store is closed.

        :raises HistoryGoneError: commits were collected before they could be read here; the state is right all the
            same, and a new `watch` goes on from it.
        """
        replica = self._replica
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
                replica.environment.sleep(poll_seconds)

    def changes(self, since: str | None = None, limit: int | None = None) -> Changes[T]:
        """The documents that changed since a token, as they are now, and what each commit since then did.

        Refreshes first, and takes nothing from `refresh` and `watch`. What is in it is durable: a buffered store is
        flushed. Applied in any order, the changes lead from the documents at the token to those that the store shows.
        Costs what is new; a token of another process costs as much as to load the logs behind the newest snapshot, too.

        :param since: a token of an earlier call, of any process. None: everything there is, as a reset.
        :param limit: stop behind so many commits; the token says where. (On an object storage behind the append that
            they end in.) A reset has no limit.
        :raises UsageError: that is no token, or one of another store; or this is a view of the past.
        """
        return self._replica.changes(since, limit)

    def follow(self, since: str | None = None, poll_seconds: float = 0.2) -> Iterator[Changes[T]]:
        """The changes since a token, without end: one `Changes` whenever there is something new, looked for every
        `poll_seconds`. One without changes has a token that serves for longer than the one before it. Ends when the
        store is closed. Errors as of `changes`.
        """
        replica = self._replica
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
                replica.environment.sleep(poll_seconds)
            since = found.token

    def ops(self, since: int | None = None) -> Iterator[Commit]:
        """All agents' commits with a clock greater than `since`, in the order of their stamps, read from storage.

        A clock is no cursor: an agent that had not refreshed may commit later with a smaller one, and asking from the
        greatest clock seen so far passes over that. To follow a store without gaps there is `changes`.

        :param since: None: everything that is retained.
        :raises HistoryGoneError: some of them were compacted away; says from which clock on all are there.
        """
        self.flush()
        included = self._replica.included
        commits = history.commits_since(self._replica.backend, since)
        return commits if included is None else filter(included, commits)

    def history(self, id: str) -> list[Revision]:
        """What happened to one document, oldest first, as far as it is retained. Reads all retained logs."""
        self.flush()
        return history.revisions(self._replica.backend, id, self._replica.included or (lambda commit: True))

    # -- maintenance

    def compact(
        self, *, full: bool = False, keep_history: KeepHistory | None = None, progress: Progress | None = None
    ) -> Compaction:
        """Compact what is settled into the snapshot and collect garbage, while everyone writes. Needs no agent's
        cooperation.

        :param full: merge the whole snapshot into one run, and remove expired tombstones.
        :param keep_history: from now on keep superseded files this long for `as_of`: seconds, a timedelta or "forever".
            None leaves the store's setting as it is.
        :param progress: called with (records written, records to write at most).
        :raises LockedError: another compaction is running; there is nothing to do then.
        """
        replica = self._replica
        replica.writable_log("compact")
        self.flush()
        done = compaction.compact(
            replica.backend, replica.environment, full=full, keep_history=keep_history, progress=progress
        )
        if done.number is not None:
            replica.compaction.note_manifest(replica.freshness.read_newest())
            replica.forget_compacted()
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
        return archive.archive_documents(self._replica, predicate, period, older_than)

    def archives(self) -> list[str]:
        """The periods that have archives, in order."""
        self._replica.check_open()
        return archive.list_periods(self._replica.backend)

    def load_archive(self, period: str) -> dict[str, T]:
        """The documents of an archive by id, verified.

        :raises NotFoundError: nothing was archived under this period.
        """
        self._replica.check_open()
        records = archive.read_archive(self._replica.backend, check_name(period, "period"))
        return {id: self._replica.schema.decode(record) for id, record in records.items()}

    def stats(self) -> Stats:
        """Figures of the store. Costs three listings."""
        self._replica.check_open()
        return Stats.of(self._replica)

    # -- life

    def close(self) -> None:
        """Write what is buffered, end a compaction under way, and give the agent's name back. Idempotent; what an
        interrupt kept from being closed, the next call closes."""
        self._replica.close()

    def __repr__(self) -> str:
        return repr(self._replica)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class InTransaction(Generic[T]):
    """What `Store.transaction` gives."""

    def __init__(self, replica: Replica[T]) -> None:
        self._replica = replica
        self._made: Transaction[T] | None = None

    def __enter__(self) -> Transaction[T]:
        if self._made is not None:
            raise UsageError("this transaction has begun already: call store.transaction() for each")
        self._made = self._replica.deciding_of("transaction").begin()
        self._replica.batches.local.in_transaction = True
        return self._made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        made = self._made
        assert made is not None
        self._replica.batches.local.in_transaction = False
        deciding = self._replica.deciding_of("transaction")
        try:
            if kind is None:
                deciding.commit(made)
        finally:
            deciding.leave(made)


class OnReplica(Protocol[T]):
    """What is made of public calls over a replica: a `Store`, or an `opslog.aio.AsyncStore`."""

    _replica: Replica[T]


def replica_of(store: OnReplica[T]) -> Replica[T]:
    """What is under a store: for `opslog.aio`, and for tests, which check what the public calls do not show. It is
    no part of the public interface."""
    return store._replica  # noqa: SLF001  (the one place: everybody else comes through here)
