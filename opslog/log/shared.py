"""The shared log: transactions of all agents, in the order in which they happened.

Its one rule: a line is appended only at the end up to which its writer has read the log. So between what a transaction
saw and what it wrote there is no other transaction. The storage compares (`Backend.append_at`); whoever loses the race
for the end reads on and decides again.

Where names are not held by locks, the rules 6 and 7 of `opslog.log.session` hold here, too: the number was not used
before, as a recent manifest shows, before the append and after it.
"""

from __future__ import annotations

import msgspec

from opslog.backends import Backend, Position
from opslog.environment import format_ts
from opslog.errors import AgentFencedError
from opslog.format.commits import Commit, encode_commit
from opslog.format.layout import TRANSACTIONS
from opslog.format.torn import joined
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor
from opslog.log.session import WriterSession
from opslog.merge.clock import CLOCK_STEP, LamportClock


class SharedLog:
    """Appends to the shared log. Used by one thread at a time.

    :param clock: has observed all that is read.
    :param author: under whose name, of commits that do not say.
    """

    def __init__(self, backend: Backend, freshness: Freshness, clock: LamportClock, author: str) -> None:
        self._backend = backend
        self._freshness = freshness
        self._clock = clock
        self._author = author

    def stamp(self, commit: Commit, before: Commit | None, last_ts: str, *, key: str = "") -> bytes:
        """Give a commit its agent, author, nonce, clock and ts; returns its line.

        The clock has not moved yet: a plain commit of this process that is stamped before this one is in memory was
        made without it, and loses, as that of another process does; and an append that fails leaves nothing. So
        whoever has appended this has the clock observe it.

        :param before: the one before it in the same append; None: its line is the first.
        :param last_ts: of the line before the append: `ts` never goes back in this log.
        :param key: of the request that it is written for.
        :raises UsageError: as of `encode_commit`.
        :raises CorruptError: likewise.
        """
        environment = self._freshness.environment
        commit.agent, commit.by, commit.tx = TRANSACTIONS, commit.by or self._author, environment.nonce()
        commit.ts = max(last_ts if before is None else before.ts, format_ts(environment.time()))
        commit.clock = (self._clock.value if before is None else before.clock) + CLOCK_STEP
        line = encode_commit(commit, key)
        return line if before is None else joined(line)

    def append(self, lines: bytes, end: Cursor) -> Cursor | None:
        """Append lines if the log still ends where this cursor is. On return they are durable, and part of the log.

        :returns: the cursor behind them; None: the log goes on behind `end`, and nothing was written.
        :raises WriteFailedError: only the first `durable` bytes are in the log.
        :raises LockedError: a process that holds the log was stopped. Nothing was written.
        :raises CommitUnknownError: nobody can say.
        """
        at = _AtEnd(self._backend, Position(*end.position))
        session = WriterSession(self._backend, at, end, self._freshness, self._clock)
        try:
            position = session.append(lines)
        except AgentFencedError:
            return None
        return behind(self._backend, end, position, lines)


def behind(backend: Backend, end: Cursor, position: Position, lines: bytes) -> Cursor:
    """The cursor after lines that were appended at a position."""
    grows = backend.segments_grow
    return msgspec.structs.replace(
        end,
        segment=position.segment if grows else position.segment + 1,
        offset=position.offset + len(lines) if grows else 0,
        commits=end.commits + lines.count(b"\n"),
    )


class _AtEnd:
    """An appender that appends at the end up to which its log was read, or not at all."""

    def __init__(self, backend: Backend, end: Position) -> None:
        self._backend = backend
        self._end = end

    def append(self, data: bytes) -> Position:
        position = self._backend.append_at(TRANSACTIONS, self._end, data)
        if position is None:
            raise AgentFencedError("another transaction came first")
        return position

    def check_name(self) -> None:
        """It is everybody's."""

    def advance(self, segment: int) -> None:
        """The end was read, and says it."""

    def close(self) -> None:
        """Nothing is held."""
