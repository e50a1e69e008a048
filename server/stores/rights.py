"""Which calls of a storage a client may make, and in whose name."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from opslog.backends.remote.protocol import (
    AnyCall,
    Append,
    AppendAt,
    CloseLog,
    Create,
    Delete,
    Lock,
    OpenLane,
    OpenLog,
    Persist,
    Unlock,
)
from opslog.errors import UsageError
from opslog.format.commits import Commit, Seal
from opslog.format.layout import TRANSACTIONS, archive_of
from opslog.log.session import SEALING_LOCK
from opslog.replica.queueing import LOCK as DECIDING_LOCK
from opslog.server.stores.contents import check_each, decode_lines

# The locks that writers take to take turns.
_WRITERS_LOCKS = frozenset({SEALING_LOCK, DECIDING_LOCK})


class Client(msgspec.Struct, frozen=True):
    """:ivar agent: the agent in whose name it may write; None: in any name.
    :ivar writes: whether it may write documents and archives.
    :ivar operates: whether it may change a store in other ways: compact, collect, repair.
    """

    agent: str | None
    writes: bool
    operates: bool

    def own(self, sessions: Mapping[str, str]) -> Mapping[str, str]:
        """The sessions, by agent, that the client may use. The others do not count: it can read their names in the
        storage."""
        return {agent: name for agent, name in sessions.items() if self.agent in (None, agent)}

    def check(self, call: AnyCall) -> None:
        """Check everything but the lines of an append, which `check_lines` checks.

        :raises UsageError: the client may not make this call.
        """
        match call:
            case OpenLog(agent) | CloseLog(agent):
                # A compaction seals the logs of others.
                if not self.operates:
                    self._check_writes(agent)
            # The server remembers a limited number of lanes, and forgets those of others.
            case OpenLane() | Persist():
                self._check(self.writes or self.operates, "write")
            # Any other name below the folder of archives could keep a period from being archived.
            case Create(path) if archive_of(path) is not None:
                self._check(self.writes or self.operates, "write")
            case Lock(name) | Unlock(name) if name in _WRITERS_LOCKS:
                self._check(self.writes or self.operates, "write")
            case Create() | Delete() | Lock() | Unlock():
                self._check(self.operates, "operate")

    def _check_writes(self, agent: str) -> None:
        self._check(self.writes, "write")
        if self.agent not in (None, agent):
            raise UsageError(f"this token writes in the name of {self.agent!r}, and of nobody else")

    def check_lines(self, call: Append | AppendAt) -> list[Commit]:
        """The commits in the lines of a call, if it may append them. Empty if what they say is not checked: the client
        may write in any name, or it seals logs."""
        if self.agent is None:
            self._check_writes(call.agent)
            return []
        commits = decode_lines(call.agent, call.data)
        if self.operates and all(isinstance(commit, Seal) for commit in commits):
            return []
        self._check_writes(self.agent if call.agent == TRANSACTIONS else call.agent)
        for commit in commits:
            self._check_writes(commit.author)
        check_each(call.agent, commits, call.data)
        is_shared = call.agent == TRANSACTIONS
        if isinstance(call, AppendAt) != is_shared:
            raise UsageError(
                f"this token appends to the log of {call.agent!r} {'without' if is_shared else 'by'} a session"
            )
        if is_shared and any(isinstance(commit, Seal) for commit in commits):
            raise UsageError("this token may not seal the shared log")
        return commits

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise UsageError(f"this token may not {what}")


EVERYBODY = Client(None, writes=True, operates=True)
