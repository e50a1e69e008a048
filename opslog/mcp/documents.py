"""The tools for documents: what a model can do with a store."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from opslog.doors.leases import Claimed, Leases
from opslog.doors.operations import Operations
from opslog.doors.values import ChangesPage, Counted, Description, Entry, Expect, History, Op, Page, Undone, Written
from opslog.errors import UsageError
from opslog.format.documents import Document
from opslog.mcp.tools import READS, Hints, Tool, tool

# How much a model gets by default, and at most.
_LIMIT, _LIMIT_MAX = 20, 200
_REVISIONS, _CHANGES, _COMMITS = 10, 50, 200
_PAGE_BYTES = 50_000
_LEASE_SECONDS = 300.0

INSTRUCTIONS = """\
A store of JSON documents that several agents share. Each document has an id and a stamp; the stamp changes with each \
write. Begin with `describe`.
- To change something without losing what others wrote: `modify` (changes fields in place), or read it with `get` and \
give its stamp as `if_stamp`. A plain `set` replaces the whole document.
- To work on something that others could take, too: `claim` it first (by id, or the first that fulfils a condition), \
then `release` it, by the key that you got, with its last changes. A claim ends by itself after its seconds; claim \
again with the key to keep it.
- Several writes that belong together: `batch`. A mistake: `undo` takes back your newest write.
- What happened since: keep the `token` of `changes`, and give it as `since` next time.
Results are short: use `where`, `fields`, `limit` and `cursor`. A condition is a text such as \
'status = "open" and hours > 3 and tags[*] = api', or a mapping such as {"status": "open", "hours": {">": 3}}; \
@id, @author and @ts stand for the document's own id, author and time."""

Id = Annotated[str, Meta(description="The document's id.")]
Where_ = Annotated[
    str | dict[str, Any] | None,
    Meta(description='A condition: \'status = "open" and hours > 3\', or {"status": "open"}. Left out: all.'),
]
Fields = Annotated[
    list[str] | None,
    Meta(description="Paths of the fields to return, such as title, due.year or tags[*]. Left out: whole documents."),
]
IfStamp = Annotated[
    str | msgspec.UnsetType | None,
    Meta(description="Write only if the document still has this stamp; null: only if there is none."),
]
OrderBy_ = Annotated[
    str | list[str] | None,
    Meta(description="A path, or several; a minus before one turns its order round. Left out: in order of id."),
]
Seconds = Annotated[
    float, Meta(gt=0, le=86_400, description="For how long it is yours, unless you claim it again before the end.")
]


class FindIn(msgspec.Struct, forbid_unknown_fields=True):
    where: Where_ = None
    order_by: OrderBy_ = None
    fields: Fields = None
    limit: Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="How many documents at the most.")] = _LIMIT
    cursor: Annotated[str | None, Meta(description="That of the page before, with the same where and order_by.")] = None
    count: Annotated[bool, Meta(description="Whether to count all that fulfil the condition, too.")] = False


class FoundPage(msgspec.Struct, frozen=True):
    items: list[Entry]
    cursor: str | None = None
    count: int | None = None


class GetIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    fields: Fields = None


class SetIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    data: Annotated[Document, Meta(description="The whole document: a JSON object.")]
    if_stamp: IfStamp = msgspec.UNSET


class CreateIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    data: Annotated[Document, Meta(description="The whole document: a JSON object.")]


class ModifyIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    changes: Annotated[
        Document,
        Meta(description="The fields to change (a JSON merge patch): objects are merged, null removes a field."),
    ]
    if_stamp: IfStamp = msgspec.UNSET


class Modified(msgspec.Struct, frozen=True, omit_defaults=True):
    """:ivar data: the document as it is now; missing if `note` says why.
    :ivar note: why `data` is left out, if it is.
    """

    id: str
    stamp: str | None
    data: Document | None = None
    note: str | None = None


class DeleteIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    if_stamp: IfStamp = msgspec.UNSET


