"""Writing to one's own log: group commit without a thread of its own.

Callers queue their commits in the order of the clock; the first of them to reach the log writes everything queued with
one append (so one fdatasync, or one PUT). Those who come meanwhile sleep until their commit is written, or until one of
them is woken to write the next group. Buffered commits wait for nobody: a thread writes them after a while.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import accumulate
from typing import NamedTuple

import msgspec

from opslog.backends import Appender, Position
from opslog.background import Worker
from opslog.commits import Commit, encode_commit
from opslog.errors import (
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    OpslogError,
    ReopenError,
    SealedError,
    WriteFailedError,
)
from opslog.layout import segment_of
from opslog.torn import joined

_BUFFER_BYTES_MAX = 8 * 1024 * 1024
"""Beyond this, or twice what a buffer should hold, a buffered call waits for the storage: memory must not grow without
bound where that is slower."""


class Buffer(NamedTuple):
    """How long, and up to how many bytes, commits may wait in memory to be written together."""

    seconds: float
    bytes: int


class Pending(msgspec.Struct, eq=False):
    """A commit on its way into the log.

    :ivar looked: when what it rests on was looked at.
    :ivar done: whether its outcome is known; `error`: what went wrong, if anything did.
    :ivar bed: of the thread that waits for it, if one does.
    """

    commit: Commit
    line: bytes
    looked: float
    done: bool = False
    error: OpslogError | None = None
    bed: threading.Lock | None = None

    def sleep(self) -> None:
        """Wait for `wake`, which may have come already; look again after a while in any case: the wake may have gone to
        a thread that Ctrl-C took away between queueing and waiting.

        The first time this only makes the bed, without which nobody is woken; the caller looks once more before it lies
        down.
        """
        if self.bed is None:
            bed = threading.Lock()
            bed.acquire()
            self.bed = bed
        else:
            self.bed.acquire(timeout=1.0)

    def wake(self) -> None:
        if self.bed is not None:
            with suppress(RuntimeError):  # woken twice
                self.bed.release()


class Hooks(NamedTuple):
    """What the owner of a log does on the way of a commit; all of it in the order of the log.

    :ivar stamp: called with a commit as it is queued, to give it its ts and clock; says when others' commits were last
        looked for.
    :ivar append: called with the lines of a group and the earliest such time among them, to write them; raises what
        `Fence.append` does.
    :ivar written: called with those commits of a group that are in the log, and how many bytes they take.
    :ivar failed: called once for each group of commits of which some are not, or may not be, in the log.
    :ivar pass_seal: called with the number of the segment that stands where an append was to be: the segment to go on
        after, or None where another process writes this log. A seal has been taken in then.
    """

    stamp: Callable[[Commit], float]
    append: Callable[[Appender, bytes, float], Position]
    written: Callable[[list[Commit], int], None]
    failed: Callable[[OpslogError], None]
    pass_seal: Callable[[int], int | None]


class LogWriter:
    """Puts commits into one's own log, many threads at once.

    :param buffer: callers do not wait, so a commit may rest on earlier ones that are not written yet: after a failure
        nothing that was queued behind it is written. None: they wait.
    """

    def __init__(self, agent: str, appender: Appender, hooks: Hooks, buffer: Buffer | None = None) -> None:
        self.agent = agent
        self._appender = appender
        self._hooks = hooks
        self._buffer = buffer
        self._full_bytes = max(_BUFFER_BYTES_MAX, 2 * buffer.bytes) if buffer else math.inf
        self._flusher = Worker("opslog-flush", self.flush, buffer.seconds if buffer else 0.0)
        self._order = threading.Lock()
        self._flushing = threading.RLock()
        self._queue: list[Pending] = []
        self._writing: list[Pending] = []
        """The group that a flush took from the queue, until its outcome is known."""
        self._broken: OpslogError | None = None
        self._closed = False
        self._queued_bytes = 0

    def queue(self, commit: Commit) -> Pending:
        """Put a commit at the end of the queue. It gets its ts, clock and agent there, whatever it came with.

        :raises ReopenError: an earlier commit had an unknown outcome, so nothing more can be written here.
        :raises ClosedError: closed by another thread meanwhile.
        """
        with self._order:
            return self._append(commit)

    @contextmanager
    def quiet(self) -> Iterator[Callable[[Commit], Pending]]:
        """Inside the block all commits so far are in the log and in memory, and others wait. Gives a `queue` to use
        there."""
        with self._alone():
            while True:
                self._flush()
                with self._order:
                    if not self._queue:
                        yield self._append
                        return

    def finish(self, pending: Pending) -> None:
        """Return when the commit is durable, or, with a buffer, when there is room for it; errors as of `wait`."""
        if self._buffer is None:
            self.wait(pending)
        elif self.is_full:
            self.flush()
        else:
            self._flusher.wake(hurry=self._queued_bytes >= self._buffer.bytes)

    @property
    def is_full(self) -> bool:
        """Whether a buffered call has to wait for the storage."""
        return self._queued_bytes >= self._full_bytes

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
        self._flusher.close()

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
            self._writing, self._queue, self._queued_bytes = self._queue, [], 0
        if self._writing:
            self._write(self._writing)
            self._writing = []

    def _append(self, commit: Commit) -> Pending:
        if self._closed:
            raise ClosedError("this store was closed meanwhile, and nothing was written: open it again")
        if self._broken is not None:
            raise ReopenError(
                f"nothing more can be written: close this store and open it again, because {self._broken}"
            )
        commit.agent = self.agent
        looked = self._hooks.stamp(commit)
        pending = Pending(commit, encode_commit(commit), looked)
        self._queue.append(pending)
        self._queued_bytes += len(pending.line)
        return pending

    def _write(self, group: list[Pending]) -> None:
        for pending in group[1:]:
            pending.line = joined(pending.line)
        data = group[0].line if len(group) == 1 else b"".join([pending.line for pending in group])
        # Until it is known better: whatever ends this call early (an interrupt, too) leaves the outcome unknown.
        error: OpslogError | None = CommitUnknownError("the write was interrupted")
        durable = 0
        try:
            if self._broken is not None:
                raise ReopenError(f"close this store and open it again: {self._broken}")
            self._hooks.append(self._appender, data, group[0].looked)
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
            try:
                after = self._hooks.pass_seal(taken[1]) if taken else None
            except WriteFailedError as error:
                return error
            if after is None:
                return fenced
            self._appender.advance(after)
            group += self._queue
            self._queue, self._queued_bytes = [], 0
        return SealedError(f"{fenced.path} is a seal: the commit has to be stamped anew")

    def advance(self, segment: int) -> None:
        """The next segment is to have a number greater than `segment`. To be called in a `quiet` block. Changes nothing
        where nothing can be written any more."""
        if self._broken is None and not self._closed:
            with suppress(AgentFencedError):  # it goes on raising that, until it is told of a segment behind its own
                self._appender.advance(segment)

    def _settle(self, group: list[Pending], durable: int, error: OpslogError | None) -> None:
        if self._broken is None and (self._buffer or isinstance(error, ReopenError)):
            self._broken = error
        written = len(group) if error is None else _whole_lines(group, durable)
        self._hooks.written([pending.commit for pending in group[:written]], durable)
        if error is not None:
            for pending in group[written:]:
                pending.error = _error_of(error, pending.commit)
        for pending in group:
            pending.done = True
            pending.wake()
        if error is not None:
            self._hooks.failed(error)


def _whole_lines(group: list[Pending], durable: int) -> int:
    """How many lines of the group are in its first `durable` bytes."""
    return sum(end <= durable for end in accumulate(len(pending.line) for pending in group))


def _error_of(error: OpslogError, commit: Commit) -> OpslogError:
    """The error of one commit of a group: each caller raises an exception of its own."""
    outcome = "may or may not be" if isinstance(error, CommitUnknownError) else "is not"
    return type(error)(f"commit {commit.clock} of {commit.agent!r} {outcome} in the log: {error}")
