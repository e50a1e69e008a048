"""The Lamport clock. Pure.

It orders commits: a new clock is greater than every clock that its owner has seen, so an answer to a commit outranks
that commit. The clock never goes back, neither at a restart nor at a compaction, because manifests have the greatest
compacted clock.
"""

from __future__ import annotations

import threading

# How far the clock of a transaction is above every clock that its writer has read. So a plain write loses against a
# transaction that its agent has not seen, and does not undo what the transaction decided, unless that agent's clock is
# ahead of what the transaction's writer had read by this much.
CLOCK_STEP = 1000


class LamportClock:
    """A clock that several threads may use.

    :ivar value: the greatest clock seen or given out.
    :ivar lock: held while that changes.
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value
        # Reentrant, since the handler of a signal may come right after it was taken. The code under it is one step that
        # no handler interrupts.
        self.lock = threading.RLock()

    def tick(self) -> int:
        """The clock for a new commit: greater than everything seen."""
        with self.lock:
            self.value += 1
            return self.value

    def observe(self, clock: int) -> None:
        """Take note of another writer's commit."""
        if clock > self.value:
            with self.lock:
                # Without a call: a signal handler may run after one, and the clocks that it took would be forgotten.
                if clock > self.value:  # noqa: PLR1730
                    self.value = clock
