"""The invariants of transactions: what each has seen, their order, and how calls ended.

The order of the shared log is the order of transactions. So each of them is replayed: its function must have seen the
state of the log up to that position, with the plain commits that it had to see, and maybe some that it could see.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import msgspec

from opslog.format.commits import Commit, Record, Set, Stamp, Undo
from opslog.format.layout import TRANSACTIONS
from opslog.merge.clock import CLOCK_STEP
from opslog.merge.stamps import is_greater
from opslog.testing.invariants import Logs, State, invariant
from tests.simulation.ledger import Attempt, Texts

# Documents that only transactions write. An agent claims one by creating it.
CLAIMS = tuple(f"claim-{number}" for number in range(4))

# Tasks: an agent takes one after it has counted those that are taken, and only a few may be taken at once.
TASKS = tuple(f"task-{number}" for number in range(4))
TASKS_MAX = 2

# Accounts: amounts are only moved from one to another. A missing account holds nothing.
ACCOUNTS = tuple(f"account-{number}" for number in range(3))


@dataclass(frozen=True)
class _Plain:
    """A record of a plain commit.

    :ivar began: the earliest moment at which somebody may have read it. :ivar since: every call that begins after this
        must see it. None: no call has to.
    """

    record: Record
    began: int
    since: int | None


class Replay:
    """The state of the shared log at any position, and the plain commits beside it.

    :param attempts: all calls that wrote. :param logs: all commits that were ever in a log.
    """

    def __init__(self, attempts: Sequence[Attempt], logs: Logs) -> None:
        self.attempts = attempts
        self.log: Sequence[Commit] = logs.get(TRANSACTIONS, ())
        self.places = {(commit.stamp, commit.tx): place for place, commit in enumerate(self.log)}
        self._cancelled: dict[int, int] = {}
        self._records: dict[str, list[tuple[int, Record]]] = defaultdict(list)
        for place, commit in enumerate(self.log):
            if isinstance(commit, Undo):
                self._cancelled.setdefault(commit.target, place)
            for record in commit.records:
                self._records[record.id].append((place, record))
        self._plain: dict[str, list[_Plain]] = defaultdict(list)
        # Not by the stamp alone: a call that lost a race had given its line the stamp of the one that won.
        calls = {own: attempt for attempt in attempts if (own := self.place(attempt)) is not None}
        for agent, log in logs.items():
            if agent != TRANSACTIONS:
                self._add_plain(log)
        # When each of them began, by its author.
        self.calls = [calls.get(place) for place in range(len(self.log))]
        self._acknowledged = sorted(
            (call.ended, place)
            for place, call in enumerate(self.calls)
            if call is not None and call.outcome == "done" and call.ended is not None
        )
        self._acknowledged_up_to = [0]
        for _, place in self._acknowledged:
            self._acknowledged_up_to.append(max(self._acknowledged_up_to[-1], place + 1))

    def _add_plain(self, log: Sequence[Commit]) -> None:
        # Two processes under one name may use the same stamp. One of the two commits is in the log.
        calls: dict[Stamp, list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            calls[attempt.stamp].append(attempt)
        cancelled = {commit.target for commit in log if isinstance(commit, Undo)}
        for commit in log:
            call = next((call for call in calls.get(commit.stamp, ()) if call.matches(commit)), None)
            is_sure = call is not None and call.outcome == "done" and commit.clock not in cancelled
            for record in commit.records:
                self._plain[record.id].append(
                    _Plain(record, call.began if call else 0, call.ended if call and is_sure else None)
                )

    def place(self, call: Attempt) -> int | None:
        """The position of a call's commit in the shared log; None if it is not there."""
        return self.places.get((call.sent[-1].stamp, call.sent[-1].tx)) if call.sent else None

    def winner(self, id: str, place: int) -> Record | None:
        """The state of a document in the log up to a position."""
        records = self._records.get(id, [])
        for number in range(bisect_left(records, place, key=lambda entry: entry[0]) - 1, -1, -1):
            record = records[number][1]
            if self._cancelled.get(record.clock, place) >= place:
                return record
        return None

    def may_see(self, call: Attempt, id: str, text: bytes | None, place: int) -> bool:
        """Whether a call that was decided at a position may have seen this text of a document."""
        least = self.winner(id, place)
        for plain in self._plain.get(id, ()):
            is_due = plain.since is not None and plain.since < call.began
            if is_due and (least is None or is_greater(plain.record.stamp, least.stamp)):
                least = plain.record
        if text_of(least) == text:
            return True
        return any(
            text_of(plain.record) == text and (least is None or is_greater(plain.record.stamp, least.stamp))
            for plain in self._plain.get(id, ())
            if call.ended is None or plain.began < call.ended
        )

    def fault(self, call: Attempt, place: int) -> str | None:
        """The documents that a call has seen, but cannot have seen at this position."""
        for id, text in call.read.items():
            if not self.may_see(call, id, text, place):
                return f"{id!r} as {text!r}, and the shared log had {text_of(self.winner(id, place))!r}"
        taken = self.taken(place)
        if call.matched is not None and call.matched != taken:
            return f"tasks {call.matched} as taken, and those were {taken}"
        return None

    def taken(self, place: int) -> Texts:
        """The tasks that are taken at a position."""
        winners = {id: text_of(self.winner(id, place)) for id in TASKS}
        return {id: text for id, text in winners.items() if text is not None}

    def places_of(self, call: Attempt) -> Iterator[int]:
        """The positions at which a call that wrote nothing may have been decided: after everything that was
        acknowledged before it began."""
        number = bisect_left(self._acknowledged, call.began, key=lambda entry: entry[0])
        for place in range(self._acknowledged_up_to[number], len(self.log) + 1):
            yield place
            if place < len(self.log):
                began = self.calls[place]
                if began is not None and call.ended is not None and began.began > call.ended:
                    return


