"""One case: a call on a new stage, what comes into it at one place, and what is true afterwards."""

from __future__ import annotations

import queue
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, TypeVar

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.interrupts.calls import CALLS, Call
from tests.interrupts.handlers import Handled
from tests.interrupts.judging import Observed, Step, problems
from tests.interrupts.places import Kind, Place, at_places
from tests.interrupts.stage import SETTINGS_OF_ALL, Setting, Stage
from tests.interrupts.watching import EXCEPTIONS, WATCH_SECONDS, complaints_of, resources

T = TypeVar("T")


class Case(NamedTuple):
    """A call, a place, and what comes in there: one of `EXCEPTIONS` or `HANDLERS`. Its text can be passed to
    --replay."""

    call: str
    setting: str
    kind: Kind
    number: int
    event: str

    def __str__(self) -> str:
        return "/".join(map(str, self))

    @classmethod
    def of(cls, text: str) -> Case:
        call, setting, kind, number, event = text.split("/")
        return cls(call, setting, "after" if kind == "after" else "instead", int(number), event)


class Result(NamedTuple):
    """The place where something came in, empty if there is no such place; and the problems found.

    :ivar is_lost: whether the store said that it has to be reopened.
    :ivar hangs: whether the case did not end.
    """

    where: str
    problems: list[str]
    is_lost: bool = False
    hangs: bool = False


