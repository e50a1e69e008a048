"""The store: documents by id, shared by many agents. This module has the public calls; a `Replica` implements them."""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterable, Iterator, Mapping, MutableMapping, Sequence, ValuesView
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, TypeVar, overload

from opslog.concurrency.locking import made_once
from opslog.errors import NotFoundError, OpslogError, RetryError, SealedError
from opslog.format.commits import Batch, Commit, Set
from opslog.format.layout import check_name
from opslog.replica.batch import Block, OpenTransaction
from opslog.replica.found import Found
from opslog.replica.replica import Replica
from opslog.replica.terms import ATTEMPTS, NO_CONDITION, Condition, Never, check_attempts, check_predicate
from opslog.replica.views import Items, Values
from opslog.tables import table_of, tables_of

# Imported where they are used: many programs open a store for a few documents only, and wait for every import.
if TYPE_CHECKING:
    from datetime import timedelta

    import pyarrow as pa

    from opslog.compaction.compact import Compaction, KeepHistory, Progress
    from opslog.history import Revision
    from opslog.query.question import Group, OrderBy, Where
    from opslog.replica.feed import Changes
    from opslog.replica.transaction import Transaction
    from opslog.stats import Stats
    from opslog.tables.tables import Tables

T = TypeVar("T")
D = TypeVar("D")
R = TypeVar("R")

Found.table_of = staticmethod(table_of)

# How many ids a prompt gets for completion; it asks again at each key.
_COMPLETIONS_MAX = 1000


