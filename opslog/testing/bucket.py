"""A bucket with the guarantees of S3. Puts are atomic and listed at once. But a response can get lost, and so can a
request, which may still be carried out long after its sender has given up.

`opslog.backends.objects.backend` runs on it unchanged, through the `Driver` interface that all its clients have.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence

from opslog.backends import Range
from opslog.backends.objects.backend import Object, Put
from opslog.errors import MissingFileError, RetryError, WriteFailedError
from opslog.testing.faults import Fault
from opslog.testing.simulation import Process, Simulation

READS = frozenset({"fail", "down"})
PUTS = frozenset({"fail", "lost", "late", "full", "down"})
DELETES = frozenset({"fail", "lost", "late", "down"})

# How many objects a page of a listing has: few, so that other calls can come between two pages.
_PAGE = 7


class Bucket:
    """Objects by key. A `opslog.backends.objects.backend.Driver`.

    :ivar on_create: called with the key of a new object.
    :ivar on_delete: called with the key and the content of an object that is deleted.
    """

    kinds = READS | PUTS | DELETES

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.objects: dict[str, tuple[bytes, float]] = {}
        self._keys: list[str] = []
        self._down_until = 0.0
        self._full_until = 0.0
        self.on_create: Callable[[str], None] = lambda key: None
        self.on_delete: Callable[[str, bytes], None] = lambda key, content: None
        simulation.storages.append(self)

    @property
    def requests(self) -> int:
        return 0

    # -- the storage of a simulation

    def lose_power(self, choices: random.Random) -> None:
        """Does nothing: machines lose power, and the bucket is elsewhere."""

    def process_died(self, process: Process) -> None:
        """Does nothing: it holds nothing for a process."""

    def recover(self) -> None:
        self._down_until = self._full_until = 0.0

    # -- requests

    def put_new(self, key: str, data: bytes) -> Put:
        def perform(fault: Fault | None) -> Put:
            if self._is_down(fault):
                return Put.UNKNOWN
            if self._is_full(fault):
                raise WriteFailedError(f"{key}: the quota is used up")
            if fault is None or fault.kind == "full":
                return Put.CREATED if self._create(key, data) else Put.EXISTS
            self._carry_out(fault, lambda: self._create(key, data))
            return Put.UNKNOWN

        return self.simulation.step(f"put-new {key}", perform, PUTS)

    def put(self, key: str, data: bytes) -> None:
        def perform(fault: Fault | None) -> None:
            if self._is_down(fault) or self._is_full(fault):
                raise WriteFailedError(f"{key}: no answer")
            if fault is None or fault.kind == "full":
                self._set(key, data)
                return
            self._carry_out(fault, lambda: self._set(key, data))
            raise WriteFailedError(f"{key}: no answer")

        self.simulation.step(f"put {key}", perform, PUTS)

    def get(self, key: str, start: int, stop: int | None) -> bytes:
        def perform(fault: Fault | None) -> bytes:
            self._check_reading(fault)
            if key not in self.objects:
                raise MissingFileError(f"no object {key}", key)
            return self.objects[key][0][start:stop]

        return self.simulation.step(f"get {key}", perform, READS)

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        def perform(fault: Fault | None) -> list[bytes | None]:
            self._check_reading(fault)
            return [
                self.objects[part.path][0][part.start : part.stop] if part.path in self.objects else None
                for part in ranges
            ]

        named = f"{ranges[0].path} and {len(ranges) - 1} more" if ranges else ""
        return self.simulation.step(f"get-many {named}", perform, READS)

    def list(self, prefix: str, after: str) -> tuple[list[Object], bool]:
        def perform(fault: Fault | None) -> tuple[list[Object], bool]:
            self._check_reading(fault)
            page: list[Object] = []
            for key in self._keys[bisect_left(self._keys, max(prefix, after)) :]:
                if not key.startswith(prefix):
                    break
                if key == after:
                    continue
                if len(page) == _PAGE:
                    return page, True
                page.append(Object(key, len(self.objects[key][0]), self.objects[key][1]))
            return page, False

        return self.simulation.step(f"list {prefix} {after.removeprefix(prefix)}", perform, READS)

    def delete(self, keys: Sequence[str]) -> None:
        def perform(fault: Fault | None) -> None:
            if self._is_down(fault):
                raise WriteFailedError("no answer")
            if fault is None:
                self._delete(keys)
                return
            self._carry_out(fault, lambda: self._delete(keys))
            raise WriteFailedError("no answer")

        self.simulation.step(f"delete {keys[0]} and {len(keys) - 1} more", perform, DELETES)

    def close(self) -> None:
        """Does nothing: there is nothing to release."""

    # -- effects

    def _create(self, key: str, data: bytes) -> bool:
        if key in self.objects:
            return False
        self.on_create(key)
        self._set(key, data)
        return True

    def _set(self, key: str, data: bytes) -> None:
        if key not in self.objects:
            insort(self._keys, key)
        self.objects[key] = (bytes(data), self.simulation.time)

    def _delete(self, keys: Sequence[str]) -> None:
        for key in keys:
            if key in self.objects:
                self.on_delete(key, self.objects.pop(key)[0])
                del self._keys[bisect_left(self._keys, key)]

    def _carry_out(self, fault: Fault, effect: Callable[[], object]) -> None:
        """Carry out a request that gets no response, as the fault says."""
        if fault.kind == "lost":
            effect()
        elif fault.kind == "late":
            self.simulation.at(self.simulation.time + fault.amount, effect)

    def _is_down(self, fault: Fault | None) -> bool:
        if fault is not None and fault.kind == "down":
            self._down_until = self.simulation.time + fault.amount
        return self.simulation.time < self._down_until

    def _is_full(self, fault: Fault | None) -> bool:
        if fault is not None and fault.kind == "full":
            self._full_until = self.simulation.time + fault.amount
        return self.simulation.time < self._full_until

    def _check_reading(self, fault: Fault | None) -> None:
        if self._is_down(fault) or (fault is not None and fault.kind == "fail"):
            raise RetryError("no answer")
