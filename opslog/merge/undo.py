"""How far back an undo reaches. Pure.

An undo cancels one of the `window` commits before it in its log, undos among them, and none from before a seal. So a
commit with `window` commits of its agent after it can never be cancelled any more.
"""

from __future__ import annotations

from opslog.format.commits import Commit, Seal


def reachable_after(commit: Commit, window: int) -> int:
    """How many of the newest commits of a log, the newest of which is `commit`, an undo can reach that comes next."""
    return 0 if isinstance(commit, Seal) else window


def farthest(back: int, window: int) -> int:
    """How far back an undo reaches that is so far `back`, with no seal in between.

    Commits are counted back from the end of a log, the last one as 0; what comes next is at -1.
    """
    return back + window
