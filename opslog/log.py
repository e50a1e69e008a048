"""Logs: reading what is new in them, and writing to one's own.

Reading. A `Cursor` remembers how far a log was read. Only whole lines count: what follows the last newline of a segment
is either still being written or the torn tail of a crash, and is passed over once a later segment exists. Listing comes
before reading, so a segment that is not the last of the listing is finished.

Writing. Callers queue their commits in the order of the clock; the first of them to reach the log writes everything
queued with one append (so one fdatasync, or one PUT). Those who come meanwhile sleep until their commit is written, or
until one of them is woken to write the next group: group commit without a thread of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple

from opslog.backends import Appender, Backend, Entry, Position
from opslog.commits import Batch, Commit, Set, SetOp, decode_commits, encode_commit
from opslog.errors import (
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    CorruptError,
    MissingFileError,
    OpslogError,
    ReopenError,
    SealedError,
    WriteFailedError,
)
from opslog.layout import OPS, log_prefix, segment_of, segment_path
from opslog.manifest import START, Cut

_READ_BYTES = 1024 * 1024
"""How much of a log is read and decoded at once: a few milliseconds of work between two chances for other threads."""


class Segment(NamedTuple):
    """One segment in a listing: its number, its length, and when it was last written by the storage's clock."""

    number: int
    bytes: int
    modified: float


Segments = dict[str, list[Segment]]
"""Per agent its segments, in order of number."""


def list_segments(backend: Backend) -> Segments:
    """All segments of all logs. One listing."""
    return _by_agent(backend.list(OPS))


def list_log(backend: Backend, agent: str) -> list[Segment]:
    """The segments of one log. One listing."""
    return _by_agent(backend.list(log_prefix(agent))).get(agent, [])


def _by_agent(entries: Iterable[Entry]) -> Segments:
    segments: Segments = {}
    for path, size, modified in entries:
        named = segment_of(path)
        if named is not None:
            segments.setdefault(named[0], []).append(Segment(named[1], size, modified))
    return segments


def all_logs(segments: Segments, known: Iterable[str]) -> Segments:
    """A listing with every known log in it: an empty one where the listing shows nothing of it."""
    return {agent: [] for agent in known} | segments


def bytes_after(segments: Segments, cut: Mapping[str, Cut]) -> int:
    """How many bytes of log lie after a cut."""
    total = 0
    for agent, listed in segments.items():
        segment, offset = cut.get(agent, START).place
        total += sum(size - (offset if number == segment else 0) for number, size, _ in listed if number >= segment)
    return total


@dataclass(slots=True)
class Cursor:
    """How far an agent's log was read: `commits` of them, up to byte `offset` of `segment`, the last at `clock`."""

    agent: str
    segment: int = START.segment
    offset: int = START.offset
    commits: int = START.commits
    clock: int = 0

    @classmethod
    def at(cls, agent: str, cut: Cut) -> Cursor:
        return cls(agent, cut.segment, cut.offset, cut.commits)

    @property
    def place(self) -> tuple[int, int]:
        return self.segment, self.offset

    @property
    def cut(self) -> Cut:
        """Here, as a manifest says it."""
        return Cut(self.segment, self.offset, self.commits)

    def read(self, backend: Backend, segments: list[Segment]) -> Iterator[tuple[Cut, Commit]]:
        """The commits after the cursor, each with where it begins; moves the cursor past each before it is yielded.

        :param segments: this log's part of a listing made just before.
        :raises MissingFileError: the log is not there where the cursor is, or does not go on there: a compaction folded
            and collected what was to be read next, and a load from the newest manifest helps. If it does not, something
            was lost: the segment at a cut, and the last one of a log, are never collected.
        :raises CorruptError: a line is no commit, or not this log's next one.
        """
        expected = self.segment
        for number, size, _ in segments:
            if number < self.segment:
                continue
            if number != expected:
                raise self._vanished(expected, "is missing, though the log goes on after it")
            if number > self.segment:
                self.segment, self.offset = number, 0
            if size < self.offset:
                raise self._vanished(number, f"ends at byte {size}, and had {self.offset} bytes before")
            expected += 1
            if size > self.offset:
                yield from self._read_segment(backend)
        if self.commits and expected == self.segment:
            raise self._vanished(expected, f"is missing, and {self.commits} commits of this log were read up to it")

    def _read_segment(self, backend: Backend) -> Iterator[tuple[Cut, Commit]]:
        path, want = segment_path(self.agent, self.segment), _READ_BYTES
        while True:
            data = backend.read(path, self.offset, self.offset + want)
            end = data.rfind(b"\n") + 1
            if end:
                yield from self._decode(data[:end], path)
            if len(data) < want:
                return
            # A full read without a newline is a part of a long line: ask for more of it.
            want = _READ_BYTES if end else want * 2

    def _decode(self, lines: bytes, path: str) -> Iterator[tuple[Cut, Commit]]:
        commits = decode_commits(lines, path, self.offset)
        for commit, line in zip(commits, lines.split(b"\n"), strict=False):
            if commit.agent != self.agent or commit.clock <= self.clock:
                raise self._misplaced(commit, path)
            start = self.cut
            self.offset += len(line) + 1
            self.commits += 1
            self.clock = commit.clock
            commit.agent = self.agent  # one string for all commits of a log
            _own(commit)
            yield start, commit

    def _vanished(self, number: int, what: str) -> MissingFileError:
        path = segment_path(self.agent, number)
        return MissingFileError(f"{path} {what}", path)

    def _misplaced(self, commit: Commit, path: str) -> CorruptError:
        return CorruptError(
            f"{path}: byte {self.offset}: a commit of agent {commit.agent!r} at clock {commit.clock}, where only one "
            f"of {self.agent!r} above {self.clock} can be: the file was edited or copied, or two programs wrote it",
            path,
            self.offset,
        )


