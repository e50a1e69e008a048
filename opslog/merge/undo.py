"""Undo: which commit it takes back, and how far back it reaches. Pure.

An undo takes back the newest commit of its author that is not taken back yet, whether that is in the author's own log
or in the shared log. If that commit is out of reach, the undo does not take back an older one in its place.

An undo cancels one of the `window` commits before it in its log, where undos count, too, and none from before a seal.
So a commit with `window` commits of its agent after it can never be cancelled any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence

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


def newest_in_reach(own: Commit | None, shared: Commit | None, settled: int) -> Commit | None:
    """The commit of an author that an undo takes back; None: there is none, or the newest one is out of reach.

    :param own: the newest commit in the author's own log that an undo would cancel now; None: there is none.
    :param shared: likewise among the author's commits in the shared log.
    :param settled: the clock of the author's newest commit in either log that is out of reach and not taken back; 0:
        there is none.
    """
    newest = shared if own is None or (shared is not None and shared.clock > own.clock) else own
    return None if newest is None or newest.clock < settled else newest


def not_ours(author: str) -> UsageError:
    """The error for an undo in the name of an agent whose log this store does not write."""
    return UsageError(
        f"the newest commit of {author!r} is in a log of that name, which is not written here: to take it back, open "
        f"the store with agent={author!r}, without log="
    )


def newest_undoable(recent: Sequence[Recent], author: str | None = None) -> Commit | None:
    """The newest commit of a log that an undo would cancel now.

    :param recent: the commits that are in reach, in their order.
    :param author: the author that it must have, in the shared log; None in an agent's own log.
    """
    undoable = (entry.commit for entry in reversed(recent) if entry.is_undoable)
    return next((commit for commit in undoable if author in (None, commit.by)), None)


def oldest_undoable(recent: Iterable[Recent]) -> dict[str, int]:
    """Per author the clock of the oldest of these commits that an undo may still cancel."""
    oldest: dict[str, int] = {}
    for entry in recent:
        if entry.is_undoable:
            author = entry.commit.author
            oldest[author] = min(entry.commit.clock, oldest.get(author, entry.commit.clock))
    return oldest


def reachable_after(commit: Commit, window: int) -> int:
    """How many of the newest commits of a log the next undo can reach, if `commit` is the newest one."""
    return 0 if isinstance(commit, Seal) else window


def farthest(back: int, window: int) -> int:
    """The position of the oldest commit that an undo at position `back` reaches, with no seal in between.

    Positions count back from the end of the log: the last commit is at 0, and the next one will be at -1.
    """
    return back + window


class Reachable:
    """Finds the documents that the undos of a log gave back, for a reader of the log that merges nothing. Commits come
    in their order, beginning with any of them. For an undo that reaches farther back, the documents are unknown.

    :param window: the store's undo window.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        # Clock and documents of each commit that an undo may still cancel; no documents if it is cancelled.
        self._commits: deque[tuple[int, tuple[str, ...]]] = deque()

    def note(self, commit: Commit) -> None:
        """Take in the next commit. If it is an undo, set its `ids`."""
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
