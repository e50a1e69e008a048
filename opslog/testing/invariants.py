"""What must hold of every store, whatever happened to those who used it. Each is written down once, here.

An invariant is a function that raises `ViolationError` with its own name. `CHECKED` counts how often each was checked.
They take plain values: commits, states as (id, document text), reports. So tests of all kinds can use them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from itertools import pairwise
from typing import NoReturn, ParamSpec

from opslog.format.commits import Commit, Delete, Record, Seal, Set, Undo
from opslog.merge.merge import reference
from opslog.merge.rules import UndoWindow, clock_fault
from opslog.merge.stamps import is_greater, outranks
from opslog.testing.ledger import Attempt, Handout, content_of
from opslog.verify.verify import Report

P = ParamSpec("P")

# Per agent the commits that were ever in its log, in order.
Logs = Mapping[str, Sequence[Commit]]
# Per id the document as JSON text.
State = dict[str, bytes]

# How often each invariant was checked in this process.
CHECKED: Counter[str] = Counter()

# What each of them says, by name.
INVARIANTS: dict[str, str] = {}


class ViolationError(AssertionError):
    """An invariant does not hold.

    :ivar invariant: its name.
    """

    def __init__(self, invariant: str, told: str) -> None:
        super().__init__(f"{invariant}: {told}")
        self.invariant = invariant


def _invariant(check: Callable[P, str | None]) -> Callable[P, None]:
    """A function that tells what is wrong, None if nothing, becomes one that raises it."""
    name = check.__name__
    INVARIANTS[name] = " ".join((check.__doc__ or "").split())

    @wraps(check)
    def checked(*args: P.args, **kwargs: P.kwargs) -> None:
        CHECKED[name] += 1
        told = check(*args, **kwargs)
        if told is not None:
            raise ViolationError(name, told)

    return checked


def violated(name: str, told: str) -> NoReturn:
    """Raise the violation of an invariant that shows by itself, such as a run that does not end."""
    assert name in INVARIANTS, name
    raise ViolationError(name, told)


def state_of(commits: Iterable[Commit]) -> State:
    """What a store must show that holds these commits."""
    winners = reference(commits)
    return {id: bytes(record.data) for id, record in winners.items() if isinstance(record, Set)}


# -- commits


@_invariant
def acknowledged_commits_are_never_lost(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """Whatever a call returned for is in its agent's log, as it was written."""
    found = {commit.stamp: commit for log in logs.values() for commit in log}
    for attempt in attempts:
        if attempt.outcome == "done":
            commit = found.get((attempt.clock, attempt.agent))
            if commit is None or not attempt.matches(commit):
                return f"{attempt} is not there; there is {commit and content_of(commit)}"
    return None


