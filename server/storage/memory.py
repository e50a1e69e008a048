"""Streams in memory: for tests, for data that may end with the process, and as the model of the durable storage."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from threading import Lock

from opslog.environment import REAL, Environment
from opslog.server.protocol.model import Producer, Stream
from opslog.server.protocol.storage import Changes, Record, Shard, Usage


class MemoryShard:
    """A shard of dictionaries. A commit is instant."""

    durable = False

    def __init__(self) -> None:
        self._lock = Lock()
        self._streams: dict[str, Stream] = {}
        self._paths: list[str] = []  # sorted; code points sort as UTF-8 does
        self._producers: dict[int, dict[str, Producer]] = {}
        self._positions: dict[int, list[int]] = {}
        self._records: dict[int, list[bytes]] = {}
        self._values: dict[bytes, bytes] = {}
        self._next_id = 1
        self._bytes = 0

    def stream(self, path: str, *, is_checked: bool = False) -> Stream | None:
        return self._streams.get(path)

    def streams(self, after: str = "") -> Iterator[Stream]:
        while True:
            with self._lock:
                index = bisect_right(self._paths, after)
                if index == len(self._paths):
                    return
                after = self._paths[index]
                stream = self._streams[after]
            yield stream

    def producer(self, stream_id: int, producer_id: str) -> Producer | None:
        return self._producers.get(stream_id, {}).get(producer_id)

    def producers(self, stream_id: int, limit: int) -> Sequence[tuple[str, Producer]]:
        return sorted(self._producers.get(stream_id, {}).items())[:limit]

    def records(self, stream_id: int, start: int, stop: int, limit: int) -> Sequence[Record]:
        found: list[Record] = []
        with self._lock:
            positions, datas = self._positions.get(stream_id, []), self._records.get(stream_id, [])
            index = max(0, bisect_right(positions, start) - 1)
            while index < len(positions) and positions[index] < stop and limit > 0:
                position, data = positions[index], datas[index]
                index += 1
                if position + len(data) > start:
                    found.append((position, data))
                    limit -= len(data) - max(0, start - position)
        return found

    def value(self, key: bytes) -> bytes | None:
        return self._values.get(key)

    def values(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        with self._lock:
            found = sorted((key, value) for key, value in self._values.items() if key.startswith(prefix))
        yield from found

    def next_id(self) -> int:
        return self._next_id

    def commit(self, changes: Changes, applied: Callable[[], None] | None = None) -> None:
        with self._lock:
            self._next_id = max(self._next_id, changes.next_id)
            for path, stream in changes.streams.items():
                self._set_stream(path, stream)
            for (stream_id, producer_id), producer in changes.producers.items():
                self._producers.setdefault(stream_id, {})[producer_id] = producer
            for stream_id, position, data in changes.records:
                self._positions.setdefault(stream_id, []).append(position)
                self._records.setdefault(stream_id, []).append(data)
                self._bytes += len(data)
            for stream_id, position in changes.trimmed.items():
                self._trim(stream_id, position)
            for stream_id in changes.dropped:
                self._producers.pop(stream_id, None)
                self._positions.pop(stream_id, None)
                self._bytes -= sum(map(len, self._records.pop(stream_id, [])))
            for key, value in changes.values.items():
                if value is None:
                    self._values.pop(key, None)
                else:
                    self._values[key] = value

    def problem(self) -> str | None:
        return None

    def _set_stream(self, path: str, stream: Stream | None) -> None:
        known = path in self._streams
        if stream is not None:
            self._streams[path] = stream
            if not known:
                insort(self._paths, path)
        elif known:
            del self._streams[path]
            del self._paths[bisect_right(self._paths, path) - 1]

    def _trim(self, stream_id: int, position: int) -> None:
        positions, datas = self._positions.get(stream_id, []), self._records.get(stream_id, [])
        count = bisect_right(positions, position) - 1
        if count >= 0 and positions[count] + len(datas[count]) <= position:
            count += 1
        self._bytes -= sum(map(len, datas[: max(0, count)]))
        del positions[: max(0, count)], datas[: max(0, count)]

    def tidy(self) -> bool:
        return False

    def usage(self) -> Usage:
        return Usage(streams=len(self._streams), bytes=self._bytes, stored_bytes=self._bytes)

    def close(self) -> None:
        pass


class MemoryStorage:
    """One shard, in memory."""

    def __init__(self, environment: Environment = REAL) -> None:
        self.name = environment.nonce()
        self.shards: Sequence[Shard] = (MemoryShard(),)

    def home(self, path: str) -> int:
        return 0

    def close(self) -> None:
        pass
