"""What clients that write in one name alone may append and store. Whatever they send, the others can read on.

Every line must be valid by itself, and the next one of its log. An archive must be whole when its index makes it one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from opslog.backends import Backend
from opslog.backends.remote.protocol import Create
from opslog.environment import format_ts
from opslog.errors import CorruptError, UsageError
from opslog.format.commits import Commit, Undo, decode_commits
from opslog.format.layout import TRANSACTIONS, archive_of, archive_path
from opslog.log.reader import LogSource
from opslog.merge.rules import SharedLogRules, author_faults, clock_fault
from opslog.verify.files import FileCheck, Reader, line_faults

# How far the clock of a new commit may be above all others. Clocks are finite, and each new one is above those that its
# writer has read: a commit with the greatest clock would be the last one of its store.
_CLOCKS_AHEAD = 2**32
# How far the `ts` of a new commit may be ahead of the server's clock. In the shared log, `ts` never goes back, so one
# that is far ahead would be the `ts` of every later transaction.
_SECONDS_AHEAD = 86400.0


class LogEnd(NamedTuple):
    """The end of a log: its position, the clock of the last commit before it (0: unknown), and for the shared log the
    `ts` of that commit."""

    position: tuple[int, int]
    clock: int
    ts: str


class Written(Protocol):
    """What was written to a store."""

    def newest_clock(self, least: int) -> int:
        """The greatest clock. Searches for newer commits only if the greatest one known so far is below `least`."""

    def log_end(self, agent: str) -> LogEnd:
        """The end of a log. Searches for newer commits."""

    def may_undo(self, author: str, target: int) -> bool:
        """Whether an undo of the transaction with this clock takes back nothing that others wrote or may write."""


def decode_lines(agent: str, data: bytes) -> list[Commit]:
    """The commits in lines that are to be appended to the log of an agent.

    :raises UsageError: these are no lines, or none at all.
    """
    try:
        commits = decode_commits(data, agent, 0)
    except CorruptError as error:
        raise UsageError(f"the bytes to append are not lines of a log: {error}") from error
    if not commits:
        raise UsageError("there is no line to append")
    return commits


def check_each(agent: str, commits: Sequence[Commit], data: bytes) -> None:
    """Check commits, and the lines that they were decoded from.

    :raises UsageError: one of them cannot be a line of the log of this agent.
    """
    clock = 0
    for commit, line in zip(commits, data.split(b"\n"), strict=False):
        if commit.agent != agent:
            raise UsageError(f"a line to append to the log of {agent!r} is one of {commit.agent!r}")
        faults = [clock_fault(clock, commit), *author_faults(commit), *line_faults(commit, line)]
        if fault := next(filter(None, faults), None):
            raise UsageError(f"a line to append to the log of {agent!r} is not valid: {fault}")
        clock = commit.clock


def check_new(commits: Sequence[Commit], store: Written) -> None:
    """Check commits against what was written to the store.

    :raises UsageError: they use up the clock, or undo what others wrote.
    """
    greatest = commits[-1].clock
    if greatest > store.newest_clock(greatest - _CLOCKS_AHEAD) + _CLOCKS_AHEAD:
        raise UsageError(f"the clock {greatest} of a commit to append is too far above all others in the store")
    own = {commit.clock for commit in commits}
    for commit in commits:
        if not isinstance(commit, Undo) or commit.agent != TRANSACTIONS or commit.target in own:
            continue
        if not store.may_undo(commit.by, commit.target):
            raise UsageError(
                f"this token undoes only what {commit.by!r} wrote, not the transaction with the clock {commit.target}"
            )


def check_next(commits: Sequence[Commit], end: LogEnd, now: float) -> None:
    """Check that commits can come next in their log.

    :param now: by the server's clock.
    :raises UsageError: their clocks do not increase, or the `ts` of one is neither before that of the last commit nor
        near `now`; or a rule of the shared log says no.
    """
    rules = SharedLogRules(end.clock, end.ts) if commits[0].agent == TRANSACTIONS else None
    faults = [
        clock_fault(end.clock, commits[0]),
        *(fault for commit in commits if rules for fault in rules.faults(commit)),
    ]
    if fault := next(filter(None, faults), None):
        raise UsageError(f"a commit to append cannot come next in the log: {fault}")
    latest = max(end.ts, format_ts(now + _SECONDS_AHEAD))
    if ahead := next((commit for commit in commits if commit.ts > latest), None):
        raise UsageError(
            f"a commit to append was written at {ahead.ts}, and here it is {format_ts(now)}: correct the clock of "
            "the machine that is wrong"
        )


def check_archive(call: Create, backend: Backend) -> None:
    """Check a file of an archive: its data, or its index together with the data that is there.

    :raises UsageError: nobody could read it.
    """
    named = archive_of(call.path)
    assert named is not None
    check = FileCheck(_WithFile(backend, call), archive_path(named[0], named[1]))
    check.check_archive()
    problems = [problem for problem in check.report.problems if problem.severity == "error"]
    if problems:
        raise UsageError(f"this cannot be a file of an archive: {problems[0]}")
    if check.path in check.missing:
        raise UsageError(f"{call.path} cannot be created before {check.path}, the data that it is the index of")


class _WithFile(Reader):
    """Reads a storage as it will be once a file was created."""

    def __init__(self, backend: Backend, call: Create) -> None:
        super().__init__(backend, 0, None)
        self._call = call

    def read(self, path: str, start: int = 0, stop: int | None = None, source: LogSource | None = None) -> bytes:
        return self._call.data[start:stop] if path == self._call.path else super().read(path, start, stop, source)
