"""What others wrote and nobody has asked for yet: each commit is handed out once, whoever asks, and none is lost.

An exception can end a call between any two steps, since a signal handler may raise one. So everything here is done in
one step, as far as such an exception can see: the interpreter runs handlers of signals where a function begins, where
one that is not written in Python has returned, and where a loop begins anew, and between two assignments there is
nothing of the kind. What was taken out, and could not be handed over, is put back.
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
    """The commits of others that are in a state and were not handed out. Safe to use from many threads.

    :ivar cursors: up to where, in each log, commits are here or were handed out. It is the very dictionary of the state
        while that takes in commits one after the other, so both always say the same; if it is another one, the state
        was loaded anew, and what lies between is missing here.
    """

    def __init__(self, cursors: dict[str, Cursor]) -> None:
        self.cursors = cursors
        self._waiting: deque[Commit | Gap] = deque()
        self._lock = threading.RLock()

    def add(self, commits: Iterable[Commit], cursor: Cursor) -> None:
        """Commits came, and this is where they end in their log."""
        with self._lock:
            self._waiting += commits
            self.cursors[cursor.agent] = cursor

    def catch_up(self, commits: Iterable[Commit], complete: bool, cursors: dict[str, Cursor]) -> None:
        """These commits lie between the cursors here and those of a state that was loaded anew; `complete`: and no
        others."""
        missing: list[Commit | Gap] = [*commits] if complete else [*commits, GAP]
        with self._lock:
            self._waiting += missing
            self.cursors = cursors

    def take_one(self) -> Commit | Gap | None:
        """The next one, None where there is none."""
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
        """All of them; what is missing is passed over."""
        taken: deque[Commit | Gap] = deque()
        rest: deque[Commit | Gap] = deque()
        try:
            with self._lock:
                taken, self._waiting = self._waiting, rest
            return [commit for commit in taken if commit is not GAP]
        except BaseException:
            self._waiting.extendleft(reversed(taken))
            raise
