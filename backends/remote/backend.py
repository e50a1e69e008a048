"""The backend of a store on a server: each call is a request to ``opslog serve --store``.

What this file guarantees:

- A call that changes something is carried out once, even if the network repeats, delays or loses requests, and even if
  the server is killed (`opslog.backends.remote.protocol`). If the outcome is still uncertain at the deadline, the call
  raises `CommitUnknownError`.
- An agent's name is a session on the server. If a client sent no request for a while, and another client took the name,
  the first one is fenced: its next append is refused, and nothing of it is in the log.
- A lock is held until `LOCK_SECONDS` after it was taken or renewed. It saves work and protects nothing, as on object
  storages.
- In a forked child every call raises `ClosedError`.
"""

from __future__ import annotations

import builtins
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from typing import TypeVar

import httpx

from opslog.backends import forking
from opslog.backends.contract import Buffer, Entry, Position, Range, Subscription
from opslog.backends.holders import this_process
from opslog.backends.names import check_path, check_prefix
from opslog.backends.remote import protocol
from opslog.backends.remote.channel import DEADLINE_SECONDS, Channel
from opslog.backends.remote.listening import Listener
from opslog.backends.remote.protocol import LOCK_SECONDS, Answer
from opslog.environment import REAL, Environment
from opslog.errors import (
    AgentFencedError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    MissingFileError,
    OpslogError,
    WriteFailedError,
)
from opslog.format.layout import check_name
from opslog.logs import logger

A = TypeVar("A", bound=Answer)

# The path below which a server has its stores.
_REST = "/v1/store"

# How long to try to report to a server that a session or lock is over. If the report does not arrive, it ends by
# itself.
_FAREWELL_SECONDS = 3.0


