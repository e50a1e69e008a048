"""Stores in object storages that honour put-if-absent: the common part for S3 and similar storages. A `Driver` sends
the requests.

What this file guarantees:

- A file is one object, created with put-if-absent; an append is one object, too: the next segment of the log.
- **A lost reply is resolved, never guessed.** A put that timed out, or got a server error, may have been carried out,
  may still be carried out, or may not. So the same conditional put is sent again until its outcome is certain: the put
  created the object, or the object exists. An existing object is read back. If its bytes are ours, the put created it.
  If the outcome is still uncertain at the deadline, the call raises `CommitUnknownError`. (Libraries and proxies below
  re-send requests on their own. So an object is read back even if the first reply is "exists already".)
- A log's numbers are used once. If two live processes have the same agent name, both see the same number as the next
  one. One of them creates the segment. The other is fenced: it raises `AgentFencedError`, and nothing of what it was
  writing is in the log.
- Locks are leases: objects with an owner, who renews them. Anyone may take one over once its time has passed. They
  save work and protect nothing.
- In a forked child every call raises `ClosedError`.

Rejected: to prove by its ETag who created an object, because ETags differ between storages (multipart, encryption); and
a lock object for each agent, because it would cost requests all the time and protect nothing: its holder may be paused
while it expires.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import NamedTuple, Protocol, TypeVar

import msgspec

from opslog.backends import forking
from opslog.backends.contract import Buffer, Entry, Position, Range
from opslog.backends.holders import Holders, in_use_here, this_process
from opslog.backends.names import check_path, check_prefix
from opslog.environment import REAL, Environment
from opslog.errors import (
    AgentFencedError,
    AlreadyExistsError,
    CommitUnknownError,
    LockedError,
    MissingFileError,
    OpslogError,
    RetryError,
    UsageError,
    WriteFailedError,
)
from opslog.format.exact import UNREADABLE
from opslog.format.layout import LOCKS, OPS, check_name, log_prefix, segment_of, segment_path
from opslog.format.prepared import prepare
from opslog.logs import logger

T = TypeVar("T")

# Seconds for which drivers wait for a connection, and then for each part of a response.
CONNECT_TIMEOUT, READ_TIMEOUT = 3.0, 10.0
LEASE_SECONDS = 60.0
DEADLINE_SECONDS = 60.0

_CLOCK = f"{LOCKS}clock"
_PAUSE_SECONDS = 0.05
_PAUSE_SECONDS_MAX = 2.0
_PROBES_MAX = 3
# The most attempts of a read, over about a second. A read changes nothing, so its failure may be reported early.
_READS_MAX = 4


class Put(Enum):
    """The outcome of a put-if-absent."""

    CREATED = "created"
    # There is an object with this key; an earlier attempt of ours may have created it.
    EXISTS = "exists"
    # It may have been carried out, may still be carried out, or may not; or the server was busy with another put.
    UNKNOWN = "unknown"


class Object(NamedTuple):
    """One object in a listing; `modified` in seconds since 1970."""

    key: str
    size: int
    modified: float


class Driver(Protocol):
    """Requests to one bucket. Safe to use from many threads. A driver never repeats a request; its caller decides that.

    :raises RetryError: (all reading calls) the storage cannot answer now.
    :raises WriteFailedError: (all writing calls) it refuses, and nothing was changed.
    """

    @property
    def requests(self) -> int:
        """The number of requests sent."""

    def put_new(self, key: str, data: bytes) -> Put:
        """Create an object if its key does not exist."""

    def put(self, key: str, data: bytes) -> None:
        """Create or replace an object, of which only the time of change matters."""

    def get(self, key: str, start: int, stop: int | None) -> bytes:
        """Some bytes of an object, as `Backend.read` returns them.

        :raises MissingFileError: there is no such object.
        """

    def get_many(self, ranges: Sequence[Range]) -> list[bytes | None]:
        """Many reads at once, None for each object that does not exist."""

    def list(self, prefix: str, after: str) -> tuple[list[Object], bool]:
        """One page of the objects whose key begins with `prefix` and comes after `after`, in order of UTF-8 bytes, and
        whether there are more."""

    def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; those that do not exist are no error."""

    def close(self) -> None:
        """Close the connections."""


class Lease(msgspec.Struct, frozen=True):
    """The content of a lock object: its holder."""

    holder: str
    nonce: str