class BatchIn(msgspec.Struct, forbid_unknown_fields=True):
    ops: Annotated[list[Op], Meta(max_length=1000, description="The writes, in their order.")]
    expect: Annotated[
        list[Expect],
        Meta(max_length=1000, description="Documents that must still have these stamps (null: must not exist)."),
    ] = []


class ClaimIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Annotated[str | None, Meta(description="The document to claim. Left out: the first that `where` finds.")] = None
    key: Annotated[str | None, Meta(description="To renew a claim of yours: the key that it gave, with the id.")] = None
    where: Where_ = None
    order_by: OrderBy_ = None
    seconds: Seconds = _LEASE_SECONDS


class ReleaseIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    key: Annotated[str, Meta(description="The key that claim gave.")]
    data: Annotated[Document | None, Meta(description="The document's last value, in the same transaction.")] = None
    changes: Annotated[Document | None, Meta(description='Or changes of it, as of modify: {"status": "done"}.')] = None


class Released(msgspec.Struct, frozen=True):
    id: str
    stamp: str | None


class Nothing(msgspec.Struct, forbid_unknown_fields=True):
    pass


class UndoIn(msgspec.Struct, forbid_unknown_fields=True):
    stamp: Annotated[
        str | None, Meta(description="Only if your newest write has this stamp. Left out: whichever it is.")
    ] = None


class HistoryIn(msgspec.Struct, forbid_unknown_fields=True):
    id: Id
    limit: Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="How many of the newest revisions.")] = _REVISIONS


class ChangesIn(msgspec.Struct, forbid_unknown_fields=True):
    since: Annotated[str | None, Meta(description="The token of an earlier call. Left out: only a token is given.")] = (
        None
    )
    limit: Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="How many documents at the most.")] = _CHANGES


class CountIn(msgspec.Struct, forbid_unknown_fields=True):
    by: Annotated[str, Meta(description="The path whose values are counted, such as status or tags[*].")]
    where: Where_ = None
    limit: Annotated[int, Meta(ge=1, le=_LIMIT_MAX, description="How many values at the most.")] = _LIMIT


class Counts(msgspec.Struct, frozen=True):
    """:ivar groups: the most frequent values.
    :ivar more: how many other values there are.
    """

    groups: list[Counted]
    more: int


