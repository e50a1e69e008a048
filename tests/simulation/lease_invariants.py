"""The invariants of leases: about their holders, their times, and the writes made through them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from opslog.format.commits import Set
from opslog.lease import PREFIX
from opslog.testing.invariants import invariant
from tests.simulation.ledger import Attempt
from tests.simulation.transaction_invariants import Replay

Kind = Literal["claim", "renew", "set", "finish", "release"]


@dataclass(eq=False)
class LeaseCall:
    """One call of a lease.

    :ivar claim: the nonce of the claim that it used, or that it made.
    :ivar round: how many times the job had been done when it was claimed.
    :ivar at: when it began, in simulated seconds; `decided_at`: when the function that decides it last ended. It may
        have to read a document from storage, and judges only after that whether a lease is over.
    :ivar attempt: what it wrote; None if it did not get that far.
    :ivar token: the token of a claim or renewal that was acknowledged.
    """

    kind: Kind
    worker: str
    job: str
    at: float
    claim: str | None
    round: int
    decided_at: float = 0.0
    attempt: Attempt | None = None
    token: int | None = None

    @property
    def is_done(self) -> bool:
        return self.attempt is not None and self.attempt.outcome == "done"

    def __str__(self) -> str:
        return f"{self.kind} of {self.job} by {self.worker} at {self.at:.3f} s (round {self.round}): {self.attempt}"


class Terms(msgspec.Struct):
    """The content of a lease's document."""

    claim: str
    seconds: float


def terms_of(record: object) -> Terms | None:
    """None if nobody has the lease."""
    return msgspec.json.decode(record.data, type=Terms) if isinstance(record, Set) else None


@invariant
def who_lost_a_lease_writes_nothing(replay: Replay, calls: Iterable[LeaseCall]) -> str | None:
    """A write through a lease is in the shared log only if its holder still had the lease."""
    for call in calls:
        place = None if call.attempt is None else replay.place(call.attempt)
        if place is None or call.kind == "claim":
            continue
        terms = terms_of(replay.winner(PREFIX + call.job, place))
        if terms is None or terms.claim != call.claim:
            return f"{call} was written with claim {call.claim}, and the lease was {terms} by then"
    return None


@invariant
def a_job_is_finished_once(calls: Iterable[LeaseCall]) -> str | None:
    """Of all workers that claim the same round of a job, at most one finish is accepted."""
    finished = Counter((call.job, call.round) for call in calls if call.kind == "finish" and call.is_done)
    twice = [of for of, count in finished.items() if count > 1]
    return f"finished more than once: {twice}" if twice else None


@invariant
def tokens_of_a_lease_grow(calls: Sequence[LeaseCall]) -> str | None:
    """A claim or renewal that begins after another one was acknowledged gets a greater token."""
    given = [call for call in calls if call.token is not None and call.attempt is not None]
    for earlier in given:
        for later in given:
            assert earlier.attempt is not None
            assert later.attempt is not None
            if (
                later.job != earlier.job
                or earlier.attempt.ended is None
                or earlier.attempt.ended >= later.attempt.began
            ):
                continue
            assert earlier.token is not None
            assert later.token is not None
            if later.token <= earlier.token:
                return f"{later} got token {later.token}, and {earlier} had got {earlier.token} before"
    return None


@invariant
def a_lease_is_not_taken_over_early(replay: Replay, calls: Iterable[LeaseCall]) -> str | None:
    """A lease that was not released is taken over only when its time has passed since the last claim or renewal."""
    calls = list(calls)
    written = {call.attempt.stamp: call for call in calls if call.attempt is not None and call.attempt.sent}
    for call in calls:
        place = None if call.attempt is None or call.kind != "claim" else replay.place(call.attempt)
        if place is None:
            continue
        there = replay.winner(PREFIX + call.job, place)
        terms = terms_of(there)
        if there is None or terms is None or terms.claim == call.claim:
            continue
        held = written[there.stamp]
        if call.decided_at < held.at + terms.seconds:
            return f"{call}, decided at {call.decided_at:.3f} s, took over from {held}, for {terms.seconds} s"
    return None


@invariant
def jobs_of_the_gone_are_taken_over(job: str, claimed: bool) -> str | None:
    """A worker that has waited for as long as a lease lasts, while nobody renewed it, gets it."""
    return None if claimed else f"{job} is still held, and its holder is gone"


def check_leases(calls: Sequence[LeaseCall], replay: Replay) -> None:
    """Check all invariants that can be checked when all is quiet.

    :raises ViolationError: an invariant does not hold.
    """
    tokens_of_a_lease_grow(calls)
    who_lost_a_lease_writes_nothing(replay, calls)
    a_lease_is_not_taken_over_early(replay, calls)
    a_job_is_finished_once(calls)
