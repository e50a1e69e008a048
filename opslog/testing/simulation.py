"""Many processes, one storage, one seed: the scheduler of a deterministic simulation.

Each thread of a simulated process is a greenlet. Exactly one runs at a time, and it runs until its next call to the
storage, its next sleep, its next operation on a lock (`opslog.testing.threads`), or its end. Another thread may get its
turn only at these points, and everything else is atomic. Time is simulated, too: every call takes some time, which the
seed decides, and the thread whose call ends first goes on. So nothing really waits, and the same seed gives the same
run, in every process and on every machine; `Simulation.digest` proves it. Both must have the kernel in C, or both not:
with it, a compaction reads a part of an object storage once more.

Failures are a list of `Fault`s, each tied to the number of a storage call. Removing one changes nothing
before it, so a failing run can be shrunk.

Greenlets have three advantages over real threads that run one at a time, and over generators. A switch costs less than
a microsecond instead of tens. A process can be ended at any of its calls without its cooperation. And the store need
not be rewritten.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, TypeVar

from greenlet import getcurrent, greenlet

from opslog.environment import Environment
from opslog.errors import UsageError
from opslog.testing.faults import NO_MEMORY, SIGNALS, Fault, Faults
from opslog.testing.signals import Interrupt, Signals

T = TypeVar("T")

# The start of every simulation, in seconds since 1970.
EPOCH = 1_750_000_000.0


class Died(BaseException):
    """The simulated process was killed. Raised at the call that it was in, and at every further one."""


class EndlessError(AssertionError):
    """The run took longer than allowed, or some threads wait that no other thread will wake."""


class Event(NamedTuple):
    """One event: the thread, the call or fault, the time (in simulated seconds), and the outcome."""

    step: int
    time: float
    who: str
    call: str
    outcome: str

    def __str__(self) -> str:
        return f"{self.step:6} {self.time:12.3f}s  {self.who:<12} {self.call:<58} {self.outcome}"


class Storage(Protocol):
    """The interface of a storage to a simulation.

    :ivar kinds: the faults that happen within its calls.
    """

    kinds: frozenset[str]

    def lose_power(self, choices: random.Random) -> None:
        """Lose data that is not durable, or keep it, by random choice."""

    def process_died(self, process: Process) -> None:
        """Release everything that the system holds for a process."""

    def recover(self) -> None:
        """End lasting failures (a full disk, a server that is down)."""


class Thread:
    """One thread of a simulated process. It dies with the process, at any point.

    :ivar label: its name in timelines.
    :ivar number: distinguishes it from all others of its process.
    :ivar daemon: whether it may wait for work for ever.
    :ivar waits_for: the object that it is blocked on, None if its next turn is scheduled.
    :ivar ambience: the interpreter's state for asyncio in this thread, None as long as it runs no event loop.
    """

    def __init__(self, process: Process, name: str, run: Callable[[], object], *, daemon: bool = False) -> None:
        self.process = process
        self.label = f"{process.name}:{name}" if name else process.name
        self.number = process.next_thread()
        self.daemon = daemon
        self.ended = False
        self.waits_for: object | None = None
        # Whether it waits for work, rather than for another thread to finish.
        self.is_idle = False
        # The number of the turn that it waits for. All other turns are outdated, such as a timeout after a wake-up.
        self.turn = 0
        self.ambience: Ambience | None = None
        self.was_woken = False
        # The object that the process knows as its `threading.Thread`.
        self.handle: object | None = None
        self._run = run
        self._greenlet: greenlet | None = None

    def resume(self) -> None:
        """Let it run to its next switch. Only the scheduler does this."""
        if self._greenlet is None:
            self._greenlet = greenlet(self._main)
        self._enter(self._greenlet.switch)

    def kill(self) -> None:
        """End it at its current point. Code that still runs in it finds that all its calls fail."""
        if self._greenlet is not None and not self.ended:
            self._enter(self._greenlet.throw, Died)
        self.ended = True

    def _enter(self, switch: Callable[..., object], *arguments: object) -> None:
        if self.ambience is not None:
            self.ambience.restore()
        switch(*arguments)
        self._leave()

    def _leave(self) -> None:
        if self.ambience is not None:  # possibly since this turn
            self.ambience = Ambience.now()
            Ambience(None, (None, None)).restore()

    def _main(self) -> None:
        try:
            self._run()
        except Died:
            self.process.dead = True
        except (Exception, Interrupt) as error:  # noqa: BLE001  (it is the outcome of the run)
            self.process.simulation.fail(self, error)
        self.ended = True


class Ambience(NamedTuple):
    """The state that asyncio keeps for each thread of the interpreter. All simulated threads run in one such thread."""

    loop: asyncio.AbstractEventLoop | None
    hooks: Any

    @classmethod
    def now(cls) -> Ambience:
        return cls(asyncio._get_running_loop(), sys.get_asyncgen_hooks())

    def restore(self) -> None:
        asyncio._set_running_loop(self.loop)
        sys.set_asyncgen_hooks(*self.hooks)


class Process:
    """One run of a simulated program, from its start to its end or death.

    :ivar name: of its program; a program that crashed is started again under the same name, with a new `Process`.
    :ivar environment: its clocks, its sleep and its nonces, for `opslog.open(..., environment=...)`.
    :ivar random: its own random numbers, from the seed.
    :ivar threads: those that have not ended; the first one runs the program.
    :ivar turns: the random numbers by which a thread loses its turn between two statements.
    :ivar signals: those that may interrupt its main thread.
    :ivar is_tough: whether it goes on after a MemoryError.
    :ivar finished: its program has returned. Open files stay open, and its other threads go on.
    """

    def __init__(self, simulation: Simulation, name: str, run: int, target: Callable[[Process], None]) -> None:
        self.name = name
        self.run = run
        self.target = target
        self.simulation = simulation
        self.random = random.Random(f"{simulation.seed}/{name}/{run}")
        self.skew = simulation.skew(self.random)
        self.paused_until = 0.0
        self.environment = Environment(
            time=lambda: simulation.time + self.skew,
            monotonic=lambda: simulation.time - EPOCH + 1000.0,
            sleep=self.sleep,
            nonce=lambda: f"{self.random.getrandbits(64):016x}",
        )
        self.dead = False
        self.finished = False
        self.is_tough = False
        self.signals = Signals(self.note)
        self.turns = random.Random(f"{simulation.seed}/{name}/{run}/turns")
        self._threads_made = 0
        self.main = Thread(self, "", self._main)
        self.threads = [self.main]

    def sleep(self, seconds: float) -> None:
        """Let others run for that long."""
        self.simulation.wait(seconds)

    def note(self, text: str, outcome: str = "") -> None:
        """Write an event into the timeline."""
        self.simulation.note(text, outcome)

    def next_thread(self) -> int:
        """The number of a new thread."""
        self._threads_made += 1
        return self._threads_made

    def kill(self) -> None:
        """End it, each of its threads at its current point."""
        self.dead = True
        for thread in list(self.threads):
            self.simulation.thread = thread  # its last calls have to count as its own
            thread.kill()
            self.simulation.thread = None
        self.threads.clear()

    def _main(self) -> None:
        self.target(self)
        self.finished = True


class Simulation:
    """See the module's docstring.

    :param seed: the source of all random choices.
    :param faults: the failures, and at which calls they happen.
    :param skew_seconds: how far wall clocks may be off, either way.
    :param steps_max: a run with more storage calls than this is considered endless.
    :param switching: the probability that another thread of the process gets its turn at an operation on a lock.
    :param keep_timeline: whether `timeline` gets every event.
    :ivar thread: the one that runs, None outside of all of them.
    """

    def __init__(
        self,
        seed: object,
        faults: Iterable[Fault] = (),
        *,
        skew_seconds: float = 0.0,
        steps_max: int = 100_000,
        switching: float = 0.2,
        keep_timeline: bool = False,
    ) -> None:
        self.seed = seed
        self.faults = Faults(faults)
        self.time = EPOCH
        self.steps = 0
        self.calls: Counter[str] = Counter()
        self.injected: Counter[str] = Counter()
        self.timeline: list[Event] = []
        self.thread: Thread | None = None
        self.processes: list[Process] = []
        self.failure: tuple[str, BaseException] | None = None
        self.storages: list[Storage] = []
        self._keep_timeline = keep_timeline
        self._skew_seconds = skew_seconds
        self._steps_max = steps_max
        self._switching = switching
        self._turns: list[tuple[float, int, Callable[[], object]]] = []
        self._turn = 0
        self._turns_max = 20 * steps_max
        self._runs: Counter[str] = Counter()
        self._digest = hashlib.blake2b(digest_size=16)
        self._choices = random.Random(f"{seed}/storage")
        # The processes that were running when the power failed.
        self._victims: list[Process] = []
        self._mutex = threading.RLock()
        self._hub = getcurrent()
        # The real thread in which all simulated ones run.
        self._runner = threading.get_ident()

    # -- processes and threads

    @property
    def current(self) -> Process | None:
        """The process that is running."""
        return self.thread.process if self.thread is not None else None

    def start(self, name: str, target: Callable[[Process], None], after: float = 0.0) -> None:
        """Have a process run `target` after some time. If a fault kills it, it is started again."""
        self._runs[name] += 1
        process = Process(self, name, self._runs[name], target)
        self.processes.append(process)
        self._schedule(process.main, after)

    def start_thread(self, name: str, run: Callable[[], object], *, daemon: bool = False) -> Thread:
        """Start one more thread of the running process."""
        process = self.current
        assert process is not None, "a simulated thread is started by a simulated process, and not from outside"
        thread = Thread(process, name, run, daemon=daemon)
        process.threads.append(thread)
        self._schedule(thread, self._latency(process.random))
        return thread

    def run(self) -> None:
        """Run until no thread has anything left to do. Threads that wait for work stay; their processes go on with the
        next `run`.

        :raises EndlessError: it does not end. Any error of a process is raised, too.
        :raises UsageError: a fault cannot happen on any of the storages.
        """
        self._hub, self._runner = getcurrent(), threading.get_ident()
        if self.storages:
            self.faults.check_storages(frozenset[str]().union(*(storage.kinds for storage in self.storages)))
        try:
            while self._turns and self.failure is None:
                self.time, number, turn = heapq.heappop(self._turns)
                turn()
                if self._victims:
                    self._lose_power()
                if number > self._turns_max:
                    raise EndlessError(f"the run did not end within {number} turns")
            if self.failure is None:
                self._check_nobody_is_stuck()
        except BaseException:
            self.end()
            raise
        if self.failure is not None:
            self.end()
            raise self.failure[1]

    def end(self) -> None:
        """End all remaining processes, without another call to the storage."""
        self._end_all()
        self._turns.clear()

    def at(self, time: float, turn: Callable[[], object]) -> None:
        """Call `turn` at a time."""
        self._turn += 1
        heapq.heappush(self._turns, (time, self._turn, turn))

    def wait(self, seconds: float) -> None:
        """Return when this much time has passed for the running thread, and others had their turns."""
        self.check_alive()
        if self.thread is not None:  # outside of the simulation no time passes
            self._schedule(self.thread, seconds)
            self._switch(self.thread)

    @property
    def is_dying(self) -> bool:
        """Whether the running code belongs to a process that died."""
        return self.thread is not None and self.thread.process.dead

    def check_alive(self) -> None:
        """
        :raises Died: the running process is dead.
        :raises UsageError: this is a thread of the real `threading`, in which no time can be simulated.
        """
        if self.thread is not None and threading.get_ident() != self._runner:
            error = UsageError(
                f"{self.thread.label} uses its store in a thread that is not simulated: take threads from "
                "opslog.testing.Threading(process.simulation), and run tasks by run_tasks"
            )
            self.fail(self.thread, error)  # nobody may wait for the result of that thread
            raise error
        if self.is_dying:
            raise Died

    def point(self) -> None:
        """A point at which another thread of the running process may get its turn: the seed decides. Other processes
        make no difference here, because processes share nothing but storage."""
        thread = self.thread
        if thread is None or thread.process.dead:
            return
        if thread is thread.process.main:
            self._check_signals(thread.process.signals)
        if len(thread.process.threads) > 1:
            choices = thread.process.random
            if choices.random() < self._switching:
                self.lose_turn(choices)

    def lose_turn(self, choices: random.Random) -> None:
        """Take the processor from the running thread, possibly for long."""
        self.wait(self._latency(choices, 0.1))

    def _check_signals(self, signals: Signals) -> None:
        """Signals also arrive at calls that do not reach the storage, as with a buffer."""
        if self.faults.are_due(self.steps) and signals.kinds:
            fault = self.faults.due(self.steps, "a lock", signals.kinds, anywhere=frozenset())
            if fault is not None:
                self.injected[fault.kind] += 1
                signals.send(fault.kind, max(fault.amount, 0.5))
        signals.check()

    def block(self, waits_for: object, seconds: float | None = None, *, is_idle: bool = False) -> bool:
        """Block the running thread until it is woken, or for some seconds. Returns whether it was woken.

        :param waits_for: the object that it waits for; errors show its text.
        :param is_idle: whether it waits for work, as a daemon may for ever.
        """
        self.check_alive()
        thread = self.thread
        if thread is None:
            raise EndlessError(f"outside of all simulated threads, and waits for {waits_for}")
        thread.waits_for, thread.is_idle, thread.was_woken = waits_for, is_idle, False
        thread.turn += 1
        if seconds is not None:
            self._schedule(thread, seconds)
        self._switch(thread)
        thread.waits_for = None
        return thread.was_woken

    def wake(self, thread: Thread) -> None:
        """Let a blocked thread go on soon."""
        if thread.waits_for is not None and not thread.was_woken and not thread.process.dead:
            thread.was_woken = True
            self._schedule(thread, self._latency(thread.process.random))

    def fail(self, thread: Thread, error: BaseException) -> None:
        self.record(thread.label, "ended with an error", type(error).__name__)
        self.failure = self.failure or (thread.label, error)

    def skew(self, choices: random.Random) -> float:
        return choices.uniform(-self._skew_seconds, self._skew_seconds)

    def _schedule(self, thread: Thread, seconds: float) -> None:
        thread.turn += 1
        turn = thread.turn
        self.at(self.time + seconds, lambda: self._give_turn(thread, turn))

    def _switch(self, thread: Thread) -> None:
        self._hub.switch()
        if thread.process.dead:
            raise Died

    def _give_turn(self, thread: Thread, turn: int) -> None:
        process = thread.process
        if thread.ended or process.dead or thread.turn != turn:
            return
        if self.time < process.paused_until:
            self.at(process.paused_until, lambda: self._give_turn(thread, turn))
            return
        self.thread = thread
        thread.resume()
        self.thread = None
        self._note_end(thread)

    def _note_end(self, thread: Thread) -> None:
        """Note whether a thread has ended in its turn, or its process died."""
        process = thread.process
        if process.dead:
            self._bury(process)
        elif thread.ended:
            process.threads.remove(thread)
            if not process.threads:
                self.processes.remove(process)  # its open files stay open

    def _bury(self, process: Process) -> None:
        process.kill()
        self.processes.remove(process)
        for storage in self.storages:
            storage.process_died(process)

    def _end_all(self) -> list[Process]:
        """End all remaining processes without another call. Returns them."""
        processes = list(self.processes)
        for process in processes:
            self._bury(process)
        return processes

    def _check_nobody_is_stuck(self) -> None:
        stuck = [
            f"{thread.label} waits for {thread.waits_for}"
            for process in self.processes
            for thread in process.threads
            if not (thread.daemon and thread.is_idle)
        ]
        if stuck:
            raise EndlessError(f"nobody will wake these: {'; '.join(stuck)}")

    # -- calls

    def step(self, call: str, perform: Callable[[Fault | None], T], kinds: frozenset[str] = frozenset()) -> T:
        """One call of the running process to a storage. Other threads may run first, and faults may happen.

        :param perform: makes the call in one step. Gets the fault that happens in the storage itself, or None.
        :param kinds: the faults that `perform` handles.
        """
        self.check_alive()
        thread = self.thread
        if thread is None:
            with self._mutex:  # outside of the simulation, as for ordinary threads: no time passes and nothing fails
                return perform(None)
        process = thread.process
        self.steps += 1
        if self.steps > self._steps_max:
            error = EndlessError(f"the run did not end within {self._steps_max} calls to the storage")
            self.fail(thread, error)  # whatever happens to the error in its callers
            raise error
        self.calls[call.partition(" ")[0]] += 1
        fault = self._due(thread, call, kinds)
        if fault is not None:
            self.injected[fault.kind] += 1
            if not fault.kind.endswith("after"):
                self._strike(thread, fault, call)
        self.wait(self._latency(process.random))
        try:
            result = perform(fault if fault is not None and fault.kind in kinds else None)
        except Exception as error:
            self.record(thread.label, call, f"{type(error).__name__}{_suffix(fault)}")
            raise
        self.record(thread.label, call, _suffix(fault))
        if fault is not None and fault.kind.endswith("after"):
            self._strike(thread, fault, call)
        if process.random.random() < 0.2:
            self.wait(self._latency(process.random))  # the response takes some time
        return result

    def _due(self, thread: Thread, call: str, kinds: frozenset[str]) -> Fault | None:
        if not self.faults.are_due(self.steps):
            return None
        if not call.startswith("start-thread"):  # which reports a lack of memory in other words
            if thread is thread.process.main:
                kinds |= thread.process.signals.kinds
            if thread.process.is_tough:
                kinds |= {NO_MEMORY}
        return self.faults.due(self.steps, call, kinds)

    def calm(self) -> None:
        """End all faults."""
        self.faults = Faults([])
        for storage in self.storages:
            storage.recover()

    def note(self, text: str, outcome: str = "") -> None:
        """Note an action of the running thread in the timeline."""
        if self.thread is not None:
            self.record(self.thread.label, text, outcome)

    def record(self, who: str, call: str, outcome: str) -> None:
        self._digest.update(f"{self.time!r} {who} {call} {outcome}\n".encode())
        if self._keep_timeline:
            self.timeline.append(Event(self.steps, self.time - EPOCH, who, call, outcome))

    @property
    def digest(self) -> str:
        """The digest of everything that has happened so far."""
        return self._digest.hexdigest()

    def _latency(self, choices: random.Random, long: float = 0.02) -> float:
        """A random time: mostly a millisecond; now and then, much longer than others need for a whole transaction.

        :param long: the probability of a long time.
        """
        return 0.001 * choices.expovariate(1.0) * (200.0 if choices.random() < long else 1.0)

    def _strike(self, thread: Thread, fault: Fault, call: str) -> None:
        """Apply a fault to the thread, the process or the machine."""
        process, who = thread.process, thread.label
        if fault.kind.startswith("crash"):
            self.record(who, f"crashes {_where(fault)} {call}", "")
            process.dead = True
            if not process.finished:
                self.start(process.name, process.target, fault.amount)
            raise Died
        if fault.kind.startswith("power"):
            self.record("everybody", f"power cut {_where(fault)} {call} of {who}", "")
            process.dead = True
            self._victims.append(process)
            raise Died
        if fault.kind.startswith("pause"):
            self.record(who, f"is paused for {fault.amount:.0f} s {_where(fault)} {call}", "")
            process.paused_until = max(process.paused_until, self.time + fault.amount)
            self.wait(fault.amount)
        elif fault.kind.startswith("stall"):
            self.record(who, f"is held up for {fault.amount:.0f} s {_where(fault)} {call}", "")
            self.wait(fault.amount)
        elif fault.kind == "skew":
            self.record(who, f"clock is set {fault.amount:+.0f} s", "")
            process.skew += fault.amount
        elif fault.kind in SIGNALS:
            process.signals.send(fault.kind, fault.amount)
        elif fault.kind == NO_MEMORY:
            self.record(who, call, fault.kind)
            raise MemoryError

    def _lose_power(self) -> None:
        """Let the storages lose data that is not durable, and end all processes. After a while their programs start
        again."""
        for storage in self.storages:
            storage.lose_power(self._choices)
        stopped = [*self._victims, *self._end_all()]
        self._victims.clear()
        self.time += 10.0
        for process in stopped:
            if not process.finished:
                self.start(process.name, process.target, self._choices.uniform(0.0, 1.0))


def _where(fault: Fault) -> str:
    return "after" if fault.kind.endswith("after") else "before"


def _suffix(fault: Fault | None) -> str:
    return f" ({fault.kind})" if fault is not None else ""
