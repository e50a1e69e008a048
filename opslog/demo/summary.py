"""The summary of a demo."""

from __future__ import annotations

import msgspec

from opslog.demo.tasks import TakenOver


class InFlight(msgspec.Struct, frozen=True):
    """The call that a kill interrupted.

    :ivar in_history: whether it happened nevertheless; both are correct.
    """

    agent: str
    call: str
    in_history: bool


class AgentSummary(msgspec.Struct, frozen=True):
    """The work of an agent, by its journal.

    :ivar commits: the acknowledged ones, by kind.
    :ivar tasks: the ones it has done; and how many claims failed because others had the task.
    :ivar no_change: calls that changed nothing: no such document, nothing to undo, rolled back, or others were faster.
    :ivar conflicts: documents changed between two of its refreshes both by it and, unseen by it, by others.
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
    :ivar lost: how many of them were not found.
    :ivar unknown: commits that were found but made by no agent.
    :ivar tasks: how many there were; each was done once, unless `problems` says otherwise.
    :ivar taken_over: tasks that were taken over from their holders; that of the killed agent is among them.
    :ivar agreeing: the names of the states that equal the plain replay of the journals.
    :ivar without_spark: why Spark's replay of the store is not among them; None if it is.
    :ivar digest: SHA-256 of that state.
    :ivar directory: the directory with everything, None if it was removed.
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
