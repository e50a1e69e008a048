"""Commits of others that no caller has asked for yet. Each is returned once, to whichever caller asks, and none is
lost.

A signal handler may raise an exception, which can end a call between any two steps. So everything here happens in one
step as far as such an exception can see. The interpreter runs signal handlers at the beginning of a function, after the
return of one that is not written in Python, and at the beginning of another round of a loop. Between two assignments it
runs none. Commits that were taken out but not returned are put back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable
from enum import Enum
from typing import Final

from opslog.format.commits import Commit
from opslog.log.reader import Cursor


class Gap(Enum):
    """Stands for commits that are in the state and were collected before they could be read."""

    GAP = "gap"


GAP: Final = Gap.GAP


class News:
    """The commits of others that are in a state and were not returned to a caller. Safe to use from many threads.

    :ivar is_wanted: whether a caller has asked for them. Until then none is kept: many programs never ask, and would
        keep everything that others ever wrote. The first caller reads them from storage.
    :ivar cursors: for each log, the position up to which commits are here or were returned. This is the same dictionary
        as the state's as long as the state reads on, so both always agree. If it is another one, nobody had asked yet,
        or the state was loaded again, and the commits in between are missing here.
    """

    def __init__(self, cursors: dict[str, Cursor]) -> None:
        self.is_wanted = False
        self.cursors = dict(cursors)
        self._waiting: deque[Commit | Gap] = deque()
        self._lock = threading.RLock()

    def add(self, commits: Iterable[Commit], cursor: Cursor) -> None:
        """Add commits of a log. The cursor is at their end."""
        with self._lock:
            self._waiting += commits
            self.cursors[cursor.agent] = cursor

    def catch_up(self, commits: Iterable[Commit], complete: bool, cursors: dict[str, Cursor]) -> None:
        """Add the commits between the cursors here and those of a state, and agree with it from now on.

        :param complete: whether these are all; otherwise a `GAP` follows them.
        """
        missing: list[Commit | Gap] = [*commits] if complete else [*commits, GAP]
        with self._lock:
            self._waiting += missing
            self.cursors = cursors

    def take_one(self) -> Commit | Gap | None:
        """Take the next one; None if there is none."""
        taken = None
        try:
            with self._lock:
                if self._waiting:
                    taken = self._waiting[0]
                    del self._waiting[0]
        except BaseException:
            if taken is not None:
                self._waiting.appendleft(taken)
            raise
        return taken

    def take_all(self) -> list[Commit]:
        """Take all commits. Gaps are left out."""
        taken: deque[Commit | Gap] = deque()
        rest: deque[Commit | Gap] = deque()
        try:
            with self._lock:
                taken, self._waiting = self._waiting, rest
            return [commit for commit in taken if commit is not GAP]
        except BaseException:
            with self._lock:
                self._waiting = taken + self._waiting  # in one step: a second exception must not come in between
            raise
