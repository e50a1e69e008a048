"""What an undo takes back, and how far back it reaches. Pure.

An undo takes back the newest commit of its author that is not taken back yet, wherever that stands: in the log of that
name, or in the shared log. It passes none over that is out of reach.

An undo cancels one of the `window` commits before it in its log, undos among them, and none from before a seal. So a
commit with `window` commits of its agent after it can never be cancelled any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

import msgspec

from opslog.errors import UsageError
from opslog.format.commits import Commit, Record, Seal, Undo


class Recent(msgspec.Struct, gc=False):
    """A commit that an undo may still cancel, with its records."""

    commit: Commit
    records: tuple[Record, ...]
    cancelled: bool = False

    @property
    def is_undoable(self) -> bool:
        """Whether an undo would have an effect."""
        return bool(self.records) and not self.cancelled


class Undoable(Enum):
    """Where the commit is that an undo takes back."""

    NOTHING = "nothing is in reach"
    IN_OWN_LOG = "in the log of its agent"
    IN_SHARED_LOG = "in the shared log"


def undoable_in(own: Commit | None, shared: Commit | None, settled: int) -> Undoable:
    """Where the newest commit of an author is, if an undo may cancel that one.

    :param own: the newest one in the log of that name that an undo would cancel now; None: there is none.
    :param shared: likewise of those that the author has in the shared log.
    :param settled: the clock of its newest commit there that is out of reach; 0: there is none.
    """
    own_clock, shared_clock = own.clock if own else 0, shared.clock if shared else 0
    newest = max(own_clock, shared_clock)
    if not newest or settled > newest:
        return Undoable.NOTHING
    return Undoable.IN_SHARED_LOG if shared_clock > own_clock else Undoable.IN_OWN_LOG


def not_ours(author: str) -> UsageError:
    """The error for an undo in the name of an agent whose log this store does not write."""
    return UsageError(
        f"the newest commit of {author!r} is in a log of that name, which is not written here: to take it back, open "
        f"the store with agent={author!r}, without log="
    )


def newest_undoable(recent: Sequence[Recent], author: str | None = None) -> Commit | None:
    """The newest commit of a log that an undo would cancel now.

    :param recent: the commits that are in reach, in their order.
    :param author: whose it has to be, in the shared log; an agent's own log has no other ones.
    """
    undoable = (entry.commit for entry in reversed(recent) if entry.is_undoable)
    return next((commit for commit in undoable if author in (None, commit.by)), None)


def oldest_undoable(recent: Iterable[Recent]) -> int:
    """The clock of the oldest commit of a log that an undo may still cancel; 0: there is none."""
    return next((entry.commit.clock for entry in recent if entry.is_undoable), 0)


def reachable_after(commit: Commit, window: int) -> int:
    """How many of the newest commits of a log, the newest of which is `commit`, an undo can reach that comes next."""
    return 0 if isinstance(commit, Seal) else window


def farthest(back: int, window: int) -> int:
    """How far back an undo reaches that is so far `back`, with no seal in between.

    Commits are counted back from the end of a log, the last one as 0; what comes next is at -1.
    """
    return back + window


class Reachable:
    """Says what the undos of a log gave back, for who reads the log and merges nothing. Commits come in their
    order, from any of them on; of an undo that reaches farther back nothing is known.

    :param window: the store's undo window.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        # Clock and documents of each commit that an undo may cancel still; none of one that is cancelled.
        self._commits: deque[tuple[int, tuple[str, ...]]] = deque()

    def note(self, commit: Commit) -> None:
        """Take in the next commit. An undo gets to know its documents (`Undo.ids`)."""
        ids = commit.ids
        if isinstance(commit, Undo):
            commit.note_ids(self._cancel(commit.target))
            ids = ()
        self._commits.append((commit.clock, ids))
        reachable = reachable_after(commit, self._window)
        while len(self._commits) > reachable:
            self._commits.popleft()

    def _cancel(self, target: int) -> tuple[str, ...]:
        for index, (clock, ids) in enumerate(self._commits):
            if clock == target:
                self._commits[index] = (clock, ())
                return ids
        return ()
