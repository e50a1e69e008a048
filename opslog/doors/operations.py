"""The operations: what every door can do with a store. A door translates requests into these calls, and their results
into responses. It decides nothing.

Each read begins with a refresh. Each write is one transaction with its own author. It is durable when the call returns,
and the result has its stamp. So one store that was opened with ``log="shared"`` serves all authors. Only the command
line, whose user is the agent of the store, writes to that agent's own log if there is no condition (`plain`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, TypeVar, cast

import msgspec

from opslog.doors.values import (
    Archived,
    Changed,
    ChangesPage,
    CommitsPage,
    Committed,
    Counted,
    Description,
    Entry,
    Expect,
    History,
    Op,
    Page,
    Periods,
    Revised,
    Undone,
    Written,
    entry_of,
)
from opslog.errors import ConflictError, NotFoundError, UsageError
from opslog.format.commits import Set, Stamp, described_line
from opslog.format.documents import Document
from opslog.format.exact import load_document
from opslog.format.layout import TRANSACTIONS, check_agent, check_name
from opslog.merge.undo import not_ours
from opslog.query.conditions import And, Range
from opslog.query.paths import BY_ID, parse_path
from opslog.query.question import OrderBy, Question, Where, question
from opslog.query.values import MISSING
from opslog.replica.terms import ATTEMPTS
from opslog.replica.transaction import Transaction, check_stamp, create
from opslog.store import Store, replica_of

if TYPE_CHECKING:  # a command that writes a document starts without what it does not need
    from opslog.compaction.compact import Compaction
    from opslog.doors.activity import Activity
    from opslog.doors.once import Once
    from opslog.replica.feed import Change
    from opslog.replica.keys import Done
    from opslog.stats import Stats

R = TypeVar("R")
Shown = TypeVar("Shown")

Documents = Transaction[Document]

# Cursors: after this id, or after this many documents.
_AFTER, _SKIP = "after:", "skip:"


class Operations:
    """The operations on one store, with one author. Threads may share them, and many of them may share a store. Errors
    are those of the store; `opslog.doors.problems` says how doors report them.

    :param store: of plain documents. If it was opened `read_only` or `as_of`, writes are refused.
    :param author: of everything that is written; None: the agent of the store.
    :param once: the request that they are for, if it may come again. Its write is made once. Needs a store that was
        opened with ``log="shared"``.
    :param plain: whether sets and deletes without a condition go to the own log of the store's agent, as those of
        `Store` do: for that agent alone.
    :raises UsageError: documents of this store have a `type`.
    """

    def __init__(
        self, store: Store[Document], author: str | None = None, once: Once | None = None, *, plain: bool = False
    ) -> None:
        self._store = store
        self._replica = replica_of(store)
        if self._replica.schema.type is not None:
            raise UsageError("doors take plain documents: open the store without `type`")
        self._author = self._replica.author if author is None else check_agent(author)
        self._once = once
        self._plain = plain
        if once is not None and self._replica.log is not None:
            raise UsageError('requests with keys need a store that was opened with log="shared"')

    @property
    def store(self) -> Store[Document]:
        return self._store

    @property
    def author(self) -> str | None:
        """The author of everything that is written; None: nothing can be written."""
        return self._author

    # -- reading

    def get(self, id: str, fields: Sequence[str] | None = None) -> Entry:
        """A document, and who wrote it.

        :param fields: the paths to return; None: the whole document.
        :raises NotFoundError: it does not exist.
        """
        chosen = _chooser(fields)
        self.refresh()
        record = self._store.record(id)
        if record is None:
            raise NotFoundError(f"there is no document {id!r}")
        return chosen(record, None)

    def find(
        self,
        where: Where | None = None,
        *,
        order_by: OrderBy | None = None,
        limit: int | None = None,
        offset: int = 0,
        cursor: str | None = None,
        fields: Sequence[str] | None = None,
        max_bytes: int | None = None,
    ) -> Page:
        """Documents that fulfil a condition. Parameters and errors as of `Store.find`, and:

        :param cursor: of the page before, with the same `where` and `order_by`. Without `order_by`, writes in between
            neither hide a document nor show one twice.
        :param fields: the paths to return of each document; None: whole documents.
        :param max_bytes: end the page before it has more bytes of JSON than this. It has at least one document.
        """
        asked = _continued(question(where, order_by, limit, offset), cursor)
        chosen = _chooser(fields)
        # One more than asked for, to know whether there is a next page.
        more = asked if limit is None else asked._replace(limit=limit + 1)
        self.refresh()
        matches = iter(self._replica.questions.matches(more)[0])
        items, are_all = _within((chosen(record, document) for record, document in islice(matches, limit)), max_bytes)
        if not items or (are_all and next(matches, None) is None):
            return Page(items)
        return Page(items, f"{_SKIP}{asked.offset + len(items)}" if asked.order else f"{_AFTER}{items[-1].id}")

    def count(self, where: Where | None = None) -> int:
        """How many documents fulfil a condition; errors as of `Store.count`."""
        self.refresh()
        return self._store.count(where)

    def group(self, by: str, where: Where | None = None) -> list[Counted]:
        """How many documents have each value at a path; as of `Store.group`."""
        self.refresh()
        return [Counted(value, documents) for value, documents in self._store.group(by, where)]

    # -- writing

    def set(self, id: str, data: Document, *, if_stamp: str | msgspec.UnsetType | None = msgspec.UNSET) -> Written:
        """Give a document a new value; conditions and errors as of `Store.set`."""
        return self.batch([Op("set", id, data, if_stamp)])

    def create(self, id: str, data: Document) -> Written:
        """Set a document that does not exist; errors as of `Store.create`."""
        return self.batch([Op("create", id, data)])

    def delete(self, id: str, *, if_stamp: str | msgspec.UnsetType | None = msgspec.UNSET) -> Written:
        """Delete a document; conditions and errors as of `Store.delete`."""
        return self.batch([Op("delete", id, None, if_stamp)])

    def replace(self, id: str, data: Document) -> Written:
        """Set a document that exists.

        :raises NotFoundError: there is none.
        """

        def decide(transaction: Documents) -> None:
            if id not in transaction:
                raise _nothing_to_change(id)
            transaction.set(id, data)

        _, stamp = self._decide("set", decide)
        return Written([id], stamp)

    def modify(
        self,
        id: str,
        changes: Document,
        *,
        if_stamp: str | msgspec.UnsetType | None = msgspec.UNSET,
        exists: bool = False,
    ) -> tuple[Written, Document]:
        """Change some fields of a document and leave the others, as a JSON merge patch (RFC 7396) does: objects are
        merged, null removes a field, and every other value replaces the old one. If the document does not exist, it is
        created. No other write can come in between.

        :param exists: whether the document must exist.
        :returns: also the document as it is now.
        :raises ConflictError: it has another stamp.
        :raises NotFoundError: it must exist, and does not.
        """

        def decide(transaction: Documents) -> Document:
            if if_stamp is not msgspec.UNSET:
                check_stamp(transaction.record(id), id, if_stamp)
            before = transaction.get(id)
            if before is None and exists:
                raise _nothing_to_change(id)
            document = merge_patched(before, changes)
            transaction.set(id, document)
            return document

        document, stamp = self._decide("modify", decide, again=lambda done: load_document(done.data))
        return Written([id], stamp), document

    def batch(self, ops: Sequence[Op]) -> Written:
        """Several writes as one commit: all of them or none. Errors as of `transact`."""
        return self.transact(ops)

    def transact(self, ops: Sequence[Op], expect: Sequence[Expect] = ()) -> Written:
        """Check conditions and write, in one transaction. `expect`, and `if_stamp` of the ops, are checked against the
        documents as they were before. Then the ops happen in their order.

        :raises ConflictError: a document has another stamp; `id` and `record` say which one. Nothing was written.
        :raises ExistsError: a document to create exists.
        :raises NotFoundError: a document to delete does not exist.
        :raises UsageError: an op lacks its document, or would create one that an op before it writes.
        """
        _check(ops)
        ids = list(dict.fromkeys(op.id for op in ops))
        if self._plain and not expect and not any(_has_condition(op) for op in ops):
            return Written(ids, self._write_plain(ops))

        def decide(transaction: Documents) -> None:
            for each in expect:
                check_stamp(transaction.record(each.id), each.id, each.stamp)
            for op in ops:
                if op.if_stamp is not msgspec.UNSET:
                    check_stamp(transaction.record(op.id), op.id, op.if_stamp)
            for op in ops:
                if op.data is None:
                    transaction.delete(op.id)
                elif op.op == "create":
                    create(op.id, op.data, transaction)
                else:
                    transaction.set(op.id, op.data)

        _, stamp = self._decide("batch", decide)
        return Written(ids, stamp)

    def _write_plain(self, ops: Sequence[Op]) -> str | None:
        """Write to the agent's own log. Returns the stamp, unless all ops are deletes."""
        with self._store.batch() if len(ops) > 1 else nullcontext():
            for op in ops:
                if op.data is None:
                    self._store.delete(op.id)
                else:
                    self._store.set(op.id, op.data)
        now = [record for op in ops if (record := self._store.record(op.id)) is not None]
        return str(now[0].stamp) if now else None

    def decide(self, function: Callable[[Documents], R], *, attempts: int = ATTEMPTS) -> tuple[R, str | None]:
        """Run a function in a transaction, as `Store.transact` does; for doors with operations of their own. Returns
        its result, and the stamp of what it wrote."""
        return self._decide("transact", function, attempts)

    def undo(self, stamp: str | None = None) -> Undone:
        """Undo the author's newest commit, as `Store.undo` does. If an agent of that name has a log of its own, commits
        in that log are not undone here.

        Nor is a commit that only claims, renews or releases a lease: the user means to undo what they wrote, and would
        not notice that somebody else may now do their work. No undo skips a commit, so older ones are then out of
        reach.

        :param stamp: undo it only if it has this stamp, because others may write in the same name.
        :raises ConflictError: it has another stamp, or others have written one of its documents since. Nothing was
            written.
        :raises UsageError: it is in a log of that name, or only about a lease; or `stamp` is not a stamp.
        """
        replica, author = self._replica, self._author or ""
        replica.check_writable("undo")
        wanted = None if stamp is None else Stamp.parse(stamp)
        if replica.log is not None and author == replica.author and wanted is None:
            taken_back = replica.undo()
            return Undone(taken_back is not None, None, list(taken_back or ()))
        from opslog.lease import PREFIX

        def decide(transaction: Documents) -> Undone:
            newest = transaction.undoable(author)
            if newest is not None and newest.agent != TRANSACTIONS:
                raise not_ours(author)
            ids = transaction.undo(author)
            if ids is None:
                return Undone(False)
            if all(id.startswith(PREFIX) for id in ids):
                raise _of_a_lease(ids[0].removeprefix(PREFIX), is_held=transaction.record(ids[0]) is not None)
            target = Stamp(transaction.undone, TRANSACTIONS)
            if wanted not in (None, target):
                raise ConflictError(
                    f"the newest write of {author} has the stamp {target}, not {stamp}: nothing was undone"
                )
            return Undone(True, str(target), list(ids))

        def again(done: Done) -> Undone:
            return Undone(True, str(Stamp(done.target, TRANSACTIONS)), list(done.ids))

        undone, _ = self._decide("undo", decide, again=again)
        return undone

    def _decide(
        self,
        call: str,
        decide: Callable[[Documents], R],
        attempts: int | None = None,
        again: Callable[[Done], R | None] = lambda done: None,
    ) -> tuple[R, str | None]:
        """The result of a transaction, and the stamp that it gave.

        :param again: returns the result that the request had when it came before.
        """
        made: list[Documents] = []
        author, once, keys = self._author or "", self._once, self._replica.keys

        def named(transaction: Documents) -> R:
            transaction.author = author
            made[:] = [transaction]
            if once is not None and (done := once.begin(transaction, keys, author)) is not None:
                return cast(R, again(done))
            return decide(transaction)

        with nullcontext() if once is None else keys.alone(author, once.key):
            result = self._replica.deciding_of(call).run(named, attempts)
        stamp = made[0].stamp if once is None or once.done is None else once.done.stamp
        return result, None if stamp is None else str(stamp)

    # -- the past, and what is new

    def history(self, id: str, limit: int | None = None, max_bytes: int | None = None) -> History:
        """The revisions of a document, as of `Store.history`.

        :param limit: return at most this many, the newest; None: all that are retained.
        :param max_bytes: return the newest that have at most this many bytes of JSON together, and at least one.
        """
        found = self._store.history(id)
        newest_first = (
            Revised(
                each.record.op,
                str(each.record.stamp),
                each.record.author,
                each.record.ts,
                each.undone,
                each.record.document if isinstance(each.record, Set) else None,
            )
            for each in islice(reversed(found), None if limit is None else max(0, limit))
        )
        kept, _ = _within(newest_first, max_bytes)
        return History(id, kept[::-1], len(found) - len(kept))

    def changes(
        self,
        since: str | None = None,
        *,
        limit: int | None = None,
        most: int | None = None,
        max_bytes: int | None = None,
    ) -> ChangesPage:
        """What changed since a token, as of `Store.changes`.

        :param limit: stop after this many commits. A reset has no limit.
        :param most: return at most this many documents, and of the others only the ids, in `omitted`. A reset with more
            documents has none of them, and is not `complete`.
        :param max_bytes: return at most this many bytes of JSON of documents; likewise.
        """
        found = self._store.changes(since, limit)
        changes: list[Changed] = []
        omitted: list[str] = []
        size = 0
        for change in found:
            if not omitted and (most is None or len(changes) < most):
                changed = _changed(change)
                size += 0 if max_bytes is None else len(msgspec.json.encode(changed))
                if max_bytes is None or size <= max_bytes:
                    changes.append(changed)
                    continue
            if found.reset:
                return ChangesPage(found.token, reset=True, changes=[], commits=[], complete=False)
            omitted.append(change.id)
        commits = [
            Committed(str(commit.stamp), commit.author, commit.ts, commit.op, list(commit.ids), commit.won)
            for commit in found.commits
        ]
        return ChangesPage(found.token, found.reset, changes, commits, omitted)

    def ops(self, since: int | None = None, limit: int | None = None, max_bytes: int | None = None) -> CommitsPage:
        """Commits of all agents, as of `Store.ops`. Commits with the same clock are always on one page.

        :param limit: return at most this many.
        :param max_bytes: end the page before it has more bytes than this. It has at least one commit.
        """
        lines: list[msgspec.Raw] = []
        size, clock = 0, None
        for commit in self._store.ops(since):
            line = described_line(commit).rstrip()
            size += len(line)
            is_full = (limit is not None and len(lines) >= limit) or (max_bytes is not None and size > max_bytes)
            if is_full and lines and commit.clock != clock:
                return CommitsPage(lines, clock)
            lines.append(msgspec.Raw(line))
            clock = commit.clock
        return CommitsPage(lines)

    def activity(self, most: int) -> Activity:
        """Who did what lately, and which writes lost. Reads all retained logs, and holds `most` commits in memory.

        :param most: return at most this many commits, and this many lost writes.
        """
        from opslog.doors.activity import activity
        from opslog.doors.description import last_clocks

        self.refresh()
        return activity(self._store.ops(), self._replica.read(last_clocks), most)

    def stats(self) -> Stats:
        """Figures of the store, as of `Store.stats`."""
        self.refresh()
        return self._store.stats()

    # -- maintenance

    def archives(self) -> Periods:
        """The periods that have archives."""
        return Periods(self._store.archives())

    def archived(
        self, period: str, limit: int | None = None, cursor: str | None = None, max_bytes: int | None = None
    ) -> Page:
        """The documents of an archive. Reads all of it for each page. Errors as of `Store.load_archive`.

        :param limit: return at most this many; None: all of them.
        :param cursor: of the page before.
        :param max_bytes: as of `find`.
        :raises UsageError: it is not a cursor of an archive.
        """
        from opslog.archive import read_archive

        if cursor is not None and not cursor.startswith(_AFTER):
            raise UsageError("this is no cursor of an archive: use the one that the page before gave")
        records = read_archive(self._replica.backend, check_name(period, "period"))
        self._replica.freshness.note_shown()
        behind = None if cursor is None else cursor.removeprefix(_AFTER)
        ids = sorted(id for id in records if behind is None or id > behind)
        shown, _ = _within((entry_of(records[id]) for id in ids[:limit]), max_bytes)
        return Page(shown, f"{_AFTER}{shown[-1].id}" if len(shown) < len(ids) else None)

    def archive(self, where: Where, period: str | None = None, *, older_than: timedelta | None = None) -> Archived:
        """Move documents into an archive, as of `Store.archive`."""
        from opslog.archive import archive_documents

        return Archived(archive_documents(self._replica, where, period, older_than, self._author or ""))

    def compact(self, *, full: bool = False) -> Compaction:
        """Compact the store, as of `Store.compact`."""
        return self._store.compact(full=full)

    def describe(self) -> Description:
        """What is in the store: counts, fields, who writes. Samples the documents, and costs three listings."""
        from opslog.doors.description import described

        self.refresh()
        return described(self._store, self._author)

    def refresh(self) -> None:
        """Take in what others wrote. The commits stay for whoever calls `Store.refresh`; if nobody does, they are not
        kept."""
        self._replica.refresh()


