"""The contract between opslog and its storages.

A backend is a flat namespace of immutable files under one root, plus one growing log per agent. Everything else
(commits, snapshots, manifests, compaction, garbage collection) is built on these few primitives, so that a new backend
is one short file. `opslog.backends.testing` is the same contract as a test suite.

Paths are relative to the root, use ``/`` and never begin with it: ``manifests/00000000000000000001.json``. An agent's
log is the numbered files ``ops/<agent>/<20 digits>.jsonl`` (`opslog.format.layout.segment_path`). A path has no empty
component, no ``.`` or ``..``, no NUL and no lone surrogate; anything else may stand in it, up to the length that the
storage allows. A name that cannot be a path, an agent or a lock is refused with `opslog.errors.InvalidNameError`.

A backend is safe to use from many threads. After `Backend.close`, and in a forked child, every call raises
`opslog.errors.ClosedError`, except that `close` (of an appender, too) does nothing in a child. Several backends may be
open on one storage, in one process or many: all of them see at once what any of them has written.

A storage raises only the errors of `opslog.errors`. Reading raises `RetryError` where nothing more exact is named
below, writing `WriteFailedError` or `CommitUnknownError`. If the storage that was opened has been replaced by another
one (such as a new directory at the same path), every call except reading a file may raise `ReopenError`, and nothing
was changed.
"""

from __future__ import annotations

import builtins
import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol, runtime_checkable


class Entry(NamedTuple):
    """One file in a listing. `size` in bytes; `modified` in seconds since 1970 by the storage's own clock."""

    path: str
    size: int
    modified: float


class Position(NamedTuple):
    """A position in a log: the number of a segment (from 1) and a byte offset in it, always at a commit boundary."""

    segment: int
    offset: int


class Range(NamedTuple):
    """A part of a file: bytes `start` up to, not including, `stop` (None: to the end)."""

    path: str
    start: int = 0
    stop: int | None = None


# Bytes that can be sliced and searched.
Buffer = bytes | mmap.mmap


class Appender(Protocol):
    """The one live writer of an agent's log. Used by one thread at a time."""

    def append(self, data: bytes) -> Position:
        """Write `data` (whole lines) after everything appended before and return where it begins.

        On return all of it is durable and visible to every reader, within one segment. The first append of an appender
        begins a new segment, numbered one above the highest that exists and the `advance` floor: it never continues a
        file that an earlier session wrote.

        :raises WriteFailedError: only the first ``error.durable`` bytes are in the log (they are durable and visible),
            the rest is not and never will be. The appender stays usable: the next append begins a new segment (or goes
            on in one that is still empty), so that the unfinished line stays behind as a torn tail.
        :raises CommitUnknownError: how much of `data` is in the log is unknown. The appender refuses all further
            appends, with the same error.
        :raises AgentFencedError: another process writes this log, or can; nothing of `data` is in it. Refuses all
            further appends, with the same error, until `advance` names the segment to go on after (if it names one).
        """

    def check_name(self) -> None:
        """Check that nobody else can have the agent's name now, as far as this can be seen without a request. Does
        nothing on storages that hold names by a lock. From any thread.

        :raises AgentFencedError: another process writes this log, or can.
        :raises WriteFailedError: the store no longer exists.
        """

    def advance(self, segment: int) -> None:
        """Promise that the next segment created has a number greater than `segment`."""

    def close(self) -> None:
        """Release the agent's name. Idempotent. Appending afterwards raises `ClosedError`."""


class Subscription(Protocol):
    """A running subscription, as `Announces.subscribe` returns it."""

    @property
    def is_live(self) -> bool:
        """Whether the storage reports writes now. While it does not, for example because its connection is lost, the
        caller has to poll. The function is also called when this changes, and when the backend is closed."""

    def close(self) -> None:
        """End the subscription. Idempotent."""