def text_of(record: Record | None) -> bytes | None:
    """The document's text; None if there is no document."""
    return bytes(record.data) if isinstance(record, Set) else None


@invariant
def transactions_saw_all_before_them(replay: Replay) -> str | None:
    """A transaction in the shared log has seen everything in that log up to its position, and all plain commits that
    were acknowledged before it began."""
    for call in replay.attempts:
        place = replay.place(call)
        if place is not None:
            fault = replay.fault(call, place)
            if fault:
                return f"{call}, at place {place}, saw {fault}"
    return None


@invariant
def plain_commits_outrank_no_unread_transaction(attempts: Sequence[Attempt], logs: Logs) -> str | None:
    """A plain commit loses against every transaction that its store had not read when it was queued, as long as its
    agent is not a thousand commits ahead."""
    # At each position the least clock of the transactions from there on.
    unread = list(accumulate(reversed(logs.get(TRANSACTIONS, ())), _least, initial=math.inf))[::-1]
    if sum(len(log) for agent, log in logs.items() if agent != TRANSACTIONS) >= CLOCK_STEP:
        return None
    written = {commit.stamp: commit for log in logs.values() for commit in log}
    for attempt in attempts:
        seen, commit = attempt.seen, written.get(attempt.stamp)
        # Another process under the same name may have written the stamp of an attempt that was refused.
        if seen is None or seen >= len(unread) or commit is None or not attempt.matches(commit):
            continue
        if unread[seen] < attempt.clock:
            return f"{attempt} outranks the transaction at clock {unread[seen]}, which its store had not read"
    return None


def _least(clock: float, commit: Commit) -> float:
    return min(clock, commit.clock) if commit.records else clock


@invariant
def answers_rest_on_what_was_there(replay: Replay) -> str | None:
    """A call that was refused, or wrote nothing, saw the state of the shared log at some moment between its start and
    its end. No power cut has removed what it saw."""
    for call in replay.attempts:
        if (
            call.outcome in ("refused", "nothing")
            and call.ended is not None
            and (call.read or call.matched is not None)
        ):
            faults = [replay.fault(call, place) for place in replay.places_of(call)]
            if all(faults):
                return f"{call} saw {faults[0]}, which was so at no place after that"
    return None


@invariant
def transactions_are_in_real_order(replay: Replay) -> str | None:
    """A transaction that began after another one was acknowledged comes after that one."""
    latest: Attempt | None = None
    for call in replay.calls:
        if call is None:
            continue
        if latest is not None and call.outcome == "done" and call.ended is not None and call.ended < latest.began:
            return f"{call} was acknowledged before {latest} began, and comes after it"
        if latest is None or call.began > latest.began:
            latest = call
    return None


@invariant
def a_claim_has_one_winner(replay: Replay) -> str | None:
    """A document that only transactions write is not created while it exists."""
    for call in replay.attempts:
        place = replay.place(call)
        if place is not None and call.outcome == "done":
            for id, text in call.read.items():
                there = replay.winner(id, place)
                if id in CLAIMS and text is None and text_of(there) is not None:
                    assert there is not None
                    return f"{call} has created {id} while {there.author} had it since {there.stamp}"
    return None


