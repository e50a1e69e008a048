"""Which calls of a storage a client may make, and in whose name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from opslog.backends.remote.protocol import (
    AnyCall,
    Append,
    AppendAt,
    CloseLog,
    Create,
    Delete,
    Lock,
    OpenLog,
    Persist,
    Unlock,
)
from opslog.errors import DataError, UsageError
from opslog.format.commits import Commit, Seal, Undo, decode_commits
from opslog.format.layout import TRANSACTIONS, archive_of
from opslog.log.session import SEALING_LOCK
from opslog.replica.queueing import LOCK as DECIDING_LOCK

# The locks that writers take to take turns.
_WRITERS_LOCKS = frozenset({SEALING_LOCK, DECIDING_LOCK})
# How far the clock of a new commit may be above all others. Clocks are finite, and each new one is above those that its
# writer has read: a commit with the greatest clock would be the last one of its store.
_CLOCKS_AHEAD = 2**32


class Written(Protocol):
    """What was written to a store."""

    def newest_clock(self, least: int) -> int:
        """The greatest clock. Searches for newer commits only if the greatest one known so far is below `least`."""

    def may_undo(self, author: str, target: int) -> bool:
        """Whether an undo of the transaction with this clock takes back nothing that others wrote or may write."""


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

    def check(self, call: AnyCall, store: Written | None = None) -> None:
        """
        :param store: what the lines to append are compared with; None: with nothing.
        :raises UsageError: the client may not make this call.
        """
        match call:
            case OpenLog(agent) | CloseLog(agent):
                # A compaction seals the logs of others.
                if not self.operates:
                    self._check_writes(agent)
            case Append() | AppendAt():
                self._check_lines(call, store)
            case Persist():
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

    def _check_lines(self, call: Append | AppendAt, store: Written | None) -> None:
        """Check the lines too, unless the client may write in any name. One line that is no commit would keep everybody
        from reading the log."""
        if self.agent is None:
            self._check_writes(call.agent)
            return
        try:
            commits = decode_commits(call.data, call.agent, 0)
        except DataError as error:
            raise UsageError(f"the bytes to append are not lines of a log: {error}") from error
        if self.operates and commits and all(isinstance(commit, Seal) for commit in commits):
            return
        self._check_writes(self.agent if call.agent == TRANSACTIONS else call.agent)
        for commit in commits:
            self._check_writes(commit.by if commit.agent == call.agent == TRANSACTIONS else commit.agent)
        if store is not None and commits:
            _check_clocks(commits, store)
            if call.agent == TRANSACTIONS:
                _check_undos(commits, store)

    def _check(self, allowed: bool, what: str) -> None:
        if not allowed:
            raise UsageError(f"this token may not {what}")


def _check_clocks(commits: Sequence[Commit], store: Written) -> None:
    greatest = max(commit.clock for commit in commits)
    if greatest > store.newest_clock(greatest - _CLOCKS_AHEAD) + _CLOCKS_AHEAD:
        raise UsageError(f"the clock {greatest} of a commit to append is too far above all others in the store")


def _check_undos(commits: Sequence[Commit], store: Written) -> None:
    """Check the undos in the shared log, whose lines have many authors."""
    own = {commit.clock for commit in commits}
    for commit in commits:
        if isinstance(commit, Undo) and commit.target not in own and not store.may_undo(commit.by, commit.target):
            raise UsageError(
                f"this token undoes only what {commit.by!r} wrote, not the transaction with the clock {commit.target}"
            )


EVERYBODY = Client(None, writes=True, operates=True)
