"""Ending the undo window of agents that are gone, and finding those agents.

A seal is one append to the log of another agent, in a `WriterSession` of its own. While logs are sealed their names are
in use, so this is done under `SEALING_LOCK`: an agent that comes back just then waits for its name.
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

# Returns the end of an agent's log, whose name is held, with the clock of its last commit; None if the log has grown
# since it was read.
FindEnd = Callable[[str], Cursor | None]


def seal_all(backend: Backend, agents: Iterable[str], find_end: FindEnd, freshness: Freshness) -> tuple[str, ...]:
    """Seal each of these logs under its agent's name, unless it has grown; returns the agents that were sealed. Live
    agents hold their names and are left alone. While another process is sealing, no log is sealed here: the next
    compaction does it.

    :param freshness: of the view in which the logs were read.
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
    """The cuts for agents that are gone and whose logs are wholly compacted: the position behind the last segment,
    where the log would continue. So the last segment can be collected. This is only needed on storages whose segments
    grow; on others each segment is finished.

    Nobody appends to such a segment any more. At some moment after `old` was read, the agent's name was free and the
    log ended at the cut of `old`. So no session is open that began before that moment, and one that begins later starts
    a segment of its own: it finds the last one or, if that is collected, a manifest whose cut is behind it.

    A log with a torn tail does not end at its cut, and stays. So does the shared log: any process that has read it to
    its end may append to the same segment at any time.

    :param old: the newest manifest.
    :param cut: the cut of the next one. A log is considered if both cuts have the same position: nothing came since,
        and none of its commits is recent.
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
        with backend.lock(SEALING_LOCK):  # since trying a name holds it for a moment
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
        return False  # its lock file may belong to another user. The name may be in use, so the log stays


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
        # If the agent has stamped commits that it has not written yet, they go behind the seal. A seal with a clock
        # above everything would raise their clocks, and they would outrank transactions that the agent has not read.
        session.append(session.stamp(Seal("", 0, ""), end.clock))
    except (AgentFencedError, CommitUnknownError):
        # The agent is alive in another process, and wrote just now; or the next compaction sees whether the seal
        # counts.
        return False
    finally:
        appender.close()
    return True