class Store(MutableMapping[str, T], Generic[T]):
    """An open store, made by `opslog.open`. It is a mutable mapping from ids to documents, iterated in order of id.

    The caller owns the documents that it gets. All methods may be called from many threads. A store cannot be used in
    a forked child (`ClosedError`). `opslog.errors` shows all errors as a tree.

    A store sees its own writes at once, and those of other agents after `refresh`. If a store has not refreshed for
    longer than the grace period, its snapshot may have been collected; a read then refreshes it.
    """

    def __init__(self, replica: Replica[T]) -> None:
        self._replica = replica

    # -- reading

    def __getitem__(self, id: str) -> T:
        document = self._replica.document(id)
        if document is None:
            raise NotFoundError(f"there is no document {id!r} in {self._replica.backend.url}")
        return document

    @overload
    def get(self, id: str, /) -> T | None: ...

    @overload
    def get(self, id: str, /, default: T | D) -> T | D: ...

    def get(self, id: str, /, default: object = None) -> object:
        """The document, or the default if there is none."""
        document = self._replica.document(id)
        return default if document is None else document

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

    def find(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Found[T]:
        """The (id, document) pairs whose document fulfils a condition, such as ``status = "active" and hours > 3`` or
        ``{"status": "active", "hours": {">": 3}}``. docs/queries.md describes the language.

        A condition sees each document as JSON, as it is stored, or as `migrate` returns it. The first query that an
        index can answer makes the index. That costs up to eight times as much as a query that reads every document.
        After that, a query costs what it finds. `explain` of the result says which index it uses.

        :param where: None: all documents.
        :param order_by: a path such as ``due.year``, or several; a minus before a path reverses its order. Documents
            that are equal by these, and all without it, are in order of id.
        :param limit: how many to return at most; None: all of them.
        :param offset: how many to skip first.
        :raises QueryError: the condition or a path cannot be read; the message points at the place.
        """
        from opslog.query.question import question

        return self._replica.questions.find(question(where, order_by, limit, offset))

    def filter(self, predicate: Callable[[T], object]) -> list[tuple[str, T]]:
        """The (id, document) pairs whose document fulfils the predicate, in order of id; for what the conditions of
        `find` cannot express. Decodes every document.

        :raises UsageError: the predicate is not a function.
        """
        check_predicate(predicate)
        return [(id, document) for id, document in self._documents() if predicate(document)]

    def count(self, where: Where | Callable[[T], object] | None = None) -> int:
        """The number of documents that fulfil a condition, as in `find`, or a predicate. Without either, of all."""
        if where is None:
            return len(self)
        if callable(where):
            return sum(1 for _, document in self._documents() if where(document))
        from opslog.query.question import parse

        return self._replica.questions.count(parse(where))

    def group(self, by: str, where: Where | None = None) -> list[Group]:
        """How many documents have each value at a path, the most frequent first: (value, count) pairs.

        :param by: the path. With ``tags[*]`` a document counts once for each different item.
        :param where: only documents that fulfil this condition, as in `find`.
        :raises QueryError: as in `find`.
        """
        from opslog.query.question import grouping

        return self._replica.questions.group(grouping(by, where))

    def index(self, *paths: str) -> None:
        """Make the indexes of these paths now, in memory. Without this call, `find`, `count` and `group` make an index
        when they first can use it. That costs up to eight times as much as a query that reads every document.

        :raises QueryError: as in `find`.
        """
        from opslog.query.paths import parse_path

        for path in map(parse_path, paths):
            self._replica.check_open()
            self._replica.questions.index(path)

    def records(self) -> Iterator[Set]:
        """The last record of each document, in order of id, as of the time of the call: agent, clock, ts and schema
        version, with the document as JSON text.

        Inside a batch, the batch's own sets are included, still without agent, clock and ts.
        """
        return self._replica.records()

    def _documents(self) -> Iterator[tuple[str, T]]:
        decode = self._replica.schema.decode
        return ((record.id, decode(record)) for record in self.records())

    # -- writing

    def set(self, id: str, document: T, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Give a document a new value. On return it is durable (`durability="fsync"`), or it is in memory and becomes
        durable soon.

        :param if_stamp: set it only if the document still has this stamp (see `record`; the stamp's text works, too);
            None: only if there is no document. Left out: in any case.
        :raises ConflictError: it was written since; `record` is the current record. Nothing was written.
        :raises InvalidDocumentError: it cannot be stored exactly; or it would delete fields that the store's type does
            not know.
        :raises InvalidNameError: no document can have this id.
        :raises WriteFailedError: nothing was written.
        :raises CommitUnknownError: it may have been written; reopen the store and check.
        """
        if if_stamp is NO_CONDITION:
            replica = self._replica
            record = replica.prepare_set(id, document)
            if replica.batches.local.batch is None or not replica.add_to_batch(record):
                self._commit(record)
        else:
            from opslog.replica import transaction

            self._replica.deciding_of("set with if_stamp").run(partial(transaction.set_if, id, document, if_stamp))

    def delete(self, id: str, *, if_stamp: Condition | Never = NO_CONDITION) -> None:
        """Delete a document.

        :param if_stamp: as in `set`.
        :raises NotFoundError: there is no document with this id. Other errors as in `set`: with a stamp as `if_stamp`,
            ConflictError also if there is none.
        """
        if if_stamp is NO_CONDITION:
            record = self._replica.prepare_delete(id)
            if not self._replica.add_to_batch(record):
                self._commit(record)
        else:
            from opslog.replica import transaction

            self._replica.deciding_of("delete with if_stamp").run(partial(transaction.delete_if, id, if_stamp))

    __setitem__ = set
    __delitem__ = delete

    def update(self, other: Any = (), /, **documents: T) -> None:
        """Set documents from a mapping, from (id, document) pairs, or from keywords, in one batch: all of them or none.
        One `undo` takes them back. Together they are at most 256 MiB of JSON, and in memory at once."""
        with self.batch():
            super().update(other, **documents)

    def clear(self) -> None:
        """Delete all documents, in one batch."""
        with self.batch():
            for id in list(self):
                self.delete(id)

    def batch(self) -> AbstractContextManager[Self]:
        """A block whose sets and deletes become one commit: all of them happen, or, after an exception, none.

        Inside the block its own thread sees them; other threads see them after its end. A nested block joins the outer
        one, and can fail alone. A block in a transaction joins that, and reads single documents alone.
        """
        return Block(self, self._replica.batches, self._replica.check_writable, self._commit_batch)

    def _commit_batch(self, batch: Batch | None, outer: OpenTransaction | None) -> None:
        """A batch inside a transaction becomes a part of it."""
        if outer is None:
            self._commit(batch)
        elif batch is not None:
            for record in batch.records:
                outer.write(record)

    def undo(self) -> bool:
        """Cancel this agent's newest commit that is not cancelled yet, even if an earlier session wrote it. A batch is
        cancelled as a whole. The document gets the record that would have won without that commit; later plain writes
        of others stay. Undo reaches back over the undo window, counted in commits of one log, undos included.

        :returns: False when there is nothing left to undo.
        :raises ConflictError: it was a transaction, and others have written one of its documents since.
        :raises ReopenError: an earlier commit of this store had an unknown outcome. Other errors as in `set`.
        """
        return self._replica.undo() is not None

    def flush(self) -> None:
        """Return when everything written so far is durable. This does nothing unless `durability="buffered"`.

        :raises ReopenError: some commits are not in the log, or may not be in it, and the message says why. Close this
            store and open it again.
        """
        self._replica.flush()

    def _commit(self, commit: Commit | None) -> None:
        """Write a commit, if there is one, and wait until it is durable."""
        if commit is None:
            return
        replica = self._replica
        replica.check_writable()
        if replica.batches.has_transactions and type(commit) is not Batch:  # a batch knows what it was begun in
            replica.batches.check_no_transaction()
        if (log := replica.log) is None:
            replica.decide_plain(commit)
            return
        if replica.freshness.is_stale:  # as `refresh_if_stale`, without its call
            replica.refresh_before(commit)
        guards: int | None = replica.guards
        if guards:  # 0 in a store without transactions, where a set must not take longer because of them
            # As `unguarded`, without its calls, which would cost a buffered set more than the answer.
            state = replica.state
            shared = None if replica.in_state else state.shared_ids
            if (
                shared is None
                or not (type(commit) is Set and shared.is_complete)
                or commit.id in shared.hashed
                or state.is_torn
            ):
                guards = replica.unguarded(commit)
        while guards is not None:
            try:
                log.finish(log.queue(commit, guards))
            except SealedError:  # a transaction may have come in between
                guards = replica.unguarded(commit)
                continue
            break
        else:
            replica.decide_plain(commit)
            return
        if replica.compaction.is_under_way and replica.compaction.is_far_behind:
            replica.compaction.wait()

    # -- transactions: writes that take effect only if nothing that they read has changed

    def record(self, id: str) -> Set | None:
        """Who wrote a document last (`author`), when (`ts`), and its `stamp`; None if there is no document. The stamp
        stays equal as long as nobody writes the document, and can be kept as text. Costs as much as `get`."""
        return self._replica.record(id)

    def create(self, id: str, document: T) -> None:
        """Set a document that does not exist. Of all agents that try, on all machines, one succeeds. Costs a refresh
        and an append. From then on the document is guarded.

        :raises ExistsError: it exists; `record` says who wrote it. Nothing was written.
        """
        from opslog.replica import transaction

        self._replica.deciding_of("create").run(partial(transaction.create, id, document))

    def modify(self, id: str, function: Callable[[T | None], T | None]) -> T | None:
        """Replace a document by the result of a function. No other write can come in between.

        :param function: gets the document, or None if there is none, and returns the new one, or None to delete it. It
            may be called more than once, in any thread. It must have no side effects and not use the store.
        :returns: what the function returned last.
        :raises ConflictError: others wrote first in each of `opslog.replica.deciding.ATTEMPTS` attempts.
        """
        from opslog.replica import transaction

        decide = partial(transaction.modify, id, function)
        return self._replica.deciding_of("modify").run(decide, ATTEMPTS)

    def transact(self, function: Callable[[Transaction[T]], R], *, attempts: int = ATTEMPTS) -> R:
        """Run a function that reads and writes any documents through the transaction it is given, and return its
        result. Either all of its writes happen, and nothing that it read has changed in between, or none. After an
        exception none happen.

        :param function: as in `modify`.
        :param attempts: how often it is called at most.
        :raises ConflictError: others wrote first in each attempt.
        """
        return self._replica.deciding_of("transact").run(function, check_attempts(attempts))

    def transaction(self) -> AbstractContextManager[Transaction[T]]:
        """A block that reads and writes through a transaction. The end of the block commits it, unless an exception
        left the block.

        :raises ConflictError: at the end of the block: something that it read has changed. Nothing was written.
        """
        from opslog.replica.in_transaction import InTransaction

        return InTransaction(self._replica)

    # -- others' writes, and the past

    def refresh(self) -> list[Commit]:
        """Read what other agents wrote since, and return those commits, log by log. The cost is that of the new
        commits.

        Each commit is returned once, by `refresh` or by `watch`. If the last of these calls, or `open` before the first
        one, was longer ago than the grace period, commits that were compacted and collected meanwhile are in the state
        but not in the list; `watch` reports that.

        :raises UsageError: called by a signal handler that came while its own thread was refreshing.
        """
        self._replica.batches.check_none("refresh")
        self._replica.refresh_for_news()
        return self._replica.news.take_all()

    def watch(self, poll_seconds: float = 0.2) -> Iterator[Commit]:
        """The commits of other agents as they come in, without end. Refreshes every `poll_seconds`; or, if a server
        announces writes, after each write. The `ids` of a commit are the documents that it changed. For an undo, they
        are the documents that it gave back.

        Each commit is returned once, by one `watch` or by `refresh`. If a watch is left early, the next one returns the
        commits that it has not returned. Ends when the store is closed.

        :raises HistoryGoneError: commits were collected before they could be read here. The state is correct
            nevertheless, and a new `watch` continues from it.
        """
        from opslog.replica.watching import watch

        return watch(self._replica, poll_seconds)

    def changes(self, since: str | None = None, limit: int | None = None) -> Changes[T]:
        """The documents that changed since a token, as they are now, and the effect of each commit since then.

        Refreshes first, and takes nothing from `refresh` and `watch`. All changes are durable: a buffered store is
        flushed. Applied in any order, they lead from the documents at the token to those that the store shows. The cost
        is that of the new commits; for a token of another process it includes loading the logs behind the newest
        snapshot.

        :param since: the token of an earlier call, by any process. None: all documents, as a reset.
        :param limit: stop after so many commits; the token says where, and `Changes.has_more` that it happened. (On an
            object storage: at the end of the append that has the last of them.) A reset has no limit.
        :raises UsageError: `since` is no token, or one of another store; this is a view of the past; or in a batch.
        :raises ReopenError: an earlier commit of this store had an unknown outcome.
        """
        return self._replica.changes(since, limit)

    def follow(self, since: str | None = None, poll_seconds: float = 0.2) -> Iterator[Changes[T]]:
        """The changes since a token, without end: one `Changes` whenever there is something new. Refreshes like
        `watch`. A `Changes` may be empty: its token is then valid for longer than the one before. Ends when the
        store is closed. Errors as in `changes`.
        """
        from opslog.replica.watching import follow

        return follow(self._replica, since, poll_seconds)

    def ops(self, since: int | None = None) -> Iterator[Commit]:
        """All agents' commits with a clock greater than `since`, in the order of their stamps, read from storage. The
        next write refreshes first, so that it outranks them.

        Do not use a clock as a cursor: an agent that had not refreshed may commit later with a smaller clock, and a
        call with the greatest clock seen so far misses that commit. To follow a store without gaps, use `changes`.

        :param since: None: everything that is retained.
        :raises HistoryGoneError: some of them were compacted away; the message says from which clock on all of them are
            there.
        """
        self.flush()
        included = self._replica.included
        from opslog.history import commits_since

        commits = self._replica.freshness.showing(commits_since(self._replica.backend, since))
        return commits if included is None else filter(included, commits)

    def history(self, id: str) -> list[Revision]:
        """The revisions of one document, oldest first, as far as they are retained. Reads all retained logs. The next
        write refreshes first, so that it outranks them."""
        self.flush()
        from opslog.history import revisions

        found = revisions(self._replica.backend, id, self._replica.included or (lambda commit: True))
        self._replica.freshness.note_shown()
        return found

    # -- tables

    def to_arrow(self, schema: pa.Schema | Iterable[str] | None = None) -> pa.Table:
        """The documents as an Arrow table, in order of id, as they are after a refresh. Needs the extra ``query``.

        It has a column for each field of the documents, and before them `id`, `clock`, `agent`, `author` and `ts` (see
        `record`). Integers of 64 bits, floats and text are exact. Objects are structs, and a field whose values have
        no common type is JSON text. docs/tables.md has the rules.

        The store is itself such a table for ``pyarrow.table(store)`` and DuckDB. Polars and pandas take a store for a
        mapping: give them this table, or what `find` returns.

        :param schema: the columns to have, by name, or with their types. One that no document has is null.
        :raises UsageError: a value of a column does not fit its type.
        """
        return self._tables.to_arrow(schema)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def sql(self, query: str, parameters: Sequence[object] | Mapping[str, object] | None = None) -> pa.Table:
        """DuckDB's answer to a query, as an Arrow table. Needs the extra ``query``.

            store.sql("SELECT status, count(*) FROM documents GROUP BY ALL").to_pylist()

        Its tables are `documents`, as in `to_arrow` and with the JSON text in `data`, as they are after a refresh;
        `commits`, as in `ops`; and `archive`. The first query makes the columns that it names, and keeps them; a later
        one costs what has changed and what DuckDB does. Memory: a copy of all documents' text and of those columns.

        :param parameters: values for ``?``, or for ``$name``.
        :raises UsageError: DuckDB cannot answer it.
        """
        return self._tables.sql(query, parameters)

    @made_once
    def _tables(self) -> Tables[T]:
        return tables_of(self._replica)

    # -- maintenance

    def compact(
        self, *, full: bool = False, keep_history: KeepHistory | None = None, progress: Progress | None = None
    ) -> Compaction:
        """Move the commits that no undo can reach into the snapshot, and collect garbage. Agents can write meanwhile,
        and need not cooperate.

        :param full: merge the whole snapshot into one run, and remove expired tombstones.
        :param keep_history: from now on keep superseded files this long for `as_of`: seconds, a timedelta or "forever".
            None leaves the store's setting as it is.
        :param progress: called with (records written, records to write at most).
        :raises LockedError: another compaction is running, so nothing needs to be done.
        """
        from opslog.compaction.compact import compact

        replica = self._replica
        replica.check_writable("compact")
        self.flush()
        done = compact(replica.backend, replica.environment, full=full, keep_history=keep_history, progress=progress)
        if done.number is not None:
            with suppress(RetryError):  # the compaction has happened, and the next refresh does the same
                replica.compaction.note_manifest(replica.freshness.read_newest())
                replica.forget_compacted()
        return done

    def archive(
        self, where: Where | Callable[[T], object], period: str | None = None, *, older_than: timedelta | None = None
    ) -> int:
        """Move documents into an archive, and return how many.

        They are first written to the archive and then deleted with one commit; a crash in between leaves them in both.
        A document that another thread writes meanwhile stays in the store with that value, and is not counted.

        :param where: which documents: a condition, as in `find`, or a predicate.
        :param period: a name for the archive; default the current quarter, ``2026-Q4``.
        :param older_than: only documents that were last written longer ago than this.
        :raises ReopenError: an earlier commit of this store had an unknown outcome. Other errors as in `set`.
        """
        from opslog.archive import archive_documents

        return archive_documents(self._replica, where, period, older_than)

    def archives(self) -> list[str]:
        """The periods that have archives, in order."""
        from opslog.archive import list_periods

        self._replica.check_open()
        return list_periods(self._replica.backend)

    def load_archive(self, period: str) -> dict[str, T]:
        """The documents of an archive by id, verified. The next write refreshes first, to outrank their deletion.

        :raises NotFoundError: nothing was archived under this period.
        """
        from opslog.archive import read_archive

        self._replica.check_open()
        records = read_archive(self._replica.backend, check_name(period, "period"))
        self._replica.freshness.note_shown()
        return {id: self._replica.schema.decode(record) for id, record in records.items()}

    def stats(self) -> Stats:
        """Figures of the store. Costs three listings."""
        from opslog.stats import Stats

        self._replica.check_open()
        return Stats.of(self._replica)

    # -- life

    def close(self) -> None:
        """Write what is buffered, end a running compaction, and give the agent's name back. Idempotent. If an interrupt
        ended a call early, the next call closes the rest.

        :raises WriteFailedError: buffered commits are not in the log, because writing them failed, or was interrupted
            in an earlier call each time.
        :raises CommitUnknownError: buffered commits may be in the log or not. Other errors as in `flush`.
        """
        self._replica.close()

    def __repr__(self) -> str:
        """The store's URL, the number of its documents, and the agent name or the point in the past."""
        from opslog.replica.description import describe

        return describe(self._replica, "opslog.Store")

    def _repr_html_(self) -> str | None:
        """The first documents as a table, for notebooks."""
        from opslog.notebook import ROWS, documents_table

        try:
            with self._replica.unreported():
                pairs = list(islice(self._documents(), ROWS))
        except OpslogError:
            return None  # the notebook shows the text instead
        return documents_table(repr(self).strip("<>"), pairs, len(self))

    def _ipython_key_completions_(self) -> list[str]:
        """The first ids, for completion at a prompt."""
        return list(islice(self, _COMPLETIONS_MAX))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class OnReplica(Protocol[T]):
    """Public calls over a replica: a `Store`, or an `opslog.aio.AsyncStore`."""

    _replica: Replica[T]


def replica_of(store: OnReplica[T]) -> Replica[T]:
    """The replica of a store: for `opslog.aio`, and for tests that check what the public calls do not show. It is not
    part of the public interface."""
    return store._replica  # noqa: SLF001  (the one place: everybody else comes through here)
