"""Errors as problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from opslog.doors.problems import Problem, problem_of
from opslog.doors.values import Entry
from opslog.errors import InvalidDocumentError, OpslogError, WriteFailedError
from opslog.server.protocol.refusals import Headers, Refused

CONTENT_TYPE = (b"content-type", b"application/problem+json")

# The status and the title of each code. A condition in a header that does not hold is 412 (`PreconditionError`).
_CODES: dict[str, tuple[int, str]] = {
    "invalid": (400, "The request cannot work as it was made"),
    "unauthenticated": (401, "A bearer token is missing, or not known"),
    "forbidden": (403, "This token does not allow it"),
    "read_only": (403, "Nothing can be written here"),
    "not_found": (404, "It does not exist"),
    "method_not_allowed": (405, "This method is not possible here"),
    "timeout": (408, "The body did not arrive in time"),
    "conflict": (409, "Something has changed since it was read"),
    "exists": (409, "The document exists"),
    "lease_lost": (409, "The lease is somebody else's now"),
    "expired": (409, "The key is too old"),
    "gone": (410, "That part of the past was compacted away"),
    "too_large": (413, "The body is too large"),
    "rate": (429, "Too many requests"),
    "unknown": (500, "It is unknown whether this was done"),
    "unreadable": (500, "What is stored cannot be read"),
    "locked": (503, "Another process is in the way"),
    "unavailable": (503, "This cannot be done now"),
}
# What clients learn about faults of the server and its storage. Only the log has the details, which name files and
# processes.
_FAULTS = {
    "unknown": "the storage failed while this was written; the server's log says how",
    "unreadable": "what is stored cannot be read; the server's log says where",
    "locked": "another process holds a lock or a name that this needs; the server's log says which",
    "unavailable": "the store cannot do this now; the server's log says why",
}
# Code and advice of the server's own refusals, by status.
_REFUSED = {
    400: ("invalid", "Correct the request as the message says"),
    401: ("unauthenticated", "Send Authorization: Bearer TOKEN"),
    403: ("forbidden", "Use a token that allows it, or ask whoever runs the server for one"),
    404: ("not_found", "Correct the address"),
    405: ("method_not_allowed", "Use one of the methods in Allow"),
    408: ("timeout", "Send it again"),
    409: ("conflict", "Read what is there"),
    413: ("too_large", "Send less at once"),
    415: ("invalid", "Send the body as it is, without Content-Encoding"),
    429: ("rate", "Wait as long as Retry-After says"),
    500: ("unknown", "Read what is there, and decide by that; tell whoever runs the server"),
    503: ("unavailable", "Try again as Retry-After says"),
}
CODES = tuple(_CODES)
_RETRY_AFTER = (b"retry-after", b"1")


class ProblemDocument(msgspec.Struct, omit_defaults=True):
    """Why a request failed (RFC 9457).

    :ivar type: ``urn:opslog:problem:`` and the code.
    :ivar title: of this kind of problem.
    :ivar status: of the response.
    :ivar detail: what happened.
    :ivar code: for programs to decide by.
    :ivar next: what to do now.
    :ivar retry: whether the same request may succeed later.
    :ivar id: of the document that it is about.
    :ivar now: the document as it is now, if the client expected another.
    :ivar place: the place in the document or condition.
    :ivar request_id: the id of the request, which is also in the header ``X-Request-Id`` and in the server's log.
    """

    type: str
    title: str
    status: int
    detail: str
    code: str
    next: str
    retry: bool = False
    id: str = ""
    now: Entry | None = None
    place: str = ""
    request_id: str = ""


class PreconditionError(Exception):
    """A condition in the headers of a request does not hold.

    :ivar error: the store's error.
    """

    def __init__(self, error: OpslogError) -> None:
        super().__init__(str(error))
        self.error = error


def document_of(
    error: OpslogError, status: int | None = None, named: Callable[[str], str] = str
) -> tuple[ProblemDocument, Headers]:
    """The problem document of an error, and the headers of its response.

    :param named: replaces the place of the store by its name, in messages to clients.
    """
    if isinstance(error, Refused):
        code, then = _REFUSED.get(error.status, ("unavailable", "Try again later"))
        problem = Problem(code, str(error), then, retry=error.status in {408, 429, 503})
        return _document(problem, error.status), [*error.headers]
    problem = problem_of(error)
    found = status or _CODES[problem.code][0]
    if isinstance(error, WriteFailedError):
        found = 507
    if isinstance(error, InvalidDocumentError) and found == 400:
        found = 422
    detail = _FAULTS[problem.code] if found >= 500 else named(problem.message)
    problem = msgspec.structs.replace(problem, message=detail)
    return _document(problem, found), [_RETRY_AFTER] if problem.retry and found >= 500 else []


def _document(problem: Problem, status: int) -> ProblemDocument:
    given: dict[str, Any] = msgspec.structs.asdict(problem)
    return ProblemDocument(
        type=f"urn:opslog:problem:{problem.code}",
        title=_CODES[problem.code][1],
        status=status,
        detail=given.pop("message"),
        **given,
    )
