"""Every place of a call where CPython can run a signal handler, one after the other instead of by luck.

The interpreter checks for signals when it enters a function, resumes a generator or jumps backwards, and when a call of
something that is not written in Python has returned. It does not check in between, and not when a Python function
returns. So ``with lock:`` on a lock of C cannot be interrupted between taking the lock and being in the block;
``lock.acquire()`` before a ``try`` can, and so can ``__enter__`` in Python, before it returns.
`tests/interrupts/test_places.py` holds these places against those where real signals come, on Python 3.11 to 3.13.

A second kind of place is a call that waits or makes a system call: an exception raised there replaces the call.
"""

from __future__ import annotations

import ctypes
import dis
import functools
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Literal, NamedTuple, TypeVar

T = TypeVar("T")

Kind = Literal["after", "instead"]
"""After a step of the interpreter, or instead of a call that waits or makes a system call."""


class Place(NamedTuple):
    """A place of a call: its `number` among the places of this call, and its position in the source, for people.

    :ivar code, offset: the instruction to which an exception raised here belongs.
    """

    number: int
    where: str
    code: CodeType
    offset: int


Handler = Callable[[Place], None]


def at_places(call: Callable[[], T], handler: Handler, kind: Kind = "after", *, goes_on: bool = False) -> T:
    """Call `call` and return its result. Meanwhile the handler is called, in this thread, at each place. If it raises,
    the exception is raised at that place.

    :param goes_on: continue to call the handler after it has raised, for a second exception; only at "after" steps.

    Garbage of earlier calls is not collected meanwhile, because finalizers would add places at random.
    """
    places = _ManyPlaces(handler) if goes_on else _Places(handler)
    # CPython drops these when one of them raises, and may call them once more. So something else has to hold them.
    enter, returned, called = places.enter, places.returned, places.called
    gc.disable()
    if kind == "after":
        sys._getframe().f_trace_opcodes = True  # Python 3.12 traces opcodes only if some frame has asked for it before
        sys.settrace(enter)
        sys.setprofile(returned)
    else:
        sys.setprofile(called)
    try:
        return call()
    finally:
        places.is_over = True
        sys.settrace(None)
        sys.setprofile(None)
        gc.enable()
        places.end()


def is_finalizing() -> bool:
    """Whether a handler was called while Python frees an object. Python drops exceptions that come then."""
    frame: FrameType | None = sys._getframe()
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def at_each(
    call: Callable[[int], Callable[[], T]], handler: Callable[[], None], stride: int = 1
) -> Iterator[tuple[Place, T | Exception]]:
    """Repeat a call, with the handler at one place after the other, until there is no further place.

    :param call: prepares the call with a number, and returns it.
    :param handler: its exceptions are raised at the place.
    :param stride: the step from one place to the next; 1 for every place.
    :returns: for each place, what the call returned or raised.
    """
    for number in itertools.count(1, stride):
        prepared = call(number)
        came: list[Place] = []

        def stop(place: Place, number: int = number, came: list[Place] = came) -> None:
            if place.number == number:
                came.append(place)
                handler()

        outcome: T | Exception
        try:
            outcome = at_places(prepared, stop)
        except Exception as error:  # noqa: BLE001  (it is what the caller checks)
            outcome = error
        if not came:
            assert number > 10, "there are more places in any call"
            return
        yield came[0], outcome


@contextmanager
def stopping_threads(handler: Callable[[str, Place], None]) -> Iterator[None]:
    """Inside the block each thread that starts stops at its places. The handler also gets the thread's name."""

    begun: list[_Places] = []

    def begin(frame: FrameType, event: str, argument: object) -> Any:
        name = threading.current_thread().name
        places = _Places(lambda place: handler(name, place))
        begun.append(places)
        sys.settrace(places.enter)
        sys.setprofile(places.returned)
        return places.enter(frame, event, argument)

    threading.settrace(begin)
    try:
        yield
    finally:
        threading.settrace(None)
        for places in begun:
            places.end()


class _Places:
    """Recognises places from what the interpreter reports to the debugger and the profiler of one thread."""

    def __init__(self, handler: Handler) -> None:
        self.is_over = False
        self._handler = handler
        self._number = 0
        self._done: set[FrameType] = set()
        """Frames whose current call is of a Python function, which is no place, or has already returned."""

    def end(self) -> None:
        """Drop all references, so that an exception can be freed together with everything in its traceback."""
        self._done.clear()

    def _stop(self, frame: FrameType, offset: int, what: str = "") -> None:
        self._number += 1
        where = f"{frame.f_globals.get('__name__', '?')}.{frame.f_code.co_qualname}:{frame.f_lineno}"
        self._handler(Place(self._number, f"{where} {what}".rstrip(), frame.f_code, offset))

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        """For `sys.settrace`: a function begins, or a generator goes on."""
        if frame.f_back is not None and not _is_called_by_c(frame):
            self._done.add(frame.f_back)
        if not _counts(frame):
            return None
        frame.f_trace_lines = False
        frame.f_trace = self._step  # set this first, or Python 3.13 ignores the next line
        frame.f_trace_opcodes = True
        return self._step

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "opcode":
            step = _steps(frame.f_code).get(frame.f_lasti)
            if step is not None:
                done = frame in self._done
                self._done.discard(frame)
                if step.belongs_to is not None and not (done and step.is_after_call):
                    self._stop(frame, step.belongs_to)
        return self._step

    def returned(self, frame: FrameType, event: str, function: Any) -> None:
        """For `sys.setprofile`: where a built-in function returns, the place is still at the call."""
        if event == "c_return" and _counts(frame):
            self._done.add(frame)
            self._stop(frame, frame.f_lasti)

    def called(self, frame: FrameType, event: str, function: Any) -> None:
        """For `sys.setprofile`: a call that waits or makes a system call is about to start."""
        if event != "c_call" or not _asks_the_system(function):
            return
        if _counts(frame) or function.__name__ == "start_new_thread":
            self._stop(frame, frame.f_lasti, f"{function.__name__}()")