# The appender of this process for each (store, agent). A second one for the same name is refused at once.


prepare(Lease)


_held = Holders()


class ObjectBackend(forking.ProcessBound):
    """See the module's docstring.

    :param url: the name of the storage in messages.
    :param prefix: the common prefix of all keys; empty, or with a slash at its end.
    :param deadline_seconds: how long to try to find out the outcome of a put.
    :param lease_seconds: how long a lock lasts after its holder is gone.
    """

    def __init__(
        self,
        driver: Driver,
        url: str,
        prefix: str,
        *,
        environment: Environment = REAL,
        deadline_seconds: float = DEADLINE_SECONDS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self.url = url
        self.driver = driver
        self.environment = environment
        self._prefix = prefix
        self._deadline_seconds = deadline_seconds
        self._lease_seconds = lease_seconds
        super().__init__()
        # Whether the server is known to honour put-if-absent.
        self._is_conditional = False

    segments_grow = False

    @property
    def requests(self) -> int:
        """The number of requests sent to the server."""
        return self.driver.requests

    # Reading

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        self._check_open()
        check_prefix(prefix)
        return sorted(self._list(prefix, after, lambda last: last))

    def list_logs(self, seen: Mapping[str, int]) -> builtins.list[Entry]:
        """Skips segments that are already known. So a listing costs one request for each thousand new segments, and at
        most one more for each agent."""
        self._check_open()

        def to_unseen(last: str) -> str:
            """If a page ends inside the known part of a log, the next page begins at the end of that part."""
            agent, number = segment_of(last) or ("", 0)
            return max(last, segment_path(agent, seen[agent] - 1)) if seen.get(agent, 0) > number else last

        return sorted(self._list(OPS, "", to_unseen))

    def _list(self, prefix: str, after: str, go_on: Callable[[str], str]) -> Iterator[Entry]:
        """List page by page. `go_on` maps the last path of a page to the path after which the next page begins."""
        skip = len(self._prefix)
        more = True
        while more:
            start = self._prefix + after if after else ""
            page, more = self._patiently(partial(self.driver.list, self._prefix + prefix, start))
            # Some storages begin a page before the path after which it should begin.
            yield from (Entry(key[skip:], size, modified) for key, size, modified in page if key[skip:] > after)
            if more:
                after = go_on(page[-1].key[skip:])

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self._check_open()
        check_path(path)
        if stop is not None and stop <= start:
            stop = start
        try:
            return self._patiently(lambda: self.driver.get(self._prefix + path, start, stop))
        except MissingFileError as error:
            raise MissingFileError(f"no object {path} in {self.url}", path) from error

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        self._check_open()
        for part in ranges:
            check_path(part.path)
        wanted = [part._replace(path=self._prefix + part.path) for part in ranges]
        return self._patiently(lambda: self.driver.get_many(wanted))

    def map(self, path: str) -> Buffer | None:
        self._check_open()
        check_path(path)
        return None

    def _patiently(self, request: Callable[[], T]) -> T:
        """The result of a request that reads. It is tried again a few times if there is no response."""
        pause = _PAUSE_SECONDS
        for _ in range(_READS_MAX - 1):
            with suppress(RetryError):
                return request()
            self.environment.sleep(pause)
            pause *= 4
        return request()

    def now(self) -> float:
        self._check_open()
        self.driver.put(self._prefix + _CLOCK, b"")
        return next(entry.modified for entry in self.list(LOCKS) if entry.path == _CLOCK)

    # Creating and deleting

    def create(self, path: str, data: bytes) -> None:
        self._check_open()
        check_path(path)
        self._check_conditional()
        if not self.put_new(path, data):
            raise AlreadyExistsError(f"{path} exists already in {self.url}", path)

    def put_new(self, path: str, data: bytes) -> bool:
        """Create an object, unless there is one. Returns False if there is another object of this name.

        :raises CommitUnknownError: it may or may not have been created.
        :raises WriteFailedError: it was not.
        """
        now, pause = self.environment.monotonic, _PAUSE_SECONDS
        deadline = now() + self._deadline_seconds
        unanswered = False
        while True:
            try:
                outcome = self.driver.put_new(self._prefix + path, data)
            except WriteFailedError as error:
                # The failure of this attempt says nothing about an earlier attempt that got no response.
                if not unanswered:
                    raise
                if self._read_back(path) == data:
                    return True
                raise CommitUnknownError(
                    f"{path} may or may not have been created in {self.url}: a first try had no answer, and the next "
                    f"one failed ({error}). Close the store, open it again, and check"
                ) from error
            unanswered = True
            if outcome is Put.CREATED:
                return True
            if outcome is Put.EXISTS:
                found = self._read_back(path)
                if found is not None:
                    return found == data
            if now() >= deadline:
                raise CommitUnknownError(
                    f"{path} may or may not have been created in {self.url}: the storage gave no certain answer for "
                    f"{self._deadline_seconds:g} seconds. Close the store, open it again, and check"
                )
            self.environment.sleep(pause)
            pause = min(pause * 2, _PAUSE_SECONDS_MAX)

    def _read_back(self, path: str) -> bytes | None:
        """The bytes of the object; None if it is gone again or cannot be read."""
        try:
            return self.read(path)
        except OpslogError:
            return None

    def delete(self, paths: Iterable[str]) -> None:
        self._check_open()
        keys = []
        for path in paths:
            check_path(path)
            keys.append(self._prefix + path)
        if keys:
            self.driver.delete(keys)

    def persist(self, paths: Iterable[str]) -> None:
        self._check_open()

    # One writer per log, and locks

    def appender(self, agent: str) -> ObjectAppender:
        self._check_open()
        check_name(agent, "agent")
        self._check_conditional()
        appender = ObjectAppender(self, agent)
        try:
            if not _held.take((self.url, agent), appender):
                raise in_use_here(agent, self.url)
            appender.find_end()
        except BaseException:
            appender.close()
            raise
        return appender

    def append_at(self, agent: str, end: Position, data: bytes) -> Position | None:
        self._check_open()
        check_name(agent, "agent")
        self._check_conditional()
        if end.offset or not self.put_new(segment_path(agent, end.segment), data):
            return None
        return end

    def is_free(self, agent: str) -> bool:
        self._check_open()
        check_name(agent, "agent")
        return False  # an object storage cannot say

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_open()
        check_name(name, "lock")
        self._check_conditional()
        path = f"{LOCKS}{name}.lease"
        lease = msgspec.json.encode(Lease(this_process(), self.environment.nonce()))
        try:
            self._take_lease(name, path, lease)
        except LockedError:
            raise
        except BaseException:
            self._give_back(path, lease)  # the lease may have been written
            raise
        try:
            with self._renewing(path, lease):
                yield
        finally:
            self._give_back(path, lease)

    def _give_back(self, path: str, lease: bytes) -> None:
        """Delete a lease. If that fails, others wait until its time is over. That is no failure of the work that was
        done under it."""
        try:
            if not self._is_forked and self._read_back(path) == lease:
                self.driver.delete([self._prefix + path])
        except OpslogError as error:
            logger("storage").warning("%s of %s was not given back: %s", path, self.url, error)

    def _take_lease(self, name: str, path: str, lease: bytes) -> None:
        if self.put_new(path, lease):
            return
        held = [entry for entry in self.list(LOCKS) if entry.path == path]
        holder = _holder(self._read_back(path) or b"")
        if held and self.now() - held[0].modified > self._lease_seconds:
            # Another process may just have taken the lease over. Deleting it then lets two holders in, which does no
            # harm.
            self.driver.delete([self._prefix + path])
            if self.put_new(path, lease):
                return
        raise LockedError(
            f"the lock {name!r} of {self.url} is held by {holder}: try again when it is done, or, should it be gone, "
            f"{self._lease_seconds:g} seconds after it took it",
            name,
            holder,
        )

    @contextmanager
    def _renewing(self, path: str, lease: bytes) -> Iterator[None]:
        """A block inside which a thread renews the lease."""
        done = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(path, lease, done), name="opslog-lease", daemon=True)
        try:
            with suppress(RuntimeError):  # no more threads can start; without renewal no harm is done
                renewing.start()
            yield
        finally:
            done.set()
            if not self._is_forked and renewing.is_alive():
                renewing.join()  # otherwise it could write the lease again after it was given back

    def _renew(self, path: str, lease: bytes, done: threading.Event) -> None:
        """Write the lease again before its time is over, until `done` is set, or it is no longer this holder's. After a
        failure this tries again. A lease that runs out costs work, and does no harm."""
        while not done.wait(self._lease_seconds / 3):
            try:
                if self.read(path) != lease:
                    return  # another process has taken it over
                self.driver.put(self._prefix + path, lease)
            except MissingFileError:
                return
            except Exception as error:  # noqa: BLE001  (nobody else would ever hear of it)
                message = "the lease %s of %s was not renewed, and that is tried again: %s"
                logger("storage").warning(message, path, self.url, error)

    # Common ground

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._is_forked:
                self.driver.close()

    def _name(self) -> str:
        return self.url

    def _check_conditional(self) -> None:
        """Find out, once, whether the server honours put-if-absent.

        :raises UsageError: it does not, so two writers could both believe that they had created a file; or there are no
            credentials, or the bucket does not exist.
        """
        if self._is_conditional:
            return
        try:
            self._probe()
        except WriteFailedError as error:
            if isinstance(error.__cause__, UsageError):
                raise error.__cause__ from None
            raise

    def _probe(self) -> None:
        key = f"{self._prefix}{LOCKS}probe-{self.environment.nonce()}"
        # A single refusal may be temporary. A server that does not support such a put refuses it every time, and
        # accepts a plain one.
        first = second = Put.UNKNOWN
        for _ in range(_PROBES_MAX):
            try:
                first, second = self.driver.put_new(key, b"1"), self.driver.put_new(key, b"2")
                break
            except WriteFailedError:
                self.driver.put(key, b"")  # if this is refused, too, the reason is another one
                first = second = Put.CREATED
            self.driver.delete([key])
        self.driver.delete([key])
        if (first, second) == (Put.CREATED, Put.CREATED):
            raise UsageError(
                f"{self.url}: this server does not honour put-if-absent (If-None-Match: *), so a store there would "
                "lose writes, and is not opened for writing. Known to work: Amazon S3, MinIO, Ceph, Cloudflare R2"
            )
        self._is_conditional = second is Put.EXISTS


