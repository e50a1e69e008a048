"""What simulated agents tried to write, and what they were told about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from opslog.commits import Batch, Commit, Delete, Seal, Set, SetOp, Undo
from opslog.errors import CommitUnknownError, NotFoundError, OpslogError
from opslog.store import Store

Content = tuple[Any, ...]
"""What is compared of a commit: the kind, and per op the id and the document's text, or the period."""


@dataclass(eq=False)
class Attempt:
    """One call that writes.

    :ivar store: through which it was made; None for an import.
    :ivar content: what the commit will hold; of an undo, and of the documents of an archive, that is not known before.
    :ivar clock: of the commit, 0 as long as it is not known.
    :ivar outcome: "begun" (whoever made it died), "buffered" (not known to be written), "done", "refused", "unknown",
        or "nothing" (there was nothing to do).
    """

    store: Store[Any] | None
    agent: str
    content: Content
    clock: int = 0
    outcome: str = "begun"

    def __str__(self) -> str:
        return f"{self.outcome} {self.content[0]} of {self.agent!r} at clock {self.clock}: {self.content[1:]}"

    def matches(self, commit: Commit) -> bool:
        """Whether this call may have written that commit."""
        if self.agent != commit.agent or (self.clock and self.clock != commit.clock):
            return False
        content = content_of(commit)
        return self.content == content or (self.content[0] in ("undo", "archive") and self.content == content[:2])


class Ledger:
    """All attempts, in order."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    @contextmanager
    def attempt(self, store: Store[Any], agent: str, content: Content) -> Iterator[Attempt]:
        """Around a call that writes: notes how it ends, and lets the error out."""
        attempt = Attempt(store, agent, content)
        self.attempts.append(attempt)
        before = store._clock.value
        try:
            yield attempt
        except OpslogError as error:
            # Without a tick nothing was queued, so nothing can have been written.
            ticked = store._clock.value > before
            attempt.clock = store._clock.value if ticked else 0
            attempt.outcome = "unknown" if ticked and isinstance(error, CommitUnknownError) else "refused"
            if isinstance(error, NotFoundError):
                attempt.outcome = "nothing"
            raise
        if attempt.outcome == "begun":
            attempt.clock, attempt.outcome = store._clock.value, "buffered" if store._buffered else "done"

    def flushed(self, store: Store[Any]) -> None:
        """What was buffered in this store is written: `flush` or `close` returned."""
        for attempt in self.attempts:
            if attempt.store is store and attempt.outcome == "buffered":
                attempt.outcome = "done"


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
