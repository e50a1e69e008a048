"""Many processes, one storage, one seed: the scheduler of a deterministic simulation.

Each simulated process is a greenlet. Exactly one runs at a time, and it runs until its next call to the storage, its
next sleep, or its end: those are the points at which another one may get its turn, and everything else is atomic. Time
is simulated, too: every call takes some of it, drawn from the seed, and the process whose call is over first goes on.
So nothing waits, and the same seed gives the same run, in every process and on every machine; `Simulation.digest` is
the proof.

What can go wrong is a list of `Fault`s, each tied to the number of a storage call. Taking one away changes nothing
before it: that is what makes a failing run shrinkable.

Why greenlets and not threads that pass a baton: a switch costs less than a microsecond instead of tens, a process can
be ended at any of its calls without its cooperation, and nothing of the store has to be written anew as a generator.
"""

from __future__ import annotations

import hashlib
import heapq
import random
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from opslog.environment import Environment
from opslog.testing.faults import Fault, Faults

T = TypeVar("T")

EPOCH = 1_750_000_000.0
"""When every simulation begins, in seconds since 1970."""


class Died(BaseException):
    """The simulated process was killed. Raised at the call that it was in, and at every further one."""


class EndlessError(AssertionError):
    """The run went on for longer than it may."""


class Event(NamedTuple):
    """One thing that happened: who did or suffered what, when (in simulated seconds), and how it ended."""

    step: int
    time: float
    process: str
    call: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.step:6} {self.time:12.3f}s  {self.process:<12} {self.call:<58} {self.outcome}"


class Storage(Protocol):
    """What a simulation needs to know of a storage."""

    def lose_power(self, choices: random.Random) -> None:
        """What is not durable may be lost."""

    def process_died(self, process: Process) -> None:
        """Whatever the system holds for a process is released."""

    def recover(self) -> None:
        """What lasts (a full disk, a server that is down) is over."""


class Process:
    """One run of a simulated program, from its start to its end or death.

    :ivar name: whose run this is; a program that crashed is started again under the same name, with a new `Process`.
    :ivar environment: its clocks, its sleep and its nonces, for `opslog.open(..., environment=...)`.
    :ivar random: its own random numbers, from the seed.
    """

    def __init__(self, simulation: Simulation, name: str, run: int, target: Callable[[Process], None]) -> None:
        self.name = name
        self.run = run
        self.target = target
        self.simulation = simulation
        self.random = random.Random(f"{simulation.seed}/{name}/{run}")
        self.skew = simulation.skew(self.random)
        self.dead = False
        self.environment = Environment(
            time=lambda: simulation.time + self.skew,
            monotonic=lambda: simulation.time - EPOCH + 1000.0,
            sleep=self.sleep,
            nonce=lambda: f"{self.random.getrandbits(64):016x}",
        )
        self.finished = False
        self._greenlet: greenlet | None = None

    def sleep(self, seconds: float) -> None:
        """Let others run for that long."""
        if self.dead:
            raise Died
        self.simulation.wait(self, seconds)

    def note(self, text: str, outcome: str = "") -> None:
        """Write something into the timeline."""
        self.simulation.record(self.name, text, outcome)

    def has_ended(self) -> bool:
        return self.dead or self.finished

    def resume(self) -> None:
        """Let it run to its next call. Only the scheduler does this."""
        if self._greenlet is None:
            self._greenlet = greenlet(self._main)
        self._greenlet.switch()

    def kill(self) -> None:
        """End it where it stands. Code that runs on its way out finds that all its calls fail."""
        self.dead = True
        if self._greenlet is not None:
            self._greenlet.throw(Died)

    def _main(self) -> None:
        try:
            self.target(self)
        except Died:
            self.dead = True
        except Exception as error:  # noqa: BLE001  (it is the outcome of the run)
            self.simulation.fail(self, error)
        self.finished = not self.dead


