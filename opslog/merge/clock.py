"""The Lamport clock. Pure.

It orders commits: a new clock is greater than everything its owner has seen, so an answer to a commit outranks it. It
never goes back, not at a restart and not at a compaction, because manifests have the greatest compacted clock.
"""

from __future__ import annotations

import threading

# How far the clock of a transaction is above everything that its writer has read. A plain write by an agent that has
# not seen the transaction and is behind by less than this loses, and does not take back what the transaction
# decided.
CLOCK_STEP = 1000


class LamportClock:
    """A clock that several threads may use.

    :ivar value: the greatest clock seen or given out.
    :ivar lock: held while that changes.
    """

    def __init__(self, value: int = 0) -> None:
        self.value = value
        # Reentrant, for the handler of a signal: what stands under it is one step that nothing interrupts.
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
                self.value = max(self.value, clock)
