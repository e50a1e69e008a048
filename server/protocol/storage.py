"""The contract between the server and the storage of its streams.

A storage consists of shards. Each shard is a small ordered database with one writer, which collects all simultaneous
changes in one `Changes` and commits them at once, atomically and durably. All decisions are made before, on the
committed state. So a shard only reads and commits; it knows nothing of the protocol. `opslog.server.storage.memory` and
`opslog.server.storage.lmdb_shard` implement it; `tests/server/test_storage.py` checks both against this contract.

Keys of the free key space (`value`, `values`, `Changes.values`) belong to the code that uses them. Begin them with a
word of your own and a slash, as in ``subscriptions/…``. Their values commit in the same transaction as all other
changes of the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from opslog.server.protocol.model import Producer, Stream

# The position at which the bytes of one append begin, and these bytes.
Record = tuple[int, bytes]


@dataclass(slots=True)
class Changes:
    """The changes of one commit. Everything not named stays unchanged.

    :ivar streams: by path; None removes it.
    :ivar producers: by stream id and producer id.
    :ivar records: (stream id, position, bytes), for each stream in order of position. No record is empty, and each
        begins where the stream's record before it ended.
    :ivar dropped: ids of streams whose records and producers are no longer needed.
    :ivar trimmed: by stream id, the position before which whole records are no longer needed.
    :ivar values: of the free key space; None removes.
    :ivar next_id: the smallest stream id that was never used, or 0 if unchanged.
    """

    streams: dict[str, Stream | None] = field(default_factory=dict)
    producers: dict[tuple[int, str], Producer] = field(default_factory=dict)
    records: list[tuple[int, int, bytes]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)
    trimmed: dict[int, int] = field(default_factory=dict)
    values: dict[bytes, bytes | None] = field(default_factory=dict)
    next_id: int = 0

    @property
    def bytes(self) -> int:
        """Of content."""
        return sum(len(data) for _, _, data in self.records)

    def __bool__(self) -> bool:
        return bool(self.streams or self.producers or self.records or self.dropped or self.trimmed or self.values)


@dataclass(frozen=True, slots=True)
class Usage:
    """:ivar streams: how many, also the deleted ones that forks need.
    :ivar bytes: of content, counted once for all forks.
    :ivar stored_bytes: the size of the storage, as far as it is known.
    """

    streams: int
    bytes: int
    stored_bytes: int


class Shard(Protocol):
    """One ordered database.

    `commit` is called by one thread at a time, the rest by any thread, also during a commit: then each call sees either
    the state before it or the state after it. After a commit has returned, all calls see its changes.

    :ivar durable: commits survive a crash of the machine, and take as long as the disk takes; otherwise they are
        instant.
    """

    @property
    def durable(self) -> bool: ...

    def stream(self, path: str, *, is_checked: bool = False) -> Stream | None:
        """The stream at this path, including deleted ones that forks still need.

        :param is_checked: the caller has just called this without an error, so a storage that has the answer in memory
            need not check its files again.
        """
        ...

    def streams(self, after: str = "") -> Iterator[Stream]:
        """All streams after the path `after`, in the order of the UTF-8 bytes of their paths. Streams that are created
        or removed meanwhile may be included or not. The cost grows with the number of streams taken."""
        ...

    def producer(self, stream_id: int, producer_id: str) -> Producer | None: ...

    def producers(self, stream_id: int, limit: int) -> Sequence[tuple[str, Producer]]:
        """Up to `limit` producers of the stream, by their ids. A storage may have only the hash of a very long id."""
        ...

    def records(self, stream_id: int, start: int, stop: int, limit: int) -> Sequence[Record]:
        """The stream's own records that have bytes in the range from `start` up to `stop`, whole and in order. The last
        one is the one that reaches `limit` bytes, counted from `start`. The cost grows with the records returned."""
        ...

    def value(self, key: bytes) -> bytes | None: ...

    def values(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The keys that begin with `prefix`, in order, with their values, as one consistent state."""
        ...

    def next_id(self) -> int:
        """The smallest stream id that was never used, from 1."""
        ...

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        """Make all these changes, or none of them. On return they are as durable as this shard can make them.

        :param applied: called once the changes are made, and only writing them to the disk is left. A commit that fails
            may not have called it, and one of a shard that is not durable does not.
        :raises WriteFailedError: nothing was changed.
        :raises CommitUnknownError: it is unknown whether they were made.
        """
        ...

    def problem(self) -> str | None:
        """Why a commit would be refused now, as far as is known without an attempt; None: it would not be refused."""
        ...

    def tidy(self) -> bool:
        """Do a bounded part of the work that `dropped` and `trimmed` left, if any; returns whether there is more.

        Called by the thread that commits."""
        ...

    def usage(self) -> Usage: ...

    def close(self) -> None:
        """Release everything; calling it again does nothing."""
        ...


class Storage(Protocol):
    """Some shards, and the assignment of paths to them.

    :ivar name: changes whenever stream ids begin anew: two streams are the same if both `name` and id are.
    """

    @property
    def name(self) -> str: ...

    @property
    def shards(self) -> Sequence[Shard]: ...

    def home(self, path: str) -> int:
        """The index of the shard to which a stream with this path belongs by its name."""
        ...

    def close(self) -> None: ...
