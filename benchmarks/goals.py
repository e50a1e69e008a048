"""The goals of opslog, compared with the results of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from benchmarks import elsewhere, feed, finding, tables, transactions
from benchmarks.maintenance import COMPACT, COMPACT_AGAIN, PAUSE
from benchmarks.opening import COLD, HUGE, LISTED, LOG, LOG_MEMORY, LOGGED, SNAPSHOT
from benchmarks.peers import NPM, NPM_COPIES, NPM_SYNCED
from benchmarks.reading import SCAN, SQLITE_JSON, TOUCHED
from benchmarks.runner import Result


class Measured(NamedTuple):
    text: str
    met: bool


@dataclass(frozen=True)
class Goal:
    """:ivar measure: the result of a run, None if it did not measure that. :ivar why_missed: said if the goal is
    missed."""

    text: str
    measure: Callable[[list[Result]], Measured | None]
    why_missed: str = ""


Place = tuple[str, str]
"""A workload, and how the name of a contender begins."""


def _median(results: list[Result], place: Place) -> float | None:
    workload, contender = place
    found = (one.median for one in results if one.workload == workload and one.contender.startswith(contender))
    return next(found, None)


def _times(
    text: str, smaller: Place, greater: Place, *, least: float | None = None, most: float | None = None, why: str = ""
) -> Goal:
    """How many times as much the second takes as the first: at least this much, or at most."""

    def measure(results: list[Result]) -> Measured | None:
        low, high = _median(results, smaller), _median(results, greater)
        if low is None or high is None:
            return None
        times = high / low
        met = (least is None or times >= least) and (most is None or times <= most)
        return Measured(f"{times:,.2f} x" if times < 10 else f"{times:,.0f} x", met)

    return Goal(text, measure, why)


def _at_most(
    text: str, place: Place, most: float, unit: str, *, beyond: Place | None = None, why: str = "", digits: int = 1
) -> Goal:
    """At most this much, or this much more than `beyond`."""

    def measure(results: list[Result]) -> Measured | None:
        value = _median(results, place)
        floor = 0.0 if beyond is None else _median(results, beyond)
        if value is None or floor is None:
            return None
        return Measured(f"{value - floor:,.{digits}f} {unit}", value - floor <= most)

    return Goal(text, measure, why)


_ONE, _TASKS, _BUFFERED = "set, durable, one caller", "set, durable, 64 tasks", "set, buffered"
_SHORT, _LONG = "100,000 in the tails", "1,000,000 in the tails"
_REFRESH, _UNDO = "refresh after 1 commit, ", "undo, "
_MEMORY = "memory: 1,000,000 documents, "
_LARGE = "get, random, large snapshot"


@dataclass(frozen=True)
class KernelGoal:
    """A figure with a separate goal for each of the two ways in which opslog runs.

    :ivar over: its divisor or, with `is_rate`, its dividend; None: the figure itself counts.
    :ivar on, off: the limit with the kernel in C, and without it; None: there is none.
    :ivar why_missed: said if one of the two is missed.
    """

    text: str
    place: Place
    on: float
    off: float | None
    over: Place | None = None
    is_rate: bool = False
    unit: str = "x"
    why_missed: str = ""

    def measure(self, results: list[Result], limit: float | None) -> Measured | None:
        """The result of a run; None if it did not measure that."""
        value = _median(results, self.place)
        other = 1.0 if self.over is None else _median(results, self.over)
        if value is None or other is None:
            return None
        figure = other / value if self.is_rate else value / other
        met = limit is None or (figure >= limit if self.is_rate else figure <= limit)
        return Measured(f"{figure:,.2f} {self.unit}", met)

    def limit_text(self, limit: float | None) -> str:
        return "none" if limit is None else f"{'≥' if self.is_rate else '≤'} {limit:g} {self.unit}"


_COLD = (
    "After each wait for the disk the processor's caches are cold, so the Python of a set takes several times as long "
    "as in a loop (compare: set, buffered). The floor has next to no code to run there. What opslog does takes as long "
    "on every disk: the faster the disk, the greater the ratio."
)

KERNEL_GOALS = (
    KernelGoal("durable set / write + fdatasync", (_ONE, "opslog"), 1.15, 1.25, over=(_ONE, "floor"), why_missed=_COLD),
    KernelGoal(
        "64 tasks / one caller", (_TASKS, "opslog.aio"), 12, 9, over=(_TASKS, "opslog, one caller"), is_rate=True
    ),
    KernelGoal(
        "buffered set / npm, async",
        (_BUFFERED, "opslog"),
        2.2,
        1.4,
        over=(_BUFFERED, NPM),
        is_rate=True,
        why_missed=(
            "The kernel checks and encodes a document. The queue, the clock, memory and their locks are in Python, so "
            "that a signal handler may interrupt them anywhere; they take most of the time."
        ),
    ),
    KernelGoal(
        "open a log of 1,000,000 / npm",
        (LOG, "opslog"),
        6,
        3,
        over=(LOG, NPM),
        is_rate=True,
        why_missed="Without the kernel msgspec makes an object of each line, and Python keeps the newest of each id.",
    ),
    KernelGoal(
        "compact a new log of 1,000,000 / npm",
        (COMPACT, "opslog"),
        1.3,
        0.5,
        over=(COMPACT, NPM),
        is_rate=True,
        why_missed=(
            "The package writes its own memory, without an fsync. opslog reads, verifies and sorts the logs of all "
            "agents; without the kernel it decodes each line for that."
        ),
    ),
    KernelGoal(
        "get and read a field, 200,000 documents / npm",
        (TOUCHED, "opslog"),
        1,
        0.25,
        over=(TOUCHED, NPM),
        is_rate=True,
        why_missed=(
            "The package returns the object in its store. opslog gives the caller a copy, or decodes the document; the "
            "goal below, against the package with copies, compares the same promise."
        ),
    ),
    KernelGoal("get, mapped snapshot of 1,000,000", (_LARGE, "opslog"), 5, 8, unit="µs"),
    KernelGoal(
        "scan with a predicate / SQLite JSON",
        (SCAN, "opslog"),
        1,
        0.5,
        over=(SCAN, SQLITE_JSON),
        is_rate=True,
        why_missed=(
            "A predicate in Python has to see the whole document, decoded. Reading and decoding alone, the floor, "
            "takes twice as long as SQLite. A condition, in the next row, is what SQL is to SQLite."
        ),
    ),
    KernelGoal(
        "scan with a condition / SQLite JSON",
        (SCAN, "opslog, a condition"),
        1,
        0.5,
        over=(SCAN, SQLITE_JSON),
        is_rate=True,
        why_missed=(
            "Without the kernel each document is decoded whole, and encoded again to see that it was decoded exactly. "
            "Reading and decoding alone, the floor, takes twice as long as SQLite."
        ),
    ),
    KernelGoal("memory of a log of 1,000,000 documents, opened", (LOG_MEMORY, "opslog"), 250, None, unit="MB"),
)

# The workloads whose results decide these goals.
KERNEL_WORKLOADS = frozenset(goal.place[0] for goal in KERNEL_GOALS)

GOALS = (
    _times(
        "durable set, one caller: within 1.15 x of write + fdatasync",
        (_ONE, "floor"),
        (_ONE, "opslog"),
        most=1.15,
        why=_COLD,
    ),
    _times(
        "durable set, 64 tasks: at least 10 x one caller's rate",
        (_TASKS, "opslog.aio"),
        (_TASKS, "opslog, one caller"),
        least=10,
        why=(
            "The processor is the limit, not the disk: 64 sets share one fdatasync, and the Python of each runs on the "
            "one thread of the event loop (compare: set, buffered)."
        ),
    ),
    _times(
        "modify, one caller: within 2 x of a durable set",
        (transactions.MODIFY, transactions.ONE_CALLER),
        (transactions.MODIFY, "opslog"),
        most=2,
    ),
    _times(
        "modify, 64 tasks: at least 10 x one caller's rate",
        (transactions.MODIFY_TASKS, "opslog.aio"),
        (transactions.MODIFY_TASKS, "opslog, one caller"),
        least=10,
    ),
    _times(
        "8 processes that count in one document: at least half of SQLite's rate",
        (transactions.COUNTER, "SQLite"),
        (transactions.COUNTER, "opslog"),
        most=2,
    ),
    _at_most("find 100 of 200,000 documents by equality: under 1 ms", (finding.EQUAL, finding.FIND), 1000, "µs"),
    _times(
        "find 100 of 200,000 documents by equality: at least 100 x as fast as filter",
        (finding.EQUAL, finding.FIND),
        (finding.EQUAL, finding.FILTER),
        least=100,
    ),
    _at_most("find the top 10 of 200,000 documents by a field: under 1 ms", (finding.TOP, finding.FIND), 1000, "µs"),
    _at_most(
        "8 processes that count in one document: the slowest takes at most 3 times as long as the fastest",
        (transactions.FAIRNESS, "opslog"),
        3,
        "times as long",
    ),
    _at_most(
        "buffered plain sets, 1 % of the documents guarded: at most 1.05 times as long as with none",
        (transactions.GUARDED, "opslog, buffered"),
        1.05,
        "times as long",
        digits=2,
    ),
    _at_most(
        "durable plain sets, 1 % of the documents guarded: at most 1.05 times as long as with none",
        (transactions.GUARDED, "opslog, fsync"),
        1.05,
        "times as long",
        digits=2,
    ),
    _at_most(
        "buffered plain sets in a store without transactions: at most 1.02 times as long as sets that know of none",
        (transactions.UNUSED, "opslog, buffered"),
        1.02,
        "times as long",
        digits=2,
        why="Each commit reads twice how often documents may have become guarded: 0.1 to 0.15 of 4.5 microseconds.",
    ),
    _at_most(
        "durable plain sets in a store without transactions: at most 1.02 times as long as sets that know of none",
        (transactions.UNUSED, "opslog, fsync"),
        1.02,
        "times as long",
        digits=2,
    ),
    _at_most(
        "plain sets on S3, 1 % of the documents guarded: no more requests than with none",
        (transactions.GUARDED_REQUESTS, "opslog"),
        0,
        "requests more",
        beyond=(transactions.GUARDED_REQUESTS, transactions.WITHOUT),
    ),
    _times(
        "durable set through a server: at most 1.3 x the time of an append to one of its streams",
        (elsewhere.SET, elsewhere.STREAM),
        (elsewhere.SET, "opslog"),
        most=1.3,
    ),
    _at_most("get through a server: no request", (elsewhere.REQUESTS, elsewhere.GET), 0, "requests"),
    _at_most(
        "refresh with nothing new through a server: one request at most",
        (elsewhere.REQUESTS, elsewhere.REFRESH),
        1,
        "requests",
    ),
    _times(
        "buffered set: at least 3 x the rate of the npm package's async mode",
        (_BUFFERED, "opslog"),
        (_BUFFERED, NPM),
        least=3,
        why=(
            "A set checks that the document comes back exactly, stamps it, encodes its line and adds it to memory, in "
            "Python. The package keeps the caller's own object and checks nothing."
        ),
    ),
    _times(
        "buffered set: at least 3 x the rate of the npm package's async mode with copied input",
        (_BUFFERED, "opslog"),
        (_BUFFERED, NPM_COPIES),
        least=3,
        why="With the copy the caller may change the object afterwards, as with opslog. The package checks no types.",
    ),
    _times(
        "open a log of 1,000,000: at least 5 x faster than the npm package",
        (LOG, "opslog"),
        (LOG, NPM),
        least=5,
        why="Decoding alone with msgspec (the floor) takes a fifth of the package's time.",
    ),
    _times(
        "open a log of 1,000,000: within 2.5 x of decoding it with msgspec", (LOG, "floor"), (LOG, "opslog"), most=2.5
    ),
    _times(
        "open a snapshot of 1,000,000: at least 100 x faster than the npm package",
        (SNAPSHOT, "opslog"),
        (SNAPSHOT, NPM),
        least=100,
    ),
    _times(
        "open a snapshot of 10,000,000: within 2 x of 1,000,000",
        (HUGE, "opslog with"),
        (HUGE, "opslog"),
        most=2,
        why="The manifest names every part of the snapshot, ten times as many here, and is decoded as a whole.",
    ),
    _times(
        "memory with 1,000,000 documents opened: at most a tenth of the npm package's",
        (f"{_MEMORY}opened", "opslog"),
        (f"{_MEMORY}opened", NPM),
        least=10,
    ),
    _times(
        "memory after 10,000 gets: at most a tenth of the npm package's",
        (f"{_MEMORY}after 10,000 gets", "opslog"),
        (f"{_MEMORY}after 10,000 gets", NPM),
        least=10,
    ),
    _times(
        "refresh after 1 commit: with 1,000,000 in the tails within 1.5 x of 100,000",
        (_REFRESH + _SHORT, "opslog"),
        (_REFRESH + _LONG, "opslog"),
        most=1.5,
    ),
    _times(
        "refresh after 1 commit, 1,000,000 in the tails: at least 1,000 x faster than the npm package",
        (_REFRESH + _LONG, "opslog"),
        (_REFRESH + _LONG, NPM),
        least=1000,
    ),
    _times(
        "undo: with 1,000,000 in the tails within 1.5 x of 100,000",
        (_UNDO + _SHORT, "opslog"),
        (_UNDO + _LONG, "opslog"),
        most=1.5,
    ),
    _times(
        "changes after 1 new document: with 1,000,000 documents within 1.5 x of 100,000",
        (feed.CHANGES, feed.SMALL),
        (feed.CHANGES, feed.LARGE),
        most=1.5,
    ),
    _times(
        "compact a new log of 1,000,000 sets: at least 3 x faster than the npm package, per document",
        (COMPACT, "opslog"),
        (COMPACT, NPM),
        least=3,
        why=(
            "The package writes its own memory, with one call per document and no fsync. opslog reads the logs of all "
            "agents from storage, because any process may compact, sorts them, and writes parts with checksums. The "
            "parts are on disk when it returns."
        ),
    ),
    _times(
        "compact a new log of 1,000,000 sets: at least 3 x faster than the npm package with an fsync of each file",
        (COMPACT, "opslog"),
        (COMPACT, NPM_SYNCED),
        least=3,
        why="With the fsync both promise that the files are on disk. But only opslog reads what other processes wrote.",
    ),
    _times(
        "compact 1,000,000 over a snapshot of as many: at least 3 x faster than the npm package, per document",
        (COMPACT_AGAIN, "opslog"),
        (COMPACT_AGAIN, NPM),
        least=3,
        why=(
            "As above. In addition, opslog compares each document with the one that it replaces, for which it reads "
            "and verifies the whole snapshot. The floor, which does none of this, is as far from the goal."
        ),
    ),
    _at_most(
        "slowest in a thousand sets beside that compaction, in a thread: under 20 ms beyond the fdatasync",
        (PAUSE, "opslog, compaction in a thread"),
        20,
        "ms",
        beyond=(PAUSE, "floor"),
    ),
    _at_most(
        "slowest in a thousand sets beside that compaction, in another process: under 20 ms beyond the fdatasync",
        (PAUSE, "opslog, compaction in another"),
        20,
        "ms",
        beyond=(PAUSE, "floor"),
        why="The two processes share only the disk. The floor's slowest fdatasync varies tenfold between rounds, too.",
    ),
    _times(
        "get, in memory: at least the npm package's rate",
        ("get, random", "opslog"),
        ("get, random", NPM),
        least=1,
        why=(
            "A get decodes the document, or copies one that it has kept, so the caller owns the result. The package "
            "returns the object in its store: changing the object changes the store."
        ),
    ),
    _times(
        "get and read a field, 200,000 documents: at least the rate of the npm package with copied output",
        (TOUCHED, "opslog"),
        (TOUCHED, NPM_COPIES),
        least=1,
    ),
    _at_most(
        "get from a snapshot of 1,000,000: at least 100,000/s",
        (_LARGE, "opslog"),
        10,
        "µs",
        why="Beyond the floor, a get searches two indexes and decodes a line. SQLite takes as long.",
    ),
    _times(
        "first question in SQL: within 1.2 x of DuckDB reading the exported file",
        (tables.FIRST, tables.LINES),
        (tables.FIRST, "opslog"),
        most=1.2,
        why=(
            "The lines of a snapshot are a third longer than those of the file, and opslog checks their CRC. DuckDB "
            "reads the file in all of its threads at once, and a part of opslog's work has only one."
        ),
    ),
    _times(
        "later questions in SQL: faster than DuckDB reading the file",
        (tables.LATER, "opslog"),
        (tables.LATER, tables.LINES),
        least=1,
    ),
    _times(
        "later questions in SQL: faster than SQLite", (tables.LATER, "opslog"), (tables.LATER, tables.ROWS), least=1
    ),
    _at_most(
        "get from the command line: at most 45 ms more than Python needs to start",
        (COLD, "opslog get"),
        45_000,
        "µs more",
        beyond=(COLD, "floor"),
        why="Most of it is the import of msgspec and orjson, which has a row of its own.",
    ),
    _at_most("first byte of ls, 150,000 documents: under 0.3 s", (LISTED, "opslog ls"), 300_000, "µs"),
    _at_most("first byte of ops, 150,000 commits: under 0.3 s", (LOGGED, "opslog ops"), 300_000, "µs"),
)