def _holder(lease: bytes) -> str:
    """Describes the holder of a lease. The object may have any content, and must not block its lock for ever."""
    try:
        return msgspec.json.decode(lease, type=Lease).holder
    except UNREADABLE:
        return "an unknown process"


class ObjectAppender(forking.BoundAppender):
    """The appender of `ObjectBackend`: each append is the next segment."""

    def __init__(self, backend: ObjectBackend, agent: str) -> None:
        self._backend = backend
        self._agent = agent
        super().__init__()
        self._refusal: tuple[Callable[[str], OpslogError], str] | None = None
        self._number = 0

    def find_end(self) -> None:
        """Continue after the existing segments."""
        named = (segment_of(entry.path) for entry in self._backend.list(log_prefix(self._agent)))
        self._number = max((segment[1] for segment in named if segment), default=0)

    def append(self, data: bytes) -> Position:
        self._check_open()
        path = segment_path(self._agent, self._number + 1)
        interrupted = "an earlier append was interrupted: close the store, open it again, and check what is there"
        self._refusal = CommitUnknownError, interrupted
        try:
            created = self._backend.put_new(path, data)
        except CommitUnknownError as error:
            self._refusal = CommitUnknownError, str(error)
            raise
        except OpslogError:
            self._refusal = None  # nothing was written, and the next append may be
            raise
        if not created:
            raise self._fenced(path)
        self._refusal = None
        self._number += 1
        return Position(self._number, 0)

    def check_name(self) -> None:
        """Does nothing, because the segments show whether this log has another writer."""

    def advance(self, segment: int) -> None:
        if segment > self._number and self._is_fenced:
            self._refusal = None  # the caller has read what is there, and continues after it
        self._check_open()
        self._number = max(self._number, segment)

    def close(self) -> None:
        self._closed = True
        if not self._is_forked:
            _held.release((self._backend.url, self._agent), self)

    def _fenced(self, path: str) -> AgentFencedError:
        message = (
            f"another process writes under the agent name {self._agent!r} of {self._backend.url}: it created {path}. "
            "Nothing of this append is in the log. Close this store; then open it under a name of its own, or end the "
            "other process first"
        )
        self._refusal = partial(AgentFencedError, path=path), message
        return AgentFencedError(message, path)

    @property
    def _is_fenced(self) -> bool:
        return self._refusal is not None and isinstance(self._refusal[0], partial)

    def _check_open(self) -> None:
        super()._check_open()
        if self._refusal is not None:
            kind, message = self._refusal
            raise kind(message)
