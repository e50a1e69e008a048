"""Errors for clients of a door: the tree of `opslog.errors` as a small table of codes.

Codes are stable, so programs may decide by them. The message says what happened, and `next` what to do about it.
"""

from __future__ import annotations

import msgspec

from opslog.doors.values import Entry, document_of, entry_of
from opslog.errors import (
    AgentBusyError,
    ClosedError,
    CommitUnknownError,
    ConflictError,
    DataError,
    ExistsError,
    ExpiredKeyError,
    HistoryGoneError,
    LeaseLostError,
    LockedError,
    MissingStoreError,
    NotFoundError,
    OpslogError,
    QueryError,
    ReadOnlyError,
    ReopenError,
    RetryError,
    UsageError,
    WriteFailedError,
)
from opslog.format.commits import Set


class Code(msgspec.Struct, frozen=True):
    """One kind of problem.

    :ivar retry: whether the same call may succeed later.
    :ivar next: what to do now.
    """

    code: str
    retry: bool
    next: str


# For those who cannot read docs/queries.md, which has all of it.
LANGUAGE = (
    'A condition is a text, as in status = "open" and hours > 3 and not (tags[*] = api or exists due.year), or a '
    'mapping, as in {"status": "open", "hours": {">": 3}}. Operators: =, !=, <, <=, >, >=, in [..], not in [..], '
    "exists PATH; and, or, not, ( ). A value is JSON; a text with spaces or signs needs double quotes. A path is "
    "title, due.year, items[0] or tags[*] (any of them); @id, @author and @ts are the document's own"
)

# The first class that fits counts, so a class stands before its base classes.
_TABLE: tuple[tuple[type[BaseException], Code], ...] = (
    (
        ExistsError,
        Code("exists", False, "Nothing was written. `now` is what is there: take another id, or modify it"),
    ),
    (
        LeaseLostError,
        Code("lease_lost", False, "Nothing was written. Somebody else may do this work now: leave it"),
    ),
    (
        ConflictError,
        Code(
            "conflict",
            False,
            "Nothing was written. `now` is what is there: decide again, with its stamp",
        ),
    ),
    (AgentBusyError, Code("locked", True, "Nothing was written. Another process has this name: try again in a second")),
    (LockedError, Code("locked", True, "Nothing was written. Another process holds the lock: try again in a second")),
    (
        WriteFailedError,
        Code("unavailable", True, "Nothing was written. The storage refused it (full, gone, offline): try again later"),
    ),
    (RetryError, Code("unavailable", True, "Nothing was written: try again in a second")),
    (
        CommitUnknownError,
        Code("unknown", False, "It may or may not have been written: read it, and decide by what is there"),
    ),
    (ReopenError, Code("unavailable", True, "The server has to open the store again: tell whoever runs it")),
    (
        ExpiredKeyError,
        Code("expired", False, "Nothing was written now. Read what is there; if it was not done, use a new key"),
    ),
    (QueryError, Code("invalid", False, f"Correct the condition or path. {LANGUAGE}")),
    (ReadOnlyError, Code("read_only", False, "Nothing can be written here: only read")),
    (ClosedError, Code("unavailable", True, "The server is stopping: connect again")),
    (UsageError, Code("invalid", False, "Correct the call as the message says")),
    (
        MissingStoreError,
        Code("unavailable", False, "There is no store at this place: tell whoever runs the server"),
    ),
    (NotFoundError, Code("not_found", False, "Look for the id with find, or create it")),
    (HistoryGoneError, Code("gone", False, "That part of the past was compacted away: ask for a later point")),
    (
        DataError,
        Code("unreadable", False, "What is stored cannot be read: tell whoever runs the server"),
    ),
    (OpslogError, Code("unavailable", False, "Tell whoever runs the server")),
)

CODES = tuple(dict.fromkeys(code.code for _, code in _TABLE))


class Problem(msgspec.Struct, frozen=True, omit_defaults=True):
    """What went wrong.

    :ivar code: one of `CODES`.
    :ivar message: what happened.
    :ivar next: what to do now.
    :ivar retry: whether the same call may succeed later.
    :ivar id: of the document that it is about.
    :ivar now: the document as it is now, if the caller expected another.
    :ivar place: the place in the document or condition.
    """

    code: str
    message: str
    next: str
    retry: bool = False
    id: str = ""
    now: Entry | None = None
    place: str = ""


def code_of(error: OpslogError) -> Code:
    """The code of an error."""
    return next(code for kind, code in _TABLE if isinstance(error, kind))


def problem_of(error: OpslogError) -> Problem:
    """The problem that a door reports for an error."""
    code = code_of(error)
    record = getattr(error, "record", None)
    data = document_of(record)
    return Problem(
        code=code.code,
        message=str(error),
        next=code.next,
        retry=code.retry,
        id=getattr(error, "id", ""),
        now=entry_of(record, data) if isinstance(record, Set) and data is not None else None,
        place=getattr(error, "place", ""),
    )