class _Thread:
    """A thread that runs one thing after the other."""

    def __init__(self) -> None:
        self._tasks = queue.SimpleQueue[Callable[[], None] | None]()
        self.thread = threading.Thread(target=self._run, name="tests-interrupts", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def end(self) -> None:
        self._tasks.put(None)

    def call(self, function: Callable[[], T], seconds: float | None = None) -> T:
        """Return what it returns, or raise what it raises, in this thread."""
        done = threading.Event()
        results: list[T] = []
        errors: list[BaseException] = []

        def task() -> None:
            try:
                results.append(function())
            except BaseException as error:  # noqa: BLE001  (returned to the caller)
                errors.append(error)
            finally:
                done.set()

        self._tasks.put(task)
        if not done.wait(seconds):
            raise TimeoutError
        if errors:
            raise errors.pop()
        return results[0]


def _call(name: str) -> Call:
    return next(call for call in CALLS if call.name == name)


class Runner:
    """Runs all cases in the same two threads: a call is interrupted and continues in the first one. The second one
    makes calls, too, because a reentrant lock that stays taken blocks only other threads."""

    def __init__(self) -> None:
        self.first, self._second = _Thread(), _Thread()
        self._counts: dict[tuple[str, Setting, Kind], int] = {}

    def end(self) -> None:
        for thread in (self.first, self._second):
            thread.end()

    def count(self, name: str, setting: Setting, kind: Kind = "after") -> int:
        """How many places a call has. (The first call may have more, because it loads modules.)"""
        key = name, setting, kind
        if key not in self._counts:
            call = _call(name)
            self.first.call(lambda: self._count(call, setting, kind))
            self._counts[key] = self.first.call(lambda: self._count(call, setting, kind))
        return self._counts[key]

    def _count(self, call: Call, setting: Setting, kind: Kind) -> int:
        counted = 0

        def count(place: Place) -> None:
            nonlocal counted
            counted = place.number

        stage = Stage(setting)
        call.prepare(stage)
        at_places(lambda: call.run(stage), count, kind)
        for store in (*stage.opened, stage.other, stage.store):
            store.close()
        stage.remove()
        return counted

    def run(self, case: Case) -> Result:
        call = _call(case.call)
        setting = next(setting for setting in SETTINGS_OF_ALL if str(setting) == case.setting)
        return self.watch(lambda where: self._run(case, call, setting, where))

    def watch(self, run: Callable[[list[str]], Result]) -> Result:
        """The result of a case, also if the case does not end."""
        where: list[str] = []
        try:
            return self.first.call(lambda: run(where), WATCH_SECONDS)
        except TimeoutError:
            stacks = [_stack(thread.thread) for thread in (self.first, self._second)]
            self.first, self._second = _Thread(), _Thread()
            return Result("".join(where), ["does not end: " + " | ".join(stacks)], hangs=True)

    def _run(self, case: Case, call: Call, setting: Setting, where: list[str]) -> Result:
        injected = EXCEPTIONS[case.event]() if case.event in EXCEPTIONS else None
        handled = Handled()

        def at(place: Place) -> None:
            if place.number == case.number:
                where.append(place.where)
                if injected is not None:
                    raise injected
                handled.call(case.event, stage)

        with resources() as left, complaints_of() as complaints:
            stage = Stage(setting)
            call.prepare(stage)
            if not call.has_buffered:
                stage.store.flush()
            before = stage.documents()
            error: BaseException | None = None
            try:
                at_places(lambda: call.run(stage), at, case.kind)
            except BaseException as raised:  # noqa: BLE001  (judged, and kept: what it holds on to must not matter)
                error = raised
            if not where:
                return Result("", [])
            seen = Observed(
                injected,
                is_buffered=setting.durability == "buffered",
                is_write=call.is_write,
                has_buffered=call.has_buffered,
                closes=call.closes,
                clears=call.name == "clear",
                undoes=call.name.startswith("undo"),
                error=error,
                possible=call.possible(before),
                handled=handled,
            )
            if where[0].startswith("contextlib."):
                # A lock of a storage that was being taken or released is free when the exception is gone.
                forget_frames(error, injected)
            self._go_on(stage, call, seen)
            stage.remove()
        seen.left, seen.warnings = left, complaints.texts
        seen.vanished = injected in complaints.vanished
        return Result(where[0], problems(seen), seen.is_lost)

    def _go_on(self, stage: Stage, call: Call, seen: Observed) -> None:
        """Everything else that a program may do afterwards."""
        store = stage.store

        def step(name: str, run: Callable[[], object], *, is_write: bool = False, other_thread: bool = False) -> bool:
            try:
                self._second.call(run) if other_thread else run()
            except Exception as error:  # noqa: BLE001  (judged)
                seen.steps.append(Step(name, is_write, error))
                return False
            seen.steps.append(Step(name, is_write, None))
            return True

        def write(id: str, *, other_thread: bool = False) -> None:
            if step(f"set {id}", lambda: store.set(id, {"v": 1}), is_write=True, other_thread=other_thread):
                seen.written[id] = {"v": 1}

        def batch() -> None:
            with store.batch():
                store["left"] = {"v": 1}
                store["right"] = {"v": 1}

        def refresh() -> None:
            stage.hand_out(store.refresh())

        step("refresh", refresh)
        write("here")
        stage.write_other("b-late")
        seen.others["b-late"] = {"v": 1}
        write("there", other_thread=True)
        if step("batch", batch, is_write=True, other_thread=True):
            seen.written |= {"left": {"v": 1}, "right": {"v": 1}}
            if step("undo", store.undo, is_write=True, other_thread=True):
                del seen.written["left"], seen.written["right"]
        step("refresh there", refresh, other_thread=True)
        step("flush", store.flush, other_thread=True)
        with suppress(opslog.ReopenError, opslog.ClosedError):
            seen.memory = self._second.call(lambda: dict(store.items()))
        step("close", store.close, other_thread=True)
        handled = seen.handled
        errors = (seen.error, seen.injected, handled.refused, handled.error, *(step.error for step in seen.steps))
        forget_frames(*errors)
        finish(stage, seen, call.also)


def finish(stage: Stage, seen: Observed, also: Callable[[Stage], list[str]]) -> None:
    """What is there after the store was closed."""
    try:
        seen.faults = _verify(stage)
        seen.fresh = stage.documents()
        with stage.open("a") as again:
            seen.reopened = dict(again.items())
            again["again"] = {"v": 1}
        seen.also += also(stage)
    except opslog.OpslogError as error:
        seen.also.append(f"cannot be opened again: {error!r}")
    for opened in (*stage.opened, stage.other):
        opened.close()
    seen.handed, seen.of_others = stage.handed, stage.of_others


def forget_frames(*errors: BaseException | None) -> None:
    """Until now exceptions were kept, with everything that their tracebacks refer to. Nothing else may be left."""
    waiting, seen = list(errors), set[int]()
    while waiting:
        error = waiting.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.__traceback__ = None
            waiting += [error.__context__, error.__cause__]


def _verify(stage: Stage) -> list[str]:
    backend = open_backend(stage.url, create=False)
    try:
        return [f"verify: {problem}" for problem in verify(backend).problems if problem.severity == "error"]
    finally:
        backend.close()


def _stack(thread: threading.Thread) -> str:
    frame = sys._current_frames().get(thread.ident or 0)
    calls = [f"{call.name}:{call.lineno}" for call in traceback.extract_stack(frame)]
    return " > ".join(calls[-6:])
