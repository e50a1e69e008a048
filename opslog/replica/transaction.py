"""One transaction while it is made: the documents it reads, as of one moment, and the records it will write.

It remembers what it has read, since that decides whether it may be committed: the records of documents, by their
stamps, and the queries.
"""

from __future__ import annotations

from collections.abc import Callable, ItemsView, Iterator, MutableMapping, ValuesView
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import msgspec

from opslog.errors import ConflictError, ExistsError, NotFoundError, UsageError
from opslog.format.commits import Batch, Commit, Delete, DeleteOp, Record, Set, SetOp, Stamp, Undo
from opslog.format.documents import Schema, check_id, plain_id
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import Cursor
from opslog.query import conditions
from opslog.query.question import Group, OrderBy, Where, grouping, parse, question
from opslog.replica.found import Found
from opslog.replica.questions import Frozen, Questions, matcher
from opslog.replica.terms import Condition, check_predicate
from opslog.replica.views import Items, Values

T = TypeVar("T")
D = TypeVar("D")


class Source(Protocol):
    """The documents that a transaction reads, as they were at one moment, tombstones included."""

    def record(self, id: str) -> Record | None: ...

    def records(self, overlay: dict[str, Record]) -> Iterator[Set]: ...

    def asking(self, overlay: dict[str, Record]) -> tuple[Questions[Any], Frozen]:
        """The object that answers queries about these documents, and the view that it answers them on. From now on, the
        transaction depends on all of them."""

    def undoable(self, author: str) -> Commit | None: ...

    def note_stamp(self, id: str) -> None:
        """Note that the transaction has read the stamp of this document."""

    def shared_end(self) -> Cursor:
        """Where the shared log ends. From now on, the transaction depends on all of that log."""
        ...


class Reads(NamedTuple):
    """The documents and queries that the decision of a transaction depends on.

    :ivar documents: per document the record that was read; None where there was none.
    :ivar queries: which documents were searched for. If one of these matches a document before or after a change, the
        change affects what the transaction saw.
    """

    documents: dict[str, Set | None]
    queries: list[Callable[[Set], object]]

    def fault(self, now: Callable[[str], Set | None]) -> str | None:
        """The first document that has changed since it was read; None: none has."""
        return next((id for id, read in self.documents.items() if not is_same(read, now(id))), None)

    def matches(self, record: Set | None) -> bool:
        """Whether a query matches this record. True also if a query fails on it: then the transaction has to be decided
        again."""
        try:
            return record is not None and any(query(record) for query in self.queries)
        except Exception:  # noqa: BLE001  (the user's function raises it when it is called again)
            return True


def is_same(read: Set | None, now: Set | None) -> bool:
    """Whether a document was not written between two moments. A record without a stamp yet equals only itself."""
    if read is now:
        return True
    return read is not None and now is not None and read.clock > 0 and read.stamp == now.stamp


def live(record: Record | None) -> Set | None:
    """A record, unless it is a tombstone."""
    return record if isinstance(record, Set) else None


