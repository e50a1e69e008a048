"""Appending to a stream and closing it: what is accepted, and the order of the checks."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from opslog.server.protocol import producers
from opslog.server.protocol.lifetimes import Accesses, check
from opslog.server.protocol.model import Closer, Stream, media_type
from opslog.server.protocol.producers import Stamp
from opslog.server.protocol.refusals import Refused, closed
from opslog.server.protocol.transaction import Transaction

# Retention trims a stream once it has a quarter (1 / _TRIM_PART) more than the bytes to keep.
_TRIM_PART = 4


class Append(msgspec.Struct):
    """A client's append.

    :ivar content_type: of the body; None only if there is no body.
    :ivar data: as it will be stored.
    :ivar problem: why the body cannot be stored; it is checked last.
    :ivar close: close the stream after this; without data, only close it.
    :ivar seq: Stream-Seq, bytes as latin-1.
    """

    path: str
    content_type: str | None
    data: bytes
    problem: Refused | None = None
    close: bool = False
    seq: str | None = None
    stamp: Stamp | None = None


class Appended(msgspec.Struct, frozen=True):
    """:ivar stream: its state after the append.
    :ivar stamp: the highest accepted stamp of the producer, if the request names a producer.
    :ivar duplicate: the same append was accepted before, so nothing was changed.
    """

    stream: Stream
    stamp: Stamp | None = None
    duplicate: bool = False


def append(transaction: Transaction, request: Append, accesses: Accesses, retain_bytes: int | None = None) -> Appended:
    """Append, or close, or both.

    :param retain_bytes: how much of a stream is kept at least; older data may be deleted.

    The checks come in this order: whether the stream exists, whether it is open, the content type, the producer's
    stamp, Stream-Seq, the body.

    :raises Refused: nothing was changed.
    """
    stream = check(transaction.stream(request.path), transaction.now, accesses)
    stamp = request.stamp
    if stream.closed:
        return _append_to_closed(stream, request)
    if request.content_type is not None and media_type(request.content_type) != media_type(stream.content_type):
        raise Refused(409, f"the stream has the content type {stream.content_type!r}")
    producer = None
    if stamp is not None:
        known = transaction.producer(stream.id, stamp.producer)
        producer = producers.admit(known, stamp)
        if producer is None:
            assert known is not None
            return Appended(stream, Stamp(stamp.producer, known.epoch, known.seq), duplicate=True)
    if request.seq is not None and stream.seq is not None and request.seq <= stream.seq:
        raise Refused(409, "Stream-Seq must be greater than the last one")
    if request.problem is not None:
        raise request.problem
    stream = _changed(stream, request, transaction)
    if retain_bytes is not None:
        stream = _trimmed(stream, retain_bytes, transaction)
    if stamp is not None and producer is not None:
        transaction.put_producer(stream.id, stamp.producer, producer)
    transaction.put(stream)
    transaction.events.appended[stream.path] = stream
    return Appended(stream, stamp)


def _append_to_closed(stream: Stream, request: Append) -> Appended:
    stamp = request.stamp
    if stamp is None:
        if request.close and not request.data and request.problem is None:
            return Appended(stream)
    elif stream.closer == Closer(stamp.producer, stamp.epoch, stamp.seq):
        return Appended(stream, stamp, duplicate=True)
    raise closed(stream)


def _changed(stream: Stream, request: Append, transaction: Transaction) -> Stream:
    tail = stream.tail
    if request.data:
        transaction.append(stream.id, tail, request.data)
        tail += len(request.data)
    seq = stream.seq if request.seq is None else request.seq
    if not request.close:
        return replace(stream, tail=tail, seq=seq, accessed=transaction.now)
    stamp = request.stamp
    closer = Closer(stamp.producer, stamp.epoch, stamp.seq) if stamp else None
    return replace(stream, tail=tail, seq=seq, accessed=transaction.now, closed=True, closer=closer)


def _trimmed(stream: Stream, retain_bytes: int, transaction: Transaction) -> Stream:
    """Remove the oldest records if there are many more than to be kept, but never those that a fork may read."""
    goal = stream.tail - retain_bytes
    if stream.forks or goal - max(stream.earliest, stream.base) < retain_bytes // _TRIM_PART:
        return stream
    ((start, _), *_) = transaction.records(stream.id, goal, stream.tail, 1)
    if start <= max(stream.earliest, stream.base):
        return stream
    transaction.changes.trimmed[stream.id] = start
    return replace(stream, earliest=start)