@_invariant
def refused_commits_are_absent(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """Every commit of a log was asked for by a call that returned, or whose outcome is unknown; none by a call that was
    told that nothing was written, and none by nobody."""
    waiting: dict[tuple[object, ...], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        waiting[attempt.agent, *attempt.content[:2]].append(attempt)
    for agent, log in logs.items():
        for commit in log:
            if isinstance(commit, Seal):
                continue
            candidates = waiting.get((agent, *content_of(commit)[:2]), [])
            fitting = [attempt for attempt in candidates if attempt.matches(commit)]
            asked = [attempt for attempt in fitting if attempt.outcome in ("done", "buffered", "unknown", "begun")]
            if not asked:
                return (
                    f"{content_of(commit)} at {commit.stamp} is in the log, and was {fitting[:1] or 'never asked for'}"
                )
            # One that is known by its clock before one that died on the way.
            candidates.remove(max(asked, key=lambda attempt: attempt.clock))
    return None


@_invariant
def buffers_are_written_in_order(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """Of what a process has buffered its log holds a beginning: nothing is written behind what was lost."""
    found = {commit.stamp: commit for log in logs.values() for commit in log}
    lost: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.clock):
        # Only a set cannot be taken for that of another process under this name: its document is like no other one.
        if attempt.outcome in ("buffered", "done") and attempt.content[0] == "set":
            commit = found.get((attempt.clock, attempt.agent))
            if commit is None or not attempt.matches(commit):
                lost.setdefault(id(attempt.store), attempt)
            elif id(attempt.store) in lost:
                return f"{attempt} is there, and {lost[id(attempt.store)]} before it is not"
    return None


@_invariant
def clocks_never_go_back(log: Sequence[Commit]) -> str | None:
    """In each log every commit has a greater clock than the one before it."""
    for before, commit in pairwise(log):
        fault = clock_fault(before.clock, commit)
        if fault:
            return f"{content_of(commit)} at {commit.stamp}: {fault}"
    return None


@_invariant
def undo_is_exact(log: Sequence[Commit], window: int) -> str | None:
    """An undo names the newest commit of its log that has records, is not undone yet, and is among the last `window`
    commits before it, of which none before a seal counts."""
    passed = UndoWindow(window, is_whole=True)
    for commit in log:
        if isinstance(commit, Undo):
            fault = passed.fault(commit)
            if fault is None and commit.target != passed.newest():
                fault = f"it undoes clock {commit.target}, and {passed.newest()} is the newest that it may"
            if fault:
                return f"the undo at {commit.stamp}: {fault}"
        passed.follow(commit)
    return None


# -- states


@_invariant
def state_is_the_reference_merge(state: State, commits: Iterable[Commit], who: str) -> str | None:
    """A store shows exactly what the plain merge of all commits says."""
    return _difference(state, state_of(commits), who)


@_invariant
def memory_is_what_was_read(state: State, logs: Logs, read: Mapping[str, int], who: str) -> str | None:
    """What an open store shows is the plain merge of what it has read of each log, and of all that it has written."""
    return _difference(state, state_of(commit for agent in read for commit in logs.get(agent, ())[: read[agent]]), who)


@_invariant
def readers_converge(states: Mapping[str, State]) -> str | None:
    """All who have read everything show the same, whatever snapshot they started from."""
    (first, expected), *others = states.items()
    for who, state in others:
        if state != expected:
            return _difference(state, expected, f"{who}, beside {first},")
    return None


@_invariant
def batches_are_atomic(left: object, right: object, who: str) -> str | None:
    """Two documents that are only ever written together are seen together: both of one batch, or both absent."""
    return None if left == right else f"{who} sees {left} beside {right}"


@_invariant
def own_writes_are_read(state: Mapping[str, object], expected: Mapping[str, object], who: str) -> str | None:
    """Whoever has written a document sees it."""
    wrong = {id: state.get(id) for id in expected if state.get(id) != expected[id]}
    return f"{who} wrote {dict(expected)} and sees {wrong}" if wrong else None


@_invariant
def answers_come_after_what_they_answer(read: Record, attempt: Attempt) -> str | None:
    """What was written after something had been read outranks it for everybody."""
    if is_greater((attempt.clock, attempt.agent), read.stamp):
        return None
    return f"{attempt} was acknowledged after what is at {read.stamp} had been read, and loses against it"


@_invariant
def commits_are_handed_out_once(handout: Handout) -> str | None:
    """An open store hands out each commit to one of its threads, and to each thread those of one agent in the order of
    their clocks."""
    seen: dict[tuple[int, str], str] = {}
    for thread, commits in handout.handed.items():
        last: dict[str, int] = {}
        for commit in commits:
            if commit.clock <= last.get(commit.agent, 0):
                return f"{handout.who} was handed {commit.stamp} after {last[commit.agent]}"
            last[commit.agent] = commit.clock
            if seen.setdefault(commit.stamp, thread) != thread:
                return f"{handout.who} was handed {commit.stamp} by {seen[commit.stamp]!r} and {thread!r}"
    return None


@_invariant
def every_commit_is_handed_out(handout: Handout, logs: Logs) -> str | None:
    """What came into an open store from others was handed out, or the store knows that something was collected before
    it had read it."""
    handed = {commit.stamp for commits in handout.handed.values() for commit in commits}
    for agent, until in (handout.until or {}).items() if handout.is_whole else ():
        for commit in logs.get(agent, ())[handout.since.get(agent, 0) : until]:
            if agent != handout.store._agent and commit.stamp not in handed:
                return f"{handout.who} was never handed {content_of(commit)} at {commit.stamp}"
    return None


@_invariant
def time_travel_shows_what_was(state: State, commits: Iterable[Commit], clock: int) -> str | None:
    """The state as of a clock is that of all commits up to it."""
    return _difference(state, state_of(commit for commit in commits if commit.clock <= clock), f"as_of={clock}")


@_invariant
def the_past_does_not_change(before: State, after: State, time: str) -> str | None:
    """What a store shows as of a time that has passed is the same before a compaction and after it, if it is not
    gone."""
    return _difference(after, before, f"as_of={time!r} after a compaction")


@_invariant
def history_is_complete(told: Sequence[Commit], commits: Iterable[Commit], since: int) -> str | None:
    """What `ops` tells since a clock is every commit after it, in the order of their stamps."""
    expected = sorted(commit.stamp for commit in commits if commit.clock > since)
    stamps = [commit.stamp for commit in told]
    return None if stamps == expected else f"since {since}: {stamps} and not {expected}"


@_invariant
def archived_documents_are_kept(logs: Logs, archives: Mapping[str, Mapping[str, Set]]) -> str | None:
    """A document that was deleted by archiving is in the archive, and as its agent had last written it."""
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


@_invariant
def background_work_is_done(left: str | None, who: str) -> str | None:
    """What an open store does by itself, it does when nothing fails any more: its buffer is written, and its automatic
    compaction is tried again."""
    return None if left is None else f"{who} has had its store open for hours, and {left}"


@_invariant
def verify_is_clean(report: Report) -> str | None:
    """`verify` finds nothing wrong in a store that only opslog has touched."""
    errors = [problem for problem in report.problems if problem.severity == "error"]
    return None if not errors else "; ".join(f"{problem.path}: {problem.message}" for problem in errors)


@_invariant
def the_store_is_readable(error: BaseException | None, who: str) -> str | None:
    """Nothing that is needed was collected, nothing is damaged, and nobody meets an error not meant for them."""
    return None if error is None else f"{who} failed with {type(error).__name__}: {error}"


@_invariant
def every_run_ends(error: BaseException | None) -> str | None:
    """Nobody waits for ever, or tries for ever."""
    return None if error is None else str(error)


def _difference(state: State, expected: State, who: str) -> str | None:
    if state == expected:
        return None
    wrong = sorted(id for id in state.keys() | expected.keys() if state.get(id) != expected.get(id))
    return f"{who} shows " + "; ".join(f"{id}: {state.get(id)!r} and not {expected.get(id)!r}" for id in wrong[:5])