class Documents:
    """The tools of one session.

    :param is_alone: whether no other session writes under its name.
    """

    def __init__(self, operations: Operations, *, is_alone: bool = True) -> None:
        self._operations = operations
        self._is_alone = is_alone
        self._leases = Leases(operations)

    def find(self, asked: FindIn) -> FoundPage:
        """Find documents that fulfil a condition, each with its stamp and author. If the result has a cursor, there are
        more."""
        page: Page = self._operations.find(
            asked.where,
            order_by=asked.order_by,
            limit=asked.limit,
            cursor=asked.cursor,
            fields=asked.fields,
            max_bytes=_PAGE_BYTES,
        )
        count = self._operations.count(asked.where) if asked.count else None
        return FoundPage(page.items, page.cursor, count)

    def get(self, asked: GetIn) -> Entry:
        """Get one document, with its stamp and author."""
        return self._operations.get(asked.id, asked.fields)

    def set(self, asked: SetIn) -> Written:
        """Replace the whole document. With if_stamp, only if nobody has written it since you read it."""
        return self._operations.set(asked.id, asked.data, if_stamp=asked.if_stamp)

    def create(self, asked: CreateIn) -> Written:
        """Create a document that does not exist. If several agents try, one succeeds, and the others get the error
        exists."""
        return self._operations.create(asked.id, asked.data)

    def modify(self, asked: ModifyIn) -> Modified:
        """Change some fields and leave the others as they are, whoever writes meanwhile. Creates the document if it
        does not exist."""
        written, document = self._operations.modify(asked.id, asked.changes, if_stamp=asked.if_stamp)
        return Modified(asked.id, written.stamp, document)

    def delete(self, asked: DeleteIn) -> Written:
        """Delete a document. With if_stamp, only if nobody has written it since you read it."""
        return self._operations.delete(asked.id, if_stamp=asked.if_stamp)

    def batch(self, asked: BatchIn) -> Written:
        """Make several writes (set, create, delete) as one: all of them happen, or none. One undo cancels them all."""
        return self._operations.transact(asked.ops, asked.expect)

    def claim(self, asked: ClaimIn) -> Claimed:
        """Hold a document so that no other agent works on it: by its id, or the first one that fulfils a condition and
        that nobody holds. If claimed is false, holder has it; if the id is empty too, no document is free. Claim again
        with the key to keep it."""
        if asked.key is not None:
            if asked.id is None:
                raise UsageError("claim: to renew a claim, name its document by id, too")
            return self._leases.renew(asked.id, asked.key, asked.seconds)
        if asked.id is not None:
            return self._leases.claim(asked.id, asked.seconds, asked.where)
        if asked.where is None:
            raise UsageError("claim: name the document by id, or say which ones by where")
        return self._leases.claim_one(asked.where, asked.seconds, asked.order_by)

    def release(self, asked: ReleaseIn) -> Released:
        """Release a document that you claimed, and write its last value or changes in the same transaction. If the
        claim is over and somebody else has it, nothing is written, and the error is lease_lost."""
        return Released(asked.id, self._leases.release(asked.id, asked.key, data=asked.data, changes=asked.changes))

    def undo(self, asked: UndoIn) -> Undone:
        """Undo the newest write of this session, a batch as a whole. If others have written since, the error is
        conflict. A claim is not undone: release it."""
        if asked.stamp is None and not self._is_alone:
            raise UsageError(
                "undo: this connection has no session, and others write under its name: give the stamp of the write"
            )
        return self._operations.undo(asked.stamp)

    def history(self, asked: HistoryIn) -> History:
        """Show the writes of a document: who wrote what, and when, oldest first, as far as they are kept."""
        return self._operations.history(asked.id, asked.limit)

    def changes(self, asked: ChangesIn) -> ChangesPage:
        """Show which documents changed since a token, each as it is now, and what each commit did. Without since, only
        the current token. Ask again with the new token until there are no commits. If reset is true, older changes were
        compacted away: use find."""
        if asked.since is None:
            return self._operations.changes(most=0)
        return self._operations.changes(asked.since, limit=_COMMITS, most=asked.limit, max_bytes=_PAGE_BYTES)

    def count(self, asked: CountIn) -> Counts:
        """Count the documents with each value of a field, the most frequent value first."""
        groups = self._operations.group(asked.by, asked.where)
        return Counts(groups[: asked.limit], max(0, len(groups) - asked.limit))

    def describe(self, asked: Nothing) -> Description:
        """Describe the store: how many documents, which fields they have, who writes, some ids, settings."""
        return self._operations.describe()

    def tools(self) -> list[Tool]:
        """All tools."""
        adds, replaces, destroys = Hints(), Hints(destructive=True, idempotent=True), Hints(destructive=True)
        return [
            tool(self.describe, "What is in the store", Nothing, Description, READS),
            tool(self.find, "Find documents", FindIn, FoundPage, READS),
            tool(self.get, "Get a document", GetIn, Entry, READS),
            tool(self.count, "Count documents by a field", CountIn, Counts, READS),
            tool(self.create, "Create a document", CreateIn, Written, adds),
            tool(self.set, "Replace a document", SetIn, Written, replaces),
            tool(self.modify, "Change fields of a document", ModifyIn, Modified, replaces),
            tool(self.delete, "Delete a document", DeleteIn, Written, destroys),
            tool(self.batch, "Write several documents at once", BatchIn, Written, destroys),
            tool(self.claim, "Claim a document to work on", ClaimIn, Claimed, adds),
            tool(self.release, "Release a claimed document", ReleaseIn, Released, destroys),
            tool(self.undo, "Undo your newest write", UndoIn, Undone, destroys),
            tool(self.history, "History of a document", HistoryIn, History, READS),
            tool(self.changes, "What changed since", ChangesIn, ChangesPage, READS),
        ]
