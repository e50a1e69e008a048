"""Breakages of what a store owes to its program: errors, signals and threads that come at the wrong moment. They are
like those in `tests.simulation.breakages`."""

from __future__ import annotations

from typing import Any

from opslog.aio import AsyncStore
from opslog.concurrency import locking
from opslog.concurrency.background import Worker
from opslog.errors import OpslogError
from opslog.format.commits import Commit, encode_commit
from opslog.log import writer
from opslog.log.reader import Cursor
from opslog.log.writer import LogWriter, Pending
from opslog.replica.following import Following
from opslog.store import replica_of
from opslog.testing.faults import PAUSE_SECONDS_MAX
from tests.simulation.breakages import Breakage, likely

LONG_AWAY: dict[str, Any] = {
    "agents": 4,
    "documents": 12,
    "compactors": 3,
    "readers": 0,
    "calls": 30,
    "undo_window": 0,
    "tombstone_ttl_seconds": 400.0,
    "think_seconds": 15.0,
    "nap_seconds": 3000.0,
    "weights": {"set": 6, "delete": 6},
}
"""Agents that are away for longer than tombstones are kept, while others delete and compact."""


def _count_when_begun(self: Following, *, by_known: bool = False) -> None:
    """It counts the refresh when it starts, whether or not it comes to its end."""
    self.freshness.read_at = self.environment.monotonic()
    _read_new(self, by_known=by_known)


_read_new = Following._read_new


def _move_cursor_first(self: Following, commits: list[Commit], cursor: Cursor, news: list[Commit]) -> None:
    if commits:
        self.clock.observe(commits[-1].clock)
    self.state.cursors[cursor.agent] = cursor
    if self.news.cursors is self.state.cursors:
        self.news.add(news, cursor)
    self.apply(commits)


def _apply_before_queueing(self: LogWriter, commit: Commit, *conditions: Any) -> Pending:
    if self._buffer is None or self._closed or self._broken is not None:
        return _append(self, commit, *conditions)
    read_at = self.session.freshness.read_at
    pending = Pending(commit, self.session.stamp(commit), read_at)
    self._apply([pending])
    pending.line = encode_commit(commit)
    self._queued_bytes += len(pending.line)
    self._queue.append(pending)
    return pending


_append = LogWriter._append


def _end_unexpectedly(self: Worker, pause: float | None) -> float | None:
    """After an unexpected exception the thread does not run again, and nobody learns of it."""
    try:
        self._work()
    except OpslogError:
        return self._retry_seconds
    except Exception:  # noqa: BLE001  (it is the mistake)
        self._closed = True
    return None


def _always_starts(self: Worker) -> bool:
    with self._starting:
        if self._thread is None and not self._closed:
            self._thread = vars(locking)["threading"].Thread(target=self._run, name=self._name, daemon=True)
            self._started = [self._thread]
            self._thread.start()
    return True


class _Lock:
    """A lock in place of a section: every caller waits."""

    def __init__(self) -> None:
        self.lock = vars(locking)["threading"].Lock()

    @property
    def holder(self) -> None:
        return None

    @holder.setter
    def holder(self, thread: int | None) -> None:
        """It does not remember its holder."""

    def run(self, work: Any, *args: Any) -> Any:
        with self.lock:
            return work(*args)


def _again_and_again(self: Following, work: Any) -> None:
    """It may also be entered again by the same thread."""
    with self._refresh_lock:
        work()


async def _commit_as_it_is(self: AsyncStore[Any], commit: Commit | None) -> None:
    """However long ago it read others' commits."""
    if commit is not None:
        log = replica_of(self).log
        assert log is not None
        pending = log.queue(commit)
        await self._written(pending)
        if pending.error is not None:
            raise pending.error


PROGRAM = [
    Breakage(
        "count a failed refresh",
        Following,
        "_read_new",
        _count_when_begun,
        likely("posix", {"fail": 1}, 300, 9_000, {"fail": "list /store/ops"}, **LONG_AWAY),
        first=5,  # in seed 3 the last compaction fails, too
    ),
    Breakage(
        "move the cursor before its commits are applied",
        Following,
        "_take",
        _move_cursor_first,
        likely("posix", {"interrupt": 1}, 60, 2000, weights={"set": 3, "refresh": 3}),
    ),
    Breakage(
        "apply a buffered commit before it is queued",
        LogWriter,
        "_append",
        _apply_before_queueing,
        likely("posix", {"interrupt": 1}, 60, 1000, buffered=3, weights={"set": 4, "undo": 1}),
    ),
    Breakage(
        "let an unexpected exception end a background thread",
        Worker,
        "_try",
        _end_unexpectedly,
        likely(
            "posix",
            {"no memory": 1},
            8,
            1500,
            {"no memory": "/store/snapshots"},
            compactors=0,
            compact_after=20,
            weights={"set": 1},
        ),
    ),
    Breakage(
        "rely on a thread that could not be started",
        Worker,
        "_start",
        _always_starts,
        likely("posix", {"no threads": 1}, 4, 200, buffered=3, compact_after=20),
    ),
    Breakage(
        "let a signal handler wait for the call that it interrupted",
        writer,
        "Section",
        _Lock,
        likely("posix", {"signal": 1}, 30, 1500, buffered=1),
    ),
    Breakage(
        "refresh in a handler that interrupted a refresh",
        Following,
        "_one_at_a_time",
        _again_and_again,
        likely("s3", {"signal": 1}, 30, 1500, weights={"set": 3, "refresh": 3}),
    ),
    Breakage(
        "write for tasks with an outdated view",
        AsyncStore,
        "_commit",
        _commit_as_it_is,
        likely(
            "posix",
            {},
            threaded=3,
            asynchronous=2,
            leaving=0.0,
            readers=0,
            calls=80,
            nap_seconds=3.0 * PAUSE_SECONDS_MAX,
            weights={"set": 6},
        ),
    ),
]