class Transaction(MutableMapping[str, T], Generic[T]):
    """Documents as a transaction sees them, with its own writes. A mutable mapping, as a store is.

    :param source: the documents that it reads.
    :param where: names the store, for messages.
    :ivar author: in whose name it writes, if that is not the store's agent.
    :ivar key: the key of the request that it is made for; its line in the log has it.
    :ivar is_searching: whether its decision depends on the lines of the shared log. It is then decided again if the log
        has grown.
    :ivar stamp: the stamp of its commit, once that is written; None if it wrote nothing.
    """

    def __init__(self, schema: Schema[T], source: Source, where: str) -> None:
        self._schema = schema
        self._source = source
        self._where = where
        self._reads = Reads({}, [])
        self._written: dict[str, Record] = {}
        self._undo: Undo | None = None
        self._has_ended = False
        self.author = ""
        self.key = ""
        self.is_searching = False
        self.stamp: Stamp | None = None
        self._repeated: Transaction[T] | None = None

    # -- reading

    def record(self, id: str) -> Set | None:
        """The record of a document, as `Store.record` returns it. One that the transaction itself has written has no
        stamp yet."""
        id = plain_id(id)
        if id not in self._written:
            self._source.note_stamp(id)
        return self._read(id)

    def _check(self) -> None:
        if self._has_ended:
            raise UsageError("this transaction has ended: what is read and written through it would have no effect")

    def _read(self, id: str) -> Set | None:
        self._check()
        id = plain_id(id)
        if id in self._written:
            return live(self._written[id])
        documents = self._reads.documents
        if id not in documents:
            documents[id] = live(self._source.record(id))
        return documents[id]

    def __getitem__(self, id: str) -> T:
        record = self._read(id)
        if record is None:
            raise NotFoundError(f"there is no document {id!r} in {self._where}")
        return self._schema.decode(record)

    def __contains__(self, id: object) -> bool:
        return isinstance(id, str) and self._read(id) is not None

    def __iter__(self) -> Iterator[str]:
        return (record.id for record in self._records(_every))

    def __len__(self) -> int:
        return sum(1 for _ in self._records(_every))

    def find(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> Found[T]:
        """As `Store.find`. A document that another writer changes conflicts only if it fulfils the condition before or
        after, whatever the limit."""
        asked = question(where, order_by, limit, offset)
        records = self._records(self._fulfilling(asked.condition))
        questions, at = self._source.asking(self._written)
        return questions.find(asked, at, records)

    def group(self, by: str, where: Where | None = None) -> list[Group]:
        """As `Store.group`; conflicts as of `find`."""
        asked = grouping(by, where)
        records = self._records(self._fulfilling(asked.condition))
        questions, at = self._source.asking(self._written)
        return questions.group(asked, at, records)

    def _fulfilling(self, condition: conditions.Condition) -> Callable[[Set], object]:
        return matcher(self._schema, condition)

    def filter(self, predicate: Callable[[T], object]) -> list[tuple[str, T]]:
        """The (id, document) pairs whose document fulfils the predicate, in order of id. A document that another writer
        changes conflicts only if it fulfils the predicate before or after."""
        check_predicate(predicate)
        decode = self._schema.decode
        found = ((record.id, decode(record)) for record in self._records(lambda record: predicate(decode(record))))
        return [(id, document) for id, document in found if predicate(document)]

    def count(self, where: Where | Callable[[T], object] | None = None) -> int:
        """As `Store.count`; conflicts as of `find` or `filter`."""
        if where is None:
            return len(self)
        if callable(where):
            return len(self.filter(where))
        condition = parse(where)
        records = self._records(self._fulfilling(condition))
        questions, at = self._source.asking(self._written)
        return questions.count(condition, at, records)

    def items(self) -> ItemsView[str, T]:
        """(id, document) pairs in order of id."""
        return Items(self, self._documents)

    def values(self) -> ValuesView[T]:
        """Documents in order of id."""
        return Values(self, self._documents)

    def _documents(self) -> Iterator[tuple[str, T]]:
        decode = self._schema.decode
        return ((record.id, decode(record)) for record in self._records(_every))

    def _records(self, query: Callable[[Set], object]) -> Iterator[Set]:
        self._check()
        self._reads.queries.append(query)
        return self._source.records(self._written)

    # -- writing

    def set(self, id: str, document: T) -> None:
        """Give a document a new value. Errors as of `Store.set`, before anything is written."""
        id = check_id(id)
        encoded = self._schema.encode(document)
        replaced = self._read(id) if self._schema.reads_replaced else None
        self._schema.check_known(encoded, replaced)
        v = self._schema.version or (replaced.v if replaced is not None else 1)
        self.write(Set("", 0, "", id, msgspec.Raw(encoded), v))

    def delete(self, id: str) -> None:
        """Delete a document.

        :raises NotFoundError: there is none.
        """
        if self._read(id) is None:
            raise NotFoundError(f"there is no document {id!r} in {self._where}")
        self.write(Delete("", 0, "", plain_id(id)))

    __setitem__ = set
    __delitem__ = delete

    def clear(self) -> None:
        """Delete all documents."""
        for id in list(iter(self)):  # `list(self)` would ask for the length first, and so read everything twice
            self.delete(id)

    # -- for those who commit it

    def check_again(self, commit: Commit) -> None:
        """Check a plain commit on the documents as they are now. Errors as of `write` in this module."""
        self._schema.check_again(commit, self._read)

    def write(self, record: Record) -> None:
        """Write a record that has no stamp yet, whatever the document is now."""
        self._check()
        self._written[record.id] = record

    def undoable(self, author: str) -> Commit | None:
        """The commit that an undo of an author takes back, in whichever log. From now on, the transaction depends on
        all of the shared log."""
        self.search_log()
        return self._source.undoable(author)

    def undo(self, author: str) -> tuple[str, ...] | None:
        """Take back an author's newest commit, if that is in the shared log, and in reach. The transaction then writes
        nothing else.

        :returns: the documents that it gives back; None: it takes back nothing.
        :raises ConflictError: one of its documents was written since.
        """
        commit = self.undoable(author)
        if commit is None or commit.agent != TRANSACTIONS:
            return None
        for record in commit.records:
            now = self._source.record(record.id)
            self._reads.documents.setdefault(record.id, live(now))
            if now is None or now.stamp != commit.stamp:
                raise conflict(record.id, live(now), "was written since, so that what made it cannot be taken back")
        self._undo = Undo("", 0, "", commit.clock, by=author)
        return tuple(record.id for record in commit.records)

    def rest_on(self, reads: Reads) -> None:
        """Read again what another transaction has read, so that this one depends on it, too."""
        for id in reads.documents:
            self._read(id)
        self._reads.queries.extend(reads.queries)

    @property
    def undone(self) -> int:
        """The clock of the commit that it takes back; 0: none."""
        return 0 if self._undo is None else self._undo.target

    @property
    def source(self) -> Source:
        """The documents that it reads."""
        return self._source

    def repeat(self, made: Transaction[T]) -> None:
        """Write what another transaction wrote, in the name of its author. That one gets the stamp, too."""
        self._repeated = made
        self.author, self.key = made.author, made.key
        for record in made.written.values():
            self.write(record)

    def note_stamp(self, stamp: Stamp) -> None:
        """Note the stamp that its commit has, if the append succeeds."""
        self.stamp = stamp
        if self._repeated is not None:
            self._repeated.stamp = stamp

    def search_log(self) -> Cursor:
        """Where the shared log ends, for a decision that depends on the lines of that log."""
        self.is_searching = True
        return self._source.shared_end()

    def end(self) -> None:
        """End it, after its decision or without one. From now on, reads and writes raise UsageError."""
        self._has_ended = True

    @property
    def reads(self) -> Reads:
        """The documents and queries that it depends on."""
        return self._reads

    @property
    def written(self) -> dict[str, Record]:
        """The records that it writes, one for each document."""
        return self._written

    @property
    def commit(self) -> Commit | None:
        """Its commit, which has no stamp yet; None if it writes nothing."""
        if self._undo is not None:
            return msgspec.structs.replace(self._undo)
        records = [msgspec.structs.replace(record) for record in self._written.values()]
        if len(records) > 1:
            return Batch("", 0, "", [_op_of(record) for record in records], by=self.author)
        for record in records:
            record.by = self.author
            return record
        return None

    def __repr__(self) -> str:
        return f"<opslog.Transaction of {self._where}>"


# -- the decisions of a store's calls


def check_stamp(record: Set | None, id: str, condition: Condition) -> None:
    """:raises ConflictError: the document was written since it had this stamp.
    :raises UsageError: the condition is neither a stamp nor the text of one nor None.
    """
    wanted: Stamp | None
    match condition:
        case None:
            wanted = None
        case str():
            wanted = Stamp.parse(condition)
        case tuple((int(), str())):
            wanted = Stamp(*condition)
        case _:
            raise UsageError(
                "if_stamp takes the stamp of a record (`record.stamp`), its text such as 1042@planner, or None if "
                f"there must be no document, not {condition!r:.60}"
            )
    if (None if record is None else record.stamp) != wanted:
        what = "exists" if wanted is None else f"has not the stamp {wanted} any more"
        raise conflict(id, record, what)


def create(id: str, document: T, transaction: Transaction[T]) -> None:
    """See `Store.create`."""
    record = transaction.record(id)
    if record is not None:
        raise ExistsError(
            f"document {id!r} exists: {record.author} wrote it, with stamp {record.stamp}. Nothing was written",
            id,
            record,
        )
    transaction.set(id, document)


def set_if(id: str, document: T, condition: Condition, transaction: Transaction[T]) -> None:
    """See `Store.set`."""
    check_stamp(transaction.record(id), id, condition)
    transaction.set(id, document)


def delete_if(id: str, condition: Condition, transaction: Transaction[T]) -> None:
    """See `Store.delete`."""
    check_stamp(transaction.record(id), id, condition)
    transaction.delete(id)


def modify(id: str, function: Callable[[T | None], T | None], transaction: Transaction[T]) -> T | None:
    """See `Store.modify`."""
    document = function(transaction.get(id))
    if document is not None:
        transaction.set(id, document)
    elif id in transaction:
        transaction.delete(id)
    return document


def write(commit: Commit, transaction: Transaction[T]) -> None:
    """Write the records of a plain commit, whatever the documents are now, unless the store's type forbids that. The
    author is the commit's agent, if it has one already.

    :raises InvalidDocumentError: a set would delete fields that the store's type does not know.
    :raises SchemaVersionError: a document was written under a newer version of the schema.
    """
    transaction.check_again(commit)
    transaction.author = commit.agent
    for record in commit.records:
        transaction.write(record)


def _every(record: Set) -> bool:
    return True


def _op_of(record: Record) -> SetOp | DeleteOp:
    if isinstance(record, Set):
        return SetOp(record.id, record.data, record.v)
    return DeleteOp(record.id, record.archived)


def conflict(id: str, now: Set | None, what: str) -> ConflictError:
    """The error about a document that is not what the caller believes.

    :param id: empty: it is unknown which document.
    :param now: its record now, if there is one.
    """
    if now is not None:
        state = f"{now.author} wrote what is there now, with stamp {now.stamp}"
    else:
        state = "there is none now" if id else "the store was loaded anew meanwhile"
    name = f"document {id!r}" if id else "something that a query read"
    return ConflictError(f"{name} {what}: {state}. Nothing was written; read it again, then decide", id, now)