class Backend(Protocol):
    """A storage that holds one store. See the module's docstring for the common rules."""

    # How messages name this storage.
    url: str

    @property
    def segments_grow(self) -> bool:
        """Whether appends continue the last segment of a log. Where each append is a segment of its own, a segment is
        finished as soon as it is listed."""

    @property
    def requests(self) -> int:
        """How many requests were sent to a server, which may charge for them; 0 where there is none."""

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        """Every file whose path begins with `prefix` and comes after the path `after`, sorted by path (code points).

        `prefix` is empty or ends with ``/``. Everything whose creation (or append) returned before the call is listed.
        Files created or deleted meanwhile may or may not be listed. A missing prefix is an empty list. Temporary files
        of creations under way or interrupted may appear, named by `opslog.format.layout.temporary_path`, and so may the
        storage's own files below ``locks/``.
        """

    def list_logs(self, seen: Mapping[str, int]) -> builtins.list[Entry]:
        """All segments of all logs, as `list` returns them. If it is cheaper, segments of an agent with a smaller
        number than `seen` says may be left out."""

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of a file from `start` (>= 0) up to, not including, `stop`; fewer where the file ends earlier.

        :raises MissingFileError: there is no such file.
        """

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        """Many reads at once, with results in the order of `ranges`; None for a file that does not exist."""

    def map(self, path: str) -> Buffer | None:
        """All bytes of a file (which may be empty), so that parts can be read without reading the whole; None if this
        storage cannot do that. The bytes stay as they are when the file is deleted.

        :raises MissingFileError: there is no such file.
        """

    def create(self, path: str, data: bytes) -> None:
        """Create a file atomically, durably and exclusively.

        Of racing creators exactly one returns; the others raise. On return the file with all its bytes survives a
        crash; nobody ever sees a part of it. After `AlreadyExistsError` the winner's file is visible and durable.

        :raises AlreadyExistsError: the path exists.
        :raises WriteFailedError: nothing was created.
        :raises CommitUnknownError: it may or may not have been created.
        """

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files; those that do not exist are no error. Not atomic over several paths: a crash may undo the
        deletion of any of them, until the call has returned.

        :raises WriteFailedError: some of them may still be there; deleting again is safe.
        """

    def persist(self, paths: Iterable[str]) -> None:
        """Make the visible content of manifests and segments durable: their names, and the bytes that were there before
        the call. Does nothing on storages where everything visible is durable.

        Readers can see a write before the writer's call returns, and until then a power cut can take it back. So call
        this before you make something durable that depends on another process's write.

        :raises MissingFileError: there is no such file (only where there is something to do).
        :raises WriteFailedError: some of it may not be durable.
        """

    def appender(self, agent: str) -> Appender:
        """Become the one live writer of an agent's log, until `Appender.close` or the end of this process. Everything
        visible in that log is durable from then on, even if the process that wrote it has died.

        :raises AgentBusyError: another live appender holds the name; the message names its process and host.
        :raises WriteFailedError: the visible part of the log may not be durable, or there is no way to hold the name.
        """

    def append_at(self, agent: str, end: Position, data: bytes) -> Position | None:
        """Append `data` (whole lines) to a log with many writers, if it still ends at `end`; otherwise nothing happens,
        and the result is None. Returns where `data` begins.

        `end` is the cursor of a reader that has read all of the log: at most a torn tail lies behind it. So nothing
        is between what the caller has read and what it writes. On return all of `data` is durable and visible
        to every reader, within one segment. The existing part of the log was made durable before any of `data` was
        written.

        Where segments grow, the caller waits for the agent's name and holds it alone while it appends, so live
        appenders and calls of this method exclude each other. The append goes on in the segment where the log ends,
        also in one that others began, unless that is full or has a torn tail. Elsewhere the append creates the segment
        ``end.segment``, with one request, and `end` is always at byte 0; an appender then finds its number taken, as by
        any other writer.

        :raises LockedError: another process held the name for a long time, most likely because it is stopped; the
            message names it. Nothing was written.
        :raises WriteFailedError: as of `Appender.append`: only the first ``error.durable`` bytes are in the log.
        :raises CommitUnknownError: how much of `data` is in the log is unknown.
        """

    def is_free(self, agent: str) -> bool:
        """Whether the name was held by no live appender at some moment of this call. Cheaper than taking the name,
        since nothing is made durable; but the call may hold the name for that moment. On storages where nothing holds
        names (object storages): always False."""

    def lock(self, name: str) -> AbstractContextManager[None]:
        """An advisory lock, held inside a ``with`` block and at the longest until this process ends. Does not wait.

        :raises LockedError: on entering, when somebody else (also in this process) holds it.
        """

    def now(self) -> float:
        """The storage's own clock, comparable with `Entry.modified`, in seconds since 1970."""

    def close(self) -> None:
        """Give back what the backend holds. Idempotent. Appenders are closed by their owners, before."""


@runtime_checkable
class ListsWithLogs(Protocol):
    """An optional part of a backend, for storages where it saves a request."""

    def list_with_logs(
        self, prefix: str, after: str, seen: Mapping[str, int]
    ) -> tuple[list[Entry], list[Entry] | None]:
        """The results of `Backend.list` and, listed after it, of `Backend.list_logs`, in one request. None in place of
        the logs if they would take a request of their own."""


@runtime_checkable
class Announces(Protocol):
    """An optional part of a backend, for storages that can report writes. Without it `watch` and `follow` poll."""

    def subscribe(self, changed: Callable[[], None]) -> Subscription | None:
        """Call `changed` whenever something may have been written that can now be read. The calls come at once, from
        any thread, and `changed` must not block. Returns None if this storage cannot report writes after all. Sends
        no request before it returns."""
