"""Queueing of the processes whose transactions change the same documents.

Without a queue, the fastest process would win every race for the end of the shared log. All others would decide in
vain: they would starve, and take processor time from it. A process loses a race if another one has changed something
that it had read. It then waits for its place in the queue before it decides again, and keeps the place until its
append.

The place is not needed for correctness. Nobody waits for it longer than `WAIT_SECONDS`. So a process that is paused
while it has the place, or whose function takes long, does not delay others for long. A process that goes on without the
place may win a race or lose one.

There is a queue only in a directory, where appends to a log go through locks. On an object storage a lock costs more
than a race.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from opslog.backends import Backend
from opslog.environment import Environment
from opslog.errors import LockedError, OpslogError

# The process that holds this lock has the place.
LOCK = "deciding"

# Far longer than a transaction takes, unless its function waits for something.
WAIT_SECONDS = 1.0

# The pause of a waiting process between two attempts.
_PAUSE_SECONDS = 0.005

# A process that has had the place may take it again and again for one turn, since the next process has to wake up and
# read first. After its turn it stays away for longer than the others' pause, so that one of them comes next.
_TURN_SECONDS = 0.03
_AWAY_SECONDS = 0.006

# After a transaction that met another process, this many transactions in a row queue up.
_QUEUED = 32


class Queueing:
    """The place of one open store in the queue. Used by one thread at a time."""

    def __init__(self, backend: Backend, environment: Environment) -> None:
        self._backend = backend
        self._environment = environment
        # How many transactions are still going to queue up.
        self._remaining = 0
        # Whether `place` is a place in the queue.
        self._is_queued = False
        self._turn_ends = self._left_at = 0.0

    def has_to_queue(self) -> bool:
        """Call it if another process has changed what was read here. Returns whether to leave `place`, and to decide in
        the next one."""
        if self._is_queued or not self._backend.segments_grow:
            return False
        self._remaining = _QUEUED
        return True

    def place(self) -> AbstractContextManager[None]:
        """A block in which to decide and append. It waits for its turn if others are known to compete, and begins at
        once otherwise."""
        if not self._remaining:
            return nullcontext()
        self._remaining -= 1
        return self._queued()

    @contextmanager
    def _queued(self) -> Iterator[None]:
        now, sleep = self._environment.monotonic, self._environment.sleep
        if self._left_at > self._turn_ends and (away := self._left_at + _AWAY_SECONDS - now()) > 0:
            sleep(away)
        began = now()
        with ExitStack() as stack:
            while (waited := now() - began) < WAIT_SECONDS:
                try:
                    stack.enter_context(self._backend.lock(LOCK))
                    break
                except LockedError:
                    self._remaining = _QUEUED
                except OpslogError:
                    break  # the append will raise a better error
                sleep(_PAUSE_SECONDS / (1 + 4 * waited))  # a process that has waited long tries more often
            if self._left_at >= self._turn_ends:
                self._turn_ends = now() + _TURN_SECONDS
            try:
                self._is_queued = True
                yield
            finally:
                self._is_queued = False
                self._left_at = now()
