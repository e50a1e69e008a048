"""Chunks of a log that are not decoded line by line. Pure.

Most lines of a log are sets of the usual form, or batches of them, and most of those have been overwritten since.
`opslog.kernel` reads these lines; the others are decoded here. The result is that of `decode_commits`, for any bytes:
if one of the other lines cannot be read by itself, or has a wrong agent or clock, `decode_commits` decodes the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, overload

from opslog.format.commits import Commit, decode_commit, decode_commits
from opslog.kernel import scan

if TYPE_CHECKING:
    from opslog.kernel._kernel import Sets


class ScannedCommits(Sequence[Commit]):
    """The commits of whole lines of one log. The first access to one decodes all of them.

    :ivar sets: the sets that the kernel has read, alone or in batches.
    :ivar others: the other commits, decoded.
    :ivar clocks: the clocks of the first and the last of all commits.
    """

    __slots__ = ("_commits", "_lines", "_offset", "_path", "clocks", "others", "sets")

    def __init__(self, lines: bytes, path: str, offset: int, sets: Sets, others: list[Commit]) -> None:
        self._lines, self._path, self._offset = lines, path, offset
        self._commits: list[Commit] | None = None
        self.sets, self.others = sets, others
        first, last = sets.clocks
        if others:
            first, last = min(first, others[0].clock), max(last, others[-1].clock)
        self.clocks = first, last

    @property
    def ts(self) -> str:
        """The greatest `ts` of the commits."""
        return max([self.sets.ts, *(commit.ts for commit in self.others)])

    def __len__(self) -> int:
        return self.sets.commits + len(self.others)

    @overload
    def __getitem__(self, index: int) -> Commit: ...
    @overload
    def __getitem__(self, index: slice) -> list[Commit]: ...
    def __getitem__(self, index: int | slice) -> Commit | list[Commit]:
        return self._decoded()[index]

    def __iter__(self) -> Iterator[Commit]:
        return iter(self._decoded())

    def __reversed__(self) -> Iterator[Commit]:
        return reversed(self._decoded())

    def _decoded(self) -> list[Commit]:
        if self._commits is None:
            self._commits = decode_commits(self._lines, self._path, self._offset)
        return self._commits


def scan_commits(lines: bytes, agent: str, path: str, offset: int) -> ScannedCommits | None:
    """The commits of consecutive whole lines of an agent's log. None if not all are the agent's, with ascending clocks,
    if a line cannot be read, or if the kernel declines. `path` and `offset` name the beginning of `lines`.
    """
    found = None if scan is None else scan(lines, agent)
    if found is None:
        return None
    sets, places = found
    others: list[Commit] = []
    clock = 0
    for start, stop, before, after in places:
        commit = decode_commit(lines[start:stop])
        if commit is None or commit.agent != agent or commit.clock <= max(before, clock):
            return None
        clock = commit.clock
        if after and clock >= after:
            return None
        others.append(commit)
    return ScannedCommits(lines, path, offset, sets, others)


def first_clock(commits: Sequence[Commit]) -> int:
    """The clock of the first of some commits of a log. Decodes no commit."""
    return commits.clocks[0] if isinstance(commits, ScannedCommits) else commits[0].clock


def last_clock(commits: Sequence[Commit]) -> int:
    """The clock of the last of some commits of a log. Decodes no commit."""
    return commits.clocks[1] if isinstance(commits, ScannedCommits) else commits[-1].clock


def greatest_ts(commits: Sequence[Commit]) -> str:
    """The greatest `ts` of some commits. Decodes no commit."""
    return commits.ts if isinstance(commits, ScannedCommits) else max([commit.ts for commit in commits])
