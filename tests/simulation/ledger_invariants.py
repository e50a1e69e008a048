"""What must hold for every call that wrote, and for every commit that was handed out. Only a record of the calls can
show it.

The invariants that a store and its logs show by themselves are in `opslog.testing.invariants`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Set

from opslog.format.commits import Commit, Record, Seal, Stamp
from opslog.format.layout import TRANSACTIONS
from opslog.merge.stamps import is_greater
from opslog.store import replica_of
from opslog.testing.invariants import Logs, State, invariant
from tests.simulation.ledger import Attempt, Handout, content_of

# The outcomes of calls whose commits may be in a log.
_ASKED = ("done", "buffered", "unknown", "begun")


@invariant
def acknowledged_commits_are_never_lost(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """Every commit that a call acknowledged is in its agent's log, as it was written."""
    found = {commit.stamp: commit for log in logs.values() for commit in log}
    for attempt in attempts:
        if attempt.outcome == "done":
            commit = found.get(attempt.stamp)
            if commit is None or not attempt.matches(commit):
                return f"{attempt} is not there; there is {commit and content_of(commit)}"
    return None


@invariant
def nothing_is_left_to_undo(is_broken: bool, who: str) -> str | None:
    """An undo finds nothing to take back only in a store that knows everything that it has written.

    :param is_broken: whether a commit of the store had an unknown outcome before.
    """
    return f"an undo of {who} found nothing, and the outcome of a commit before it is unknown" if is_broken else None


@invariant
def refused_commits_are_absent(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """Every commit of a log belongs to a call that returned, or to one whose outcome is unknown. No commit belongs to a
    call that failed with nothing written, or to no call."""
    waiting: dict[tuple[object, ...], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        waiting[attempt.agent, *attempt.content[:2]].append(attempt)
    sent = {(commit.stamp, commit.tx): attempt for attempt in attempts for commit in attempt.sent}
    for agent, log in logs.items():
        for commit in log:
            if isinstance(commit, Seal):
                continue
            if agent == TRANSACTIONS:
                sender = sent.get((commit.stamp, commit.tx))
                if sender is None or not sender.matches(commit) or sender.outcome not in _ASKED:
                    return _unwanted(commit, sender)
                continue
            candidates = waiting.get((agent, *content_of(commit)[:2]), [])
            fitting = [attempt for attempt in candidates if attempt.matches(commit)]
            asked = [attempt for attempt in fitting if attempt.outcome in _ASKED]
            if not asked:
                return _unwanted(commit, fitting[0] if fitting else None)
            # A call known by its clock comes before a call whose process died on the way.
            candidates.remove(max(asked, key=lambda attempt: attempt.clock))
    return None


def _unwanted(commit: Commit, attempt: Attempt | None) -> str:
    return f"{content_of(commit)} at {commit.stamp} is in the log, and was {attempt or 'never asked for'}"


@invariant
def buffers_are_written_in_order(attempts: Iterable[Attempt], logs: Logs) -> str | None:
    """The log holds a prefix of what a process has buffered: nothing is written after a commit that was lost."""
    found = {commit.stamp: commit for log in logs.values() for commit in log}
    lost: dict[int, Attempt] = {}
    for attempt in sorted(attempts, key=lambda attempt: attempt.clock):
        # Only a set cannot be mistaken for that of another process under this name, because its document is unique.
        # Commits in the shared log are left out, because they do not wait for those of other threads.
        if attempt.outcome in ("buffered", "done") and attempt.content[0] == "set" and not attempt.sent:
            commit = found.get(attempt.stamp)
            if commit is None or not attempt.matches(commit):
                lost.setdefault(id(attempt.store), attempt)
            elif id(attempt.store) in lost:
                return f"{attempt} is there, and {lost[id(attempt.store)]} before it is not"
    return None


@invariant
def answers_come_after_what_they_answer(read: Record, attempt: Attempt) -> str | None:
    """A write outranks, for everybody, all commits that its writer had read."""
    if is_greater(attempt.stamp, read.stamp):
        return None
    return f"{attempt} was acknowledged after what is at {read.stamp} had been read, and loses against it"


@invariant
def commits_are_handed_out_once(handout: Handout) -> str | None:
    """An open store hands out each commit to one of its threads, and hands the commits of one agent to a thread in the
    order of their clocks."""
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


@invariant
def consumers_hold_the_state(held: State, shown: State, who: str) -> str | None:
    """A consumer that applies changes, and continues from the token of the last ones it applied, holds what the store
    shows."""
    wrong = sorted(id for id in held.keys() | shown.keys() if held.get(id) != shown.get(id))
    if wrong:
        return f"{who} holds {held.get(wrong[0])!r} as {wrong[0]!r}, where the store shows {shown.get(wrong[0])!r}"
    return None


@invariant
def consumers_get_each_commit_once(taken: Set[Stamp], more: Set[Stamp], who: str) -> str | None:
    """Between two consecutive tokens a consumer gets each commit that was not in before the first, and no other."""
    return f"{who} was given {min(taken & more)} again" if taken & more else None


@invariant
def consumers_miss_no_commit(begun: Set[Stamp], taken: Set[Stamp], logs: Logs, who: str) -> str | None:
    """Every commit made after a consumer started again is in the changes that it got since then."""
    written = {commit.stamp for log in logs.values() for commit in log if not isinstance(commit, Seal)}
    missing = written - begun - taken
    return f"{who} was never given {min(missing)}" if missing else None


@invariant
def consumers_are_given_what_lasts(given: Set[Stamp], logs: Logs, who: str) -> str | None:
    """Commits that a consumer got stay in their logs, even after a power cut."""
    lost = given - {commit.stamp for log in logs.values() for commit in log}
    return f"{who} was given {min(lost)}, which is in no log" if lost else None


@invariant
def every_commit_is_handed_out(handout: Handout, logs: Logs) -> str | None:
    """An open store has handed out every commit of others, or knows that some were collected before it had read
    them."""
    handed = {commit.stamp for commits in handout.handed.values() for commit in commits}
    for agent, until in (handout.until or {}).items() if handout.is_whole else ():
        for commit in logs.get(agent, ())[handout.since.get(agent, 0) : until]:
            if replica_of(handout.store).author not in (agent, commit.author) and commit.stamp not in handed:
                return f"{handout.who} was never handed {content_of(commit)} at {commit.stamp}"
    return None
