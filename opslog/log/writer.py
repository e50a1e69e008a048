"""Writing to one's own log: group commit without a thread of its own.

Callers queue their commits in the order of the clock. The first caller that reaches the log writes everything queued
with one append (so one fdatasync, or one PUT). Callers that arrive meanwhile sleep until their commit is written, or
until one of them is woken to write the next group. Nobody waits for buffered commits: a thread writes them after a
while.

Invariants whenever no call is in progress:

1. The queue, the clock and the log have the same order. A commit is stamped and queued in one step.
2. A commit is applied to memory once, in that order: when it is in the log, or, with a buffer, when it is queued.
3. A commit is done, and its caller knows its outcome, after it is in memory.
4. With a buffer, nothing is written behind a commit that was lost. Acknowledged commits that are not yet in the log
   take less than two buffers, not counting what `joined` adds to a line.

If an exception ends a call anywhere, even one from a signal handler, the four hold again before the call is left. If a
second exception comes meanwhile, they hold when the next call begins. Then a commit that was not queued has not
happened. One that was queued is written later (with a buffer, by the thread), unless it was on its way to the storage:
its outcome is unknown, and nothing more is written here. A call from a handler that interrupted one of the two sections
is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from opslog.concurrency.background import Worker
from opslog.concurrency.exiting import is_ending
from opslog.concurrency.locking import Bell, Section, reentered, sleep, wake
from opslog.errors import (
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    OpslogError,
    ReopenError,
    SealedError,
    WriteFailedError,
)
from opslog.format.commits import Commit, Undo
from opslog.format.torn import joined
from opslog.log.reader import SEGMENT_COST
from opslog.log.session import WriterSession
from opslog.logs import logger

R = TypeVar("R")


class Buffer(NamedTuple):
    """How long, and up to how many bytes, commits may wait in memory to be written together."""

    seconds: float
    bytes: int


class Pending(msgspec.Struct, eq=False):
    """A commit on its way into the log.

    :ivar read_at: when the data that it rests on was read.
    :ivar applied: whether it is in memory.
    :ivar done: whether its outcome is known.
    :ivar error: the error that it ended with, if any.
    :ivar bell: of the thread that waits for it, if one does.
    """

    commit: Commit
    line: bytes
    read_at: float
    applied: bool = False
    done: bool = False
    error: OpslogError | None = None
    bell: Bell | None = None

    def end(self, error: OpslogError | None = None) -> None:
        """Record that its outcome is known."""
        self.error = self.error or error
        self.done = True
        wake(self)


class Group(msgspec.Struct):
    """Commits that go into the log together, and their progress, so that an interrupted group can be finished.

    :ivar step: "taken": nothing was tried. "appending": it is unknown what is in the log. "fenced": none of it is in
        the log, since another writer's segment stands there (`fence`), and it is still to be found out what that is.
        "ended": it is known what is in the log.
    :ivar size: about how many bytes they take.
    :ivar lines: their lines as written to the log.
    :ivar durable: how many bytes of them are there.
    :ivar error: the reason if that is not all.
    :ivar segments: how many segments they begin.
    """

    pendings: list[Pending]
    size: int
    step: Literal["taken", "appending", "fenced", "ended"] = "taken"
    lines: list[bytes] = []
    fence: AgentFencedError | None = None
    durable: int = 0
    error: OpslogError | None = None
    segments: int = 0

    def data(self) -> bytes:
        lines = self.lines = [pending.line for pending in self.pendings]
        if len(lines) == 1:
            return lines[0]
        lines[1:] = map(joined, lines[1:])
        return b"".join(lines)

    def end(self, error: OpslogError | None, durable: int) -> None:
        # A copy has neither a traceback nor a cause. The error may be kept as long as the store, and the frames of a
        # traceback keep their objects alive, such as the open directory.
        self.error, self.durable, self.step = error and copy(error), durable, "ended"

    @property
    def written(self) -> list[Pending]:
        """The commits whose lines are wholly in the log."""
        if self.error is None:
            return self.pendings
        return self.pendings[: sum(end <= self.durable for end in accumulate(map(len, self.lines)))]


class Memory(Protocol):
    """The log's content in its owner's memory: the only interface through which a `LogWriter` calls its owner.

    Without it the owner would apply commits too late. The leading thread writes the commits of all other threads, and
    each of these may return as soon as its own commit is in the log. So only the leader can apply all commits to memory
    before that, and in their order.
    """

    # How often documents may have become guarded. Counted up before the clock observes the commit that guards them, and
    # before an undo comes in that may give a transaction's record back.
    guards: int

    def apply(self, commits: Iterable[Commit]) -> None:
        """Apply the next commits of the log. If this ends early, the memory has to be loaded again."""

    def invalidate(self) -> None:
        """Note that the memory has to be loaded again: its commits get other stamps, or it is unknown which ones."""

    def appended(self, cost: int) -> None:
        """Note that the log has grown, and that reading the new part costs this much
        (`opslog.log.reader.cost_after`)."""


class LogWriter:
    """Puts commits into one's own log, many threads at once.

    :param session: of this log; closed by `close`.
    :param memory: the log's content in memory.
    :param buffer: callers do not wait, so a commit may rest on earlier ones that are not written yet: after a failure
        no commit that was queued behind it is written. None: callers wait. At the end of the program nothing is
        buffered.
    """

    def __init__(self, session: WriterSession, memory: Memory, buffer: Buffer | None = None) -> None:
        self.session = session
        self.agent = session.agent
        self._memory = memory
        self._buffer = buffer
        self._flusher = Worker(
            "opslog-flush",
            self.flush,
            what="writing what is buffered",
            subject="log",
            delay_seconds=buffer.seconds if buffer else 0.0,
        )
        # Entered before `_queueing`, never inside it. The thread inside writes to the log, and owns `_group`.
        self._alone = Section()
        self._queueing = Section()
        self._queue: list[Pending] = []
        self._queued_bytes = 0
        # The group taken from the queue, until its outcome is known.
        self._group: Group | None = None
        self._broken: OpslogError | None = None
        # With a buffer, the reason why nothing more can be written: memory has commits that the log does not have, or
        # may not have. None while writing is possible.
        self.failure: OpslogError | None = None
        self._closed = False
        self._at_once = is_ending()

    def check_entry(self) -> None:
        """:raises UsageError: a signal handler interrupted the calling thread in here, and now calls."""
        me = threading.get_ident()
        if me in (self._alone.holder, self._queueing.holder):
            raise reentered()

    def check_writable(self) -> None:
        """Check that the log has everything that is in memory. Costs no request.

        :raises ReopenError: an earlier commit had an unknown outcome.
        :raises AgentFencedError: as in `Appender.check_name`.
        :raises WriteFailedError: as in `Appender.check_name`.
        """
        self._check_unbroken()
        self.session.check_name()

    def queue(self, commit: Commit, guards: int | None = None) -> Pending:
        """Put a commit at the end of the queue, where it gets its ts, clock and agent, whatever it had before.

        :param guards: the value of `Memory.guards` when no document of the commit was found to be guarded.
        :raises SealedError: `Memory.guards` has changed, so a document may be guarded now; nothing was queued.
        :raises ReopenError: an earlier commit had an unknown outcome, so nothing more can be written here.
        :raises ClosedError: closed by another thread meanwhile.
        :raises UsageError: as in `encode_commit`, or as in `check_entry`; nothing was queued.
        :raises CorruptError: as in `encode_commit`; nothing was queued.
        """
        me, section = threading.get_ident(), self._queueing
        if me in (self._alone.holder, section.holder):
            raise reentered()
        with section.lock:  # as `Section.run`, without its calls, which every set would make
            try:
                section.holder = me
                pending = self._append(commit, guards)
            finally:
                section.holder = None
        return pending

    def quiet(self, work: Callable[[Callable[[Commit], Pending]], R]) -> R:
        """The result of `work`, called when all commits so far are in the log and in memory, while others wait. Its
        argument is a `queue` to use there."""
        result: R = self._run_alone(self._when_quiet, work)
        return result

    def finish(self, pending: Pending) -> None:
        """Return when the commit is durable; or, with a buffer, when the buffer has room for it. Errors as in
        `wait`."""
        buffer = self._buffer
        if buffer is None:
            self.wait(pending)
            return
        is_due = self._queued_bytes >= buffer.bytes
        if self._at_once or not self._flusher.wake(is_due):
            self.wait(pending)  # otherwise nobody would write it, nor report that it failed
        elif (is_due or self._group is not None) and self.is_full:
            self._run_alone(self._make_room)

    @property
    def is_queueing(self) -> bool:
        """Whether `queue` has to wait for another thread. In there, a load may read from the storage."""
        return self._queueing.holder is not None

    @property
    def is_settled(self) -> bool:
        """Whether the outcome of all commits is known."""
        return self._group is None and not self._queue

    @property
    def is_closed(self) -> bool:
        """Whether it is closed for good. A `close` that was interrupted may have left commits."""
        return self._closed and self.is_settled

    @property
    def is_full(self) -> bool:
        """Whether a buffered call has to wait for the storage: one buffer is being written, and another one waits."""
        # Read the queue first: commits that are being taken from it then count twice instead of not at all.
        queued, group, buffer = self._queued_bytes, self._group, self._buffer
        unwritten = queued if group is None else queued + group.size
        return buffer is not None and unwritten >= 2 * buffer.bytes

    def wait(self, pending: Pending) -> None:
        """Return when the commit is durable.

        :raises WriteFailedError: it is not in the log.
        :raises AgentFencedError: it is not in the log.
        :raises CommitUnknownError: it may be in the log.
        """
        while not pending.done:
            if self._alone.holder is None:
                self._run_alone(self._flush_for, pending)
            else:
                sleep(pending)
        if pending.error is not None:
            raise pending.error

    def flush(self) -> None:
        """Write everything queued. Each commit carries its own error, if any."""
        self._run_alone(self._flush)

    def write_at_once(self) -> None:
        """Make callers write buffered commits themselves from now on, before their calls return."""
        self._at_once = True

    def close(self) -> None:
        """Write everything queued and give the agent's name back. Later calls are refused. Idempotent."""
        self._run_alone(self._close)
        self._flusher.close()

    # -- inside `_alone`

    def _run_alone(self, work: Callable[..., R], *args: Any) -> R:
        self.check_entry()  # the thread in `_alone` may be waiting for a lock that this thread holds
        try:
            result: R = self._alone.run(work, *args)
        finally:
            # A thread that arrived meanwhile sleeps, or finds the log free. An unsettled group also waits for a thread.
            group = self._group  # another thread may settle it meanwhile
            for pending in [*(group.pendings if group is not None else ()), *self._queue[:1]]:
                wake(pending)
        return result

    def _when_quiet(self, work: Callable[[Callable[[Commit], Pending]], R]) -> R:
        results: list[R] = []
        while not results:
            self._flush()
            self._queueing.run(self._if_quiet, work, results)
        return results[0]

    def _if_quiet(self, work: Callable[[Callable[[Commit], Pending]], R], results: list[R]) -> None:
        if not self._queue:
            results.append(work(self._append))

    def _flush_for(self, pending: Pending) -> None:
        if not pending.done:
            self._flush()

    def _make_room(self) -> None:
        """Write the group that was under way; if that does not make enough room, write the next."""
        if self.is_full:
            self._flush()

    def _close(self) -> None:
        self._closed = True
        try:
            try:
                self._flush()
            except BaseException:
                self._flush()  # an interrupt came into the first
                raise
        finally:
            # In this order: nothing can be written any more when the buffer is given up.
            self.session.close()
            self._queueing.run(self._abandon)

    def _abandon(self) -> None:
        """Give up on commits that exceptions kept from being written, each time that `close` tried to."""
        self._settle_interrupted()
        lost = [*(self._group.pendings if self._group is not None else ()), *self._queue]
        if lost and self._buffer is not None and self.failure is None:
            self.failure = WriteFailedError(
                f"the buffer of agent {self.agent!r} is not in the log (commits: {len(lost)}), because `close` was "
                "interrupted each time that it tried to write it: open the store again, and repeat these writes"
            )
            logger("log").error("buffered commits were not written: %s", self.failure)
        for pending in lost:
            pending.end(ClosedError(f"commit {pending.commit.clock} of {self.agent!r} was not written: {_CLOSED}"))
        self._group, self._queue, self._queued_bytes = None, [], 0

    def _flush(self) -> None:
        try:
            if self._group is not None:
                self._settle_interrupted()
                self._write_group()  # an interrupted call had taken the group, and no more
            self._queueing.run(self._take)
            self._write_group()
        except BaseException:
            self._settle_interrupted()
            raise

    def _write_group(self) -> None:
        group = self._group
        if group is None:
            return
        while group.pendings and group.step != "ended":
            if group.step == "taken":
                self._try_append(group)
            else:
                self._pass_seal(group)
        self._settle(group)

    def _try_append(self, group: Group) -> None:
        try:
            if self._broken is not None:
                raise ReopenError(f"close this store and open it again: {self._broken}")
            data = group.data()
            group.step = "appending"
            position = self.session.append(data, group.pendings[0].read_at)
            group.segments = 1 if position.offset == 0 else 0
            group.end(None, len(data))
        except WriteFailedError as failed:
            group.end(failed, failed.durable)
        except AgentFencedError as fenced:
            group.fence, group.step = fenced, "fenced"
        except ReopenError as broken:
            group.end(broken, 0)
        except ClosedError as closed:  # an interrupted `close` left these commits
            group.end(WriteFailedError(str(closed)), 0)

    def _pass_seal(self, group: Group) -> None:
        """Find out who made the next segment. If it was a compaction that sealed this log, continue after the seal."""
        assert group.fence is not None
        try:
            passage = self.session.pass_seal(group.fence)
            try:
                self._memory.apply(passage.seals)
                self.session.go_on(passage)
            except BaseException:
                self._memory.invalidate()  # the next attempt may apply them again
                raise
            self._queueing.run(self._move_behind, group, passage.clock)
        except AgentFencedError as error:
            group.end(error, 0)
        except OpslogError as error:
            group.end(WriteFailedError(f"going on after {group.fence.path} failed: {error}"), 0)

    def _settle(self, group: Group) -> None:
        """Note the outcome of a group and wake all waiters. Each step may be done twice."""
        error, written = group.error, group.written
        if self._broken is None and error is not None and (self._buffer is not None or isinstance(error, ReopenError)):
            self._broken = error
        if self._buffer is None:
            self._apply(written)
        elif error is not None:
            self.failure = self._broken
            logger("log").error("buffered commits were not written: %s", error)
        if error is not None:
            for pending in group.pendings[len(written) :]:
                pending.end(_error_of(error, pending.commit))
        for pending in written:
            pending.done = True  # as in `end`: set this first, or a waiter may miss it
            if pending.bell is not None:
                wake(pending)
        self._group = None
        self._memory.appended(group.durable + SEGMENT_COST * group.segments)

    def _settle_interrupted(self) -> None:
        """Settle the group of a call that ended early: with its outcome, if that was known, and as unknown if the
        append was under way."""
        group = self._group
        if group is not None and group.step == "appending":
            group.end(CommitUnknownError("the write was interrupted"), 0)
        if group is not None and group.step == "ended":
            self._settle(group)

    # -- inside `_queueing`

    def _append(self, commit: Commit, guards: int | None = None) -> Pending:
        if self._closed:
            raise ClosedError(f"nothing was written: {_CLOSED}")
        if self._broken is not None:
            self._check_unbroken()
        if self._buffer is not None and not self._flusher.is_awake and not self._at_once:
            # Before the commit is queued: an exception may then end the call anywhere, and the commit is written all
            # the same. The thread has to wait for this section before it takes the queue.
            self._flusher.wake()
        if self._queue and not self._queue[-1].applied:
            self._apply_last()
        read_at = self.session.freshness.read_at
        pending = Pending(commit, self.session.stamp(commit), read_at)
        # Compared after the stamp: an earlier change is counted by now, and a later one gets a greater clock.
        if guards is not None and guards != self._memory.guards:
            raise SealedError("transactions came in meanwhile, and one may have written what this commit writes")
        try:
            self._queued_bytes += len(pending.line)
            self._queue.append(pending)
            if self._buffer is not None:
                self._memory.apply(self._not_applied([pending]))
        except BaseException:
            self._apply_last()
            raise
        return pending

    def _check_unbroken(self) -> None:
        if self._broken is not None:
            raise ReopenError(
                f"nothing more can be written: close this store and open it again, because {self._broken}"
            )

    def _apply_last(self) -> None:
        """With a buffer, everything queued is in memory, except the last commit if it was interrupted just then."""
        if self._buffer is not None and self._queue and not self._queue[-1].applied:
            self._apply(self._queue[-1:])

    def _apply(self, pendings: list[Pending]) -> None:
        """Put commits into memory, each once."""
        self._memory.apply(self._not_applied(pendings))

    def _not_applied(self, pendings: list[Pending]) -> Iterator[Commit]:
        """The commits that are not in memory yet. Each is noted as applied when it is taken: if an exception ends the
        taking after that, the memory has to be loaded again."""
        memory = self._memory
        for pending in pendings:
            if not pending.applied:
                pending.applied = True
                if type(pending.commit) is Undo and memory.guards:
                    memory.guards += 1  # what it gives back may be from a transaction
                yield pending.commit

    def _take(self) -> None:
        if self._queue:
            self._apply_last()
            group = Group(self._queue, self._queued_bytes)
            self._group, self._queue, self._queued_bytes = group, [], 0

    def _move_behind(self, group: Group, clock: int) -> None:
        """Stamp the commits of a group that goes behind a seal with this clock. A commit keeps its own clock if that is
        greater: with one above everything read since, it would outrank transactions that it does not rest on. An undo
        does not go there: the commit that it takes back came before the seal, which ends the undo window."""
        group.size += self._queued_bytes
        group.pendings, self._queue, self._queued_bytes = group.pendings + self._queue, [], 0
        if self._buffer is not None:
            self._memory.invalidate()
        kept = []
        for pending in group.pendings:
            if isinstance(pending.commit, Undo):
                pending.end(SealedError("a seal came first, and what is in front of it cannot be undone"))
                continue
            if pending.commit.clock <= clock:
                # A copy: memory may have the original until it is loaded again.
                commit = msgspec.structs.replace(pending.commit)
                line = self.session.stamp(commit, clock)
                pending.commit, pending.line = commit, line
            clock = pending.commit.clock
            kept.append(pending)
        group.size = sum(len(pending.line) for pending in kept)
        group.pendings, group.step = kept, "taken"


_CLOSED = "this store was closed meanwhile: open it again"


def _error_of(error: OpslogError, commit: Commit) -> OpslogError:
    """The error of one commit of a group: each caller raises an exception object of its own."""
    outcome = "may or may not be" if isinstance(error, CommitUnknownError) else "is not"
    own = error.reworded(f"commit {commit.clock} of {commit.agent!r} {outcome} in the log: {error}")
    if isinstance(own, WriteFailedError):
        own.durable = 0  # the group's number, of which this commit is no part
    return own
