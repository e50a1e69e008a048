"""The decision of a refresh: what to read next, given what was read before and what is on storage now. Pure.

Reading on costs least. In these cases it is impossible, or not worth it any more, and the state is loaded again from
the newest manifest:

- The state is torn: an exception ended a change of it half-way.
- A compaction has taken in commits that were not read here: their segments may be collected already.
- A run that is read from storage was replaced: its files will be deleted.
- Many winners of the tail are in memory, and some may be compacted by now: these can be forgotten.
- This agent's own log has more than was written here: a compaction sealed it, or another process took the name over.

There is one more case: a log that does not go on where it was read. It shows only when the log is read
(`MissingFileError`), and the state is then loaded again, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

import msgspec

from opslog.format.manifest import Manifest
from opslog.log.reader import Cursor, Segments
from opslog.log.survey import unread


class Step(Enum):
    """The next step of a refresh."""

    NOTHING = "everything was read"
    LIST_LOGS = "go by the newest manifest, list the logs, and decide again"
    READ_ON = "read from the cursors on"
    RELOAD = "load again"


class Progress(msgspec.Struct, frozen=True):
    """How far a state has read.

    :ivar manifest: the number of the manifest that the state was loaded from.
    :ivar passed: the number of the newest manifest that did not make it necessary to load again.
    :ivar cursors: how far each log was read.
    :ivar agent: whose log needs no reading, because it is written here; None: nobody's.
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
    """The next step, and what it needs.

    :ivar logs: the segments to read, for `READ_ON`.
    """

    step: Step
    logs: Segments


def refresh_decision(
    read: Progress, newest: Manifest, listed: Segments | None = None, *, own_has_more: bool = False
) -> RefreshDecision:
    """Decide the next step of a refresh.

    :param newest: the newest manifest.
    :param listed: the logs, listed after it. A log that had files before and has none now is in it with an empty list.
        None: not listed yet; not every decision needs the listing.
    :param own_has_more: whether this agent's own log has more in this listing than was written here.
    """
    if read.is_torn or own_has_more or _needs_reload(read, newest):
        return RefreshDecision(Step.RELOAD, {})
    if listed is None:
        return RefreshDecision(Step.LIST_LOGS, {})
    others = {agent: segments for agent, segments in listed.items() if agent != read.agent}
    logs = unread(read.cursors, others)
    return RefreshDecision(Step.READ_ON if logs else Step.NOTHING, logs)


def _needs_reload(read: Progress, newest: Manifest) -> bool:
    """Whether the newest manifest makes it necessary, or worth the cost, to load again."""
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
