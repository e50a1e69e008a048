"""The rules of every log, each written down once. Pure.

`verify` checks them for real logs, and `opslog.testing` for the logs of its simulations. A rule returns the problem, or
None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from opslog.errors import InvalidNameError
from opslog.format.commits import Batch, Commit, Seal, Undo
from opslog.format.layout import TRANSACTIONS, check_agent
from opslog.merge.clock import CLOCK_STEP
from opslog.merge.undo import reachable_after

# How many transactions' nonces are remembered, to find one that comes twice.
_NONCES = 65_536


def clock_fault(before: int, commit: Commit) -> str | None:
    """In each log every commit has a greater clock than the one before it.

    :param before: the clock of the commit before it; 0 for the first.
    """
    if commit.clock > before:
        return None
    return f"clock {commit.clock} after clock {before}: clocks must increase within a log"


def author_faults(commit: Commit) -> Iterator[str]:
    """A line of the shared log, or a record that came from there, has both an author and a nonce, or neither. All other
    lines and records have neither."""
    if not (commit.by or commit.tx):
        return
    if commit.agent != TRANSACTIONS:
        yield f"by is {commit.by!r}, and the agent {commit.agent!r}: only transactions have an author of their own"
    if not (commit.by and commit.tx):
        yield f"by is {commit.by!r} and tx {commit.tx!r}: a transaction has both"
    else:
        try:
            check_agent(commit.by)
        except InvalidNameError as error:
            yield f"by: {error}"


class SharedLogRules:
    """The rules of the shared log's lines, beside those of every log. Call `faults` with each line in turn.

    Seals have no author, nor have lines that an agent of this name wrote with opslog 0.1. Only the first line after
    them is compared with their clocks.

    :param clock: that of the line before the first one; 0: there is none.
    :param ts: likewise; empty: there is none.
    """

    def __init__(self, clock: int = 0, ts: str = "") -> None:
        self._clock = clock
        self._ts = ts
        self._is_shared = False
        self._order: deque[str] = deque()
        self._nonces: set[str] = set()

    def faults(self, commit: Commit) -> Iterator[str]:
        """The problems of the next line. (`author_faults` checks that its `by` is a name.)"""
        if commit.tx:
            if commit.clock < self._clock + CLOCK_STEP:
                yield (
                    f"clock {commit.clock} after clock {self._clock}: that of a transaction is at least {CLOCK_STEP} "
                    "above all that its writer had read"
                )
            if commit.ts < self._ts:
                yield f"ts {commit.ts} after ts {self._ts}: it never goes back in the shared log"
            if commit.tx in self._nonces:
                yield f"tx {commit.tx!r} is that of an earlier transaction"
            self._ts = max(self._ts, commit.ts)
            self._is_shared = True
            self._remember(commit.tx)
        elif self._is_shared and not isinstance(commit, Seal):
            yield "no author, though transactions come before it that have one"
        self._clock = max(self._clock, commit.clock)

    def _remember(self, tx: str) -> None:
        self._order.append(tx)
        self._nonces.add(tx)
        if len(self._order) > _NONCES:
            self._nonces.discard(self._order.popleft())


class _Passed(NamedTuple):
    clock: int
    has_records: bool
    by: str


class UndoWindow:
    """The commits that an undo may cancel: those with records, of the same author, not cancelled yet, among the last
    `window` commits of its log and after its last seal.

    :param is_whole: whether the log is followed from its first commit on. If not, until `window` commits were seen, an
        undo whose target may be among the unseen commits counts as right.
    """

    def __init__(self, window: int, *, is_whole: bool) -> None:
        self._window = window
        self._passed: deque[_Passed] = deque()
        self._cancelled: set[int] = set()
        self._is_known = is_whole

    def forget(self) -> None:
        """Note that there are unseen commits between the last one and the next."""
        self._passed.clear()
        self._cancelled.clear()
        self._is_known = False

    def fault(self, undo: Undo) -> str | None:
        """The problem of an undo whose target is not in its window. Call it before `follow` gets the undo itself."""
        fault = f"it undoes clock {undo.target}"
        if undo.target >= undo.clock:
            return f"{fault}, which does not come before it"
        for passed in self._passed:
            if passed.clock == undo.target:
                if not passed.has_records:
                    return f"{fault}, of a commit that changed nothing"
                if passed.by != undo.by:
                    return f"{fault}, which is by {passed.by!r}, and the undo by {undo.by!r}"
                return f"{fault}, which is undone already" if undo.target in self._cancelled else None
        if not self._is_known and (not self._passed or undo.target < self._passed[0].clock):
            return None
        return f"{fault}, and no commit of {undo.agent!r} that may still be undone has that clock"

    def newest(self, by: str = "") -> int | None:
        """The clock of the newest commit that an undo may cancel; None if there is none among those seen.

        :param by: the author of the undo, in the shared log.
        """
        for passed in reversed(self._passed):
            if passed.has_records and passed.by == by and passed.clock not in self._cancelled:
                return passed.clock
        return None

    def follow(self, commit: Commit) -> None:
        """Take in the next commit of the log."""
        if isinstance(commit, Undo):
            self._cancelled.add(commit.target)
        has_records = bool(commit.ops) if isinstance(commit, Batch) else not isinstance(commit, Undo | Seal)
        self._passed.append(_Passed(commit.clock, has_records, commit.by))
        while len(self._passed) > reachable_after(commit, self._window):
            self._cancelled.discard(self._passed.popleft().clock)
            self._is_known = True
