"""What simulated agents tried to write, how each call ended, and which commits of others they were handed.

Several threads and tasks may write through one store at once, so the clock of the store does not say which commit is
whose. While a `Ledger` is `listening`, it sees each commit being queued, and knows for which call: that is a context
variable, which asyncio passes on to the threads of a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from opslog.errors import CommitUnknownError, NotFoundError, OpslogError
from opslog.format.commits import Batch, Commit, Delete, Seal, Set, SetOp, Undo
from opslog.log.reader import Cursor
from opslog.log.writer import LogWriter, Pending
from opslog.replica.news import News
from opslog.store import Store, replica_of
from opslog.testing.signals import Interrupt

# What is compared of a commit: the kind, and per op the id and the document's text, or the period.
Content = tuple[Any, ...]


@dataclass(eq=False)
class Attempt:
    """One call that writes.

    :ivar store: through which it was made; None for an import.
    :ivar content: what the commit will hold; of an undo, and of the documents of an archive, that is not known before.
    :ivar pending: the commit, as it was queued. Its clock changes if a seal comes into the log before it.
    :ivar outcome: "begun" (whoever made it died), "buffered" (not known to be written), "done", "refused", "unknown",
        or "nothing" (there was nothing to do).
    """

    store: Store[Any] | None
    agent: str
    content: Content
    imported_clock: int = 0
    pending: Pending | None = None
    outcome: str = "begun"

    @property
    def clock(self) -> int:
        """Of the commit, 0 as long as it is not known."""
        return self.imported_clock if self.pending is None else self.pending.commit.clock

    def __str__(self) -> str:
        return f"{self.outcome} {self.content[0]} of {self.agent!r} at clock {self.clock}: {self.content[1:]}"

    @property
    def may_still_come(self) -> bool:
        """Whether nobody knows if, and under which clock, it is written."""
        return self.outcome == "begun" or (self.outcome == "unknown" and not self.clock)

    def writes(self, id: str) -> bool:
        """Whether it is a set or a delete of this document."""
        kind, what, *_ = *self.content, None
        return bool((kind == "set" and what[0] == id) or (kind == "delete" and what == id))

    def matches(self, commit: Commit) -> bool:
        """Whether this call may have written that commit."""
        if self.agent != commit.agent or (self.clock and self.clock != commit.clock):
            return False
        content = content_of(commit)
        return self.content == content or (self.content[0] in ("undo", "archive") and self.content == content[:2])


@dataclass(eq=False)
class Handout:
    """The commits that one open store has handed out.

    :ivar since: per agent how many commits of its log were in the store when it was opened.
    :ivar until: how many of them were there or handed out in the end, None where that is not known.
    :ivar handed: per thread what it was handed, in order.
    :ivar is_whole: False where the store knows of commits that were collected before it had read them.
    """

    store: Store[Any]
    who: str
    since: dict[str, int]
    until: dict[str, int] | None = None
    handed: dict[str, list[Commit]] = field(default_factory=dict)
    is_whole: bool = True

    def take(self, thread: str, commits: Iterable[Commit]) -> None:
        self.handed.setdefault(thread, []).extend(commits)


# The attempt that the running call is.
_CALL: ContextVar[Attempt | None] = ContextVar("_CALL", default=None)


class Ledger:
    """All attempts, in the order in which they began, and what every store has handed out."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []
        self.handouts: list[Handout] = []

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block it is known which call has queued which commit, and whether a refresh has missed any."""
        append, catch_up = LogWriter._append, News.catch_up

        def noting(writer: LogWriter, commit: Commit) -> Pending:
            pending = append(writer, commit)
            attempt = _CALL.get()
            if attempt is not None:
                attempt.pending = pending
            return pending

        def noting_gaps(news: News, commits: Iterable[Commit], complete: bool, cursors: dict[str, Cursor]) -> None:
            catch_up(news, commits, complete, cursors)
            for handout in self.handouts:
                if replica_of(handout.store).news is news:
                    handout.is_whole &= complete

        with patch.object(LogWriter, "_append", noting), patch.object(News, "catch_up", noting_gaps):
            yield

    @contextmanager
    def attempt(self, store: Store[Any], agent: str, content: Content) -> Iterator[Attempt]:
        """Around a call that writes: notes how it ends, and lets the error out."""
        attempt = Attempt(store, agent, content)
        self.attempts.append(attempt)
        outer = _CALL.set(attempt)
        try:
            yield attempt
        except OpslogError as error:
            is_unknown = attempt.pending is not None and isinstance(error, CommitUnknownError)
            attempt.outcome = "unknown" if is_unknown else "refused"
            if isinstance(error, NotFoundError):
                attempt.outcome = "nothing"
            raise
        except (Interrupt, MemoryError):
            attempt.outcome = "unknown"  # what was queued is written later
            raise
        finally:
            _CALL.reset(outer)
        if attempt.outcome == "begun":
            attempt.outcome = "buffered" if replica_of(store).is_buffered else "done"

    def buffered(self, store: Store[Any]) -> list[Attempt]:
        """What is buffered in this store, as far as is known."""
        return [attempt for attempt in self.attempts if attempt.store is store and attempt.outcome == "buffered"]

    def flushed(self, attempts: Iterable[Attempt]) -> None:
        """These, which were buffered when a `flush` or `close` began, are written: it has returned."""
        for attempt in attempts:
            attempt.outcome = "done"

    def opened(self, store: Store[Any], who: str) -> Handout:
        """Begin to note what a store hands out, which was just opened."""
        handout = Handout(store, who, progress(store))
        self.handouts.append(handout)
        return handout

    def catch_up(self, store: Store[Any]) -> None:
        """The last refresh of a store: after it all that was in the store before must have been handed out."""
        handout = next(handout for handout in self.handouts if handout.store is store)
        until = progress(store)
        handout.take("the end", store.refresh())
        handout.until = until


def progress(store: Store[Any]) -> dict[str, int]:
    """Per agent how many commits of its log are in the store."""
    return {agent: cursor.commits for agent, cursor in replica_of(store).state.cursors.items()}


def content_of(commit: Commit) -> Content:
    if isinstance(commit, Set):
        return "set", (commit.id, bytes(commit.data))
    if isinstance(commit, Delete):
        return "delete", commit.id
    if isinstance(commit, Undo):
        return "undo", None, commit.target
    if isinstance(commit, Seal):
        return ("seal",)
    return _content_of_batch(commit)


def _content_of_batch(batch: Batch) -> Content:
    periods = {op.archived for op in batch.ops if not isinstance(op, SetOp)} - {None}
    if periods:
        return "archive", periods.pop(), *(op.id for op in batch.ops)
    return "batch", *((op.id, bytes(op.data) if isinstance(op, SetOp) else None) for op in batch.ops)
