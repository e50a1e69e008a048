"""Sessions: a session lets one remote client write under an agent's name, for which this process holds the name.

Invariants:

1. While a session lasts, this process holds the agent's name, like any writer on the same storage. A session ends
   `SESSION_SECONDS` after its client's last request.
2. A session is recorded below ``locks/sessions/`` as the newest one of its agent before it writes anything. From then
   on every server refuses the session that it replaced.
3. A session that this process does not know is resumed only if it is the newest one and nobody else has written the log
   since.
4. When an append is retried, the server searches the log for the bytes of the earlier attempt. Nobody can append
   meanwhile. It makes what it finds durable before it acknowledges it.

Rejected: taking the name for each append alone. The name would be free between appends, and a compaction that finds it
free may seal the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import takewhile
from typing import NamedTuple, TypeVar

import msgspec

from opslog.backends import Appender, Backend, Position, Range
from opslog.backends.remote.protocol import SESSION_SECONDS, Append, CloseLog, OpenLog
from opslog.environment import Environment
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    CommitUnknownError,
    MissingFileError,
    OpslogError,
    UsageError,
    WriteFailedError,
)
from opslog.format.commits import Commit
from opslog.format.layout import LOCKS, check_name, log_prefix, segment_of, segment_path
from opslog.format.manifest import START, Cut
from opslog.format.prepared import prepare
from opslog.format.torn import sound_length
from opslog.server.stores.contents import LogEnd, Written, check_new, fault_of_next, nothing_written
from opslog.snapshot.manifests import ManifestStore

R = TypeVar("R")

# How long to wait for a name that another process holds briefly: to check whether it is free, or to finish an append.
_WAIT_SECONDS = 10.0
_PAUSE_SECONDS = 0.02

_RECORDS = f"{LOCKS}sessions/"


class _Record(msgspec.Struct):
    """The newest session of an agent, as stored."""

    session: str
    holder: str


prepare(_Record)


class _Session:
    """An open session.

    :ivar end: the number of the log's last segment, and the size of that segment in bytes.
    :ivar reached: a segment that the log is known to reach.
    :ivar last: where the log ends, if the client has an agent and has appended something.
    :ivar used: when its last request came, on the monotonic clock.
    """

    def __init__(self, name: str, holder: str, appender: Appender, end: tuple[int, int], used: float) -> None:
        self.name = name
        self.holder = holder
        self.appender = appender
        self.end = end
        self.reached = 0
        self.last: LogEnd | None = None
        self.used = used


class _Turns:
    """:ivar calls: how many calls hold the lock or wait for it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.calls = 0


