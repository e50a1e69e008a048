"""Waiting for one's turn to append to a log with many writers (`Backend.append_at`).

A writer holds the name of the log, as a live appender does, for as long as one append takes. There is no queue: every
waiting writer tries again after a pause.
"""

from __future__ import annotations

from collections.abc import Callable

from opslog.backends.contract import Position
from opslog.environment import Environment
from opslog.errors import AgentBusyError, AgentFencedError, LockedError

# Far longer than one append takes.
WAIT_SECONDS = 10.0

_PAUSE_SECONDS = 0.000_1
_PAUSE_SECONDS_MAX = 0.002


def append_once(append: Callable[[], Position | None], leave: Callable[[], None]) -> Position | None:
    """What `append` returns.

    :param append: takes the name, and appends. In here, so that no interrupt comes between its taking and the block.
    :param leave: gives the name back, if it was taken; idempotent.
    """
    try:
        return append()
    finally:
        try:
            leave()
        finally:
            leave()  # once more, for a signal's handler that came into the first


def in_turn(
    attempt: Callable[[], Position | None], is_over: Callable[[], bool], environment: Environment, agent: str, url: str
) -> Position | None:
    """Run `attempt` when it is this writer's turn, and return its result; None as soon as `is_over` says so without a
    turn.

    :param attempt: raises `AgentBusyError` or `AgentFencedError` if another writer has the name. Then nothing was
        written.
    :param is_over: whether the log is known to go on behind the position to append at.
    :raises LockedError: the turn did not come within `WAIT_SECONDS`.
    """
    deadline = environment.monotonic() + WAIT_SECONDS
    pause = _PAUSE_SECONDS
    while True:
        try:
            return attempt()
        except (AgentBusyError, AgentFencedError) as error:
            if environment.monotonic() >= deadline:
                raise _locked(error, agent, url) from error
        if is_over():
            return None
        environment.sleep(pause)
        pause = min(2 * pause, _PAUSE_SECONDS_MAX)


def _locked(error: AgentBusyError | AgentFencedError, agent: str, url: str) -> LockedError:
    holder = error.holder if isinstance(error, AgentBusyError) else "another process"
    return LockedError(
        f"the log {agent!r} of {url} was in use by {holder} for {WAIT_SECONDS:g} seconds, and nothing was written: if "
        "that process is stopped, let it go on, or end it, and try again. Lock files are never stale, and must not be "
        "removed",
        f"agents/{agent}",
        holder,
    )