@invariant
def a_commit_is_acknowledged_once(attempts: Iterable[Attempt]) -> str | None:
    """No two calls are acknowledged by the same commit."""
    owners: dict[Stamp, Attempt] = {}
    for attempt in attempts:
        if attempt.outcome == "done" and attempt.sent:
            owner = owners.setdefault(attempt.stamp, attempt)
            if owner is not attempt:
                return f"{owner} and {attempt} were both acknowledged by {attempt.stamp}"
    return None


@invariant
def undo_takes_back_what_nobody_built_on(replay: Replay) -> str | None:
    """An undo in the shared log has the author of the commit that it cancels, and all documents of that commit still
    have its stamp."""
    commits = {commit.clock: commit for commit in replay.log}
    for place, undo in enumerate(replay.log):
        if isinstance(undo, Undo):
            target, call = commits.get(undo.target), replay.calls[place]
            if target is None or target.by != undo.by:
                return f"{undo.by} at {undo.stamp} has undone {target and target.by}'s {undo.target}"
            for record in target.records:
                winner = replay.winner(record.id, place)
                is_seen = call is None or replay.may_see(call, record.id, text_of(record), place)
                if winner is None or winner.stamp != record.stamp or not is_seen:
                    return f"{undo.by} at {undo.stamp} has undone {target.stamp}, and {record.id} was written since"
    return None


@invariant
def undo_passes_no_newer_commit(attempts: Sequence[Attempt], logs: Logs) -> str | None:
    """An undo takes back its author's newest commit in either log, of those that are not undone yet. Commits in the
    shared log count if its store had read them before, and others if they were acknowledged before."""
    commits = {commit.stamp: commit for log in logs.values() for commit in log}
    undone: dict[Stamp, int] = {}
    for undo in commits.values():
        if isinstance(undo, Undo):
            undone.setdefault(Stamp(undo.target, undo.agent), undo.clock)
    done: dict[str, list[Attempt]] = {}
    for attempt in attempts:
        if attempt.outcome == "done" and attempt.stamp in commits:
            done.setdefault(attempt.agent, []).append(attempt)
    for written in done.values():
        for undoing in written:
            undo = commits[undoing.stamp]
            if not isinstance(undo, Undo):
                continue
            for other in written:
                is_read = other.clock <= undoing.known if other.sent else _is_before(other, undoing)
                if not is_read or other.clock <= undo.target or undone.get(other.stamp, undo.clock) < undo.clock:
                    continue
                if commits[other.stamp].records:
                    return f"{undoing} has undone {undo.target}, and passed {other}"
    return None


def _is_before(other: Attempt, call: Attempt) -> bool:
    """Whether it was acknowledged before the call began."""
    return other.ended is not None and other.ended < call.began


@invariant
def guarded_documents_go_to_the_shared_log(guarded: Iterable[str], attempt: Attempt) -> str | None:
    """A writer that has read that a document's last writer was a transaction does not write it to the log of an
    agent."""
    wrong = list(guarded)
    return f"{attempt} was queued, and {wrong} are guarded" if wrong else None


@invariant
def transfers_keep_the_total(documents: Mapping[str, Mapping[str, int]], who: str) -> str | None:
    """Amounts that only transactions move have the same total in every view."""
    amounts = {id: documents[id]["amount"] for id in ACCOUNTS if id in documents}
    return f"{who} sees {amounts}" if sum(amounts.values()) else None


def check_views_of_transactions(documents: Mapping[str, Any], who: str) -> None:
    """What must hold in every view.

    :raises ViolationError: it does not.
    """
    transfers_keep_the_total(documents, who)


def check_view(state: State, who: str) -> None:
    """The same for documents as text."""
    check_views_of_transactions({id: msgspec.json.decode(state[id]) for id in (*ACCOUNTS, *TASKS) if id in state}, who)


def check_transactions(attempts: Sequence[Attempt], logs: Logs) -> None:
    """Check all invariants that can be checked when all is quiet.

    :raises ViolationError: an invariant does not hold.
    """
    replay = Replay(attempts, logs)
    a_commit_is_acknowledged_once(attempts)
    a_claim_has_one_winner(replay)
    transactions_saw_all_before_them(replay)
    plain_commits_outrank_no_unread_transaction(attempts, logs)
    answers_rest_on_what_was_there(replay)
    transactions_are_in_real_order(replay)
    undo_takes_back_what_nobody_built_on(replay)
    undo_passes_no_newer_commit(attempts, logs)
