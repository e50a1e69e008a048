"""The stored state of a stream: its metadata, its producers, and the sources of its bytes."""

from __future__ import annotations

from functools import lru_cache

import msgspec

JSON = "application/json"


@lru_cache(maxsize=1024)
def media_type(content_type: str) -> str:
    """The type alone, in the form in which types are compared: ``Text/Plain; charset=utf-8`` is ``text/plain``."""
    return content_type.partition(";")[0].strip().lower()


class Segment(msgspec.Struct, frozen=True, array_like=True):
    """The bytes from `start` up to `stop`, which are in the records of the stream numbered `id`."""

    id: int
    start: int
    stop: int


class Fork(msgspec.Struct, frozen=True, array_like=True):
    """How a stream was forked, as requested: a repeated PUT is compared with this.

    :ivar source: path of the source; no other stream gets that path while a fork of it exists.
    :ivar position: the position in the source, before the sub-offset was added.
    :ivar sub_offset: messages of a JSON stream, bytes of any other.
    :ivar inherits_expiry: no lifetime was requested, so the fork has that of the source.
    """

    source: str
    position: int
    sub_offset: int
    inherits_expiry: bool


class Producer(msgspec.Struct, frozen=True, array_like=True):
    """The newest epoch of an idempotent producer, and its highest accepted sequence number in it."""

    epoch: int
    seq: int


class Closer(msgspec.Struct, frozen=True, array_like=True):
    """The append by which an idempotent producer closed a stream. A repetition of it is a duplicate."""

    producer: str
    epoch: int
    seq: int


class Stream(msgspec.Struct, frozen=True, array_like=True):
    """A stream's metadata. Immutable: a change is a new one (``msgspec.structs.replace``).

    A position counts the bytes of the stored content from the beginning of the stream, including what a fork inherited.
    Clients see positions as offsets.

    :ivar id: never used again in this storage, not even for a stream that is created under the same path.
    :ivar path: relative to the stream root, percent-decoded: ``events/abc``.
    :ivar content_type: as given at creation.
    :ivar created: seconds since 1970, as all times here.
    :ivar accessed: the last recorded read or write.
    :ivar tail: the position behind the last byte.
    :ivar seq: the last Stream-Seq; bytes as latin-1, so that comparing them compares bytes.
    :ivar ttl: seconds that the stream lives after the last access.
    :ivar expires_at: the RFC 3339 text as given.
    :ivar inherited: the segments with the bytes that a fork has before its own, in order and without gaps. They also
        cover forks of forks, so a read need not look up the source.
    :ivar forks: the number of existing streams that were forked from this one.
    :ivar deleted: it was deleted or has expired, but its `forks` still need its bytes.
    :ivar earliest: the position of the first byte that retention has not deleted.
    """

    id: int
    path: str
    content_type: str
    created: float
    accessed: float
    tail: int = 0
    closed: bool = False
    closer: Closer | None = None
    seq: str | None = None
    ttl: int | None = None
    expires_at: str | None = None
    inherited: tuple[Segment, ...] = ()
    fork: Fork | None = None
    forks: int = 0
    deleted: bool = False
    earliest: int = 0

    @property
    def base(self) -> int:
        """The position where its own records begin."""
        return self.inherited[-1].stop if self.inherited else 0

    @property
    def is_json(self) -> bool:
        return media_type(self.content_type) == JSON

    def segments(self) -> tuple[Segment, ...]:
        """The sources of all its bytes, in order: the inherited ones, then its own."""
        return (*self.inherited, Segment(self.id, self.base, self.tail))