def _nothing_to_change(id: str) -> NotFoundError:
    return NotFoundError(f"there is no document {id!r}. Nothing was written")


def _of_a_lease(document: str, *, is_held: bool) -> UsageError:
    """Why an undo does not undo a commit that is only about a lease."""
    if not is_held:
        return UsageError(
            f"the newest write released the claim of {document!r}, which undo does not bring back: claim it"
        )
    return UsageError(
        f"the newest write is the claim of {document!r}, which undo does not take back: to give it up, release it by "
        "the key that it gave. What was written before it cannot be undone any more: write it anew"
    )


def merge_patched(document: Document | None, changes: Document) -> Document:
    """A document after a JSON merge patch."""
    merged = dict(document or {})
    for name, value in changes.items():
        if value is None:
            merged.pop(name, None)
        elif isinstance(value, dict):
            before = merged.get(name)
            merged[name] = merge_patched(before if isinstance(before, dict) else None, value)
        else:
            merged[name] = value
    return merged


def _continued(asked: Question, cursor: str | None) -> Question:
    """The question for the page that begins at a cursor.

    :raises UsageError: it is not a cursor of such a question.
    """
    if cursor is None:
        return asked
    if cursor.startswith(_AFTER) and not asked.order:
        behind = Range(BY_ID, ">", cursor.removeprefix(_AFTER))
        return asked._replace(condition=And((behind, asked.condition)), offset=0)
    skipped = cursor.removeprefix(_SKIP)
    if cursor.startswith(_SKIP) and asked.order and skipped.isascii() and skipped.isdigit() and len(skipped) < 16:
        return asked._replace(offset=int(skipped))
    raise UsageError("this is no cursor of such a question: use the one that the page before gave, with the same order")


