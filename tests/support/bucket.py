"""A bucket in memory, as a `Driver` with faults on request, and stores on it under ``bucket://name``."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from sortedcontainers import SortedDict

from opslog.backends import Range, register
from opslog.backends.objects.backend import Object, ObjectBackend, Put
from opslog.environment import REAL, Environment
from opslog.errors import MissingFileError, RetryError, WriteFailedError


class Request(NamedTuple):
    """A request: "put_new", "put", "get", "list" or "delete", and its key or prefix."""

    number: int
    method: str
    key: str


class Fault(NamedTuple):
    """The outcome of a request.

    :ivar outcome: how it ends for the caller: "unknown" (no certain answer), or "refused".
    :ivar done: whether the bucket carries it out all the same.
    """

    outcome: str
    done: bool = False


class Bucket:
    """A bucket in memory.

    :ivar page: how many objects one page of a listing has.
    :ivar asked: the requests so far.
    :ivar fault: the outcome of the next request; None: it succeeds.
    """

    def __init__(self) -> None:
        self.objects: SortedDict[str, tuple[bytes, float]] = SortedDict()
        """For each key, the bytes and the time of writing."""
        self._mutex = threading.Lock()
        self.now = time.time
        self.page = 1000
        self.asked: list[Request] = []
        self.fault: Callable[[Request], Fault | None] = lambda request: None

    @property
    def requests(self) -> int:
        return len(self.asked)

    @contextmanager
    def failing(self, fault: Callable[[Request], Fault | None]) -> Iterator[None]:
        self.fault = fault
        try:
            yield
        finally:
            self.fault = lambda request: None

    def _ask(self, method: str, key: str) -> Fault | None:
        request = Request(len(self.asked), method, key)
        self.asked.append(request)
        return self.fault(request)

    def put_new(self, key: str, data: bytes) -> Put:
        fault = self._ask("put_new", key)
        outcome = Put.CREATED
        if fault is None or fault.done:
            entry = (bytes(data), self.now())
            with self._mutex:
                if self.objects.setdefault(key, entry) is not entry:
                    outcome = Put.EXISTS
        if fault is None:
            return outcome
        if fault.outcome == "refused":
            raise WriteFailedError("refused")
        return Put.UNKNOWN

    def put(self, key: str, data: bytes) -> None:
        fault = self._ask("put", key)
        if fault is None or fault.done:
            entry = (bytes(data), self.now())
            with self._mutex:
                self.objects[key] = entry
        if fault is not None:
            raise WriteFailedError(fault.outcome)

    def get(self, key: str, start: int, stop: int | None) -> bytes:
        if self._ask("get", key):
            raise RetryError("no answer")
        found = self.objects.get(key)
        if found is None:
            raise MissingFileError(key, key)
        return found[0][start:stop]

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        found: list[bytes | None] = []
        for part in ranges:
            try:
                found.append(self.get(*part))
            except MissingFileError:
                found.append(None)
        return found

    def list(self, prefix: str, after: str) -> tuple[list[Object], bool]:
        if self._ask("list", prefix):
            raise RetryError("no answer")
        page: list[Object] = []
        with self._mutex:
            for key in self.objects.irange(max(prefix, after), inclusive=(after < prefix, True)):
                if not key.startswith(prefix):
                    break
                if len(page) == self.page:
                    return page, True
                data, modified = self.objects[key]
                page.append(Object(key, len(data), modified))
        return page, False

    def delete(self, keys: Sequence[str]) -> None:
        fault = self._ask("delete", keys[0])
        if fault is None or fault.done:
            with self._mutex:
                for key in keys:
                    self.objects.pop(key, None)
        if fault is not None:
            raise WriteFailedError(fault.outcome)

    def close(self) -> None:
        """There is nothing to close."""


BUCKETS: dict[str, Bucket] = {}
"""The buckets by name. Each is made when it is first opened."""


def open_url(
    url: str, *, create: bool = True, environment: Environment = REAL, now: Callable[[], float] = time.time
) -> ObjectBackend:
    """:param now: the storage's own clock.
    :param environment: decides how waiting passes time."""
    bucket = BUCKETS.setdefault(url.removeprefix("bucket://"), Bucket())
    bucket.now = now
    return ObjectBackend(bucket, url, "prefix/", environment=environment)


register("bucket", open_url)
