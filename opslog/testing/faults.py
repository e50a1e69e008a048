"""The faults of a simulation, and when they happen."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from opslog.errors import UsageError

# What can strike at any call.
ANYWHERE = frozenset(
    {"crash", "power", "pause", "stall", "skew", "crash after", "power after", "pause after", "stall after"}
)

# What happens within a call, and only storages know how; none knows all of them.
STORAGES = frozenset({"fail", "lost", "late", "short", "full", "down", "moved", "unlocked"})

SIGNALS = frozenset({"interrupt", "signal"})
NO_MEMORY = "no memory"
NO_THREADS = "no threads"

KINDS = ANYWHERE | STORAGES | SIGNALS | {NO_MEMORY, NO_THREADS}

LASTING = frozenset({"full", "down"})


class Fault(NamedTuple):
    """One failure: at call number `step`, or the next one after it to which this kind can happen.
    `Simulation.injected` counts those that happened, by kind.

    These kinds can strike at any call. Each but `skew` happens before the call has its effect or, under a name such as
    `crash after`, between the effect and the response:

    - `crash`: the process dies; amount: after how many seconds it is started again
    - `power`: everything dies, and unsynced data may be lost, each part of it independently
    - `pause`: the process is paused for that many seconds, while all clocks go on
    - `stall`: the thread is held up for that many seconds, and the other threads of its process are not
    - `skew`: the process's wall clock jumps by that many seconds

    The other kinds happen within a call:

    - `fail`: the call fails, and nothing was changed
    - `lost`: the call fails, and everything was changed nevertheless
    - `full`: the disk is full, for that many seconds
    - `late`, only on "s3": the call fails, and the change happens that many seconds later
    - `down`, only on "s3": the storage answers no calls for that many seconds
    - `short`, only on "posix": that part of the data (from 0 to 1) is written, then the call fails
    - `no threads`: a thread cannot be started

    People may make these changes to the directory of a store; so they happen only on "posix":

    - `moved`: it is moved away, and a copy stands in its place: one of links to the same files (an amount below 0.5),
      or one with files of its own
    - `unlocked`: somebody removes `locks/`

    Some happen only to processes that are ready for them:

    - `interrupt`: in the main thread, inside `with process.signals.handled():`, the handler of a signal raises, as for
      Ctrl-C or an alarm
    - `signal`: in the main thread, inside `with process.signals.handled(handler):`, the handler runs, and may use the
      store that the thread is in. Both kinds happen right before the call (an amount below 0.5), or later, at an
      operation on any lock
    - `no memory`: the call raises MemoryError, in any thread, if `process.is_tough` was set

    :ivar kind: one of these; `amount` means what they say.
    :ivar call: a part of the name that the call must have, such as ``link`` or ``put-new prefix/manifests/``.
    """

    step: int
    kind: str
    amount: float = 0.0
    call: str = ""

    def __str__(self) -> str:
        at = f"{self.kind}@{self.step}" + (f"({self.amount:g})" if self.amount else "")
        return f"{at} in {self.call!r}" if self.call else at


def check_kinds(kinds: Iterable[str]) -> None:
    """:raises UsageError: there is no such kind of fault."""
    for kind in kinds:
        if kind not in KINDS:
            raise UsageError(f"there is no fault of the kind {kind!r}; the kinds are: {', '.join(sorted(KINDS))}")


class Faults:
    """Returns each fault once, when it is due.

    :raises UsageError: there is no such kind of fault.
    """

    def __init__(self, faults: Iterable[Fault]) -> None:
        self._coming = sorted(faults)
        check_kinds(fault.kind for fault in self._coming)
        heapq.heapify(self._coming)

    def check_storages(self, kinds: frozenset[str]) -> None:
        """Check that every fault to come can happen.

        :param kinds: those that the simulation's storages know.
        :raises UsageError: a storage would have to know another kind.
        """
        for fault in self._coming:
            if fault.kind in STORAGES - kinds:
                known = ", ".join(sorted(kinds))
                raise UsageError(f"{fault} never happens on this storage: of these kinds it has {known}")

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
    :raises UsageError: there is no such kind of fault.
    """
    check_kinds(weights)
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
