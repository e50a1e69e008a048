"""Ending the undo window of agents that are gone, and finding out which of them are.

A seal is one append to the log of another agent, in a `WriterSession` of its own. While logs are sealed their names are
in use, so that is done under `SEALING_LOCK`: an agent that comes back just then waits for its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opslog.backends import Backend
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    WriteFailedError,
)
from opslog.format.commits import Seal
from opslog.format.layout import TRANSACTIONS
from opslog.format.manifest import Cut, Manifest
from opslog.log.freshness import Freshness
from opslog.log.reader import Cursor, Segment, list_segments
from opslog.log.session import SEALING_LOCK, WriterSession
from opslog.merge.clock import LamportClock

# The end of an agent's log, whose name is held, with the clock of its last commit; None where the log has grown since
# it was read.
FindEnd = Callable[[str], Cursor | None]


def seal_all(backend: Backend, agents: Iterable[str], find_end: FindEnd, freshness: Freshness) -> tuple[str, ...]:
    """Seal each of these logs under its agent's name, unless it has grown; returns whose were. Live agents hold their
    names and are left alone. Where somebody else is sealing all are: the next compaction comes to them.

    :param freshness: of what was read of the logs.
    """
    waiting = tuple(agents)
    if not waiting:
        return ()
    try:
        with backend.lock(SEALING_LOCK):
            return tuple(agent for agent in waiting if _seal(backend, agent, find_end, freshness))
    except LockedError:
        return ()


def logs_of_the_gone(backend: Backend, old: Manifest, cut: Mapping[str, Cut]) -> dict[str, Cut]:
    """Where logs go on, should they ever, of agents that are gone, and of which all is compacted: behind their last
    segments, so that these can be collected. Only where segments grow; elsewhere each is finished as it is.

    Nobody appends to such a segment any more. There was a moment after `old` was read in which the agent's name was
    free and the log ended at the cut of `old`: no session is open that began before it, and one that begins later
    starts a segment of its own. It finds the last one, or, where that is collected, a manifest whose cut is behind it.

    A log with a torn tail does not end at its cut, and stays. So does the shared log: whoever has read it to its end
    may go on there, in the same segment, at any time.

    :param old: the newest manifest.
    :param cut: of the next one. A log is considered when both have the same position, so nothing came since, and
        nothing of it is recent.
    """
    if not backend.segments_grow:
        return {}
    now = backend.now()
    idle = [
        agent
        for agent, listed in list_segments(backend).items()
        if agent in old.cut
        and agent != TRANSACTIONS
        and cut.get(agent) == old.cut[agent]
        and _ends_at(listed, old.cut[agent])
        and now - listed[-1].modified > old.settings.grace_seconds
    ]
    if not idle:
        return {}
    try:
        with backend.lock(SEALING_LOCK):  # since a name is in use for a moment while it is tried
            free = [agent for agent in idle if _is_free(backend, agent)]
    except LockedError:
        return {}
    # Logs only grow: one that still ends there did so while its name was free.
    segments = list_segments(backend)
    gone = [agent for agent in free if _ends_at(segments.get(agent, []), old.cut[agent])]
    return {agent: Cut(cut[agent].segment + 1, 0, cut[agent].commits) for agent in gone}


def _is_free(backend: Backend, agent: str) -> bool:
    try:
        return backend.is_free(agent)
    except (WriteFailedError, InvalidNameError):
        return False  # its lock file is another user's, say. That nobody has it is not known, and its log stays


def _ends_at(listed: list[Segment], cut: Cut) -> bool:
    return bool(listed) and cut.offset > 0 and (listed[-1].number, listed[-1].bytes) == cut.position


def _seal(backend: Backend, agent: str, find_end: FindEnd, freshness: Freshness) -> bool:
    try:
        appender = backend.appender(agent)
    except AgentBusyError:
        return False
    try:
        end = find_end(agent)
        if end is None:
            return False
        session = WriterSession(backend, appender, end, freshness, LamportClock(end.clock))
        # What the agent has stamped, and not written yet, goes behind the seal. With a clock above everything, the seal
        # would raise those clocks, and have them outrank transactions that the agent has not read.
        session.append(session.stamp(Seal("", 0, ""), end.clock))
    except (AgentFencedError, CommitUnknownError):
        # It is alive in another process, and wrote just now. Or whether the seal counts, the next compaction sees.
        return False
    finally:
        appender.close()
    return True