class Sessions:
    """The sessions on one storage. Safe to use from many threads.

    :param store: what the lines of clients with an agent are compared with; None: with nothing.
    """

    def __init__(self, backend: Backend, environment: Environment, store: Written | None) -> None:
        self._backend = backend
        self._environment = environment
        self._store = store
        self._manifests = ManifestStore(backend)
        self._sessions: dict[str, _Session] = {}
        # One call at a time for each agent: the agents that have calls under way or waiting.
        self._busy: dict[str, _Turns] = {}
        self._mutex = threading.Lock()

    def __contains__(self, agent: object) -> bool:
        """Whether this agent has an open session."""
        return agent in self._sessions

    def open(self, call: OpenLog) -> tuple[int, int]:
        """Begin a session. Returns the number of the log's last segment, and the size of that segment in bytes.

        :raises AgentBusyError: another session is open, or another process holds the name.
        :raises OpslogError: as for `Backend.appender`.
        """
        check_name(call.agent, "agent")
        return self._alone(call.agent, lambda: self._open(call))

    def append(self, call: Append, commits: Sequence[Commit]) -> Position:
        """Append to the log of a session. Errors as for `Appender.append`.

        :param commits: those of a client with an agent. They are checked.
        :raises WriteFailedError: also if these commits cannot come next, or the client names a segment that the log
            does not reach.
        :raises AgentFencedError: also if another session has replaced this one. Nothing was written.
        """
        check_name(call.agent, "agent")
        return self._alone(call.agent, lambda: self._append(call, commits))

    def close(self, call: CloseLog) -> None:
        """End a session, if it is still open."""
        check_name(call.agent, "agent")
        self._alone(call.agent, lambda: self._close(call.agent, call.session))

    def renew(self, sessions: Mapping[str, str]) -> None:
        """Record that the client of these sessions has sent a request."""
        now = self._environment.monotonic()
        for agent, name in sessions.items():
            current = self._sessions.get(agent)
            if current is not None and current.name == name:
                current.used = now

    def check_newest(self, sessions: Mapping[str, str]) -> None:
        """:raises AgentFencedError: another session has replaced one of these."""
        for agent, name in sessions.items():
            current = self._sessions.get(agent)
            newest = current.name if current is not None else self._newest_name(agent)
            if newest is not None and newest != name:
                raise _fenced(agent, "another session has begun under this name")

    def close_idle(self) -> None:
        """Release the names of clients that have sent no request for `SESSION_SECONDS`. If such a client returns, its
        session is resumed."""
        before = self._environment.monotonic() - SESSION_SECONDS
        for agent, session in list(self._sessions.items()):
            if session.used < before:
                self._alone(agent, partial(self._close_if_idle, agent, before))

    def _close_if_idle(self, agent: str, before: float) -> None:
        session = self._sessions.get(agent)
        if session is not None and session.used < before:
            self._close(agent, session.name)

    def close_all(self) -> None:
        """Release all names. After a restart this server, or another one, can resume the sessions."""
        for agent, session in list(self._sessions.items()):
            self.close(CloseLog(agent, session.name))

    def _alone(self, agent: str, work: Callable[[], R]) -> R:
        with self._mutex:
            turns = self._busy.setdefault(agent, _Turns())
            turns.calls += 1
        try:
            with turns.lock:
                return work()
        finally:
            with self._mutex:
                turns.calls -= 1
                if not turns.calls:
                    del self._busy[agent]

    # -- one call at a time

    def _open(self, call: OpenLog) -> tuple[int, int]:
        agent, now = call.agent, self._environment.monotonic()
        current = self._sessions.get(agent)
        if current is not None:
            if current.name == call.session:
                return current.end  # the call came again
            if now - current.used < SESSION_SECONDS:
                raise AgentBusyError(
                    f"agent {agent!r} is in use by {current.holder}: close the store there, end that process and wait "
                    f"{SESSION_SECONDS:g} seconds, or open under another agent name",
                    agent,
                    current.holder,
                )
            self._close(agent, current.name)
        appender = self._backend.appender(agent)
        try:
            self._note(agent, _Record(call.session, call.holder))
            end = self._end_of(agent)
        except BaseException:
            appender.close()
            raise
        self._sessions[agent] = _Session(call.session, call.holder, appender, end, now)
        return end

    def _close(self, agent: str, name: str) -> None:
        current = self._sessions.get(agent)
        if current is not None and current.name == name:
            del self._sessions[agent]
            current.appender.close()

    def _append(self, call: Append, commits: Sequence[Commit]) -> Position:
        current = self._sessions.get(call.agent)
        refusal: OpslogError | None = None
        if current is None or current.name != call.session:
            try:
                current = self._resume(call)
            except (AgentFencedError, AgentBusyError) as error:
                refusal = error
        if call.again and (tried := written(self._backend, call.agent, call.end, call.data)) is not None:
            return self._whole(tried, call)
        if refusal is not None or current is None:
            raise self._refusal(call, refusal)
        if commits:
            with nothing_written():
                self._check(call, commits, current)
        if call.floor:
            current.appender.advance(call.floor)
        current.last = None
        position = current.appender.append(call.data)
        current.end = (position.segment, position.offset + len(call.data))
        if commits:
            current.last = LogEnd(current.end, commits[-1].clock, "", "")
        return position

    def _check(self, call: Append, commits: Sequence[Commit], current: _Session) -> None:
        """:raises UsageError: these commits cannot come next in the log, or a segment before them would be missing."""
        if self._store is not None:
            check_new(commits, self._store)
            last, now = current.last or self._store.log_end(call.agent), self._environment.time()
            fault = fault_of_next(commits, last, now)
            if fault is not None and last is current.last:
                fault = fault_of_next(commits, self._store.log_end(call.agent), now)
            if fault is not None:
                raise UsageError(fault)
        if call.floor > current.reached:
            newest = max(self._end_of(call.agent)[0], self._cut_of(call.agent).last_segment)
            if call.floor > newest:
                raise UsageError(f"the last segment of the log of {call.agent!r} is {newest}, and not {call.floor}")
            current.reached = call.floor

    def _whole(self, tried: Tried, call: Append) -> Position:
        """The position at which an earlier attempt has appended all of the data.

        :raises WriteFailedError: it has appended only a part.
        """
        current = self._sessions.get(call.agent)
        if current is not None and current.name == call.session:
            current.end = (tried.place.segment, tried.place.offset + tried.length)
        return tried.whole(call.data)

    def _refusal(self, call: Append, refusal: OpslogError | None) -> OpslogError:
        """The error for a client that cannot append, if nothing of its earlier attempt was found."""
        is_collected = call.end[0] and call.end[0] not in self._sizes(call.agent)
        if call.again and (is_collected or isinstance(refusal, AgentBusyError)):
            return CommitUnknownError(
                f"the last append to the log of agent {call.agent!r} may or may not have happened, since a response "
                f"was lost: {refusal}. Close the store, open it again, and check"
            )
        if isinstance(refusal, AgentBusyError):
            return WriteFailedError(f"nothing was written: {refusal}")
        assert refusal is not None
        return refusal

    def _resume(self, call: Append) -> _Session:
        """Resume a session that this process does not know.

        :raises AgentFencedError: another session has replaced it, or somebody else has written the log.
        :raises AgentBusyError: another process has held the name for `_WAIT_SECONDS`.
        """
        agent = call.agent
        if agent in self._sessions:
            raise _fenced(agent, "another session has begun under this name")
        appender = self._take_name(agent)
        try:
            if self._newest_name(agent) != call.session:
                raise _fenced(agent, "another session has begun under this name, or its record was removed")
            end = call.end
            if call.again and (tried := written(self._backend, agent, call.end, call.data)) is not None:
                end = (tried.place.segment, tried.place.offset + tried.length)
            self._check_goes_on(agent, end, call.floor)
            appender.advance(self._cut_of(agent).last_segment)
        except BaseException:
            appender.close()
            raise
        self._sessions[agent] = resumed = _Session(
            call.session, "a process elsewhere", appender, end, self._environment.monotonic()
        )
        return resumed

    def _take_name(self, agent: str) -> Appender:
        now = self._environment.monotonic
        deadline = now() + _WAIT_SECONDS
        while True:
            try:
                return self._backend.appender(agent)
            except AgentBusyError:
                if now() >= deadline:
                    raise
            self._environment.sleep(_PAUSE_SECONDS)

    def _check_goes_on(self, agent: str, end: tuple[int, int], floor: int) -> None:
        """Check that a log has no line after `end` that its writer has not seen; it has seen everything up to segment
        `floor`. An empty segment or a torn tail is allowed, since a killed server may have left one.

        :raises AgentFencedError: somebody has written the log, or may have. It carries the path of the segment, which
            may hold a seal.
        """
        sizes = self._sizes(agent)
        known = max(end[0], floor)
        if known == end[0] and known and sizes.get(known, -1) < end[1]:
            cut = self._cut_of(agent)
            if known in sizes or (cut.segment, cut.offset) != (known + 1, 0):
                raise _fenced(agent, "its log was cut off or collected", segment_path(agent, known + 1))
        for number in [number for number in sizes if number > known or number == end[0]]:
            path = segment_path(agent, number)
            if sound_length(self._backend.read(path, end[1] if number == end[0] else 0)):
                raise _fenced(agent, "its log continues after what this session has written", path)

    def _cut_of(self, agent: str) -> Cut:
        """The cut of the newest manifest in a log."""
        return self._manifests.newest().cut.get(agent, START) if self._manifests.newest_number() else START

    def _end_of(self, agent: str) -> tuple[int, int]:
        """The number of a log's last segment, and the size of that segment; zeros if there is none."""
        return max(self._sizes(agent).items(), default=(0, 0))

    def _sizes(self, agent: str) -> dict[int, int]:
        """The size of each segment of a log, by its number, in order."""
        named = ((segment_of(entry.path), entry.size) for entry in self._backend.list(log_prefix(agent)))
        return {segment[1]: size for segment, size in named if segment}

    def _newest_name(self, agent: str) -> str | None:
        """The name of an agent's newest session, as stored; None if there is none."""
        record, _ = self._newest(agent)
        return None if record is None else record.session

    def _newest(self, agent: str) -> tuple[_Record | None, int]:
        """An agent's newest session record, and its number; None and 0 if there is none."""
        for entry in reversed(self._backend.list(f"{_RECORDS}{agent}/")):
            with suppress(MissingFileError, msgspec.DecodeError, ValueError):
                number = int(entry.path.rpartition("/")[2])
                return msgspec.json.decode(self._backend.read(entry.path), type=_Record), number
        return None, 0

    def _note(self, agent: str, record: _Record) -> None:
        """Store the record of the newest session. From then on every server knows it."""
        old, number = self._newest(agent)
        try:
            self._backend.create(f"{_RECORDS}{agent}/{number + 1:020d}", msgspec.json.encode(record))
        except AlreadyExistsError as error:
            other = "a process that asked another server"
            raise AgentBusyError(f"agent {agent!r} was taken just now by {other}", agent, other) from error
        if old is not None:
            self._backend.delete([f"{_RECORDS}{agent}/{number:020d}"])


