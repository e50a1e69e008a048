"""Creating streams and forks, or confirming that they exist."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from opslog.environment import parse_ts
from opslog.server.protocol import ranges
from opslog.server.protocol.lifetimes import Accesses, end_if_over
from opslog.server.protocol.model import Fork, Segment, Stream, media_type
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.transaction import Transaction

DEFAULT_CONTENT_TYPE = "application/octet-stream"


class ForkOf(msgspec.Struct):
    """:ivar source: the path of the source.
    :ivar position: None: the end of the source.
    """

    source: str
    position: int | None = None
    sub_offset: int = 0


class Create(msgspec.Struct):
    """A client's request to create a stream.

    :ivar content_type: None if the client gave no valid one.
    :ivar data: first content, as it will be stored.
    :ivar problem: why the body cannot be stored; ignored if the stream exists already.
    """

    path: str
    content_type: str | None = None
    ttl: int | None = None
    expires_at: str | None = None
    closed: bool = False
    data: bytes = b""
    problem: Refused | None = None
    fork: ForkOf | None = None


class Created(msgspec.Struct, frozen=True):
    """:ivar new: whether the stream did not exist before."""

    stream: Stream
    new: bool


def create(transaction: Transaction, request: Create, accesses: Accesses) -> Created:
    """Create a stream, or confirm that it exists as requested.

    :raises Refused: 409 if another one exists; for forks also 404, 409 and 400. Nothing was changed.
    """
    there = transaction.stream(request.path)
    if there is not None and not end_if_over(transaction, there, accesses):
        if not _is_same(there, request):
            raise Refused(409, "there is a stream with another configuration at this path")
        return Created(there, new=False)
    there = transaction.stream(request.path)
    if there is not None:
        raise Refused(409, "a stream at this path was deleted, but forks of it still need its data")
    if request.fork is not None:
        stream = _fork(transaction, request, request.fork, accesses)
    else:
        stream = _new(transaction, request, request.content_type or DEFAULT_CONTENT_TYPE)
    if request.problem is not None:
        raise request.problem
    return Created(_keep(transaction, stream, request), new=True)


def _keep(transaction: Transaction, stream: Stream, request: Create) -> Stream:
    """Store a new stream. Until here the request has changed nothing, except that it may have ended expired streams."""
    stream = replace(stream, id=transaction.new_id())
    if request.data:
        transaction.append(stream.id, stream.tail, request.data)
        stream = replace(stream, tail=stream.tail + len(request.data))
    if stream.fork is not None:
        source = transaction.stream(stream.fork.source)
        assert source is not None
        transaction.put(replace(source, forks=source.forks + 1))
    transaction.put(stream)
    transaction.events.created.append(stream)
    if request.data:
        transaction.events.appended[stream.path] = stream
    return stream


def _new(transaction: Transaction, request: Create, content_type: str) -> Stream:
    return Stream(
        id=0,
        path=request.path,
        content_type=content_type,
        created=transaction.now,
        accessed=transaction.now,
        closed=request.closed,
        ttl=request.ttl,
        expires_at=request.expires_at,
    )


def _is_same(there: Stream, request: Create) -> bool:
    if request.closed != there.closed or not _is_same_fork(there, request.fork):
        return False
    inherits = there.fork is not None
    if not (inherits and request.content_type is None):
        wanted = media_type(request.content_type or DEFAULT_CONTENT_TYPE)
        if wanted != media_type(there.content_type):
            return False
    if there.fork is not None and there.fork.inherits_expiry and request.ttl is None and request.expires_at is None:
        return True
    if request.ttl != there.ttl or (request.expires_at is None) != (there.expires_at is None):
        return False
    return request.expires_at is None or parse_ts(request.expires_at) == parse_ts(there.expires_at or "")


def _is_same_fork(there: Stream, wanted: ForkOf | None) -> bool:
    if wanted is None or there.fork is None:
        return wanted is None and there.fork is None
    return (
        wanted.source == there.fork.source
        and (wanted.position is None or wanted.position == there.fork.position)
        and wanted.sub_offset == there.fork.sub_offset
    )


def _fork(transaction: Transaction, request: Create, fork: ForkOf, accesses: Accesses) -> Stream:
    source = transaction.stream(fork.source)
    if source is None or (end_if_over(transaction, source, accesses) and transaction.stream(fork.source) is None):
        raise Refused(404, "the stream to fork from does not exist")
    if transaction.stream(fork.source) != source or source.deleted:
        raise Refused(409, "the stream to fork from was deleted")
    if request.content_type is not None and media_type(request.content_type) != media_type(source.content_type):
        raise Refused(409, f"the stream to fork from has the content type {source.content_type!r}")
    anchor = source.tail if fork.position is None else fork.position
    if anchor > source.tail:
        raise Refused(400, "Stream-Fork-Offset lies behind the end of the stream to fork from")
    ranges.check_position(source, anchor)
    position = ranges.divide(transaction.records, source, anchor, fork.sub_offset)
    inherits_expiry = request.ttl is None and request.expires_at is None
    stream = _new(transaction, request, request.content_type or source.content_type)
    if inherits_expiry:
        stream = replace(stream, ttl=source.ttl, expires_at=source.expires_at)
    return replace(
        stream,
        tail=position,
        inherited=_cut(source.segments(), position),
        fork=Fork(fork.source, anchor, fork.sub_offset, inherits_expiry),
        earliest=source.earliest,
    )


def _cut(segments: tuple[Segment, ...], position: int) -> tuple[Segment, ...]:
    """The segments up to `position`, without empty ones."""
    kept = (replace(segment, stop=min(segment.stop, position)) for segment in segments)
    return tuple(segment for segment in kept if segment.start < segment.stop)