def _own(commit: Commit) -> None:
    """Copy the documents of a commit out of the bytes they were read with, so that those can be forgotten."""
    if isinstance(commit, Set):
        commit.data = commit.data.copy()
    elif isinstance(commit, Batch):
        for op in commit.ops:
            if isinstance(op, SetOp):
                op.data = op.data.copy()


class Pending:
    """A commit on its way into the log, and the bed of the thread that waits for it.

    :ivar done: whether its outcome is known; `error`: what went wrong, if anything did.
    """

    __slots__ = ("_asleep", "commit", "done", "error", "line")

    def __init__(self, commit: Commit) -> None:
        self.commit = commit
        self.line = encode_commit(commit)
        self.done = False
        self.error: OpslogError | None = None
        self._asleep = threading.Lock()
        self._asleep.acquire()

    def sleep(self) -> None:
        """Wait for `wake`, which may have come already; look again after a while in any case: the wake may have gone to
        a thread that Ctrl-C took away between queueing and waiting."""
        self._asleep.acquire(timeout=1.0)

    def wake(self) -> None:
        with suppress(RuntimeError):  # woken twice
            self._asleep.release()


class Hooks(NamedTuple):
    """What the owner of a log does on the way of a commit; all of it in the order of the log.

    :ivar written: called for each commit that is in the log, with the commit and the bytes of its line.
    :ivar failed: called once for each group of commits of which some are not, or may not be, in the log.
    :ivar confirm: called with the agent and where an append begins, before anybody is told that it is done; may raise
        what an append may.
    :ivar passes_seal: called with the path of the segment that stands where an append was to be: whether it is a seal,
        which has then been taken in.
    """

    written: Callable[[Commit, int], None]
    failed: Callable[[OpslogError], None]
    confirm: Callable[[str, Position], None]
    passes_seal: Callable[[str], bool]


