"""Ending the undo window of agents that are gone, and coming back while that is done.

Who seals a log holds its agent's name for as long as one append. Nobody else uses the name, so whoever opens under it
just then must not be told that somebody does. Therefore logs are sealed under a lock, `LOCK`, that is taken before any
name: a name that is in use while nobody has the lock is its agent's, and while somebody has it is worth waiting for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opslog.backends import Appender, Backend
from opslog.environment import Environment
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    WriteFailedError,
)
from opslog.format.manifest import Cut, Manifest
from opslog.log.reader import Segment, list_segments

LOCK = "sealing"

WAIT_SECONDS = 10.0
"""How long a name is waited for while logs are sealed: far longer than one seal takes, and the names of live agents
stay in use all the while."""

_PAUSE_SECONDS = 0.01
_PAUSE_SECONDS_MAX = 0.2


def seal_all(backend: Backend, agents: Iterable[str], seal: Callable[[str, Appender], bool]) -> tuple[str, ...]:
    """Have each of these logs sealed under its agent's name; returns whose were. Live agents hold their names and are
    left alone. Where somebody else is sealing all are: the next compaction comes to them.

    :param seal: appends the seal, through a `Fence`, unless the log has grown since it was read; says whether it did.
    """
    waiting = tuple(agents)
    if not waiting:
        return ()
    try:
        with backend.lock(LOCK):
            return tuple(agent for agent in waiting if _seal(backend, agent, seal))
    except LockedError:
        return ()


def logs_of_the_gone(backend: Backend, old: Manifest, cut: Mapping[str, Cut]) -> dict[str, Cut]:
    """Where logs go on, should they ever, of agents that are gone, and of which all is folded: behind their last
    segments, so that these can be collected. Only where segments grow; elsewhere each is finished as it is.

    Nobody appends to such a segment any more. There was a moment after `old` was read in which the agent's name was
    free and the log ended at the cut of `old`: no session is open that began before it, and one that begins later
    starts a segment of its own. It finds the last one, or, where that is collected, a manifest whose cut is behind it.

    A log with a torn tail does not end at its cut, and stays.

    :param old: the newest manifest; `cut`: of the next one. A log is considered when both have the same place, so
        nothing came since, and nothing of it is recent.
    """
    if not backend.segments_grow:
        return {}
    now = backend.now()
    idle = [
        agent
        for agent, listed in list_segments(backend).items()
        if agent in old.cut
        and cut.get(agent) == old.cut[agent]
        and _ends_at(listed, old.cut[agent])
        and now - listed[-1].modified > old.settings.grace_seconds
    ]
    if not idle:
        return {}
    try:
        with backend.lock(LOCK):  # since a name is in use for a moment while it is tried
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
    return bool(listed) and cut.offset > 0 and (listed[-1].number, listed[-1].bytes) == cut.place


def _seal(backend: Backend, agent: str, seal: Callable[[str, Appender], bool]) -> bool:
    try:
        appender = backend.appender(agent)
    except AgentBusyError:
        return False
    try:
        return seal(agent, appender)
    except AgentFencedError:
        return False  # it is alive in another process, and wrote just now
    except CommitUnknownError:
        return False  # whether it counts, the next compaction sees: nothing rests on it here
    finally:
        appender.close()


def take_name(backend: Backend, agent: str, environment: Environment) -> Appender:
    """Become the one live writer of an agent's log, as `Backend.appender`, but wait for a compaction that seals it.

    :raises AgentBusyError: a live process writes under this name, or the sealing took longer than `WAIT_SECONDS`.
    """
    deadline = environment.monotonic() + WAIT_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        try:
            return backend.appender(agent)
        except AgentBusyError as error:
            busy = error
        try:
            with backend.lock(LOCK):
                return backend.appender(agent)  # nobody seals now; somebody may have done so a moment ago
        except LockedError:
            if environment.monotonic() >= deadline:
                raise busy from None
        environment.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)
