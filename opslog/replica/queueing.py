"""Queueing of the processes whose transactions change the same documents.

Without it the fastest process would win every race for the end of the shared log, and all others decide in vain: they
would starve, and take the processor from it. Who has lost a race because something that it had read was changed takes
its place in a queue before it decides again, and keeps it until its append.

Nothing rests on the place. Nobody waits for it longer than `WAIT_SECONDS`, so that a process which is stopped in it, or
whose function takes long, holds nobody up for long; whoever goes on without a place may win a race, or lose one.

Only where appends to a log go through locks, in a directory: on an object storage a lock costs more than a race.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

from opslog.backends import Backend
from opslog.environment import Environment
from opslog.errors import LockedError, OpslogError

# Whose holder decides.
LOCK = "deciding"

# Far longer than a transaction takes, unless its function waits for something.
WAIT_SECONDS = 1.0

# How often those who wait try again.
_PAUSE_SECONDS = 0.005

# Whoever has the place goes on for so long, since whoever follows has to wake up and to read first. Then it stays away
# for longer than the others' pause: one of them comes next.
_TURN_SECONDS = 0.03
_AWAY_SECONDS = 0.006

# So many transactions in a row queue up after the last one that met somebody.
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
        """Somebody else has changed what was read here. Whether to leave `place`, and to decide in the next one."""
        if self._is_queued or not self._backend.segments_grow:
            return False
        self._remaining = _QUEUED
        return True

    def place(self) -> AbstractContextManager[None]:
        """A block that decides, and appends: in its turn where others are known to compete, and at once otherwise."""
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
                    break  # whatever it is, the append has more to say about it
                sleep(_PAUSE_SECONDS / (1 + 4 * waited))  # who has waited for long comes before others
            if self._left_at >= self._turn_ends:
                self._turn_ends = now() + _TURN_SECONDS
            try:
                self._is_queued = True
                yield
            finally:
                self._is_queued = False
                self._left_at = now()
