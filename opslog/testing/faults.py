"""The faults of a simulation, and when they happen."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

# Faults that can strike at any call.
#
# - crash: the process dies; amount: after how many seconds it is started again
# - power: everything dies, and unsynced data may be lost, each part of it independently
# - pause: the process is paused for that many seconds, while all clocks go on
# - stall: the thread is held up for that many seconds, and the other threads of its process are not
# - skew: the process's wall clock jumps by that many seconds
#
# Each except the last happens either before the call has its effect or, "after", between the effect and the response.
# The other kinds happen within a call, and only storages know their meaning:
#
# - fail: the call fails, and nothing was changed
# - lost: the call fails, and everything was changed nevertheless
# - late: the call fails, and the change happens that many seconds later
# - short: a part of the data is written, then the call fails
# - full: the disk is full, for that many seconds
# - down: the storage answers no calls for that many seconds
# - no threads: a thread cannot be started
#
# Some happen only to processes that are ready for them (`Process.signals`), and to their main threads:
#
# - interrupt: the handler of a signal raises, as for Ctrl-C or an alarm
# - signal: the handler of a signal runs, and may use the store that its thread is in
#
# These two happen right before the call (an amount below 0.5), or later, at an operation on any lock.
#
# - no memory: the call raises MemoryError, in any thread of a process that is ready for that (`Process.is_tough`)
#
# These are changes that people may make to the directory of a store; only a disk knows them:
#
# - moved: it is moved away, and a copy stands in its place: one of links to the same files (an amount below 0.5), or
#   one with files of its own
# - unlocked: somebody removes ``locks/``
#
ANYWHERE = frozenset(
    {"crash", "power", "pause", "stall", "skew", "crash after", "power after", "pause after", "stall after"}
)

SIGNALS = frozenset({"interrupt", "signal"})
NO_MEMORY = "no memory"

LASTING = frozenset({"full", "down"})


class Fault(NamedTuple):
    """One failure: at call number `step`, or the next one after it to which this kind can happen.

    :ivar call: a part of the name that the call must have, such as ``link`` or ``put-new prefix/manifests/``.
    """

    step: int
    kind: str
    amount: float = 0.0
    call: str = ""

    def __str__(self) -> str:
        at = f"{self.kind}@{self.step}" + (f"({self.amount:g})" if self.amount else "")
        return f"{at} in {self.call!r}" if self.call else at


class Faults:
    """Returns each fault once, when it is due."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._coming = sorted(faults)
        heapq.heapify(self._coming)

    def are_due(self, step: int) -> bool:
        return bool(self._coming) and self._coming[0].step <= step

    def due(self, step: int, call: str, kinds: frozenset[str], anywhere: frozenset[str] = ANYWHERE) -> Fault | None:
        """The first fault that is due and can happen to this call, which has these kinds."""
        if not self.are_due(step):
            return None
        for fault in sorted(fault for fault in self._coming if fault.step <= step):
            if (fault.kind in anywhere or fault.kind in kinds) and fault.call in call:
                self._coming.remove(fault)
                heapq.heapify(self._coming)
                return fault
        return None


# Longer than every grace period of a simulated store.
PAUSE_SECONDS_MAX = 2000.0


def random_faults(
    choices: random.Random, weights: Mapping[str, float], count: int, steps: int, skew_seconds: float
) -> list[Fault]:
    """Random faults, spread over a number of calls. Their kinds are chosen by weight.

    :param skew_seconds: by how much a clock may be set, either way.
    """
    kinds, chances = list(weights), list(weights.values())
    return sorted(
        Fault(choices.randint(1, steps), kind, round(_amount(kind, choices, skew_seconds), 2))
        for kind in choices.choices(kinds, chances, k=count)
    )


def _amount(kind: str, choices: random.Random, skew_seconds: float) -> float:
    if kind.startswith("crash"):
        return choices.choice([0.1, 1.0, 5.0, 30.0])
    if kind.startswith(("pause", "stall")):
        return choices.choice([0.5, 5.0, 20.0, 40.0, 70.0, 130.0, 500.0, PAUSE_SECONDS_MAX])
    if kind == "skew":
        return choices.uniform(-skew_seconds, skew_seconds)
    if kind == "late":
        return choices.choice([0.01, 0.1, 2.0, 30.0, 90.0, 200.0])
    if kind in ("short", "moved", *SIGNALS):
        return choices.random()
    return choices.choice([0.1, 1.0, 5.0, 20.0, 70.0])
