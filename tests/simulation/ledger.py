"""What simulated agents tried to write, how each call ended, and which commits of others each store was handed.

Several threads and tasks may write through one store at once, so the store's clock does not show whose commit is which.
While a `Ledger` is `listening`, it sees each commit being queued, and knows its call from a context variable, which
asyncio passes on to the threads of a task. The same holds for each transaction that is queued to be decided, and for
what it then appends to the shared log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any
from unittest.mock import patch

from opslog.errors import CommitUnknownError, ConflictError, NotFoundError, OpslogError
from opslog.format.commits import Batch, Commit, Delete, Seal, Set, SetOp, Stamp, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.log.reader import Cursor
from opslog.log.writer import LogWriter, Pending
from opslog.replica.deciding import Deciding, Waiting
from opslog.replica.news import News
from opslog.replica.state import View
from opslog.store import Store, replica_of
from opslog.testing.signals import Interrupt

# The parts of a commit that are compared: the kind, and per op the id and the document's text, or the period.
Content = tuple[Any, ...]

# The texts of documents by id; None for documents that are not there.
Texts = dict[str, bytes | None]

# The kind of a call whose documents are known only after its function has run: `Attempt.written`.
TRANSACTION = "transaction"

_MOMENTS = count(1)


@dataclass(eq=False)
class Attempt:
    """One call that writes.

    :ivar store: the store that it used; None for an import.
    :ivar content: what the commit will hold. For an undo, and for the documents of an archive, that is not known
        before.
    :ivar pending: the commit as it was queued. Its clock changes if a seal comes into the log first.
    :ivar decided: the transaction, if it was queued as one. `sent` is what it sent to the shared log; the last one
        counts.
    :ivar read, written: of a transaction: the texts that its function saw last, except for its own writes, and the
        texts that it wrote. A document that caused a refusal counts as read.
    :ivar matched: the result of its query for taken tasks; None if it made none.
    :ivar began, ended: numbers in the order of events. `ended` is set only if the call was acknowledged or refused.
    :ivar known: the clock of the last transaction that its store had read when the call began.
    :ivar seen: how many commits of the shared log its store had read when its commit was queued for the agent's own
        log. None: it was not queued there, or the store was just then reading.
    :ivar outcome: "begun" (its process died), "buffered" (not known to be written), "done", "refused", "unknown", or
        "nothing" (there was nothing to do).
    """

    store: Store[Any] | None
    agent: str
    content: Content
    imported_clock: int = 0
    pending: Pending | None = None
    outcome: str = "begun"
    decided: Waiting[Any, Any] | None = None
    sent: list[Commit] = field(default_factory=list)
    read: Texts = field(default_factory=dict)
    written: Texts = field(default_factory=dict)
    matched: Texts | None = None
    known: int = 0
    seen: int | None = None
    began: int = field(default_factory=lambda: next(_MOMENTS))
    ended: int | None = None

    @property
    def clock(self) -> int:
        """The clock of the commit, 0 as long as it is unknown."""
        if self.sent:
            return self.sent[-1].clock
        return self.imported_clock if self.pending is None else self.pending.commit.clock

    @property
    def stamp(self) -> Stamp:
        """The stamp of the commit, in the log that holds it."""
        return Stamp(self.clock, TRANSACTIONS if self.sent else self.agent)

    def end(self, outcome: str) -> None:
        """The caller learns how the call ended."""
        self.outcome, self.ended = outcome, next(_MOMENTS)

    def __str__(self) -> str:
        about = self.written or self.content[1:]
        return f"{self.outcome} {self.content[0]} of {self.agent!r} at clock {self.clock}: {about}"

    @property
    def may_still_come(self) -> bool:
        """Whether the commit may still be written, or under which clock is unknown."""
        return self.outcome == "begun" or (self.outcome == "unknown" and not self.clock)

    def writes(self, id: str) -> bool:
        """Whether it is a set or a delete of this document."""
        kind, what, *_ = *self.content, None
        return bool((kind == "set" and what[0] == id) or (kind == "delete" and what == id))

    def matches(self, commit: Commit) -> bool:
        """Whether this call may have written that commit."""
        if self.agent != commit.author or (self.clock and self.stamp != commit.stamp):
            return False
        if self.sent and self.sent[-1].tx != commit.tx:
            return False
        if self.content[0] == TRANSACTION:
            return bool(self.sent) and self.written == texts_of(commit)
        content = content_of(commit)
        return self.content == content or (self.content[0] in ("undo", "archive") and self.content == content[:2])


@dataclass(eq=False)
class Handout:
    """The commits that one open store has handed out to its program.

    :ivar since: per agent, how many commits of its log the store had when it was opened.
    :ivar until: how many of them it had or had handed out in the end; None if unknown.
    :ivar handed: per thread what it was handed, in order.
    :ivar is_whole: False if the store knows of commits that were collected before it read them.
    """

    store: Store[Any]
    who: str
    since: dict[str, int]
    until: dict[str, int] | None = None
    handed: dict[str, list[Commit]] = field(default_factory=dict)
    is_whole: bool = True

    def take(self, thread: str, commits: Iterable[Commit]) -> None:
        self.handed.setdefault(thread, []).extend(commits)


class Refused(Exception):
    """The function of a transaction does not want to continue."""


# The attempt of the running call.
_CALL: ContextVar[Attempt | None] = ContextVar("_CALL", default=None)

# What the running import will write.
_IMPORT: ContextVar[Sequence[Attempt]] = ContextVar("_IMPORT", default=())


def _commits_seen(store: Store[Any] | None) -> int | None:
    """As `Attempt.seen`."""
    if store is None or replica_of(store).in_state:
        return None
    shared = replica_of(store).state.cursors.get(TRANSACTIONS)
    return 0 if shared is None else shared.commits


class Ledger:
    """All attempts, in the order in which they began, and what every store has handed out.

    :param on_queued: called with each commit that a call has queued for its agent's log.
    """

    def __init__(self, on_queued: Callable[[Attempt, Commit], object] = lambda attempt, commit: None) -> None:
        self.on_queued = on_queued
        self.attempts: list[Attempt] = []
        self.handouts: list[Handout] = []
        # The calls that have queued a transaction. Each call holds it, so no other transaction can get its id.
        self._deciding: dict[int, Attempt] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Inside the block the ledger knows which call has queued which commit or transaction, what was sent to the
        shared log for it, and whether a refresh has missed any commits."""
        append, catch_up, make, send = LogWriter._append, News.catch_up, Waiting.__init__, Deciding._append

        def noting(writer: LogWriter, commit: Commit, *arguments: Any) -> Pending:
            pending = append(writer, commit, *arguments)
            attempt = _CALL.get()
            if attempt is not None:
                attempt.pending = pending
                # What an undo decided before, for the shared log, was not written.
                attempt.decided, attempt.sent = None, []
                attempt.seen = _commits_seen(attempt.store)
                self.on_queued(attempt, commit)
            return pending

        # Before it is queued, because another thread may send it at once.
        def noting_transactions(waiting: Waiting[Any, Any], decide: Callable[..., object], *arguments: Any) -> None:
            make(waiting, decide, *arguments)
            attempt = _CALL.get() or self._imported(decide)
            if attempt is not None:
                attempt.decided = waiting
                self._deciding[id(waiting)] = attempt

        def noting_sent(deciding: Deciding[Any], group: Any, commits: list[Commit | None], view: View) -> bool:
            for waiting, commit in zip(group.decided, commits, strict=True):
                attempt = self._deciding.get(id(waiting))
                if attempt is not None and commit is not None:
                    attempt.sent.append(commit)
            return send(deciding, group, commits, view)

        def noting_gaps(news: News, commits: Iterable[Commit], complete: bool, cursors: dict[str, Cursor]) -> None:
            catch_up(news, commits, complete, cursors)
            for handout in self.handouts:
                if replica_of(handout.store).news is news:
                    handout.is_whole &= complete

        with (
            patch.object(LogWriter, "_append", noting),
            patch.object(News, "catch_up", noting_gaps),
            patch.object(Waiting, "__init__", noting_transactions),
            patch.object(Deciding, "_append", noting_sent),
        ):
            yield

    @contextmanager
    def attempt(self, store: Store[Any], agent: str, content: Content) -> Iterator[Attempt]:
        """Around a call that writes: records how it ends, and passes its error on."""
        shared = replica_of(store).state.cursors.get(TRANSACTIONS)
        attempt = Attempt(store, agent, content, known=shared.clock if shared is not None else 0)
        self.attempts.append(attempt)
        outer = _CALL.set(attempt)
        try:
            yield attempt
        except OpslogError as error:
            is_out = attempt.pending is not None or bool(attempt.sent)
            is_unknown = is_out and isinstance(error, CommitUnknownError)
            attempt.end("unknown" if is_unknown else "nothing" if isinstance(error, NotFoundError) else "refused")
            if isinstance(error, ConflictError):
                attempt.read = {error.id: error.record and bytes(error.record.data)} if error.id else {}
                attempt.matched = None
            elif not isinstance(error, NotFoundError):
                attempt.ended = None  # it says nothing about what is there
            raise
        except Refused:
            attempt.end("refused")
            raise
        except (Interrupt, MemoryError):
            attempt.outcome = "unknown"  # the queued commit is written later
            raise
        finally:
            _CALL.reset(outer)
        if attempt.outcome != "begun":
            return
        if attempt.decided is not None:
            # What was sent may have lost the race, and what was decided afterwards writes nothing.
            attempt.end("nothing" if attempt.decided.commit is None else "done")
        elif replica_of(store).is_buffered:
            attempt.outcome = "buffered"
        else:
            attempt.end("done")

    @contextmanager
    def importing(self, attempts: list[Attempt]) -> Iterator[None]:
        """Inside the block this thread imports. The transactions of the import are recognised by their content."""
        self.attempts += attempts
        outer = _IMPORT.set(attempts)
        try:
            yield
        finally:
            _IMPORT.reset(outer)

    def _imported(self, decide: Callable[..., object]) -> Attempt | None:
        commits = decide.args if isinstance(decide, partial) else ()
        return next(
            (
                attempt
                for attempt in _IMPORT.get()
                for commit in commits
                if attempt.decided is None and attempt.matches(commit)
            ),
            None,
        )

    def buffered(self, store: Store[Any]) -> list[Attempt]:
        """The commits that are buffered in this store, as far as is known."""
        return [attempt for attempt in self.attempts if attempt.store is store and attempt.outcome == "buffered"]

    def flushed(self, attempts: Iterable[Attempt]) -> None:
        """These commits were buffered when a `flush` or `close` began. The call has returned, so they are written."""
        for attempt in attempts:
            attempt.end("done")

    def opened(self, store: Store[Any], who: str) -> Handout:
        """Begin to record what a store hands out that was just opened."""
        handout = Handout(store, who, progress(store))
        self.handouts.append(handout)
        return handout

    def catch_up(self, store: Store[Any]) -> None:
        """The last refresh of a store. After it everything that the store had read before must have been handed out."""
        handout = next(handout for handout in self.handouts if handout.store is store)
        until = progress(store)
        handout.take("the end", store.refresh())
        handout.until = until


def progress(store: Store[Any]) -> dict[str, int]:
    """Per agent, how many commits of its log are in the store."""
    return {agent: cursor.commits for agent, cursor in replica_of(store).state.cursors.items()}


def content_of(commit: Commit) -> Content:
    if isinstance(commit, Set):
        return "set", (commit.id, bytes(commit.data))
    if isinstance(commit, Delete):
        return ("archive", commit.archived, commit.id) if commit.archived else ("delete", commit.id)
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


def texts_of(commit: Commit) -> Texts:
    """The texts of the documents after a commit."""
    return {record.id: bytes(record.data) if isinstance(record, Set) else None for record in commit.records}
