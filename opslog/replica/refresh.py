"""What a refresh does: one decision, from what was read and what is there. Pure.

Reading on is what costs least. It is not possible, or no good any more, in these cases; the state is then loaded again
from the newest manifest:

- The state is torn: an exception ended a change of it half-way.
- Commits were compacted that were not read here: what lies between may be collected already.
- A run that is read from storage was replaced: its files are to be let go.
- Much of the tail is in memory, and some of it may be compacted by now: it is time to forget it.
- One's own log has more than was written here: a compaction sealed it, or another process has taken the name over.

A log that does not go on where it was read shows only when it is read (`MissingFileError`); the answer is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from opslog.format.manifest import Manifest
from opslog.log.reader import Cursor, Segments
from opslog.log.survey import unread


class Step(Enum):
    """What to do next."""

    NOTHING = "everything was read"
    LIST_LOGS = "go by the newest manifest, list the logs, and decide again"
    READ_ON = "read from the cursors on"
    RELOAD = "load again"


class Progress(msgspec.Struct, frozen=True):
    """What was read.

    :ivar manifest: the number of the manifest that the state was loaded from.
    :ivar passed: the number of the newest manifest that asked for no other load.
    :ivar cursors: how far each log was read.
    :ivar agent: whose log is known anyway, as it is written here; None: nobody's.
    :ivar runs: the names of the runs that are read from storage.
    :ivar has_many_winners: whether the state has so many winners of the tail in memory that it pays to load again.
    :ivar is_torn: see above.
    """

    manifest: int
    passed: int
    cursors: Mapping[str, Cursor]
    agent: str | None = None
    runs: frozenset[str] = frozenset()
    has_many_winners: bool = False
    is_torn: bool = False


class RefreshDecision(msgspec.Struct, frozen=True):
    """What to do.

    :ivar logs: what to read, with `READ_ON`.
    """

    step: Step
    logs: Segments


def refresh_decision(
    read: Progress, newest: Manifest, listed: Segments | None = None, *, own_has_more: bool = False
) -> RefreshDecision:
    """What a refresh does.

    :param newest: the newest manifest.
    :param listed: the logs, listed after it, with an empty list for each of which something was there before; None: not
        listed yet, which is not needed for every answer.
    :param own_has_more: whether one's own log has more in this listing than is known here.
    """
    if read.is_torn or own_has_more or _needs_reload(read, newest):
        return RefreshDecision(Step.RELOAD, {})
    if listed is None:
        return RefreshDecision(Step.LIST_LOGS, {})
    others = {agent: segments for agent, segments in listed.items() if agent != read.agent}
    logs = unread(read.cursors, others)
    return RefreshDecision(Step.READ_ON if logs else Step.NOTHING, logs)


def _needs_reload(read: Progress, newest: Manifest) -> bool:
    """Whether a manifest makes it necessary, or worth its cost, to load again."""
    if newest.number == read.manifest:
        return False
    if read.has_many_winners:
        return True
    if newest.number == read.passed:
        return False
    if not read.runs <= {run.name for run in newest.runs}:
        return True
    return any(
        cut.commits > (read.cursors[agent].commits if agent in read.cursors else 0)
        for agent, cut in newest.cut.items()
        if agent != read.agent
    )