class RemoteBackend(forking.ProcessBound):
    """The storage of a store that a server serves.

    :param url: ``http://host:port/NAME``, or https; a path before the name is that of a proxy.
    :param token: the bearer token that the server requires; None: it requires none.
    :raises MissingStoreError: the server serves no such store.
    :raises RetryError: it does not answer for ten seconds, or at once, if nobody listens at the address.
    :raises UsageError: it requires another token.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        environment: Environment = REAL,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self._environment = environment
        super().__init__()
        self._channel = Channel(_address(self.url), self.url, token, environment, transport=transport)
        self._listener = Listener(self._channel, environment)
        try:
            self._storage = self._describe()
        except BaseException:
            self._channel.close()
            raise

    def _describe(self) -> protocol.Storage:
        return _as(protocol.Storage, self._channel.read(protocol.Describe(), waits=False))

    @property
    def segments_grow(self) -> bool:
        """As on the server's storage."""
        return self._storage.segments_grow

    @property
    def requests(self) -> int:
        """The number of requests sent to the server."""
        return self._channel.requests

    # Reading

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        self._check_open()
        check_prefix(prefix)
        return self._entries(protocol.ListFiles(prefix, after))

    def list_logs(self, seen: Mapping[str, int]) -> builtins.list[Entry]:
        self._check_open()
        return self._entries(protocol.ListLogs(dict(seen)))

    def _entries(self, call: protocol.Reading) -> builtins.list[Entry]:
        return _listed(_as(protocol.Entries, self._channel.read(call)).files)

    def list_with_logs(
        self, prefix: str, after: str, seen: Mapping[str, int]
    ) -> tuple[builtins.list[Entry], builtins.list[Entry] | None]:
        self._check_open()
        check_prefix(prefix)
        if not self._storage.lists_with_logs:
            return self.list(prefix, after), None
        answer = _as(protocol.FilesAndLogs, self._channel.read(protocol.ListWithLogs(prefix, after, dict(seen))))
        return _listed(answer.files), _listed(answer.logs)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        (data,) = self.read_many([Range(path, start, stop)])
        if data is None:
            raise MissingFileError(f"no file {path} in {self.url}", path)
        return data

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        self._check_open()
        for part in ranges:
            check_path(part.path)
        wanted = [(part.path, part.start, part.stop) for part in ranges]
        parts: list[bytes | None] = []
        while len(parts) < len(wanted):
            some = wanted[len(parts) : len(parts) + protocol.RANGES_MAX]
            parts += _as(protocol.Contents, self._channel.read(protocol.Read(some))).parts
        return parts

    def map(self, path: str) -> Buffer | None:
        self._check_open()
        check_path(path)
        return None

    def now(self) -> float:
        self._check_open()
        return _as(protocol.Value, self._channel.read(protocol.Now())).number

    def subscribe(self, changed: Callable[[], None]) -> Subscription | None:
        self._check_open()
        return _Subscription(self._listener, changed) if self._storage.announces else None

    # Creating and deleting

    def create(self, path: str, data: bytes) -> None:
        self._check_open()
        check_path(path)
        self._channel.change(lambda again: protocol.Create(path, bytes(data), again))

    def delete(self, paths: Iterable[str]) -> None:
        self._check_open()
        wanted = list(paths)
        for path in wanted:
            check_path(path)
        if wanted:
            self._settled(protocol.Delete(wanted))

    def persist(self, paths: Iterable[str]) -> None:
        self._check_open()
        if wanted := list(paths):
            self._settled(protocol.Persist(wanted))

    def _settled(self, call: protocol.Change, deadline_seconds: float = DEADLINE_SECONDS) -> Answer:
        """The response to a call that is safe to repeat."""
        try:
            return self._channel.change(lambda _: call, deadline_seconds)
        except CommitUnknownError as error:
            raise WriteFailedError(f"{self.url} gave no certain answer: {error.__cause__}; try again") from error

    # One writer per log, and locks

    def appender(self, agent: str) -> RemoteAppender:
        self._check_open()
        check_name(agent, "agent")
        session = self._environment.nonce()
        try:
            answer = self._settled(protocol.OpenLog(agent, session, this_process()))
        except WriteFailedError:
            raise
        except BaseException:
            self.end_session(agent, session)  # the server may have begun the session
            raise
        end = _as(protocol.At, answer).position
        assert end is not None
        self._channel.sessions[agent] = session
        return RemoteAppender(self, agent, session, end)

    def append_at(self, agent: str, end: Position, data: bytes) -> Position | None:
        self._check_open()
        check_name(agent, "agent")
        place = (end.segment, end.offset)
        answer = self._channel.change(lambda again: protocol.AppendAt(agent, place, bytes(data), again))
        found = _as(protocol.At, answer).position
        return None if found is None else Position(*found)

    def is_free(self, agent: str) -> bool:
        self._check_open()
        check_name(agent, "agent")
        return bool(_as(protocol.Value, self._channel.read(protocol.IsFree(agent))).number)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_open()
        check_name(name, "lock")
        owner = self._environment.nonce()
        taking, giving = protocol.Lock(name, owner, this_process()), protocol.Unlock(name, owner)
        done = threading.Event()
        renewing = threading.Thread(target=self._renew, args=(taking, done), name="opslog-lock", daemon=True)
        is_taken = True
        try:
            try:
                self._settled(taking)
            except LockedError:
                is_taken = False
                raise
            with suppress(RuntimeError):  # no more threads can start; without renewal no harm is done
                renewing.start()
            yield
        finally:
            done.set()
            if is_taken and not self._is_forked:
                if renewing.is_alive():
                    renewing.join()
                with suppress(OpslogError):  # the lock ends by itself
                    self._settled(giving, _FAREWELL_SECONDS)

    def _renew(self, lock: protocol.Lock, done: threading.Event) -> None:
        while not done.wait(LOCK_SECONDS / 3):
            try:
                self._settled(lock)
            except Exception as error:  # noqa: BLE001  (nobody else would ever hear of it)
                message = "the lock %s of %s was not renewed, and that is tried again: %s"
                logger("storage").warning(message, lock.name, self.url, error)

    # Common ground

    @property
    def channel(self) -> Channel:
        """The connection to the server."""
        self._check_open()
        return self._channel

    def end_session(self, agent: str, session: str) -> None:
        """Release a name, so that others can have it at once. If the server does not answer, they get it some time
        later."""
        if self._channel.sessions.get(agent) == session:
            del self._channel.sessions[agent]
        with suppress(OpslogError):
            self._settled(protocol.CloseLog(agent, session), _FAREWELL_SECONDS)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            if not self._is_forked:
                self._listener.close()
                self._channel.close()

    def _name(self) -> str:
        return self.url


