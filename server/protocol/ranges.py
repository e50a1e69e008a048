"""Reading a range of a stream, including its inherited part, in chunks of limited size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import dropwhile

import msgspec

from opslog.errors import CorruptError
from opslog.server.protocol import json_mode
from opslog.server.protocol.model import Stream
from opslog.server.protocol.offsets import format_offset
from opslog.server.protocol.refusals import Refused
from opslog.server.protocol.storage import Record

# `Shard.records`, or a transaction's.
Records = Callable[[int, int, int, int], Sequence[Record]]


class Range(msgspec.Struct, frozen=True):
    """:ivar chunks: the bytes, in order.
    :ivar stop: the position after them.
    """

    chunks: list[bytes]
    stop: int


class VanishedError(CorruptError):
    """Records of a stream are missing: the stream was deleted while it was read, or the storage is damaged."""


def check_position(stream: Stream, position: int) -> None:
    """:raises Refused: 400 for a position behind the end, 410 for one whose data retention has deleted."""
    if position > stream.tail:
        raise Refused(400, "the offset lies behind the end of the stream: it was not given out by this stream")
    if position < stream.earliest:
        earliest = format_offset(stream.earliest)
        message = f"the data at this offset is no longer kept; what there is begins at {earliest}"
        raise Refused(410, message, [(b"stream-earliest-offset", earliest.encode())])


def read(records: Records, stream: Stream, position: int, limit: int) -> Range:
    """About `limit` bytes of the stream from `position` on. Of a JSON stream, all messages of the records read; of any
    other, at most `limit` bytes.

    :raises Refused: 400 for a position of a JSON stream inside a message.
    :raises VanishedError: see there.
    """
    whole = stream.is_json
    chunks: list[bytes] = []
    for segment in stream.segments():
        if position >= segment.stop:
            continue
        found = records(segment.id, position, segment.stop, limit)
        for start, data in found:
            if start > position:
                raise _vanished(stream, position)
            if whole and start < position:
                _check_boundary(data, position - start)
            chunk = data[position - start : segment.stop - start]
            if not whole:
                chunk = chunk[:limit]
            chunks.append(chunk)
            position += len(chunk)
            limit -= len(chunk)
        if limit <= 0:
            break
        if position < segment.stop:
            raise _vanished(stream, position)
    return Range(chunks, position)


def _vanished(stream: Stream, position: int) -> VanishedError:
    return VanishedError(
        f"stream {stream.path!r} has no data at byte {position} of {stream.tail}", stream.path, position
    )


def _check_boundary(record: bytes, index: int) -> None:
    # It stops at the first boundary that is not before the index: a record may have many messages.
    if next(dropwhile(index.__gt__, json_mode.boundaries(record)), None) != index:
        raise Refused(400, "the offset lies inside a message: it was not given out by this stream")


def divide(records: Records, stream: Stream, position: int, sub_offset: int) -> int:
    """The position of a fork that leaves the stream `sub_offset` messages (of a JSON stream) or bytes behind
    `position`.

    :raises Refused: 400 if `position` lies inside a message, or the next append has not as many.
    """
    if position == stream.tail:
        if sub_offset:
            raise _beyond()
        return position
    segment = next(segment for segment in stream.segments() if position < segment.stop)
    ((start, data), *_) = records(segment.id, position, segment.stop, 1)
    stop = min(start + len(data), segment.stop)
    if not stream.is_json:
        if position + sub_offset > stop:
            raise _beyond()
        return position + sub_offset
    ends = [start + end for end in json_mode.boundaries(data) if start + end <= stop]
    if position not in ends:
        raise Refused(400, "Stream-Fork-Offset lies inside a message")
    index = ends.index(position) + sub_offset
    if index >= len(ends):
        raise _beyond()
    return ends[index]


def _beyond() -> Refused:
    return Refused(400, "Stream-Fork-Sub-Offset reaches beyond the append that begins at Stream-Fork-Offset")
