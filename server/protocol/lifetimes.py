"""When streams end: time to live, expiry and deletion, and the data that forks still need."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from opslog.environment import parse_ts
from opslog.server.protocol.model import Stream
from opslog.server.protocol.refusals import gone, not_found
from opslog.server.protocol.transaction import Transaction

# By stream id, the time of the last access, if that is newer than the stored one (`Stream.accessed`).
Accesses = Mapping[int, float]


def deadline(stream: Stream, accesses: Accesses) -> float | None:
    """When the stream ends if no client uses it; None: never."""
    if stream.ttl is not None:
        return max(stream.accessed, accesses.get(stream.id, 0.0)) + stream.ttl
    if stream.expires_at is not None:
        return parse_ts(stream.expires_at)
    return None


def is_over(stream: Stream, now: float, accesses: Accesses) -> bool:
    """Whether the lifetime of the stream is over."""
    end = deadline(stream, accesses)
    return end is not None and now >= end


def check(stream: Stream | None, now: float, accesses: Accesses) -> Stream:
    """The stream, if clients may use it.

    :raises Refused: 404; or 410 while forks of a stream that has ended need it.
    """
    if stream is None:
        raise not_found()
    if stream.deleted:
        raise gone()
    if is_over(stream, now, accesses):
        raise gone() if stream.forks else not_found()
    return stream


def end(transaction: Transaction, stream: Stream) -> None:
    """Delete the stream. If it has no forks, it is removed at once. While it has forks, only clients can no longer use
    it. It is removed with its last fork, and so on along the chain of forks."""
    transaction.events.deleted.append(stream)
    if stream.forks:
        transaction.put(replace(stream, deleted=True))
        return
    transaction.remove(stream)
    while stream.fork is not None:
        source = transaction.stream(stream.fork.source)
        assert source is not None, f"{stream.path!r} is a fork of {stream.fork.source!r}, which is not there"
        stream = replace(source, forks=source.forks - 1)
        if stream.forks or not stream.deleted:
            transaction.put(stream)
            return
        transaction.remove(stream)


def end_if_over(transaction: Transaction, stream: Stream, accesses: Accesses) -> bool:
    """End the stream if its lifetime is over. Returns whether clients can no longer use it."""
    if not stream.deleted and is_over(stream, transaction.now, accesses):
        end(transaction, stream)
        return True
    return stream.deleted


def delete(transaction: Transaction, path: str, accesses: Accesses) -> None:
    """Delete a stream at the request of a client.

    :raises Refused: 404, or 410 if it was deleted before and forks need it.
    """
    end(transaction, check(transaction.stream(path), transaction.now, accesses))
