"""The module `threading` for simulated processes: threads, locks, conditions and events. At each of their operations
the seed may let another thread go on.

The modules of the product use `threading.Lock()` and the like. While a `Threading` is installed, the name `threading`
leads here in all of them, so the simulation runs the same code as users do. Timeouts are in simulated time. A deadlock
ends the run with an error that names the waiting threads, their locks and the holders.

As with `threading`, a released lock goes to the first thread that comes, not to the one that has waited longest. Code
of a dead process can release locks but take none.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any
from unittest.mock import patch

from opslog.testing.faults import NO_THREADS, Fault
from opslog.testing.simulation import Simulation
from opslog.testing.simulation import Thread as Scheduled

# A daemon that waits this long waits for work, or to repeat work that failed a dozen times (the longest pause of a
# `Worker`). The simulation does not let this time pass.
_FOREVER_SECONDS = 3600.0

# Modules that keep the real `threading`: those that simulate, those that run their own event loops, and those that
# guard real forks.
_REAL = ("opslog.testing", "opslog.server", "opslog.demo", "opslog.backends.forking")

# The fault at the start of a thread: the system has no more of them.
STARTS = frozenset({NO_THREADS})


class Threading:
    """Replaces the module `threading`, for all processes of a simulation."""

    def __init__(self, simulation: Simulation) -> None:
        self.simulation = simulation
        self.Lock = partial(Lock, simulation)
        self.RLock = partial(RLock, simulation)
        self.Condition = partial(Condition, simulation)
        self.Event = partial(Event, simulation)
        self.Thread = partial(Thread, simulation)
        self.local = partial(Local, simulation)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the simulation has no threading.{name}: add it to opslog/testing/threads.py")

    def current_thread(self) -> Thread | threading.Thread:
        thread = self.simulation.thread
        return threading.current_thread() if thread is None else Thread.of(thread)

    def get_ident(self) -> int:
        thread = self.simulation.thread
        return threading.get_ident() if thread is None else thread.number

    def main_thread(self) -> Thread | threading.Thread:
        thread = self.simulation.thread
        return threading.main_thread() if thread is None else Thread.of(thread.process.main)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block, all modules of the product use this in place of `threading`. At its end, all threads of the
        simulation end."""
        with ExitStack() as stack:
            stack.callback(self.simulation.end)
            for module in _modules():
                for name, value in list(vars(module).items()):
                    if value is threading:
                        stack.enter_context(patch.object(module, name, self))
                    elif isinstance(value, type) and issubclass(value, threading.local):
                        stack.enter_context(patch.object(module, name, partial(Local, self.simulation, vars(value))))
            yield


def _modules() -> Iterator[ModuleType]:
    for name in sorted(sys.modules):
        if name.partition(".")[0] == "opslog" and not name.startswith(_REAL):
            yield sys.modules[name]


class Lock:
    """`threading.Lock`."""

    def __init__(self, simulation: Simulation, site: str = "") -> None:
        self._simulation = simulation
        self._site = site or _site()
        self._locked = False
        # The thread that took it. Another thread may release it, as with `threading.Lock`.
        self._taker: Scheduled | None = None
        self._waiting: list[Scheduled] = []

    def __str__(self) -> str:
        return f"the lock of {self._site}, which {_label(self._taker)} took"

    def locked(self) -> bool:
        return self._locked

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        simulation = self._simulation
        simulation.check_alive()
        simulation.point()
        if self._locked:
            if not blocking:
                return False
            if not self._await(None if timeout < 0 else timeout):
                return False
        self._locked, self._taker = True, simulation.thread
        return True

    def release(self) -> None:
        if not self._locked:
            if self._simulation.is_dying:
                return
            raise RuntimeError("release unlocked lock")
        self._locked, self._taker = False, None
        _wake_one(self._simulation, self._waiting)
        self._simulation.point()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _await(self, seconds: float | None) -> bool:
        """Wait until it is free. Returns False if that takes longer than `seconds`."""
        simulation, thread = self._simulation, self._simulation.thread
        is_idle = seconds is not None and seconds >= _FOREVER_SECONDS and thread is not None and thread.daemon
        if is_idle:
            seconds = None
        deadline = None if seconds is None else simulation.time + seconds
        while self._locked:
            left = None if deadline is None else deadline - simulation.time
            if left is not None and left <= 0:
                return False
            if thread is not None:
                self._waiting.append(thread)
            if not is_idle:
                simulation.note(f"waits for {self}")
            try:
                simulation.block(self, left, is_idle=is_idle)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
        return True


class RLock:
    """`threading.RLock`."""

    def __init__(self, simulation: Simulation, site: str = "") -> None:
        self._simulation = simulation
        self._lock = Lock(simulation, site or _site())
        self._owner: object = None
        self._count = 0

    def __str__(self) -> str:
        return str(self._lock)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = self._simulation.thread or self
        if self._owner is me:
            self._count += 1
            return True
        if not self._lock.acquire(blocking, timeout):
            return False
        self._owner, self._count = me, 1
        return True

    def release(self) -> None:
        if self._owner is not (self._simulation.thread or self):
            if self._simulation.is_dying:
                return
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *error: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner is (self._simulation.thread or self)

    def release_all(self) -> int:
        """Release it completely, and return how often it was taken."""
        count, self._count, self._owner = self._count, 0, None
        self._lock.release()
        return count

    def take_back(self, count: int) -> None:
        self._lock.acquire()
        self._owner, self._count = self._simulation.thread or self, count