def _within(items: Iterable[Shown], max_bytes: int | None) -> tuple[list[Shown], bool]:
    """The first items that have at most this many bytes together, and at least one; None: all. Also whether these are
    all items. Takes no item that comes after these and the next one."""
    if max_bytes is None:
        return list(items), True
    found: list[Shown] = []
    size = 0
    for item in items:
        size += len(msgspec.json.encode(item))
        if found and size > max_bytes:
            return found, False
        found.append(item)
    return found, True


def _check(ops: Sequence[Op]) -> None:
    """Check what is wrong whatever the documents are.

    :raises UsageError: as of `Operations.transact`.
    """
    written: set[str] = set()
    for op in ops:
        if (op.data is None) != (op.op == "delete"):
            needed = "takes no data" if op.op == "delete" else "needs the document, in data"
            raise UsageError(f"{op.op} of {op.id!r} {needed}")
        # Not an ExistsError, which would show what is there: that document would never be written.
        if op.op == "create" and op.id in written:
            raise UsageError(
                f"create of {op.id!r}: an op before it in the same request writes that document. Nothing was written"
            )
        if op.data is None:
            written.discard(op.id)
        else:
            written.add(op.id)


def _has_condition(op: Op) -> bool:
    return op.op == "create" or op.if_stamp is not msgspec.UNSET


def _chooser(fields: Sequence[str] | None) -> Callable[[Set, Document | None], Entry]:
    """A function that makes an entry of a record, and of its document if that was read.

    :raises QueryError: one of the fields is not a path.
    """
    if fields is None:
        return entry_of
    paths = [(str(path), path) for path in map(parse_path, fields)]
    getters = [(name, path.values() if path.has_many else path.getter()) for name, path in paths]

    def choose(record: Set, document: Document | None) -> Entry:
        document = record.document if document is None else document
        found = ((name, get(document, record)) for name, get in getters)
        return entry_of(record, {name: value for name, value in found if value is not MISSING})

    return choose


def _changed(change: Change[Document]) -> Changed:
    record = change.record
    op = "delete" if change.document is None else "set"
    if record is None:
        return Changed(op, change.id, change.existed)
    return Changed(op, change.id, change.existed, str(record.stamp), record.author, record.ts, change.document)