class _ManyPlaces(_Places):
    """CPython drops the debugger or the profiler that raised, and the other one puts it back. A place in between may be
    missed."""

    def __init__(self, handler: Handler) -> None:
        super().__init__(handler)
        # Each the same object at every call.
        self._tracing, self._profiling = self.enter, self.returned

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        self._put_back()
        return super().enter(frame, event, argument)

    def _step(self, frame: FrameType, event: str, argument: object) -> Any:
        self._put_back()
        return super()._step(frame, event, argument)

    def returned(self, frame: FrameType, event: str, function: Any) -> None:
        self._put_back()
        super().returned(frame, event, function)

    def _put_back(self) -> None:
        if self.is_over:
            return
        if sys.getprofile() is None:
            sys.setprofile(self._profiling)
        if sys.gettrace() is None:
            sys.settrace(self._tracing)
            frame: FrameType | None = sys._getframe(2)
            while frame is not None:
                if _counts(frame):
                    frame.f_trace_lines = False
                    frame.f_trace = self._step
                    frame.f_trace_opcodes = True
                frame = frame.f_back


_CALLS = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "FORMAT_SIMPLE", "FORMAT_VALUE", "FORMAT_WITH_SPEC"}
"""The interpreter checks for signals after these instructions, if what they call is not Python code. (Making text from
a value does so, too.)"""


class _Step(NamedTuple):
    """What is known of an instruction before it runs.

    :ivar belongs_to: the offset of the instruction with which it forms a place; None if it forms none.
    :ivar is_after_call: whether there is a place only if the call before it was not of Python code.
    """

    belongs_to: int | None
    is_after_call: bool = False


@functools.cache
def _steps(code: CodeType) -> dict[int, _Step]:
    """The instructions that make places, and calls, by offset."""
    found: dict[int, _Step] = {}
    before: dis.Instruction | None = None
    for instruction in dis.get_instructions(code):
        offset, name = instruction.offset, instruction.opname
        if name in _CALLS:
            found[offset] = _Step(None)
        if "JUMP_BACKWARD" in name and "NO_INTERRUPT" not in name:
            found[offset] = _Step(offset)
        elif before is not None and before.opname == "RESUME":
            found[offset] = _Step(before.offset)
        # An exception raised here must lead to the same handler as one raised by the call itself.
        elif before is not None and before.opname in _CALLS and _leads(code, before.offset) == _leads(code, offset):
            found[offset] = _Step(before.offset, is_after_call=True)
        before = instruction
    return found


def _leads(code: CodeType, offset: int) -> int | None:
    """Where an exception leads."""
    table = dis._parse_exception_table(code)  # type: ignore[attr-defined]
    return next((entry.target for entry in table if entry.start <= offset < entry.end), None)


def _is_called_by_c(frame: FrameType) -> bool:
    """Whether C code has called a Python function: a class that calls ``__init__``, a `functools.partial`, a cache,
    ``sorted`` with a key, a bound method with ``*arguments``.

    Python does not expose this, so it is read from the interpreter's own frame: in Python 3.11 from a flag of the
    frame, from 3.12 on from the owner of the frame before it.
    """
    own = _pointer(id(frame) + 24)
    if sys.hexversion < 0x030C0000:
        return bool(ctypes.c_bool.from_address(own + 68))
    previous = _pointer(own + 8)
    return previous != 0 and ctypes.c_char.from_address(previous + 70).value == _OWNED_BY_C


_OWNED_BY_C = b"\x03"


def _pointer(address: int) -> int:
    return ctypes.c_size_t.from_address(address).value


_WAITING = {"acquire", "sleep", "start_new_thread"}
_HARMLESS = {"close", "fspath", "getpid", "fsdecode", "fsencode"}
"""A file whose closing failed is closed. The others make no system call that can fail."""


def _asks_the_system(function: Any) -> bool:
    name = function.__name__
    return name in _WAITING or (function.__module__ in ("posix", "fcntl") and name not in _HARMLESS)


def _counts(frame: FrameType) -> bool:
    caller = frame.f_back
    if caller is not None and caller.f_code.co_filename.endswith("/tests/support/bucket.py"):
        return False  # a stand-in for a server has no places
    return _is_ours(frame.f_code.co_filename) and not _is_of_asyncio(frame)


def _is_of_asyncio(frame: FrameType) -> bool:
    """Whether a function of Python's library was called by asyncio, and not by opslog."""
    caller: FrameType | None = frame
    while caller is not None and "/opslog/" not in caller.f_code.co_filename:
        if any(part in caller.f_code.co_filename for part in ("/asyncio/", "/concurrent/")):
            return True
        caller = caller.f_back
    return False


_OTHERS = (
    "/tests/",
    "<frozen",
    "sortedcontainers",
    "weakref",
    "threading.py",
    "/logging/",
    "/concurrent/",
    "/asyncio/",
    "/queue",
)


@functools.cache
def _is_ours(name: str) -> bool:
    """Whether a file belongs to opslog or to code that it calls. Files of the tests, and code that only they call, do
    not count. Nor do parts of Python that an exception can break for good, because nobody can do anything about that:
    imports, threads and what is built on them, and logging, whose one lock would stay taken for all later tests."""
    return not any(part in name for part in _OTHERS)