class Condition:
    """`threading.Condition`."""

    def __init__(self, simulation: Simulation, lock: Any = None) -> None:
        self._simulation = simulation
        self._site = _site()
        self._lock = RLock(simulation, self._site) if lock is None else lock
        self._waiting: list[Scheduled] = []
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def __str__(self) -> str:
        return f"the condition of {self._site}"

    def __enter__(self) -> bool:
        return bool(self._lock.acquire())

    def __exit__(self, *error: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        simulation, thread = self._simulation, self._simulation.thread
        if thread is not None:
            self._waiting.append(thread)  # before the lock is released, or a wake-up could come in between
        held = self._lock.release_all() if isinstance(self._lock, RLock) else self._lock.release()
        try:
            was_notified = thread is not None and thread not in self._waiting
            return was_notified or simulation.block(self, timeout, is_idle=True)
        finally:
            if thread in self._waiting:
                self._waiting.remove(thread)
            if not simulation.is_dying:
                self._lock.take_back(held) if isinstance(self._lock, RLock) else self._lock.acquire()

    def wait_for(self, predicate: Callable[[], object], timeout: float | None = None) -> object:
        deadline = None if timeout is None else self._simulation.time + timeout
        while not (result := predicate()):
            left = None if deadline is None else deadline - self._simulation.time
            if left is not None and left <= 0:
                break
            self.wait(left)
        return result

    def notify(self, n: int = 1) -> None:
        for _ in range(n):
            _wake_one(self._simulation, self._waiting)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """`threading.Event`."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._site = _site()
        self._set = False
        self._waiting: list[Scheduled] = []

    def __str__(self) -> str:
        return f"the event of {self._site}"

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        while self._waiting:
            _wake_one(self._simulation, self._waiting)
        self._simulation.point()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        simulation, thread = self._simulation, self._simulation.thread
        simulation.check_alive()
        simulation.point()
        if not self._set:
            if thread is not None:
                self._waiting.append(thread)
            try:
                simulation.block(self, timeout, is_idle=True)
            finally:
                if thread in self._waiting:
                    self._waiting.remove(thread)
        return self._set


class Thread:
    """`threading.Thread`."""

    def __init__(
        self,
        simulation: Simulation,
        *,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        daemon: bool | None = None,
    ) -> None:
        self._simulation = simulation
        self._target = partial(target, *args, **(kwargs or {})) if target is not None else lambda: None
        self.name = name or "thread"
        self.daemon = bool(daemon)
        self._thread: Scheduled | None = None
        self._joining: list[Scheduled] = []

    @classmethod
    def of(cls, thread: Scheduled) -> Thread:
        """The object for a thread of the simulation."""
        if thread.handle is None:
            made = cls(thread.process.simulation, name=thread.label)
            made._thread = thread
            thread.handle = made
        assert isinstance(thread.handle, Thread)
        return thread.handle

    def __str__(self) -> str:
        return f"thread {self.name}"

    @property
    def ident(self) -> int | None:
        return None if self._thread is None else self._thread.number

    def is_alive(self) -> bool:
        return self._thread is not None and not self._thread.ended

    def start(self) -> None:
        simulation = self._simulation
        if self._thread is not None:
            raise RuntimeError("threads can only be started once")

        def perform(fault: Fault | None) -> None:
            if fault is not None:
                raise RuntimeError("can't start new thread")
            self._thread = simulation.start_thread(self.name, self._run, daemon=self.daemon)
            self._thread.handle = self

        simulation.step(f"start-thread {self.name}", perform, STARTS)

    def join(self, timeout: float | None = None) -> None:
        simulation, thread = self._simulation, self._simulation.thread
        if self._thread is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._thread is thread:
            raise RuntimeError("cannot join current thread")
        simulation.check_alive()
        if not self._thread.ended:
            if thread is not None:
                self._joining.append(thread)
            simulation.block(self, timeout)

    def _run(self) -> None:
        try:
            self._target()
        finally:
            assert self._thread is not None
            self._thread.ended = True
            while self._joining:
                _wake_one(self._simulation, self._joining)


class Local:
    """`threading.local`.

    :param defaults: further attributes of its class: a subclass may give each thread initial values.
    """

    def __init__(self, simulation: Simulation, defaults: Mapping[str, Any] | None = None) -> None:
        object.__setattr__(self, "_simulation", simulation)
        object.__setattr__(self, "_defaults", defaults or {})
        object.__setattr__(self, "_values", {})

    def _mine(self) -> dict[str, Any]:
        values: dict[object, dict[str, Any]] = self._values
        return values.setdefault(self._simulation.thread, {})

    def __getattr__(self, name: str) -> Any:
        mine = self._mine()
        if name in mine:
            return mine[name]
        if name in self._defaults:
            return self._defaults[name]
        raise AttributeError(name)

    def __setattr__(self, name: str, value: object) -> None:
        self._mine()[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self._mine()[name]
        except KeyError:
            raise AttributeError(name) from None


def _wake_one(simulation: Simulation, waiting: list[Scheduled]) -> None:
    if waiting:
        simulation.wake(waiting.pop(0))


def _label(thread: Scheduled | None) -> str:
    return "somebody outside" if thread is None else thread.label


def _site() -> str:
    """The place in the product's code that creates the object."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"
