"""What a demo comes to."""

from __future__ import annotations

import msgspec

from opslog.demo.tasks import TakenOver


class InFlight(msgspec.Struct, frozen=True):
    """The call that a kill interrupted.

    :ivar in_history: whether it happened all the same; either is right.
    """

    agent: str
    call: str
    in_history: bool


class AgentSummary(msgspec.Struct, frozen=True):
    """What an agent did, by its journal.

    :ivar commits: acknowledged to it, and of which kind.
    :ivar tasks: which it has done; and how many claims were in vain, because others had the task.
    :ivar no_change: calls that changed nothing: no such document, nothing to undo, rolled back, or others were faster.
    :ivar conflicts: documents that it and, unseen by it, others changed between two of its refreshes.
    """

    commits: int
    sets: int
    deletes: int
    batches: int
    undos: int
    tasks: int
    refused_claims: int
    no_change: int
    refreshes: int
    conflicts: int


class Summary(msgspec.Struct, frozen=True):
    """The outcome of a demo; `--json` prints it.

    :ivar seconds: from start to end.
    :ivar writing_seconds: how long the agents wrote.
    :ivar commits: acknowledged by the store.
    :ivar lost: of them not found.
    :ivar unknown: found, and made by nobody.
    :ivar tasks: how many there were; each was done once, unless `problems` says otherwise.
    :ivar taken_over: tasks that were taken over from who had claimed them; that of the killed agent is among them.
    :ivar agreeing: whose states equal the plain replay of the journals.
    :ivar without_spark: why Spark's replay of the store is not among them; None if it is.
    :ivar digest: SHA-256 of that state.
    :ivar directory: where everything is, None when it was removed.
    """

    ok: bool
    problems: list[str]
    seconds: float
    writing_seconds: float
    agents: dict[str, AgentSummary]
    commits: int
    commits_per_second: float
    lost: int
    unknown: int
    conflicts: int
    undos: int
    batches: int
    kills: int
    in_flight: list[InFlight]
    compactions: int
    tasks: int
    taken_over: list[TakenOver]
    documents: int
    digest: str
    agreeing: list[str]
    without_spark: str | None
    directory: str | None
