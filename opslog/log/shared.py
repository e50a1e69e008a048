"""The shared log: transactions of all agents, in the order in which they happened.

It has one rule: a line is appended only if its writer has read the log to its end. So no other transaction lies between
what a transaction saw and what it wrote. The storage compares the ends (`Backend.append_at`). A writer that loses the
race for the end reads on and decides again.

On storages without locks, invariants 6 and 7 of `opslog.log.session` hold here, too: before the append and after it, a
recent manifest shows that the number was not used before.
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

    :param clock: has observed everything that was read.
    :param author: the author of commits that name none.
    """

    def __init__(self, backend: Backend, freshness: Freshness, clock: LamportClock, author: str) -> None:
        self._backend = backend
        self._freshness = freshness
        self._clock = clock
        self._author = author

    def stamp(self, commit: Commit, before: Commit | None, last_ts: str, *, key: str = "") -> bytes:
        """Give a commit its agent, author, nonce, clock and ts; returns its line.

        This does not move the process's clock; the caller has it observe the commit after the append. Until then, plain
        commits of this process get smaller clocks, and lose, like those of another process: they were made without the
        transaction. And an append that fails leaves no trace.

        :param before: the commit before it in the same append; None: it is the first.
        :param last_ts: the `ts` of the last line before the append: `ts` never goes back in this log.
        :param key: the key of the request that it is written for.
        :raises UsageError: as in `encode_commit`.
        :raises CorruptError: as in `encode_commit`.
        """
        environment = self._freshness.environment
        commit.agent, commit.by, commit.tx = TRANSACTIONS, commit.by or self._author, environment.nonce()
        commit.ts = max(last_ts if before is None else before.ts, format_ts(environment.time()))
        commit.clock = (self._clock.value if before is None else before.clock) + CLOCK_STEP
        line = encode_commit(commit, key)
        return line if before is None else joined(line)

    def append(self, lines: bytes, end: Cursor) -> Cursor | None:
        """Append lines if the log still ends where this cursor is. On return they are durable, and part of the log.

        :returns: the cursor behind them. None: the log has grown beyond `end`, and nothing was written.
        :raises WriteFailedError: only the first `durable` bytes are in the log.
        :raises LockedError: a process that holds the log was stopped. Nothing was written.
        :raises CommitUnknownError: the outcome is unknown.
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
    """An appender that appends only if the log still ends where it was read to."""

    def __init__(self, backend: Backend, end: Position) -> None:
        self._backend = backend
        self._end = end

    def append(self, data: bytes) -> Position:
        position = self._backend.append_at(TRANSACTIONS, self._end, data)
        if position is None:
            raise AgentFencedError("another transaction came first")
        return position

    def check_name(self) -> None:
        """Nothing to check: every process may append to this log."""

    def advance(self, segment: int) -> None:
        """Nothing to do: the end that was read has the segment."""

    def close(self) -> None:
        """Nothing to close."""
