"""What goes into the operations of `opslog.doors.operations`, and what comes out of them: plain structs that become
JSON as they are, with stamps as text (``1042@planner``).

The names are those of Python and of the command line: `id`, `stamp`, `author`, `ts`, `data`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from opslog.errors import OpslogError
from opslog.format.commits import Record, Set
from opslog.format.documents import Document

# -- in


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One write of a batch.

    :ivar op: set; create, which fails where the document exists; or delete, which fails where there is none.
    :ivar data: the document, for set and create.
    :ivar if_stamp: only if the document still has this stamp; None: only if there is none. Left out: in any case.
    """

    op: Literal["set", "create", "delete"]
    id: str
    data: Document | None = None
    if_stamp: str | msgspec.UnsetType | None = msgspec.UNSET


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must be true of a document, for a transaction that need not write it.

    :ivar stamp: the one that it still has; None: there is no such document.
    """

    id: str
    stamp: str | None


# -- out


class Entry(msgspec.Struct, frozen=True):
    """A document, and who wrote it last.

    :ivar stamp: stays the same as long as nobody writes the document.
    :ivar author: who wrote it.
    :ivar ts: when, by the author's clock.
    :ivar data: the document; or, where fields were asked for, those that it has, by their paths.
    """

    id: str
    stamp: str
    author: str
    ts: str
    data: Document


class Page(msgspec.Struct, frozen=True):
    """Some of the documents that were found.

    :ivar cursor: where the next page begins; None: there is none.
    """

    items: list[Entry]
    cursor: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """How many documents have a value."""

    value: Any
    documents: int


class Written(msgspec.Struct, frozen=True):
    """What was written. It is durable.

    :ivar ids: the documents.
    :ivar stamp: what all of them have now; None: there was nothing to write.
    """

    ids: list[str]
    stamp: str | None


class Undone(msgspec.Struct, frozen=True):
    """What was taken back.

    :ivar undone: False: this agent has nothing left to undo.
    :ivar stamp: of the commit that was taken back.
    :ivar ids: the documents that it had written.
    """

    undone: bool
    stamp: str | None = None
    ids: list[str] = []


class Revised(msgspec.Struct, frozen=True):
    """One set or delete of a document.

    :ivar data: the document that was set; None: it was deleted.
    :ivar undone: whether an undo took it back.
    """

    op: str
    stamp: str
    author: str
    ts: str
    undone: bool
    data: Document | None = None


class History(msgspec.Struct, frozen=True):
    """What happened to a document, oldest first, as far as it is retained.

    :ivar earlier: how many older ones were left out.
    """

    id: str
    revisions: list[Revised]
    earlier: int = 0


class Changed(msgspec.Struct, frozen=True):
    """A document that changed, as it is now.

    :ivar op: "set", or "delete": it is gone.
    :ivar existed: whether it existed at the token from which on changes were asked for.
    :ivar stamp: who wrote it last; of one that is gone as far as it is known, with `author` and `ts`.
    """

    op: str
    id: str
    existed: bool
    stamp: str | None = None
    author: str | None = None
    ts: str | None = None
    data: Document | None = None


class Committed(msgspec.Struct, frozen=True):
    """What one commit did.

    :ivar op: set, delete, batch or undo.
    :ivar ids: the documents that it wrote; of an undo those that it gave back.
    :ivar won: whether it is what counts for all of them.
    """

    stamp: str
    author: str
    ts: str
    op: str
    ids: list[str]
    won: bool


class ChangesPage(msgspec.Struct, frozen=True):
    """What changed since a token.

    :ivar token: to go on from, once all of this was taken in.
    :ivar reset: whether these are all documents there are, in place of everything known before.
    :ivar omitted: the ids of those that changed, too, and are left out here because they are too many.
    :ivar complete: False: this is a reset, and all documents are left out because they are too many. Forget what you
        have, read the pages of a list, and go on from the token: what is written meanwhile comes with the next changes.
    """

    token: str
    reset: bool
    changes: list[Changed]
    commits: list[Committed]
    omitted: list[str] = []
    complete: bool = True


class CommitsPage(msgspec.Struct, frozen=True):
    """Commits, in the order of their clocks.

    :ivar commits: each as its line of a log; an undo with the `ids` that it gave back.
    :ivar since: the clock behind which the next page begins; None: there is none.
    """

    commits: list[msgspec.Raw]
    since: int | None = None


class Periods(msgspec.Struct, frozen=True):
    """The periods that have archives."""

    periods: list[str]


class Archived(msgspec.Struct, frozen=True):
    """What was moved into an archive.

    :ivar documents: how many.
    """

    documents: int


class FieldSeen(msgspec.Struct, frozen=True):
    """A field that some documents have.

    :ivar path: as conditions name it.
    :ivar documents: how many of the sampled ones have it.
    :ivar types: the JSON types of its values.
    """

    path: str
    documents: int
    types: list[str]


class AgentSeen(msgspec.Struct, frozen=True):
    """Who writes to the store.

    :ivar clock: of the newest commit that is known.
    """

    name: str
    clock: int


class Description(msgspec.Struct, frozen=True):
    """What is in a store.

    :ivar documents: how many there are.
    :ivar clock: the greatest clock there is.
    :ivar agent: the name that this door writes in for those who give none; None: it only reads.
    :ivar agents: the ones that wrote last, the newest first.
    :ivar more_agents: how many others there are.
    :ivar fields: what the sampled documents have, most frequent first.
    :ivar sampled: how many documents that were.
    :ivar ids: some of their ids.
    :ivar settings: those of the store.
    :ivar stats: figures, as of `Store.stats`.
    """

    documents: int
    clock: int
    agent: str | None
    agents: list[AgentSeen]
    more_agents: int
    fields: list[FieldSeen]
    sampled: int
    ids: list[str]
    settings: dict[str, Any]
    stats: dict[str, Any]


def entry_of(record: Set, data: Document | None = None) -> Entry:
    """A document with its record.

    :param data: what to show of it; None: all of it.
    """
    return Entry(record.id, str(record.stamp), record.author, record.ts, record.document if data is None else data)


def document_of(record: Record | None) -> Document | None:
    """The document, if it is there and can be read: for messages about it."""
    try:
        return record.document if isinstance(record, Set) else None
    except OpslogError:
        return None