class LogWriter:
    """Puts commits into one's own log, many threads at once.

    :param buffered: callers do not wait, so a commit may rest on earlier ones that are not written yet: after a failure
        nothing that was queued behind it is written.
    """

    def __init__(self, agent: str, appender: Appender, hooks: Hooks, buffered: bool = False) -> None:
        self.agent = agent
        self._appender = appender
        self._hooks = hooks
        self._buffered = buffered
        self._order = threading.Lock()
        self._flushing = threading.RLock()
        self._queue: list[Pending] = []
        self._writing: list[Pending] = []
        """The group that a flush took from the queue, until its outcome is known."""
        self._broken: OpslogError | None = None
        self._closed = False
        self.queued_bytes = 0

    def queue(self, build: Callable[[], Commit]) -> Pending:
        """Put a commit at the end of the queue. `build` makes it, and takes its clock in the order of the queue.

        :raises ReopenError: an earlier commit had an unknown outcome, so nothing more can be written here.
        :raises ClosedError: closed by another thread meanwhile.
        """
        with self._order:
            return self._append(build)

    @contextmanager
    def quiet(self) -> Iterator[Callable[[Callable[[], Commit]], Pending]]:
        """Inside the block all commits so far are in the log and in memory, and others wait. Gives a `queue` to use
        there."""
        with self._alone():
            while True:
                self._flush()
                with self._order:
                    if not self._queue:
                        yield self._append
                        return

    def wait(self, pending: Pending) -> None:
        """Return when the commit is durable.

        :raises WriteFailedError, AgentFencedError: it is not in the log. :raises CommitUnknownError: it may be.
        """
        while not pending.done:
            if not self._flushing.acquire(blocking=False):
                pending.sleep()
                continue
            try:
                if not pending.done:
                    self._flush()
            finally:
                self._leave()
        if pending.error is not None:
            raise pending.error

    def flush(self) -> None:
        """Write everything queued. Each commit carries its own error, if any."""
        with self._alone():
            self._flush()

    def close(self) -> None:
        """Write what is queued and give the agent's name back. What comes later is refused."""
        with self._alone():
            with self._order:
                self._closed = True
            try:
                self._flush()
            finally:
                self._appender.close()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside the block nobody else writes."""
        self._flushing.acquire()
        try:
            yield
        finally:
            self._leave()

    def _leave(self) -> None:
        """Let others write, and wake one who waits for that. In this order: who comes in between finds the log free."""
        self._flushing.release()
        # A group that was not settled, because of Ctrl-C, waits for somebody to do that.
        for pending in [*self._writing, *self._queue[:1]]:
            pending.wake()

    def _flush(self) -> None:
        if self._writing:
            # Ctrl-C can end a flush at any place, also before it has come to the write.
            unsettled = [pending for pending in self._writing if not pending.done]
            self._settle(unsettled, 0, CommitUnknownError("the write was interrupted"))
        with self._order:
            self._writing, self._queue, self.queued_bytes = self._queue, [], 0
        if self._writing:
            self._write(self._writing)
            self._writing = []

    def _append(self, build: Callable[[], Commit]) -> Pending:
        if self._closed:
            raise ClosedError("this store was closed meanwhile, and nothing was written: open it again")
        if self._broken is not None:
            raise ReopenError(
                f"nothing more can be written: close this store and open it again, because {self._broken}"
            )
        pending = Pending(build())
        self._queue.append(pending)
        self.queued_bytes += len(pending.line)
        return pending

    def _write(self, group: list[Pending]) -> None:
        data = group[0].line if len(group) == 1 else b"".join([pending.line for pending in group])
        # Until it is known better: whatever ends this call early (an interrupt, too) leaves the outcome unknown.
        error: OpslogError | None = CommitUnknownError("the write was interrupted")
        durable = 0
        try:
            if self._broken is not None:
                raise ReopenError(f"close this store and open it again: {self._broken}")
            self._hooks.confirm(self.agent, self._appender.append(data))
            error, durable = None, len(data)
        except WriteFailedError as failed:
            error, durable = failed, failed.durable
        except AgentFencedError as fenced:
            error = self._after_fence(fenced, group)
        except ReopenError as broken:
            error = broken
        finally:
            self._settle(group, durable, error)

    def _after_fence(self, fenced: AgentFencedError, group: list[Pending]) -> OpslogError:
        """Another process made our next segment. If it was a compaction that sealed this log, go on after the seal;
        whatever has a clock already has one that is too small by now."""
        with self._order:
            taken = segment_of(fenced.path)
            if taken is None or not self._hooks.passes_seal(fenced.path):
                return fenced
            self._appender.advance(taken[1])
            group += self._queue
            self._queue, self.queued_bytes = [], 0
        return SealedError(f"{fenced.path} is a seal: the commit has to be stamped anew")

    def _settle(self, group: list[Pending], durable: int, error: OpslogError | None) -> None:
        if self._broken is None and (self._buffered or isinstance(error, ReopenError)):
            self._broken = error
        for pending in group:
            durable -= len(pending.line)
            if durable >= 0:
                self._hooks.written(pending.commit, len(pending.line))
            else:
                assert error is not None
                pending.error = _error_of(error, pending.commit)
            pending.done = True
            pending.wake()
        if error is not None:
            self._hooks.failed(error)


def _error_of(error: OpslogError, commit: Commit) -> OpslogError:
    """The error of one commit of a group: each caller raises an exception of its own."""
    outcome = "may or may not be" if isinstance(error, CommitUnknownError) else "is not"
    return type(error)(f"commit {commit.clock} of {commit.agent!r} {outcome} in the log: {error}")
