"""The routes and their handlers, which translate requests into operations, and results into responses."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Annotated, Any

import msgspec

from opslog.compaction.compact import Compaction
from opslog.doors.activity import Activity
from opslog.doors.values import (
    Archived,
    ChangesPage,
    CommitsPage,
    Counted,
    Description,
    Expect,
    History,
    Op,
    Page,
    Periods,
    Undone,
    Written,
)
from opslog.errors import ConflictError, NotFoundError
from opslog.format.documents import Document
from opslog.format.prepared import prepare
from opslog.query.question import Where
from opslog.server.http.rest.problems import PreconditionError
from opslog.server.http.rest.routes import AS_OF, CURSOR, FIELDS, WHERE, Answer, Call, Parameter, Route
from opslog.server.protocol import conditional
from opslog.server.protocol.refusals import Headers, Refused
from opslog.server.stores.samples import Sample
from opslog.stats import Stats

# How many documents, commits or revisions one response has, by default and at most.
_ITEMS, _ITEMS_MAX = 100, 1000
# The most ops of one request.
_OPS_MAX = 100_000
# The length of a page of commits, by default: the commit of a batch may have megabytes.
_OPS_BYTES = 1024 * 1024
# Likewise of the documents in one response: as much as one request may set.
_DOCUMENTS_BYTES = 16 * 1024 * 1024
# The greatest length that a client may ask for.
_BYTES_MAX = 64 * 1024 * 1024
Ops = Annotated[list[Op], msgspec.Meta(max_length=_OPS_MAX)]


class BatchBody(msgspec.Struct, forbid_unknown_fields=True):
    """Several writes as one commit."""

    ops: Ops


class TransactBody(msgspec.Struct, forbid_unknown_fields=True):
    """Conditions, and writes that happen if all conditions hold.

    :ivar expect: conditions on documents, also on those that are not written.
    """

    ops: Ops = []
    expect: list[Expect] = []


class ArchiveBody(msgspec.Struct, forbid_unknown_fields=True):
    """The documents to move into an archive.

    :ivar where: the condition that they fulfil, as for the list.
    :ivar period: the name of the archive; left out: the current quarter.
    :ivar older_than_seconds: move only documents whose last write is longer ago than this.
    """

    where: str | dict[str, Any]
    period: str | None = None
    older_than_seconds: Annotated[float, msgspec.Meta(ge=0, le=1e10)] | None = None


class CompactBody(msgspec.Struct, forbid_unknown_fields=True):
    """:ivar full: merge the whole snapshot, and remove expired tombstones."""

    full: bool = False


class UndoBody(msgspec.Struct, forbid_unknown_fields=True):
    """:ivar stamp: undo only if the newest commit has this stamp; for several clients that write under one name."""

    stamp: str | None = None


class Counts(msgspec.Struct):
    """The number of documents; with `by`, for each value."""

    documents: int
    groups: list[Counted] | None = None


class Figures(msgspec.Struct):
    """Figures of a store since the server was started, oldest first. The longer the server runs, the fewer per hour."""

    samples: list[Sample]


def _limit(what: str) -> Parameter:
    return Parameter("limit", f"Return at most this many {what}.", int, least=1, most=_ITEMS_MAX, default=_ITEMS)


def describe(call: Call) -> Answer:
    return Answer(200, call.operations.describe())


def list_documents(call: Call) -> Answer:
    given = call.given
    page = call.operations.find(
        _where(given["where"]),
        order_by=given["order_by"] or None,
        limit=given["limit"],
        offset=given["offset"],
        cursor=given["cursor"],
        fields=given["fields"],
        max_bytes=given["max_bytes"],
    )
    return Answer(200, page)


def count(call: Call) -> Answer:
    where, by = _where(call.given["where"]), call.given["by"]
    groups = None if by is None else call.operations.group(by, where)
    return Answer(200, Counts(call.operations.count(where), groups))


def get_document(call: Call) -> Answer:
    entry = call.operations.get(call.id)
    headers = [*_tag(entry.stamp), (b"opslog-author", entry.author.encode()), (b"opslog-ts", entry.ts.encode())]
    headers.append((b"cache-control", b"private, no-cache"))
    known = call.headers.get(b"if-none-match")
    if known is not None and conditional.matches(known, entry.stamp):
        return Answer(304, None, headers)
    return Answer(200, entry.data, headers)


def put_document(call: Call) -> Answer:
    create, tag = _is_new(call), _if_match(call)
    with _preconditions(call):
        if create:
            return _written(201, call.operations.create(call.id, call.body))
        if tag == "*":
            return _written(200, call.operations.replace(call.id, call.body))
        return _written(200, call.operations.set(call.id, call.body, if_stamp=tag))


def patch_document(call: Call) -> Answer:
    tag = _if_match(call)
    with _preconditions(call):
        changed, document = call.operations.modify(call.id, call.body, if_stamp=_stamp(tag), exists=tag == "*")
    return Answer(200, document, _tag(changed.stamp))


def delete_document(call: Call) -> Answer:
    tag = _if_match(call)
    with _preconditions(call):
        return _written(200, call.operations.delete(call.id, if_stamp=_stamp(tag)))


def batch(call: Call) -> Answer:
    return _written(200, call.operations.batch(call.body.ops))


def transact(call: Call) -> Answer:
    return _written(200, call.operations.transact(call.body.ops, call.body.expect))


def undo(call: Call) -> Answer:
    return Answer(200, call.operations.undo(None if call.body is None else call.body.stamp))


def history(call: Call) -> Answer:
    return Answer(200, call.operations.history(call.id, call.given["limit"], call.given["max_bytes"]))


def changes(call: Call) -> Answer:
    given = call.given
    found = call.operations.changes(
        given["since"], limit=given["limit"], most=given["most"], max_bytes=given["max_bytes"]
    )
    return Answer(200, found)


def ops(call: Call) -> Answer:
    given = call.given
    return Answer(200, call.operations.ops(given["since"], given["limit"], given["max_bytes"]))


def archives(call: Call) -> Answer:
    return Answer(200, call.operations.archives())


def archived(call: Call) -> Answer:
    return Answer(200, call.operations.archived(call.id, **call.given))


def archive(call: Call) -> Answer:
    body = call.body
    older = None if body.older_than_seconds is None else timedelta(seconds=body.older_than_seconds)
    return Answer(200, call.operations.archive(body.where, body.period, older_than=older))


def compact(call: Call) -> Answer:
    return Answer(200, call.operations.compact(full=call.body is not None and call.body.full))


def stats(call: Call) -> Answer:
    return Answer(200, call.operations.stats())


def activity(call: Call) -> Answer:
    now = call.given["as_of"] is None
    found = call.served.activity(_ITEMS_MAX) if now else call.operations.activity(_ITEMS_MAX)
    return Answer(200, found.limited(call.given["limit"]))


def figures(call: Call) -> Answer:
    return Answer(200, Figures(list(call.served.samples())))


# -- what headers say


_TAG = re.compile(r'"([^"]*)"')


def _if_match(call: Call) -> str | msgspec.UnsetType:
    """The stamp that the document must have; ``*``: any stamp.

    :raises Refused: 400.
    """
    text = call.headers.get(b"if-match")
    if text is None:
        return msgspec.UNSET
    if text.strip() == "*":
        return "*"
    match = _TAG.fullmatch(text.strip())
    if match is None:
        raise Refused(400, 'If-Match takes one ETag as it was given, as in "1042@planner", or *')
    return match[1].partition(";")[0]  # the compression of the response follows it


def _stamp(tag: str | msgspec.UnsetType) -> str | msgspec.UnsetType:
    """The condition on the stamp. ``*`` is none: the call itself fails if the document does not exist."""
    return msgspec.UNSET if tag == "*" else tag


def _is_new(call: Call) -> bool:
    """Whether the document must not exist.

    :raises Refused: 400.
    """
    text = call.headers.get(b"if-none-match")
    if text is None:
        return False
    if text.strip() != "*" or b"if-match" in call.headers:
        raise Refused(400, "a write takes If-None-Match: * (there must be no document) or If-Match, and not both")
    return True


@contextmanager
def _preconditions(call: Call) -> Iterator[None]:
    """Turn conflicts into 412 if the condition came in a header."""
    try:
        yield
    except (ConflictError, NotFoundError) as error:
        if b"if-match" in call.headers or b"if-none-match" in call.headers:
            raise PreconditionError(error) from error
        raise


def _tag(stamp: str | None) -> Headers:
    return [] if stamp is None else [(b"etag", f'"{stamp}"'.encode())]


def _written(status: int, written: Written) -> Answer:
    return Answer(status, written, _tag(written.stamp))


def _where(text: str | None) -> Where | None:
    """A condition, as a JSON object or as text.

    :raises Refused: 400, it begins as an object and is not one.
    """
    if text is None or not text.lstrip().startswith("{"):
        return text
    try:
        found: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Refused(400, f"where begins as a JSON object, but cannot be read as one: {error}") from None
    return found


# -- the table


def _max_bytes(what: str, default: int) -> Parameter:
    text = f"End the page before it is longer than this. It has at least one {what}."
    return Parameter("max_bytes", text, int, least=1, most=_BYTES_MAX, default=default)


_PAGE_BYTES = _max_bytes("document", _DOCUMENTS_BYTES)
_ARCHIVES_ARE_NOW = "archives are files beside the store, and no commit says what one held before"
_QUESTION = (
    WHERE,
    Parameter(
        "order_by", "A path to sort by, with a minus before it to reverse the order; may be repeated.", is_list=True
    ),
    _limit("documents"),
    Parameter("offset", "Skip this many first.", int, most=2**53 - 1, default=0),
    CURSOR,
    FIELDS,
    _PAGE_BYTES,
    AS_OF,
)
_CONDITIONS = ("If-Match", "If-None-Match")

ROUTES: tuple[Route, ...] = (
    Route(
        "GET",
        "",
        "read",
        "describe",
        "What is in the store: counts, fields, who writes.",
        describe,
        (AS_OF,),
        answers={200: ("What is there.", Description)},
    ),
    Route(
        "GET",
        "/documents",
        "read",
        "list",
        "Documents that fulfil a condition.",
        list_documents,
        _QUESTION,
        answers={200: ("Some of them, and the cursor of the next page.", Page)},
    ),
    Route(
        "GET",
        "/documents/{id}",
        "read",
        "get",
        "A document.",
        get_document,
        (AS_OF,),
        answers={200: ("The document.", Document), 304: ("It still has the stamp of If-None-Match.", None)},
        conditions=("If-None-Match",),
    ),
    Route(
        "PUT",
        "/documents/{id}",
        "write",
        "set",
        "Give a document a new value.",
        put_document,
        body=Document,
        answers={200: ("It is durable.", Written), 201: ("It was created (If-None-Match: *).", Written)},
        conditions=_CONDITIONS,
        is_keyed=True,
    ),
    Route(
        "PATCH",
        "/documents/{id}",
        "write",
        "modify",
        "Change some fields of a document (RFC 7396).",
        patch_document,
        body=Document,
        answers={200: ("The document as it is now.", Document)},
        conditions=("If-Match",),
        media_type="application/merge-patch+json",
        is_keyed=True,
    ),
    Route(
        "DELETE",
        "/documents/{id}",
        "write",
        "delete",
        "Delete a document.",
        delete_document,
        answers={200: ("It is gone, durably.", Written)},
        conditions=("If-Match",),
        is_keyed=True,
    ),
    Route(
        "GET",
        "/count",
        "read",
        "count",
        "Count the documents that fulfil a condition, or that have each value.",
        count,
        (WHERE, Parameter("by", "Count for each value at this path."), AS_OF),
        answers={200: ("How many.", Counts)},
    ),
    Route(
        "POST",
        "/batch",
        "write",
        "batch",
        "Several writes as one commit: all of them or none.",
        batch,
        body=BatchBody,
        answers={200: ("They are durable.", Written)},
        is_keyed=True,
    ),
    Route(
        "POST",
        "/transact",
        "write",
        "transact",
        "Check conditions and write, all in one.",
        transact,
        body=TransactBody,
        answers={200: ("All held, and what was written is durable.", Written)},
        is_keyed=True,
    ),
    Route(
        "POST",
        "/undo",
        "write",
        "undo",
        "Undo the newest commit of the token's agent.",
        undo,
        body=UndoBody,
        is_optional=True,
        answers={200: ("What was undone.", Undone)},
        is_keyed=True,
    ),
    Route(
        "GET",
        "/history/{id}",
        "read",
        "history",
        "The writes of a document, as far as they are kept.",
        history,
        (_limit("revisions"), _max_bytes("revision", _DOCUMENTS_BYTES), AS_OF),
        answers={200: ("Oldest first.", History)},
        is_long=True,
    ),
    Route(
        "GET",
        "/changes",
        "read",
        "changes",
        "What changed since a token.",
        changes,
        (
            Parameter("since", "The token of the answer before; left out: everything, as a reset."),
            Parameter("limit", "Stop after this many commits.", int, least=1, most=_ITEMS_MAX, default=_ITEMS_MAX),
            Parameter(
                "most",
                "Return at most this many documents, and the ids of others. A larger reset has none of them.",
                int,
                least=0,
                most=_ITEMS_MAX,
                default=_ITEMS_MAX,
            ),
            Parameter(
                "max_bytes",
                "Return at most this many bytes of documents.",
                int,
                most=_BYTES_MAX,
                default=_DOCUMENTS_BYTES,
            ),
        ),
        answers={200: ("Changes, and the next token.", ChangesPage)},
        now_only="changes lead from a token to the present. GET /ops?as_of=… has the commits up to then",
    ),
    Route(
        "GET",
        "/ops",
        "read",
        "ops",
        "The retained commits of all agents, in the order of their clocks.",
        ops,
        (
            Parameter("since", "Only commits with a greater clock.", int),
            _limit("commits"),
            _max_bytes("commit", _OPS_BYTES),
            AS_OF,
        ),
        answers={200: ("As lines of logs.", CommitsPage)},
        is_long=True,
    ),
    Route(
        "GET",
        "/archives",
        "read",
        "archives",
        "The periods that have archives.",
        archives,
        answers={200: ("Their names.", Periods)},
        now_only=_ARCHIVES_ARE_NOW,
    ),
    Route(
        "GET",
        "/archives/{period}",
        "read",
        "archived",
        "The documents of an archive.",
        archived,
        (
            Parameter("limit", "Return at most this many.", int, least=1, most=_ITEMS_MAX),
            CURSOR,
            _PAGE_BYTES,
        ),
        answers={200: ("The documents, and the cursor of the next page.", Page)},
        now_only=_ARCHIVES_ARE_NOW,
        is_long=True,
    ),
    Route(
        "POST",
        "/archives",
        "operate",
        "archive",
        "Move documents into an archive.",
        archive,
        body=ArchiveBody,
        answers={200: ("How many were moved.", Archived)},
    ),
    Route(
        "POST",
        "/compact",
        "operate",
        "compact",
        "Compact the store, and collect garbage.",
        compact,
        body=CompactBody,
        is_optional=True,
        answers={200: ("What it did.", Compaction)},
    ),
    Route(
        "GET",
        "/activity",
        "read",
        "activity",
        "Who did what lately, of the commits that are kept: agents, commits, and writes that lost.",
        activity,
        (_limit("commits, and lost writes"), AS_OF),
        answers={200: ("Newest first.", Activity)},
        is_in_turn=True,
    ),
    Route(
        "GET",
        "/figures",
        "read",
        "figures",
        "Commits, tails, documents and compactions since the server was started.",
        figures,
        answers={200: ("Oldest first.", Figures)},
        now_only="each sample has its own time. GET /stats?as_of=… has the figures of one moment",
    ),
    Route(
        "GET",
        "/stats",
        "read",
        "stats",
        "Figures of the store. Its files and their lengths are always the present ones.",
        stats,
        (AS_OF,),
        answers={200: ("The figures, of now or then.", Stats)},
    ),
)

prepare(*(route.body for route in ROUTES if route.body is not None))