class Simulation:
    """See the module's docstring.

    :param seed: what everything is drawn from.
    :param faults: what goes wrong, and at which call.
    :param skew_seconds: how far wall clocks may be off, either way.
    :param steps_max: a run with more storage calls than this is taken for endless.
    :param keep_timeline: whether `timeline` gets every event.
    """

    def __init__(
        self,
        seed: object,
        faults: Iterable[Fault] = (),
        *,
        skew_seconds: float = 0.0,
        steps_max: int = 100_000,
        keep_timeline: bool = False,
    ) -> None:
        self.seed = seed
        self.faults = Faults(faults)
        self.time = EPOCH
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.timeline: list[Event] = []
        self.current: Process | None = None
        self.processes: list[Process] = []
        self.failure: tuple[Process, BaseException] | None = None
        self.storages: list[Storage] = []
        self._keep_timeline = keep_timeline
        self._skew_seconds = skew_seconds
        self._steps_max = steps_max
        self._turns: list[tuple[float, int, Callable[[], object]]] = []
        self._turn = 0
        self._runs: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)
        self._choices = random.Random(f"{seed}/storage")
        self._victims: list[Process] = []
        """Who was running when the power failed."""
        self._mutex = threading.RLock()
        self._hub = getcurrent()

    # -- processes

    def start(self, name: str, target: Callable[[Process], None], after: float = 0.0) -> None:
        """Have a process run `target` from some time on. If it is killed by a fault, it is started again."""
        self._runs[name] += 1
        process = Process(self, name, self._runs[name], target)
        self.processes.append(process)
        self.at(self.time + after, lambda: self._give_turn(process))

    def run(self) -> None:
        """Let everything happen until nobody has anything left to do.

        :raises EndlessError: it does not end. Otherwise whatever a process raised.
        """
        self._hub = getcurrent()
        try:
            while self._turns and self.failure is None:
                self.time, _, turn = heapq.heappop(self._turns)
                turn()
                if self._victims:
                    self._lose_power()
        finally:
            self._end_all()
        if self.failure is not None:
            raise self.failure[1]

    def at(self, time: float, turn: Callable[[], object]) -> None:
        """Have something happen at a time."""
        self._turn += 1
        heapq.heappush(self._turns, (time, self._turn, turn))

    def wait(self, process: Process, seconds: float) -> None:
        """Return when so much time has passed for a process, and others had theirs."""
        self.at(self.time + seconds, lambda: self._give_turn(process))
        self._hub.switch()
        if process.dead:
            raise Died

    def fail(self, process: Process, error: BaseException) -> None:
        self.record(process.name, "ended with an error", type(error).__name__)
        self.failure = self.failure or (process, error)

    def skew(self, choices: random.Random) -> float:
        return choices.uniform(-self._skew_seconds, self._skew_seconds)

    def _give_turn(self, process: Process) -> None:
        if process.has_ended():
            return
        self.current = process
        process.resume()
        self.current = None
        if process.dead:
            self._bury(process)
        elif process.finished:
            self.processes.remove(process)  # what it has left open stays open

    def _bury(self, process: Process) -> None:
        self.processes.remove(process)
        for storage in self.storages:
            storage.process_died(process)

    def _end_all(self) -> list[Process]:
        """Whatever is still there ends without another call. Returns what that was."""
        processes = list(self.processes)
        for process in processes:
            self.current = process  # so that what it still calls on its way out is known to be its
            process.kill()
            self.current = None
            self._bury(process)
        return processes

    # -- calls

    def step(self, call: str, perform: Callable[[Fault | None], T], kinds: frozenset[str] = frozenset()) -> T:
        """One call of the running process to a storage, at which others may come first, and things may go wrong.

        :param perform: does it, all at once, with what is to go wrong in the storage itself. :param kinds: the faults
            of which `perform` knows.
        """
        process = self.current
        if process is None:
            with self._mutex:  # from outside, as ordinary threads do: no time passes and nothing fails
                return perform(None)
        if process.dead:
            raise Died
        self.steps += 1
        if self.steps > self._steps_max:
            raise EndlessError(f"the run did not end within {self._steps_max} calls to the storage")
        self.calls[call.partition(" ")[0]] += 1
        fault = self.faults.due(self.steps, call, kinds)
        if fault is not None:
            self.injected[fault.kind] += 1
            if not fault.kind.endswith("after"):
                self._strike(process, fault, call)
        process.sleep(self._latency(process.random))
        try:
            result = perform(fault if fault is not None and fault.kind in kinds else None)
        except Exception as error:
            self.record(process.name, call, f"{type(error).__name__}{_told(fault)}")
            raise
        self.record(process.name, call, _told(fault))
        if fault is not None and fault.kind.endswith("after"):
            self._strike(process, fault, call)
        if process.random.random() < 0.2:
            process.sleep(self._latency(process.random))  # the answer takes its time
        return result

    def calm(self) -> None:
        """From here on nothing goes wrong any more."""
        self.faults = Faults([])
        for storage in self.storages:
            storage.recover()

    def record(self, process: str, call: str, outcome: str) -> None:
        self._digest.update(f"{self.time!r} {process} {call} {outcome}\n".encode())
        if self._keep_timeline:
            self.timeline.append(Event(self.steps, self.time - EPOCH, process, call, outcome))

    @property
    def digest(self) -> str:
        """Of everything that happened so far."""
        return self._digest.hexdigest()

    def _latency(self, choices: random.Random) -> float:
        """Mostly a millisecond; now and then much longer than others need for a whole transaction."""
        return 0.001 * choices.expovariate(1.0) * (200.0 if choices.random() < 0.02 else 1.0)

    def _strike(self, process: Process, fault: Fault, call: str) -> None:
        """What a fault does to the process or the machine."""
        if fault.kind.startswith("crash"):
            self.record(process.name, f"crashes {_where(fault)} {call}", "")
            process.dead = True
            self.start(process.name, process.target, fault.amount)
            raise Died
        if fault.kind.startswith("power"):
            self.record("everybody", f"power cut {_where(fault)} {call} of {process.name}", "")
            process.dead = True
            self._victims.append(process)
            raise Died
        if fault.kind.startswith("pause"):
            self.record(process.name, f"is paused for {fault.amount:.0f} s {_where(fault)} {call}", "")
            process.sleep(fault.amount)
        elif fault.kind == "skew":
            self.record(process.name, f"clock is set {fault.amount:+.0f} s", "")
            process.skew += fault.amount

    def _lose_power(self) -> None:
        """Nothing survives but what is durable; after a while all programs are started again."""
        for storage in self.storages:
            storage.lose_power(self._choices)
        stopped = [*self._victims, *self._end_all()]
        self._victims.clear()
        self.time += 10.0
        for process in stopped:
            self.start(process.name, process.target, self._choices.uniform(0.0, 1.0))


def _where(fault: Fault) -> str:
    return "after" if fault.kind.endswith("after") else "before"


def _told(fault: Fault | None) -> str:
    return f" ({fault.kind})" if fault is not None else ""
