"""What every log keeps to, each rule written down once. Pure.

`verify` holds real logs against them, and `opslog.testing` those of its simulations. A rule returns what is wrong, or
None.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from opslog.format.commits import Batch, Commit, Seal, Undo
from opslog.merge.undo import reachable_after


def clock_fault(before: int, commit: Commit) -> str | None:
    """In each log every commit has a greater clock than the one before it.

    :param before: the clock of the commit before it; 0 for the first.
    """
    if commit.clock > before:
        return None
    return f"clock {commit.clock} after clock {before}: clocks must increase within a log"


class _Passed(NamedTuple):
    clock: int
    has_records: bool


class UndoWindow:
    """What an undo may cancel: a commit with records, not cancelled yet, among the last `window` commits of its log and
    after its last seal.

    :param is_whole: whether the log is followed from its first commit on. If not, nothing can be said of an undo whose
        target may be among the commits that were not seen, until `window` commits were.
    """

    def __init__(self, window: int, *, is_whole: bool) -> None:
        self._window = window
        self._passed: deque[_Passed] = deque()
        self._cancelled: set[int] = set()
        self._is_known = is_whole

    def forget(self) -> None:
        """There are commits between the last one and the next that cannot be seen."""
        self._passed.clear()
        self._cancelled.clear()
        self._is_known = False

    def fault(self, undo: Undo) -> str | None:
        """An undo cancels one commit of its window. To be asked before the undo itself is followed."""
        fault = f"it undoes clock {undo.target}"
        if undo.target >= undo.clock:
            return f"{fault}, which does not come before it"
        for passed in self._passed:
            if passed.clock == undo.target:
                if not passed.has_records:
                    return f"{fault}, of a commit that changed nothing"
                return f"{fault}, which is undone already" if undo.target in self._cancelled else None
        if not self._is_known and (not self._passed or undo.target < self._passed[0].clock):
            return None
        return f"{fault}, and no commit of {undo.agent!r} that may still be undone has that clock"

    def newest(self) -> int | None:
        """The clock of the newest commit that an undo may cancel; None where there is none among those seen."""
        for passed in reversed(self._passed):
            if passed.has_records and passed.clock not in self._cancelled:
                return passed.clock
        return None

    def follow(self, commit: Commit) -> None:
        """Take in the next commit of the log."""
        if isinstance(commit, Undo):
            self._cancelled.add(commit.target)
        has_records = bool(commit.ops) if isinstance(commit, Batch) else not isinstance(commit, Undo | Seal)
        self._passed.append(_Passed(commit.clock, has_records))
        while len(self._passed) > reachable_after(commit, self._window):
            self._cancelled.discard(self._passed.popleft().clock)
            self._is_known = True
