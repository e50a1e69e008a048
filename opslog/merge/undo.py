"""How far back an undo reaches. Pure.

An undo cancels one of the `window` commits before it in its log, undos among them, and none from before a seal. So a
commit with `window` commits of its agent after it can never be cancelled any more.
"""

from __future__ import annotations

from collections import deque

from opslog.format.commits import Commit, Seal, Undo


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
