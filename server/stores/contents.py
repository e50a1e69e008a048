"""What clients that write in one name alone may append and store. Whatever they send, the others can read on.

Every line must be valid by itself, and the next one of its log. An archive must be whole when its index makes it one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

import msgspec

from opslog.backends import Backend
from opslog.backends.remote.protocol import Create
from opslog.environment import format_ts
from opslog.errors import CorruptError, MissingFileError, OpslogError, RetryError, UsageError, WriteFailedError
from opslog.format.commits import Commit, Set, Undo, decode_commit, decode_commits, decode_records, encode_commit
from opslog.format.layout import TRANSACTIONS, archive_of, archive_path, segment_path
from opslog.log.reader import LogSource
from opslog.merge.rules import SharedLogRules, author_faults, clock_fault
from opslog.verify.files import FileCheck, Reader, line_faults

# How far the clock of a new commit may be above all others. Clocks are finite, and each new one is above those that its
# writer has read: a commit with the greatest clock would be the last one of its store.
_CLOCKS_AHEAD = 2**32
# How far the `ts` of a new commit may be ahead of the server's clock. In the shared log, `ts` never goes back, so one
# that is far ahead would be the `ts` of every later transaction.
_SECONDS_AHEAD = 86400.0

# How much of the end of a log is searched first for its last commit.
_LAST_BYTES = 64 * 1024


class LogEnd(NamedTuple):
    """The end of a log.

    :ivar clock: that of the last commit before it; 0: unknown.
    :ivar ts: for the shared log, that of its last commit; empty: unknown.
    :ivar latest: the greatest `ts` that programs which read the store may have found.
    """

    position: tuple[int, int]
    clock: int
    ts: str
    latest: str


class Written(Protocol):
    """What was written to a store."""

    def newest_clock(self, least: int) -> int:
        """The greatest clock. Searches for newer commits only if the greatest one known so far is below `least`."""

    def log_end(self, agent: str, known: tuple[int, int] | None = None) -> LogEnd:
        """The end of a log. Searches for newer commits, unless the log was read up to the position `known`."""

    def records(self, ids: Sequence[str]) -> list[Set | None]:
        """The newest records of documents. Searches for newer commits."""

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
        faults = [
            clock_fault(clock, commit),
            *author_faults(commit),
            *line_faults(commit, line),
            *_field_faults(commit, line),
        ]
        if isinstance(commit, Undo) and commit.target >= commit.clock:
            faults.append(f"it undoes clock {commit.target}, which does not come before it")
        if fault := next(filter(None, faults), None):
            raise UsageError(f"a line to append to the log of {agent!r} is not valid: {fault}")
        clock = commit.clock


def _field_faults(commit: Commit, line: bytes) -> Iterator[str]:
    """Fields that this version does not know have no objects or lists. Readers whose stack is deeper could not read a
    line that is nested deeply."""
    if encode_commit(commit) == line + b"\n":
        return
    fields = _fields.decode(line)
    for op in [fields, *(_ops.decode(fields["ops"]) if "ops" in fields else ())]:
        unknown = (name for name, value in op.items() if name not in _NESTED and bytes(value)[:1] in (b"[", b"{"))
        yield from (f"nobody knows the field {name!r:.80}" for name in unknown)


# The fields that have an object or a list. What is in them is checked.
_NESTED = frozenset({"data", "ops"})
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ops = msgspec.json.Decoder(list[dict[str, msgspec.Raw]])


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


def fault_of_next(commits: Sequence[Commit], end: LogEnd, now: float) -> str | None:
    """The reason why these commits cannot come next in their log; None if they can. Their clocks increase, the rules of
    the shared log hold, and no `ts` is far ahead.

    :param now: by the server's clock.
    """
    rules = SharedLogRules(end.clock, end.ts) if commits[0].agent == TRANSACTIONS else None
    faults = [
        clock_fault(end.clock, commits[0]),
        *(fault for commit in commits if rules for fault in rules.faults(commit)),
    ]
    latest = max(end.latest, format_ts(now + _SECONDS_AHEAD))
    faults += [
        f"it was written at {commit.ts}, and here it is {format_ts(now)}: correct the clock that is wrong"
        for commit in commits
        if commit.ts > latest
    ]
    fault = next(filter(None, faults), None)
    return fault and f"a commit to append cannot come next in the log: {fault}"


@contextmanager
def nothing_written() -> Iterator[None]:
    """A block before an append. Its errors say that nothing was written, so that the client may go on."""
    try:
        yield
    except OpslogError as error:
        raise WriteFailedError(f"nothing was written: {error}") from error


def last_commit(backend: Backend, agent: str, position: tuple[int, int]) -> Commit | None:
    """The last commit before a position in a log, at which a commit ends; None if its segment is gone."""
    segment, end = position if position[1] else (position[0] - 1, None)
    path = segment_path(agent, segment)
    want = _LAST_BYTES
    while True:
        start = max(0, end - want) if end is not None else 0
        try:
            data = backend.read(path, start, end)
        except MissingFileError:
            return None
        lines = data.split(b"\n")[1 if start else 0 : -1]
        for line in reversed(lines):
            if (commit := decode_commit(line)) is not None:
                return commit
        if not start:
            return None
        want *= 4


def check_archive(call: Create, backend: Backend, store: Written | None) -> None:
    """Check a file of an archive: its data, which are documents of the store, or its index together with the data that
    is there.

    :raises UsageError: nobody could read it.
    :raises RetryError: the store has other documents now.
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
    if call.path == check.path and store is not None:
        records = decode_records(call.data, call.path, 0)
        there = store.records([record.id for record in records])
        for record, line, now in zip(records, call.data.split(b"\n"), there, strict=False):
            if now is None or encode_commit(now) != line + b"\n":
                raise RetryError(
                    f"the document {record.id!r} is not the one that was to be archived, or it was written meanwhile. "
                    "Nothing was archived: archive again"
                )


class _WithFile(Reader):
    """Reads a storage as it will be once a file was created."""

    def __init__(self, backend: Backend, call: Create) -> None:
        super().__init__(backend, 0, None)
        self._call = call

    def read(self, path: str, start: int = 0, stop: int | None = None, source: LogSource | None = None) -> bytes:
        return self._call.data[start:stop] if path == self._call.path else super().read(path, start, stop, source)
