"""Sessions: which client elsewhere writes under an agent's name, as long as this process has the name for it.

What holds:

1. While a session lasts, this process has the agent's name, as any writer on the same storage. When nothing was asked
   for during `SESSION_SECONDS`, whoever wants the name gets it.
2. Who has it next is written below ``locks/sessions/`` before anything of it is. From then on a session that was
   replaced is refused, by every server.
3. A session goes on after the server was started anew only if no other one has followed it, and nobody has written the
   log since.

Roads not taken: to take the name for each append alone leaves it free in between, and a compaction that finds it free
may end the log where it is.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

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
)
from opslog.format.layout import LOCKS, check_name, log_prefix, segment_of, segment_path
from opslog.format.manifest import START, Cut
from opslog.format.torn import sound_length
from opslog.snapshot.manifests import ManifestStore

R = TypeVar("R")

# How long a name is held for a session that asks for nothing.
_IDLE_SECONDS = 600.0

_RECORDS = f"{LOCKS}sessions/"


class _Record(msgspec.Struct):
    """Whose session is the newest one of an agent, as kept in the storage."""

    session: str
    holder: str


class _Session:
    """A session that lasts.

    :ivar end: the last segment of the log, and its size.
    :ivar used: when its last request came.
    """

    def __init__(self, name: str, holder: str, appender: Appender, end: tuple[int, int], used: float) -> None:
        self.name = name
        self.holder = holder
        self.appender = appender
        self.end = end
        self.used = used


class Sessions:
    """The sessions on one storage. Safe to use from many threads."""

    def __init__(self, backend: Backend, environment: Environment) -> None:
        self._backend = backend
        self._environment = environment
        self._manifests = ManifestStore(backend)
        self._sessions: dict[str, _Session] = {}
        # One call at a time for each agent.
        self._busy: dict[str, threading.Lock] = {}

    def __contains__(self, agent: object) -> bool:
        """Whether a session of this agent lasts."""
        return agent in self._sessions

    def open(self, call: OpenLog) -> tuple[int, int]:
        """Begin a session. Returns the last segment of the log, and its size.

        :raises AgentBusyError: another one lasts, or somebody else has the name.
        :raises OpslogError: as of `Backend.appender`.
        """
        check_name(call.agent, "agent")
        return self._alone(call.agent, lambda: self._open(call))

    def append(self, call: Append) -> Position:
        """Append to the log of a session; errors as of `Appender.append`.

        :raises AgentFencedError: also if the session was replaced. Nothing was written.
        """
        check_name(call.agent, "agent")
        return self._alone(call.agent, lambda: self._append(call))

    def close(self, call: CloseLog) -> None:
        """End a session, if it still lasts."""
        self._alone(call.agent, lambda: self._close(call.agent, call.session))

    def close_idle(self) -> None:
        """Let go of names whose sessions have asked for nothing for long, so that their logs can be sealed. Should they
        come again, they go on as after a new start of the server."""
        before = self._environment.monotonic() - _IDLE_SECONDS
        for agent, session in list(self._sessions.items()):
            if session.used < before:
                self.close(CloseLog(agent, session.name))

    def close_all(self) -> None:
        """Let go of all names. The sessions go on with this server started anew, or another one."""
        for agent, session in list(self._sessions.items()):
            self.close(CloseLog(agent, session.name))

    def _alone(self, agent: str, work: Callable[[], R]) -> R:
        with self._busy.setdefault(agent, threading.Lock()):
            return work()

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

    def _append(self, call: Append) -> Position:
        current = self._sessions.get(call.agent)
        if call.again and (found := find(self._backend, call.agent, call.end, call.data)) is not None:
            return found  # an earlier try was carried out
        if current is None or current.name != call.session:
            current = self._resume(call)
        current.used = self._environment.monotonic()
        if call.floor:
            current.appender.advance(call.floor)
        position = current.appender.append(call.data)
        current.end = (position.segment, position.offset + len(call.data))
        return position

    def _resume(self, call: Append) -> _Session:
        """Go on with a session that this process does not know, because it was started since.

        :raises AgentFencedError: another session followed it, or somebody else wrote the log.
        :raises CommitUnknownError: so it was, and what an earlier try has written may be compacted.
        """
        agent = call.agent
        record, _ = self._newest(agent)
        if agent in self._sessions or (record is not None and record.session != call.session):
            raise self._replaced(call, "another session has begun under this name")
        try:
            appender = self._backend.appender(agent)
        except AgentBusyError as error:
            raise self._replaced(call, f"it is in use by {error.holder}") from error
        try:
            end = self._goes_on_from(call)
            if end is None:
                raise self._replaced(call, "its log goes on behind what this session has written")
            appender.advance(self._cut_of(agent).last_segment)
        except BaseException:
            appender.close()
            raise
        holder = record.holder if record is not None else "a process elsewhere"
        self._sessions[agent] = resumed = _Session(call.session, holder, appender, end, 0.0)
        return resumed

    def _goes_on_from(self, call: Append) -> tuple[int, int] | None:
        """Where a log ends that has no line behind the end that a session has left; None: there are some. A server that
        was killed may have left an empty segment, or a torn tail."""
        sizes, end = self._sizes(call.agent), call.end
        if end[0] and sizes.get(end[0], -1) < end[1]:
            return None
        behind = [
            Range(segment_path(call.agent, number), end[1] if number == end[0] else 0)
            for number in sizes
            if number >= end[0]
        ]
        if any(data is None or sound_length(data) for data in self._backend.read_many(behind)):
            return None
        return max(sizes.items(), default=(0, 0))

    def _replaced(self, call: Append, reason: str) -> OpslogError:
        cut = self._cut_of(call.agent)
        if call.again and (cut.segment, cut.offset) > call.end:
            return CommitUnknownError(
                f"what was appended last to the log of agent {call.agent!r} may or may not be there: an answer was "
                f"lost, {reason}, and the log was compacted since. Close the store, open it again, and check"
            )
        return AgentFencedError(
            f"another process can write the log of agent {call.agent!r}: {reason}. Nothing of this append is in the "
            "log. Close the store and open it again"
        )

    def _cut_of(self, agent: str) -> Cut:
        """Up to where the newest snapshot has a log."""
        return self._manifests.newest().cut.get(agent, START) if self._manifests.newest_number() else START

    def _end_of(self, agent: str) -> tuple[int, int]:
        """The last segment of a log, and its size; zeros where there is none."""
        return max(self._sizes(agent).items(), default=(0, 0))

    def _sizes(self, agent: str) -> dict[int, int]:
        """The segments of a log by their numbers, in order."""
        named = ((segment_of(entry.path), entry.size) for entry in self._backend.list(log_prefix(agent)))
        return {segment[1]: size for segment, size in named if segment}

    def _newest(self, agent: str) -> tuple[_Record | None, int]:
        """The newest record of an agent, and its number."""
        for entry in reversed(self._backend.list(f"{_RECORDS}{agent}/")):
            with suppress(MissingFileError, msgspec.DecodeError, ValueError):
                number = int(entry.path.rpartition("/")[2])
                return msgspec.json.decode(self._backend.read(entry.path), type=_Record), number
        return None, 0

    def _note(self, agent: str, record: _Record) -> None:
        """From now on this is the newest one, for every server."""
        old, number = self._newest(agent)
        try:
            self._backend.create(f"{_RECORDS}{agent}/{number + 1:020d}", msgspec.json.encode(record))
        except AlreadyExistsError as error:
            other = "a process that asked another server"
            raise AgentBusyError(f"agent {agent!r} was taken just now by {other}", agent, other) from error
        if old is not None:
            self._backend.delete([f"{_RECORDS}{agent}/{number:020d}"])


def find(backend: Backend, agent: str, end: tuple[int, int], data: bytes) -> Position | None:
    """Where bytes are that were to be appended at an end: there, or where a later segment begins. None: nowhere."""
    named = (segment_of(entry.path) for entry in backend.list(log_prefix(agent)))
    places = [Position(*end), *(Position(segment[1], 0) for segment in named if segment and segment[1] > end[0])]
    places = [place for place in places if place.segment]
    ranges = [Range(segment_path(agent, place.segment), place.offset, place.offset + len(data)) for place in places]
    found = zip(places, backend.read_many(ranges), strict=True)
    return next((place for place, there in found if there == data), None)
