"""Arguments and results of `opslog.doors.operations`: plain structs that become JSON as they are, with stamps as text
(``1042@planner``).

The names are those of Python and of the command line: `id`, `stamp`, `author`, `ts`, `data`. Clients see these
docstrings, in the schemas of MCP and OpenAPI.
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

    :ivar op: set; create, which fails if the document exists; or delete, which fails if it does not.
    :ivar data: the document, for set and create.
    :ivar if_stamp: write only if the document still has this stamp; None: only if it does not exist. Left out: always.
    """

    op: Literal["set", "create", "delete"]
    id: str
    data: Document | None = None
    if_stamp: str | msgspec.UnsetType | None = msgspec.UNSET


class Expect(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A condition on a document, which the transaction need not write.

    :ivar stamp: the stamp that it must still have; None: it must not exist.
    """

    id: str
    stamp: str | None


# -- out


class Entry(msgspec.Struct, frozen=True):
    """A document, and who wrote it last.

    :ivar stamp: stays the same as long as nobody writes the document.
    :ivar author: who wrote it.
    :ivar ts: when it was written, by the author's clock.
    :ivar data: the document; or, if the request named fields, the values of those that it has, by path.
    """

    id: str
    stamp: str
    author: str
    ts: str
    data: Document


class Page(msgspec.Struct, frozen=True):
    """Some of the documents that were found.

    :ivar cursor: where the next page begins; None: this is the last page.
    """

    items: list[Entry]
    cursor: str | None = None


class Counted(msgspec.Struct, frozen=True):
    """How many documents have a value."""

    value: Any
    documents: int


class Written(msgspec.Struct, frozen=True):
    """The result of a write, which is durable.

    :ivar ids: the documents that were written.
    :ivar stamp: the stamp of all of them; None: there was nothing to write.
    """

    ids: list[str]
    stamp: str | None


class Undone(msgspec.Struct, frozen=True):
    """The result of an undo.

    :ivar undone: False: this agent has nothing left to undo.
    :ivar stamp: of the commit that was undone.
    :ivar ids: the documents that it had written.
    """

    undone: bool
    stamp: str | None = None
    ids: list[str] = []


class Revised(msgspec.Struct, frozen=True):
    """One set or delete of a document.

    :ivar data: the document that was set; None: it was deleted.
    :ivar undone: whether an undo cancelled it.
    """

    op: str
    stamp: str
    author: str
    ts: str
    undone: bool
    data: Document | None = None


class History(msgspec.Struct, frozen=True):
    """The writes of a document, oldest first, as far as they are retained.

    :ivar earlier: how many older revisions were left out.
    """

    id: str
    revisions: list[Revised]
    earlier: int = 0


class Changed(msgspec.Struct, frozen=True):
    """A document that changed, as it is now.

    :ivar op: "set", or "delete" if it does not exist any more.
    :ivar existed: whether it existed at the token of the request.
    :ivar stamp: of the last write; of a deleted document, as long as it is known. So are `author` and `ts`.
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
    :ivar ids: the documents that it wrote; for an undo, those that it restored.
    :ivar won: whether it won for all of them.
    """

    stamp: str
    author: str
    ts: str
    op: str
    ids: list[str]
    won: bool


class ChangesPage(msgspec.Struct, frozen=True):
    """What changed since a token.

    :ivar token: for the next request. Keep it once you have applied all of this.
    :ivar reset: true: these are all documents of the store, and replace everything that you know.
    :ivar omitted: the ids of further documents that changed, left out because there are too many.
    :ivar complete: false: this is a reset, and all documents are left out because there are too many. Forget what you
        have, read the pages of a list, and continue from the token. Writes that happen meanwhile come with the next
        changes.
    """

    token: str
    reset: bool
    changes: list[Changed]
    commits: list[Committed]
    omitted: list[str] = []
    complete: bool = True


class CommitsPage(msgspec.Struct, frozen=True):
    """Commits, in the order of their clocks.

    :ivar commits: each as its line in the log; an undo also has the `ids` that it restored.
    :ivar since: for the next request; None: this is the last page.
    """

    commits: list[msgspec.Raw]
    since: int | None = None


class Periods(msgspec.Struct, frozen=True):
    """The periods that have archives."""

    periods: list[str]


class Archived(msgspec.Struct, frozen=True):
    """The result of moving documents into an archive.

    :ivar documents: how many were moved.
    """

    documents: int


class FieldSeen(msgspec.Struct, frozen=True):
    """A field that some documents have.

    :ivar path: its name in conditions.
    :ivar documents: how many of the sampled documents have it.
    :ivar types: the JSON types of its values.
    """

    path: str
    documents: int
    types: list[str]


class AgentSeen(msgspec.Struct, frozen=True):
    """An agent that writes to the store.

    :ivar clock: of its newest known commit.
    """

    name: str
    clock: int


class Description(msgspec.Struct, frozen=True):
    """What is in a store.

    :ivar documents: how many it has.
    :ivar clock: the greatest clock in it.
    :ivar agent: the author of what is written here by clients that name none; None: nothing can be written here.
    :ivar agents: the agents that wrote last, the newest first.
    :ivar more_agents: how many other agents there are.
    :ivar fields: the fields of the sampled documents, the most frequent first.
    :ivar sampled: how many documents were sampled.
    :ivar ids: some of their ids.
    :ivar settings: the settings of the store.
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
    """The entry of a record.

    :param data: the part of the document to show; None: all of it.
    """
    return Entry(record.id, str(record.stamp), record.author, record.ts, record.document if data is None else data)


def document_of(record: Record | None) -> Document | None:
    """The document, if it exists and can be read. For error messages."""
    try:
        return record.document if isinstance(record, Set) else None
    except OpslogError:
        return None