class _Subscription(forking.ProcessBound):
    """A caller that wants to be notified of writes."""

    def __init__(self, listener: Listener, changed: Callable[[], None]) -> None:
        super().__init__()
        self._listener = listener
        self._changed = changed
        listener.subscribe(changed)

    @property
    def is_live(self) -> bool:
        return self._listener.is_live and not self._is_forked

    def close(self) -> None:
        if not self._is_forked:
            self._listener.unsubscribe(self._changed)


class RemoteAppender(forking.BoundAppender):
    """The appender of `RemoteBackend`: a session on the server.

    :param end: the last segment of the log, and its size.
    """

    def __init__(self, backend: RemoteBackend, agent: str, session: str, end: tuple[int, int]) -> None:
        self._backend = backend
        self._agent = agent
        self._session = session
        self._end = end
        super().__init__()
        self._floor = 0
        # The error that every further append raises, None while appends are possible.
        self._refusal: OpslogError | None = None

    def append(self, data: bytes) -> Position:
        self._check_open()
        channel, end, floor = self._backend.channel, self._end, self._floor
        # This stays set unless the append succeeds or fails with a certain outcome. So it is set after a
        # KeyboardInterrupt.
        self._refusal = CommitUnknownError(
            "an earlier append was interrupted: close the store, open it again, and check which commits are there"
        )
        try:
            answer = channel.change(
                lambda again: protocol.Append(self._agent, self._session, end, floor, bytes(data), again)
            )
        except (CommitUnknownError, AgentFencedError) as error:
            self._refusal = error
            raise
        except WriteFailedError as error:
            self._end = (end[0], end[1] + error.durable)
            self._refusal = None
            raise
        except OpslogError:
            self._refusal = None  # nothing was written, and the next append may be
            raise
        position = Position(*_as(protocol.At, answer).position or (0, 0))
        self._end = (position.segment, position.offset + len(data))
        self._refusal = None
        return position

    def check_name(self) -> None:
        """The server checks the name at the next append, and this checks only that a next one is possible at all. It
        must ignore `_refusal`, which another thread's append sets until its outcome is known."""
        super()._check_open()

    def advance(self, segment: int) -> None:
        if isinstance(self._refusal, AgentFencedError) and self._refusal.path and segment > self._floor:
            self._refusal = None  # the caller has read what is there, and continues after it
        self._check_open()
        self._floor = max(self._floor, segment)

    def close(self) -> None:
        if self._closed or self._is_forked:
            return
        self._closed = True
        self._backend.end_session(self._agent, self._session)

    def _check_open(self) -> None:
        super()._check_open()
        if self._refusal is not None:
            raise copy(self._refusal)


def _listed(files: Iterable[tuple[str, int, float]]) -> list[Entry]:
    return [Entry(*file) for file in files]


def _as(kind: type[A], answer: Answer) -> A:
    assert isinstance(answer, kind), answer
    return answer


def _address(url: str) -> str:
    """The address to which the calls of a store are posted.

    :raises InvalidNameError: the URL names no store.
    """
    try:
        parts = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidNameError(f"{url!r} names no store on a server ({error}): write http://host:4437/NAME") from error
    prefix, _, name = parts.raw_path.decode().rstrip("/").rpartition("/")
    if parts.scheme not in {"http", "https"} or not parts.host or not name or parts.query or parts.fragment:
        raise InvalidNameError(f"{url!r} names no store on a server: write http://host:4437/NAME")
    if parts.userinfo:
        raise InvalidNameError("a server's address has no user and password: open the store with token=…")
    outer, is_rest, behind = parts.raw_path.decode().partition(f"{_REST}/")
    if is_rest:
        right = f"{parts.scheme}://{parts.netloc.decode()}{outer}/{behind.partition('/')[0]}"
        raise InvalidNameError(f"{url!r} is an address for requests of REST: to open the store, take {right!r}")
    check_name(name, "store")
    return f"{parts.scheme}://{parts.netloc.decode()}{prefix}{_REST}/{name}/storage"


def open_url(url: str, *, create: bool = True, token: str | None = None) -> RemoteBackend:
    """The backend of ``http://host:port/NAME``; parameters as of `RemoteBackend`.

    :param create: has no effect: the stores that a server serves exist already.
    """
    return RemoteBackend(url, token=token)
