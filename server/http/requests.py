"""Requests: headers, query and body, checked and turned into values for the streams."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from urllib.parse import parse_qsl, unquote

import msgspec

from opslog.doors.access import Receive, Scope
from opslog.environment import parse_ts
from opslog.server.http.budget import Holding
from opslog.server.http.exchange import WHOLE_BODY
from opslog.server.protocol import json_mode
from opslog.server.protocol.appending import Append
from opslog.server.protocol.creation import Create, ForkOf
from opslog.server.protocol.model import JSON, media_type
from opslog.server.protocol.offsets import BEGINNING, NOW, parse_offset
from opslog.server.protocol.producers import MAX_INTEGER, Stamp
from opslog.server.protocol.refusals import Refused

# The headers that matter here, by name in lower case; their bytes as latin-1.
Fields = dict[bytes, str]

PATH_BYTES_MAX = 500
_KNOWN = frozenset(
    b"accept-encoding authorization content-encoding content-length content-type host idempotency-key if-match "
    b"if-none-match opslog-agent origin producer-epoch producer-id producer-seq stream-closed stream-expires-at "
    b"stream-fork-offset stream-fork-sub-offset stream-forked-from stream-seq stream-ttl".split()
)
_LISTS = frozenset({b"accept-encoding", b"content-encoding", b"if-match", b"if-none-match"})
_CONTENT_TYPE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+/[!#$%&'*+.^_`|~0-9A-Za-z-]+\s*(;.*)?", re.ASCII)
_INTEGER = re.compile(r"0|[1-9][0-9]{0,15}", re.ASCII)
_DIGITS = re.compile(r"[0-9]+", re.ASCII)
_RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    """The headers by name. The lists of a header that comes several times become one list.

    :raises Refused: 400, a header that may come only once comes twice: a proxy in between may have used the other one.
    """
    found: Fields = {}
    for name, value in headers:
        if name in _KNOWN:
            text = value.decode("latin-1")
            if name in found:
                if name not in _LISTS:
                    raise Refused(400, f"the header {name.decode()} came more than once")
                text = f"{found[name]}, {text}"
            found[name] = text
    return found


def check_path(path: str) -> str:
    """:param path: behind the stream root, percent-decoded.
    :raises Refused: no stream can have it: 404 for reserved ones, otherwise 400."""
    if not path or len(path.encode("utf-8", "surrogatepass")) > PATH_BYTES_MAX:
        raise Refused(400, f"a stream's path has 1 to {PATH_BYTES_MAX} bytes")
    segments = path.split("/")
    if segments[0] == "__ds":
        raise Refused(404, "paths that begin with __ds are reserved")
    if "." in segments or ".." in segments or "\ufffd" in path or not path.isprintable():
        raise Refused(400, "a stream's path has no segments . and .. and only printable characters in UTF-8")
    return path


def arrived(scope: Scope, given: Fields, max_bytes: int, holding: Holding) -> bytes | None:
    """The whole body, if it has already arrived, as most short ones have (see `exchange.WHOLE_BODY`); None: `body` has
    to wait for it. Counts it in `holding`, and refuses one that is too large or compressed, as `body` does."""
    found: bytes | None = scope.get(WHOLE_BODY)
    if found is not None:
        if len(found) > max_bytes:
            raise _too_large(max_bytes)
        holding.hold(len(found), small=True)
        _check_encoding(found, given)
    return found


async def body(receive: Receive, given: Fields, max_bytes: int, seconds: float, holding: Holding) -> bytes:
    """The whole body.

    :param holding: the request's share of the budget, which includes the body afterwards.
    :raises Refused: 413 if it is larger than `max_bytes`, 408 if it does not come within `seconds`, 415 if it is
        compressed, 503 if there is no room for it now.
    :raises DisconnectedError: the client went away before it had sent all of it.
    """
    length = given.get(b"content-length")
    if length is not None and int(length) > max_bytes:
        raise _too_large(max_bytes)
    try:
        async with asyncio.timeout(seconds):
            found = await _whole(receive, max_bytes, holding)
    except TimeoutError:
        raise Refused(408, f"the body did not arrive within {seconds:g} seconds", [(b"connection", b"close")]) from None
    _check_encoding(found, given)
    return found


def _check_encoding(data: bytes, given: Fields) -> None:
    """Only the bytes of a body are stored. Readers would take compressed bytes for the content."""
    encoding = given.get(b"content-encoding", "")
    if data and encoding.strip().lower() not in {"", "identity"}:
        message = f"the body has the Content-Encoding {encoding!r}: send it as it is, without this header"
        raise Refused(415, message, [(b"accept-encoding", b"identity")])


async def _whole(receive: Receive, max_bytes: int, holding: Holding) -> bytes:
    chunks = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise DisconnectedError
        chunk: bytes = message.get("body", b"")
        more = message.get("more_body", False)
        if len(chunks) + len(chunk) > max_bytes:
            raise _too_large(max_bytes)
        holding.hold(len(chunks) + len(chunk), small=not chunks and not more)
        if not chunks and not more:
            return chunk
        chunks += chunk
        if not more:
            return bytes(chunks)


class DisconnectedError(Exception):
    """The client disconnected before its request was complete."""


def _too_large(max_bytes: int) -> Refused:
    return Refused(413, f"a body has at most {max_bytes} bytes", [(b"connection", b"close")])


def append_of(path: str, given: Fields, data: bytes) -> Append:
    """:raises Refused: 400."""
    close = _is_true(given.get(b"stream-closed"))
    stamp = _stamp(given) if b"producer-id" in given or b"producer-seq" in given or b"producer-epoch" in given else None
    content_type: str | None = given.get(b"content-type")
    problem = None
    if not data:
        if not close:
            raise Refused(400, "the body is empty: only a request that closes the stream may come without one")
        content_type = None
    elif not content_type:
        raise Refused(400, "Content-Type is missing")
    elif media_type(content_type) == JSON:
        data, problem = _json_record(data)
        if not data and problem is None:
            problem = Refused(400, "the array is empty: there is nothing to append")
    return Append(path, content_type, data, problem, close, given.get(b"stream-seq"), stamp)


def create_of(path: str, given: Fields, data: bytes, source: Callable[[str], str]) -> Create:
    """:param source: turns the path of a URL into that of a stream.
    :raises Refused: 400.
    """
    ttl, expires_at = given.get(b"stream-ttl"), given.get(b"stream-expires-at")
    if ttl is not None and expires_at is not None:
        raise Refused(400, "a stream has Stream-TTL or Stream-Expires-At, not both")
    if ttl is not None and (not _INTEGER.fullmatch(ttl) or int(ttl) > MAX_INTEGER):
        raise Refused(400, "Stream-TTL is a whole number of seconds, in digits without a leading zero")
    if expires_at is not None:
        _check_time(expires_at)
    content_type = given.get(b"content-type")
    if content_type is not None and not _CONTENT_TYPE.fullmatch(content_type):
        content_type = None
    return Create(
        path=path,
        content_type=content_type,
        ttl=None if ttl is None else int(ttl),
        expires_at=expires_at,
        closed=_is_true(given.get(b"stream-closed")),
        data=data,
        fork=_fork(given, source),
    )


def with_json(request: Create, content_type: str) -> Create:
    """The same request, with its body in the form in which a stream of this type stores it."""
    if not request.data or media_type(content_type) != JSON:
        return request
    data, problem = _json_record(request.data)
    return msgspec.structs.replace(request, data=data, problem=problem)


def _json_record(data: bytes) -> tuple[bytes, Refused | None]:
    try:
        return json_mode.record(data), None
    except Refused as refused:
        return b"", refused.with_traceback(None)  # the request keeps it, and the traceback would keep the body


def _fork(given: Fields, source: Callable[[str], str]) -> ForkOf | None:
    forked_from = given.get(b"stream-forked-from")
    offset, sub_offset = given.get(b"stream-fork-offset"), given.get(b"stream-fork-sub-offset")
    if forked_from is None:
        if offset is not None or sub_offset is not None:
            raise Refused(400, "Stream-Fork-Offset and Stream-Fork-Sub-Offset need Stream-Forked-From")
        return None
    position = None
    if offset is not None:
        position = 0 if offset == BEGINNING else parse_offset(offset)
        if position is None:
            raise Refused(400, "Stream-Fork-Offset is not an offset")
    if sub_offset is not None and (not _INTEGER.fullmatch(sub_offset) or int(sub_offset) > MAX_INTEGER):
        raise Refused(400, "Stream-Fork-Sub-Offset is a whole number, in digits without a leading zero")
    return ForkOf(source(unquote(forked_from)), position, int(sub_offset or 0))


def _check_time(text: str) -> None:
    try:
        if not _RFC3339.fullmatch(text):
            raise ValueError(text)
        parse_ts(text.upper().replace(" ", "T"))
    except (ValueError, OverflowError):
        raise Refused(400, "Stream-Expires-At is a time as in 2026-11-20T12:00:00Z (RFC 3339)") from None


def _stamp(given: Fields) -> Stamp:
    producer = given.get(b"producer-id")
    epoch, seq = given.get(b"producer-epoch"), given.get(b"producer-seq")
    if producer is None or epoch is None or seq is None:
        raise Refused(400, "Producer-Id, Producer-Epoch and Producer-Seq come together or not at all")
    if not producer:
        raise Refused(400, "Producer-Id is empty")
    for name, value in (("Epoch", epoch), ("Seq", seq)):
        if not _DIGITS.fullmatch(value) or len(value) > 16 or int(value) > MAX_INTEGER:
            raise Refused(400, f"Producer-{name} is a whole number from 0 to 2^53 - 1")
    return Stamp(producer, int(epoch), int(seq))


def _is_true(value: str | None) -> bool:
    return value is not None and value.lower() == "true"


class Read(msgspec.Struct, frozen=True):
    """Where a read begins, and of which kind it is.

    :ivar position: None: the end of the stream when the read begins.
    :ivar offset: as the client gave it; without one, the offset that is the default.
    :ivar live: None, ``long-poll`` or ``sse``.
    :ivar cursor: the cursor that the client got with its last response.
    """

    position: int | None = 0
    offset: str = BEGINNING
    live: str | None = None
    cursor: str | None = None


_FROM_BEGINNING = Read()
# Followers at the same position send the same query. Longer queries are not kept: no honest client sends them.
_KEPT_QUERY_BYTES = 200


def read_of(query: bytes) -> Read:
    """:raises Refused: 400."""
    if not query:
        return _FROM_BEGINNING
    return _read_of_short(query) if len(query) <= _KEPT_QUERY_BYTES else _read_of(query)


def _read_of(query: bytes) -> Read:
    found: dict[str, list[str]] = {}
    for name, value in parse_qsl(query.decode("latin-1"), keep_blank_values=True):
        found.setdefault(name, []).append(value)
    live = found.get("live", [None])[-1]
    if live not in (None, "long-poll", "sse"):
        raise Refused(400, "live is long-poll or sse")
    offsets = found.get("offset", [])
    if len(offsets) > 1:
        raise Refused(400, "offset was given more than once")
    if not offsets:
        if live is not None:
            raise Refused(400, "a live read needs an offset; -1 is the beginning, now the end")
        return _FROM_BEGINNING
    (offset,) = offsets
    position = 0 if offset == BEGINNING else parse_offset(offset)
    if position is None and offset != NOW:
        raise Refused(400, "this is not an offset: use what Stream-Next-Offset said, -1 or now")
    return Read(position, offset, live, found.get("cursor", [None])[-1])


_read_of_short = lru_cache(maxsize=256)(_read_of)
