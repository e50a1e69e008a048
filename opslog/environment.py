"""Time and randomness, as one object that is passed in, so that a whole store can run in a deterministic simulation.

This is the only module of the package that reads the machine's clocks or its random numbers (the linter says so).
"""

from __future__ import annotations

import os
import time as clocks
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache, partial

from opslog.kernel import time_text


def _nonce() -> str:
    return os.urandom(8).hex()


# Counts also while the machine sleeps, on systems with such a clock: a view gets old during that time, too.
_monotonic = partial(clocks.clock_gettime, getattr(clocks, "CLOCK_BOOTTIME", clocks.CLOCK_MONOTONIC))


@dataclass(frozen=True, slots=True)
class Environment:
    """The time and randomness that a store uses.

    :ivar time: wall clock, seconds since 1970; ends up in `ts`, never decides a conflict.
    :ivar monotonic: seconds on a clock that never goes back, for waiting and for the age of what was last read.
    :ivar sleep: waits that many seconds.
    :ivar nonce: a new name for a run or an archive: letters and digits, never the same twice.
    """

    time: Callable[[], float] = clocks.time
    monotonic: Callable[[], float] = _monotonic
    sleep: Callable[[float], None] = clocks.sleep
    nonce: Callable[[], str] = _nonce


REAL = Environment()


class DrawnNonces:
    """Random names of 16 hexadecimal digits, drawn many at a time. A draw for each would be a system call, and during
    it another thread may take the interpreter.

    A forked process draws its own, if Python made the fork. If native code made it, both have the same names, so
    nothing on storage gets one. Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._left: list[str] = []
        os.register_at_fork(after_in_child=self._left.clear)

    def next(self) -> str:
        while True:
            try:
                return self._left.pop()
            except IndexError:
                digits = os.urandom(4096).hex()
                self._left += [digits[start : start + 16] for start in range(0, len(digits), 16)]


def format_ts(seconds: float) -> str:
    """Seconds since 1970 as the form that lines carry: ``2026-11-20T12:00:00.123456Z``."""
    if time_text is not None and (text := time_text(seconds)) is not None:
        return text
    whole = int(seconds)
    # Rounded as datetime does.
    microseconds = round((seconds - whole) * 1e6)
    if not 0 <= microseconds < 1_000_000:  # rounded up to a whole second, or before 1970
        carry, microseconds = divmod(microseconds, 1_000_000)
        whole += carry
    return "%s.%06dZ" % (_to_the_second(whole), microseconds)  # noqa: UP031  (takes half as long as an f-string)


@lru_cache(maxsize=1)  # called thousands of times in a row for the same second
def _to_the_second(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()[:-6]


def parse_time(text: str) -> datetime:
    """An RFC 3339 time with a zone, such as the form of `format_ts`.

    :raises ValueError: it is not a time, or has no zone.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text!r} has no time zone: write it as 2026-11-20T12:00:00Z")
    return moment


def parse_ts(ts: str) -> float:
    """The inverse of `format_ts`. Takes and raises what `parse_time` does."""
    return parse_time(ts).timestamp()


def machine_memory() -> int:
    """How much memory this machine has, in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
