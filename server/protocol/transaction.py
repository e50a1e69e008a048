"""One shard with changes that are not committed yet.

Through it each work sees the changes of the works before it in the same commit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from opslog.server.protocol.model import Producer, Stream
from opslog.server.protocol.storage import Changes, Record, Shard


@dataclass(slots=True)
class Events:
    """The effects of a commit, for the observers that are notified after it.

    :ivar created: new streams, in the state in which they were created.
    :ivar appended: by path, streams that got bytes or were closed, in their present state; new streams, too.
    :ivar deleted: streams that clients can no longer use.
    """

    created: list[Stream] = field(default_factory=list)
    appended: dict[str, Stream] = field(default_factory=dict)
    deleted: list[Stream] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.created or self.appended or self.deleted)


class Transaction:
    """The reads and changes of a work. None of the changes is stored before the commit.

    :ivar now: the time of this transaction, seconds since 1970.
    """

    def __init__(self, shard: Shard, now: float) -> None:
        self.now = now
        self.changes = Changes()
        self.events = Events()
        self._shard = shard
        self._is_checked = False

    def stream(self, path: str) -> Stream | None:
        if path in self.changes.streams:
            return self.changes.streams[path]
        # One check of the files is enough for a group. Each is a system call, and during it the thread that commits may
        # take the interpreter.
        stream = self._shard.stream(path, is_checked=self._is_checked)
        self._is_checked = True
        return stream

    def put(self, stream: Stream) -> None:
        self.changes.streams[stream.path] = stream

    def remove(self, stream: Stream) -> None:
        """Remove the stream, its records and its producers."""
        self.changes.streams[stream.path] = None
        self.changes.dropped.append(stream.id)

    def new_id(self) -> int:
        changes = self.changes
        changes.next_id = (changes.next_id or self._shard.next_id()) + 1
        return changes.next_id - 1

    def producer(self, stream_id: int, producer_id: str) -> Producer | None:
        changed = self.changes.producers.get((stream_id, producer_id))
        return changed or self._shard.producer(stream_id, producer_id)

    def put_producer(self, stream_id: int, producer_id: str, producer: Producer) -> None:
        self.changes.producers[stream_id, producer_id] = producer

    def append(self, stream_id: int, position: int, data: bytes) -> None:
        self.changes.records.append((stream_id, position, data))

    def records(self, stream_id: int, start: int, stop: int, limit: int) -> Sequence[Record]:
        """As `Shard.records`, including the records that this transaction appended."""
        found = list(self._shard.records(stream_id, start, stop, limit))
        size = sum(len(data) - max(0, start - position) for position, data in found)
        for id, position, data in self.changes.records:
            if id == stream_id and position < stop and position + len(data) > start and size < limit:
                found.append((position, data))
                size += len(data) - max(0, start - position)
        return found

    def value(self, key: bytes) -> bytes | None:
        if key in self.changes.values:
            return self.changes.values[key]
        return self._shard.value(key)

    def values(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """As `Shard.values`, including the changes of this transaction."""
        found: dict[bytes, bytes | None] = dict(self._shard.values(prefix))
        found.update((key, value) for key, value in self.changes.values.items() if key.startswith(prefix))
        for key in sorted(found):
            value = found[key]
            if value is not None:
                yield key, value

    def put_value(self, key: bytes, value: bytes | None) -> None:
        """Set a key of the free key space (see `opslog.server.protocol.storage`); None removes it."""
        self.changes.values[key] = value
