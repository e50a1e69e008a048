"""The meaning of responses. Section numbers are those of the protocol's specification.

A response that cannot be understood raises `ProtocolError`, which names the request, the response, and what to do.
Nothing is guessed, because a wrong offset, number or body would lose or duplicate data.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn, TypedDict

from opslog.server.client import errors
from opslog.server.client.arguments import INTEGER_MAX, is_content_type, is_header_value, is_offset
from opslog.server.client.messages import (
    JSON,
    NOW,
    START,
    Appended,
    Metadata,
    Reply,
    Request,
    UnreadableMessages,
    decoded,
)

# The most of a response that a message shows.
_SHOWN = 200


def senseless(
    request: Request, status: int | None, what: str, advice: str = "is that the address of a stream?"
) -> NoReturn:
    """Raise the error for a response that cannot be understood.

    :param status: None: not known.
    :param what: the response, as in "… was answered 200 with <what>".
    """
    did = f"{request.method} {request.url} was answered{'' if status is None else f' {status}'}"
    raise errors.ProtocolError(f"{did} {what}: {advice}", status=status, url=request.url)


def metadata(request: Request, reply: Reply) -> Metadata:
    """The metadata in the response to a PUT or a HEAD (sections 5.1 and 5.5)."""
    return Metadata(
        content_type(request, reply),
        next_offset(request, reply),
        _closed(request, reply),
        whole_number(request, reply, "Stream-TTL"),
        reply.headers.get("stream-expires-at"),
    )


def appended(request: Request, reply: Reply) -> Appended:
    """The result in the response to a POST (sections 5.2 and 5.3)."""
    return Appended(next_offset(request, reply), _closed(request, reply))


def _closed(request: Request, reply: Reply) -> bool:
    """Whether the stream is closed.

    :raises ProtocolError: the request should have closed it, and the response does not confirm that.
    """
    closed = is_closed(reply)
    if "Stream-Closed" in request.headers and not closed:
        advice = "this server does not close streams; read the stream to see what it has of this request"
        senseless(request, reply.status, "without Stream-Closed", advice)
    return closed


def deleted(request: Request, reply: Reply) -> None:
    """Check the response to a DELETE (section 5.4). If an earlier attempt deleted the stream, the response says that it
    does not exist."""
    if reply.status not in {204, 404, 410}:
        senseless(request, reply.status, "instead of 204")


def is_closed(reply: Reply) -> bool:
    return _is_true(reply, "stream-closed")


def is_up_to_date(reply: Reply) -> bool:
    return _is_true(reply, "stream-up-to-date")


def _is_true(reply: Reply, name: str) -> bool:
    return reply.headers.get(name, "").lower() == "true"


def next_offset(request: Request, reply: Reply) -> str:
    offset = reply.headers.get("stream-next-offset")
    if offset is None:
        senseless(request, reply.status, "without Stream-Next-Offset")
    return checked_offset(request, reply.status, offset)


def checked_offset(request: Request, status: int, offset: object) -> str:
    """An offset from a server. It is never one of those that only clients send (section 8)."""
    if not is_offset(offset) or offset in {START, NOW}:
        senseless(request, status, f"with {_shown(offset)}, which is no offset")
    assert isinstance(offset, str)
    return offset


def checked_cursor(request: Request, status: int, cursor: object) -> str | None:
    """The cursor, which the next request of a live read repeats (section 10.1)."""
    if cursor is not None and not is_header_value(cursor):
        senseless(request, status, f"with {_shown(cursor)}, which is no cursor")
    assert cursor is None or isinstance(cursor, str)
    return cursor


def content_type(request: Request, reply: Reply) -> str:
    found = reply.headers.get("content-type", "")
    if not is_content_type(found):
        senseless(request, reply.status, f"with the content type {_shown(found)}")
    return found


def whole_number(request: Request, reply: Reply, name: str) -> int | None:
    """The number in a header; None: there is no such header."""
    text = reply.headers.get(name.lower())
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 16 and int(text) <= INTEGER_MAX):
        senseless(request, reply.status, f"with {name}: {_shown(text)}, which is no number")
    return int(text)


def messages(request: Request, status: int, data: bytes) -> list[Any] | UnreadableMessages:
    """The messages in a response or event of a JSON stream (section 9.1.5).

    :raises ProtocolError: it is not a JSON array in UTF-8.
    """
    try:
        found = decoded(data)
    except UnreadableMessages as unreadable:
        return unreadable
    except ValueError as error:
        what = f"with {len(data)} bytes that are not {JSON} ({error}): {_shown(data)}"
        senseless(request, status, what, "it was cut off or damaged on the way; read again from the same offset")
    if not isinstance(found, list):
        senseless(request, status, f"with {_shown(data)}, which is no JSON array")
    return found


def control(request: Request, text: str) -> dict[str, Any]:
    """The fields of a control event (section 5.8); the fields used here are checked."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        senseless(request, 200, f"with a control event that says {_shown(text)}")
    checked_offset(request, 200, found.get("streamNextOffset"))
    checked_cursor(request, 200, found.get("streamCursor"))
    if not all(isinstance(found.get(name, False), bool) for name in ("upToDate", "streamClosed")):
        senseless(request, 200, f"with a control event that says {_shown(text)}")
    return found


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


class _Known(TypedDict):
    status: int
    url: str
    detail: str


def refuse(request: Request, reply: Reply) -> NoReturn:
    """Raise the error for a response that is not a success."""
    detail = detail_of(reply)
    did = f"{request.method} {request.url}"
    known: _Known = {"status": reply.status, "url": request.url, "detail": detail}
    said = f" ({detail})" if detail else ""
    match reply.status:
        case 404:
            missing = "its source does not exist" if "Stream-Forked-From" in request.headers else "no such stream"
            raise errors.StreamNotFoundError(f"{did}: {missing}{said}; create it first", **known)
        case 410:
            raise errors.StreamGoneError(
                f"{did}: it was deleted, or what was asked for is no longer kept{said}; read from the start, or use "
                "another path",
                **known,
            )
        case 409 if is_closed(reply):
            end = reply.headers.get("stream-next-offset", "")
            raise errors.StreamClosedError(
                f"{did}: the stream is closed at {end}, nothing can follow",
                next_offset=end,
                url=request.url,
                detail=detail,
            )
        case 409:
            raise errors.StreamConflictError(f"{did}: it contradicts what the stream is{said}", **known)
        case 429 | 503 | 507:
            raise errors.UnavailableError(f"{did}: the server has no capacity{said}; try again later", **known)
        case 501 | 505:
            raise errors.RequestRefusedError(f"{did}: the server cannot do this, {reply.status}{said}", **known)
        case status if 400 <= status < 500:
            raise errors.RequestRefusedError(f"{did}: refused with {status}{said}; fix the request", **known)
        case status if status >= 500 and request.method in {"GET", "HEAD"}:
            message = f"{did}: the server failed with {status}{said}; nothing was changed, try again later"
            raise errors.UnavailableError(message, **known)
        case status if status >= 500:
            raise errors.OutcomeUnknownError(
                f"{did}: the server failed with {status}{said}; read the stream before you repeat it", **known
            )
        case status if 300 <= status < 400 and "location" in reply.headers:
            target = _shown(reply.headers["location"])
            raise errors.ProtocolError(f"{did}: {status} leads to {target}; use that address for the client", **known)
    raise errors.ProtocolError(f"{did}: {reply.status} is no answer of this protocol{said}", **known)


def detail_of(reply: Reply) -> str:
    """The explanation in the body of a response."""
    return reply.content[:500].decode("utf-8", "replace").strip()