class Tried(NamedTuple):
    """What an earlier attempt of an append has written: `length` bytes at `place`. They are durable."""

    place: Position
    length: int

    def whole(self, data: bytes) -> Position:
        """The position of the data, if all of it is there.

        :raises WriteFailedError: only a part of it is there.
        """
        if self.length < len(data):
            raise WriteFailedError(
                f"only the first {self.length} bytes of this append are in the log: the server was killed halfway",
                self.length,
            )
        return self.place


def written(backend: Backend, agent: str, end: tuple[int, int], data: bytes) -> Tried | None:
    """Search a log for lines that an earlier attempt was to append at `end`. They may be there, or at the start of a
    later segment. Returns None if nothing of them is in the log."""
    named = (segment_of(entry.path) for entry in backend.list(log_prefix(agent)))
    places = [Position(*end), *(Position(segment[1], 0) for segment in named if segment and segment[1] > end[0])]
    places = [place for place in places if place.segment]
    ranges = [Range(segment_path(agent, place.segment), place.offset, place.offset + len(data)) for place in places]
    for place, found in zip(places, backend.read_many(ranges), strict=True):
        if length := _same_lines(found or b"", data):
            backend.persist([segment_path(agent, place.segment)])
            return Tried(place, length)
    return None


def _same_lines(found: bytes, data: bytes) -> int:
    """How many leading bytes of `data` were found, in whole lines."""
    if found == data:
        return len(data)
    pairs = zip(found.split(b"\n")[:-1], data.split(b"\n"), strict=False)
    return sum(len(line) + 1 for line, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _fenced(agent: str, reason: str, path: str = "") -> AgentFencedError:
    return AgentFencedError(
        f"another process can write the log of agent {agent!r}: {reason}. Nothing of this append is in the log. Close "
        "the store and open it again",
        path,
    )
