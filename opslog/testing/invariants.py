"""The invariants of every store, whatever happened to its users. Each is written down once, here.

An invariant is a function that raises `ViolationError` with its own name. `CHECKED` counts how often each was checked.
They take plain values: commits, states as (id, document text), reports. So tests of all kinds can use them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from typing import NoReturn, ParamSpec

from opslog.format.commits import Commit, Delete, Set, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.merge.merge import reference
from opslog.merge.rules import SharedLogRules, UndoWindow, author_faults, clock_fault
from opslog.merge.stamps import outranks
from opslog.verify.verify import Report

P = ParamSpec("P")

# All commits that were ever in each agent's log, in order.
Logs = Mapping[str, Sequence[Commit]]
# The document of each id, as JSON text.
State = dict[str, bytes]

# How often each invariant was checked in this process.
CHECKED: Counter[str] = Counter()

# The statement of each, by name.
INVARIANTS: dict[str, str] = {}


class ViolationError(AssertionError):
    """An invariant does not hold.

    :ivar invariant: its name.
    """

    def __init__(self, invariant: str, problem: str) -> None:
        super().__init__(f"{invariant}: {problem}")
        self.invariant = invariant


def invariant(check: Callable[P, str | None]) -> Callable[P, None]:
    """Decorates a function that returns the problem, None if there is none: the result raises the problem."""
    name = check.__name__
    INVARIANTS[name] = " ".join((check.__doc__ or "").split())

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        CHECKED[name] += 1
        problem = check(*args, **kwargs)
        if problem is not None:
            raise ViolationError(name, problem)

    return checked


def violated(name: str, problem: str) -> NoReturn:
    """Raise the violation of an invariant that is found without a check, such as a run that does not end."""
    assert name in INVARIANTS, name
    raise ViolationError(name, problem)


def state_of(commits: Iterable[Commit]) -> State:
    """The state that a store with these commits must show."""
    winners = reference(commits)
    return {id: bytes(record.data) for id, record in winners.items() if isinstance(record, Set)}


# -- commits


@invariant
def clocks_never_go_back(log: Sequence[Commit]) -> str | None:
    """In each log every commit has a greater clock than the one before it."""
    for before, commit in pairwise(log):
        fault = clock_fault(before.clock, commit)
        if fault:
            return f"the {type(commit).__name__.lower()} at {commit.stamp}: {fault}"
    return None


@invariant
def transactions_keep_their_order(log: Sequence[Commit]) -> str | None:
    """In the shared log each transaction has an author and a nonce of its own, a clock at least 1,000 above that of the
    line before it, and a `ts` not before that of any transaction before it. No other log has authors."""
    rules = SharedLogRules() if log and log[0].agent == TRANSACTIONS else None
    for commit in log:
        for fault in [*author_faults(commit), *(rules.faults(commit) if rules else ())]:
            return f"the {type(commit).__name__.lower()} at {commit.stamp}: {fault}"
    return None


@invariant
def undo_is_exact(log: Sequence[Commit], window: int) -> str | None:
    """An undo names the newest commit of its log that has records, is not undone yet, and is among the last `window`
    commits before it; commits before a seal do not count. In the shared log it names the newest one of its own
    author."""
    passed = UndoWindow(window, is_whole=True)
    for commit in log:
        if isinstance(commit, Undo):
            fault = passed.fault(commit)
            if fault is None and commit.target != passed.newest(commit.by):
                fault = f"it undoes clock {commit.target}, and {passed.newest(commit.by)} is the newest that it may"
            if fault:
                return f"the undo at {commit.stamp}: {fault}"
        passed.follow(commit)
    return None


# -- states


@invariant
def state_is_the_reference_merge(state: State, commits: Iterable[Commit], who: str) -> str | None:
    """A store shows exactly the plain merge of all commits."""
    return _difference(state, state_of(commits), who)


@invariant
def memory_is_what_was_read(state: State, logs: Logs, read: Mapping[str, int], who: str) -> str | None:
    """An open store shows the plain merge of everything that it has read of each log, and of all its own
    writes."""
    return _difference(state, state_of(commit for agent in read for commit in logs.get(agent, ())[: read[agent]]), who)


@invariant
def readers_converge(states: Mapping[str, State]) -> str | None:
    """All readers that have read everything show the same, whichever snapshot they started from."""
    (first, expected), *others = states.items()
    for who, state in others:
        if state != expected:
            return _difference(state, expected, f"{who}, beside {first},")
    return None


@invariant
def batches_are_atomic(left: object, right: object, who: str) -> str | None:
    """Two documents that are only ever written together are seen together: both of one batch, or both absent."""
    return None if left == right else f"{who} sees {left} beside {right}"


@invariant
def own_writes_are_read(state: Mapping[str, object], expected: Mapping[str, object], who: str) -> str | None:
    """A writer sees the documents that it has written."""
    wrong = {id: state.get(id) for id in expected if state.get(id) != expected[id]}
    return f"{who} wrote {dict(expected)} and sees {wrong}" if wrong else None


@invariant
def time_travel_shows_what_was(state: State, commits: Iterable[Commit], clock: int) -> str | None:
    """The state as of a clock is that of all commits up to it."""
    return _difference(state, state_of(commit for commit in commits if commit.clock <= clock), f"as_of={clock}")


@invariant
def the_past_does_not_change(before: State, after: State, time: str) -> str | None:
    """The state as of a past time is the same before a compaction and after it, if it can still be read."""
    return _difference(after, before, f"as_of={time!r} after a compaction")


@invariant
def the_past_is_there(time: str, made: Iterable[str]) -> str | None:
    """What a store showed at a time can be read as long as a manifest that was made by then is retained.

    :param time: as of which it is said to be gone.
    :param made: when the retained manifests were made, by the storage's clock.
    """
    oldest = min(made, default=time)
    return None if oldest > time else f"as_of={time!r} is gone, and a manifest is retained that was made at {oldest}"


@invariant
def history_is_complete(found: Sequence[Commit], commits: Iterable[Commit], since: int) -> str | None:
    """`ops` since a clock returns every commit after it, in the order of their stamps."""
    expected = sorted(commit.stamp for commit in commits if commit.clock > since)
    stamps = [commit.stamp for commit in found]
    return None if stamps == expected else f"since {since}: {stamps} and not {expected}"


@invariant
def archived_documents_are_kept(logs: Logs, archives: Mapping[str, Mapping[str, Set]]) -> str | None:
    """A document that was deleted by archiving is in the archive, with the last value that its agent wrote."""
    for log in logs.values():
        for number, commit in enumerate(log):
            for record in commit.records:
                if not isinstance(record, Delete) or not record.archived:
                    continue
                kept = archives.get(record.archived, {}).get(record.id)
                if kept is None:
                    return f"{record.id} was archived to {record.archived} at {record.stamp} and is not there"
                written = reference(log[:number]).get(record.id)
                if isinstance(written, Set) and outranks(written, kept):
                    return f"{written.stamp} of {record.id} was deleted at {record.stamp}, and {kept.stamp} is archived"
    return None


# -- the whole


@invariant
def background_work_is_done(left: str | None, who: str) -> str | None:
    """Once failures have ended, an open store does its background work: it writes its buffer, and tries its
    automatic compaction again."""
    return None if left is None else f"{who} has had its store open for hours, and {left}"


@invariant
def verify_is_clean(report: Report) -> str | None:
    """`verify` finds no problem in a store that only opslog has touched."""
    errors = [problem for problem in report.problems if problem.severity == "error"]
    return None if not errors else "; ".join(f"{problem.path}: {problem.message}" for problem in errors)


@invariant
def the_store_is_readable(error: BaseException | None, who: str) -> str | None:
    """No needed file was collected, nothing is damaged, and no error reaches a caller for whom it is not meant."""
    return None if error is None else f"{who} failed with {type(error).__name__}: {error}"


@invariant
def every_run_ends(error: BaseException | None) -> str | None:
    """No thread waits or retries for ever."""
    return None if error is None else str(error)


def _difference(state: State, expected: State, who: str) -> str | None:
    if state == expected:
        return None
    wrong = sorted(id for id in state.keys() | expected.keys() if state.get(id) != expected.get(id))
    return f"{who} shows " + "; ".join(f"{id}: {state.get(id)!r} and not {expected.get(id)!r}" for id in wrong[:5])
