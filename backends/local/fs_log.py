"""Writing one agent's log in a directory: numbered segments, one process, each append on disk when it returns.

`opslog.backends.local.fs` says what is guaranteed. Two locks hold an agent's name:

- that of the file ``locks/agents/<agent>.lock``, from opening to closing. It keeps others out, and says who is here;
- that of the newest segment, likewise; before a new segment is begun its predecessor is still locked, and it is locked
  itself before its predecessor is let go of.

Somebody may remove ``locks/`` ("stale locks"), and then another process gets the first. It does not get the second, so
no log ever has two writers, also if one of them is paused between two system calls: what is written to the newest
segment is written by the one who holds it, and a number is created once. An appender that finds its lock file gone
refuses to go on, because no other process can find out any more who it is.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from enum import Enum
from typing import NoReturn, Protocol

from opslog.backends import forking, posix
from opslog.backends.contract import Position
from opslog.backends.local import flock
from opslog.backends.local.tree import OpenFile, Tree
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    MissingFileError,
    OpslogError,
)
from opslog.format.layout import OPS, segment_of, segment_path
from opslog.format.torn import sound_length

_NOT_COMMITTED = "nothing of this append is in the log"
_INTERRUPTED = (
    CommitUnknownError,
    "an earlier append was interrupted: close the store, open it again, and check which commits are there",
)


_END = os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK

# How much of what follows a position is read first: a line, most likely.
_CHUNK_BYTES = 64 * 1024


class _Segment(Enum):
    """Where the file that an appender writes is found now."""

    IN_PLACE = "in place"
    DELETED = "deleted"
    # It is somewhere else, with one of the directories above it, or another file is in its place.
    MOVED = "moved"


class Directory(Protocol):
    """What an appender needs of the backend that made it."""

    root: str
    url: str
    segment_bytes: int

    def tree(self) -> Tree: ...
    def open_new(self, tree: Tree, path: str, file: forking.Descriptor) -> None: ...
    def sync_above(self, path: str) -> None: ...
    def persist(self, paths: Iterable[str]) -> None: ...
    def sync_directory(self, directory: str) -> None: ...
    def write_failed(self, path: str, error: OSError, outcome: str, durable: int = 0) -> OpslogError: ...


def goes_on(backend: Directory, agent: str, end: Position) -> bool:
    """Whether somebody has appended to a log after `end`, in its segment. Where that cannot be found out: False."""
    tree, path = backend.tree(), segment_path(agent, end.segment)
    try:
        found = posix.read_range(tree.checked(path), end.offset, end.offset + _CHUNK_BYTES, tree.descriptor)
    except OSError:
        return False
    return _begins_with_line(found)


def _has_line(descriptor: int, start: int, size: int) -> bool:
    """Whether there is a line after `start` in an open segment, and not only a torn tail."""
    if size == start:
        return False
    found = posix.read_open(descriptor, start, min(start + _CHUNK_BYTES, size))
    return _begins_with_line(found) or sound_length(posix.read_open(descriptor, start, size)) > 0


def _begins_with_line(data: bytes) -> bool:
    return b"\n" in data.partition(b"\0")[0]


class FsAppender(forking.BoundAppender):
    """The appender of `FsBackend`.

    :param lock: holds the lock of the file `lock_path`; the appender releases it.
    """

    def __init__(self, backend: Directory, agent: str, lock_path: str, lock: forking.Descriptor) -> None:
        self._backend = backend
        self._agent = agent
        self._lock = lock
        self._lock_path = f"{backend.root}/{lock_path}"
        self._lock_file = OpenFile(self._lock_path, lock.number)
        super().__init__()
        # Why no append is possible any more, None while all is well.
        self._refusal: tuple[type[OpslogError], str] | None = None
        self._floor = 0
        # Of the newest segment; 0 where there was none yet.
        self._number = 0
        # Holds the lock of the newest segment; closed where there is none.
        self._segment = forking.Descriptor()
        # Where that is.
        self._file: OpenFile | None = None
        # Whether the next append goes on in the newest segment; otherwise it begins one.
        self._continues = False
        # Whether an earlier session's newest segment was opened for writing.
        self._is_writable = True
        # Whether it was opened so that each write goes to its end, whoever wrote there last.
        self._is_shared = False
        self._offset = 0

    def settle(self, newest: int = 0) -> None:
        """Lock the newest segment.

        :param newest: which one that is by what the caller has read, if it has: then one listing is enough.
        :raises AgentBusyError: a process that has lost its lock file is still writing this log.
        :raises OSError: the log cannot be opened.
        """
        number = newest or self._highest_number()
        while number > self._number:
            with suppress(FileNotFoundError):  # compacted and collected since
                self._open_end(number)
            # Until it was locked the next one may have been begun, by a process whose lock file was removed.
            number = self._highest_number()

    def rest(self) -> bool:
        """Give the name back, and keep the files open for `resume`. Idempotent. False where they are closed instead."""
        if self._is_forked or self._refusal is not None or not self._is_shared:
            self.close()
            return False
        try:
            self._abandon_segment()
            flock.unlock(self._segment)
            flock.unlock(self._lock)
        except BaseException:
            self.close()
            raise
        return True

    def resume(self, newest: int) -> bool:
        """Become the writer again after `rest`, if that can be done without another appender. Otherwise, and after any
        error but LockedError, it has to be closed.

        :param newest: as of `settle`.
        :raises LockedError: somebody else has the name. It still rests.
        """
        flock.take_again(self._lock, self._lock_path, f"agents/{self._agent}")
        if not flock.try_lock(self._segment, f"{self._backend.root}/{self._path}"):
            return False
        # Nobody can begin the next segment now. Whoever did, before this one was locked, left it there: it may be
        # collected only after a compaction that every reader of this position knows (`opslog.log.freshness`).
        return newest == self._number and self._where() is _Segment.IN_PLACE and not self._has_next()

    def make_durable(self) -> None:
        """Make durable what an earlier session left: it may have been killed between a write and its fdatasync."""
        if self._number:
            with suppress(MissingFileError):  # compacted and collected since
                self._backend.persist([self._path])

    def append(self, data: bytes) -> Position:
        if self._refusal is not None or self._is_forked:
            self._refuse()
        self._keep_name()
        descriptor = self._segment.number
        # A file without a name is in no log: the directory was removed, or somebody deleted the segment.
        if not self._continues or self._offset >= self._backend.segment_bytes or not posix.has_name(descriptor):
            self._begin_segment()
            descriptor = self._segment.number
        # Stands if anything but a clean end or a clean failure follows, such as KeyboardInterrupt.
        self._refusal = _INTERRUPTED
        try:
            posix.write_all(descriptor, data)
        except OSError as error:
            raise self._after_failed_write(error) from error
        try:
            posix.datasync(descriptor)
            place = self._where()
        except OSError as error:
            raise self._unknown(posix.explain(error)) from error
        if place is not _Segment.IN_PLACE:
            raise self._lost(place)
        position = Position(self._number, self._offset)
        self._offset += len(data)
        self._refusal = None
        return position

    def append_at(self, end: Position, data: bytes) -> Position | None:
        """What `Backend.append_at` does, by an appender that has done nothing since it has the name."""
        if self._number > end.segment or (self._number < end.segment and end.offset):
            return None
        is_there = self._number == end.segment
        try:
            status = os.fstat(self._segment.number) if self._number else None
            size = status.st_size if status else 0
            if is_there and (size < end.offset or _has_line(self._segment.number, end.offset, size)):
                return None
        except OSError as error:
            raise self._backend.write_failed(self._path, error, _NOT_COMMITTED) from error
        if status and flock.note(self._lock) != self._durable_up_to(status, size):
            self.make_durable()
        if is_there and size == end.offset and self._is_writable:
            self._continues, self._offset = True, size
        self.advance(end.segment - 1)
        position = self.append(data)
        with suppress(OSError):
            flock.write_note(self._lock, self._durable_up_to(os.fstat(self._segment.number), self._offset))
        return position

    def _durable_up_to(self, status: os.stat_result, size: int) -> str:
        """A note on the lock: this segment is durable up to there, with its name. In a copy of the store the file is
        another one."""
        return f"durable {self._number:020d} {size:020d} {status.st_dev} {status.st_ino}"

    def advance(self, segment: int) -> None:
        if self._refusal is not None or self._is_forked:
            self._refuse()
        self._floor = max(self._floor, segment)

    def close(self) -> None:
        if self._is_forked:
            return
        self._abandon_segment()
        self._refusal = ClosedError, f"the log of agent {self._agent!r} is closed: open the store again"
        try:
            flock.release(self._segment)
        finally:
            flock.release(self._lock)

    def _refuse(self) -> NoReturn:
        self._check_open()
        assert self._refusal is not None
        kind, message = self._refusal
        raise kind(message)

    # -- the name, and where the log is

    def check_name(self) -> None:
        if (reason := self._loss_of_name()) is not None:
            raise AgentFencedError(self._message(reason))

    def _keep_name(self) -> None:
        """Go on only while nobody else can have taken the name; errors as of `check_name`."""
        if (reason := self._loss_of_name()) is not None:
            raise self._fenced(reason)

    def _loss_of_name(self) -> str | None:
        """Why another process can have taken the name; None: none can.

        :raises WriteFailedError: there is no store to be found.
        """
        try:
            if self._lock_file.is_in_place():
                return None
            return self._loss_of_directory() or "its lock file was removed or replaced"
        except OSError as error:
            raise self._backend.write_failed("", error, _NOT_COMMITTED) from error

    def _loss_of_directory(self) -> str | None:
        """Likewise where another directory stands at the store's path.

        :raises OSError: none does.
        """
        tree = self._backend.tree()
        if not tree.is_replaced():
            return None
        return f"another directory stands at {tree.path}, and its lock file was removed from there"

    def _where(self) -> _Segment:
        """:raises OSError: it cannot be found out."""
        assert self._file is not None
        if self._file.is_in_place():
            return _Segment.IN_PLACE
        return _Segment.MOVED if posix.has_name(self._segment.number) else _Segment.DELETED

    def _highest_number(self) -> int:
        tree = self._backend.tree()
        try:
            names = posix.names(tree.checked(f"{self._directory}/")[:-1], tree.descriptor)
        except FileNotFoundError:
            return 0
        found = (segment_of(f"{self._directory}/{name}") for name in names)
        return max((segment[1] for segment in found if segment), default=0)

    def _has_next(self) -> bool:
        """Whether the log goes on in another segment: numbers have no gaps."""
        try:
            os.lstat(segment_path(self._agent, self._number + 1), dir_fd=self._backend.tree().descriptor)
        except FileNotFoundError:
            return False
        return True

    # -- segments

    def _begin_segment(self) -> None:
        """Leave the current segment as it is and make the next one, empty, with its directory entry on disk."""
        self._abandon_segment()
        backend, tree = self._backend, self._backend.tree()
        segment = forking.Descriptor()
        path, number = "", 0
        try:
            highest = self._highest_number()
            if highest > self._number:
                raise self._fenced(f"it created {segment_path(self._agent, highest)}")
            self._keep_name()
            if (reason := self._loss_of_directory()) is not None:  # a copy of hard links has the same lock file
                raise self._fenced(reason)
            number = max(self._number, self._floor) + 1
            path = segment_path(self._agent, number)
            backend.open_new(tree, path, segment)
            if not flock.try_lock(segment, f"{backend.root}/{path}"):
                raise self._fenced(f"it has locked {path}")
            self._keep_name()  # nobody had it between the creation and the lock
            backend.sync_above(path)
            backend.sync_directory(self._directory)
            self._hold(number, segment)
            self._continues = True
        except AgentFencedError:
            raise
        except FileExistsError:
            raise self._fenced(f"it created {path}") from None
        except BaseException as error:
            if segment.number >= 0 and segment is not self._segment:
                self._take_back(number, segment)
            self._continues = False
            if isinstance(error, OSError):
                raise backend.write_failed(path or self._directory, error, _NOT_COMMITTED) from error
            raise
        finally:
            if self._segment is not segment:
                segment.close()

    def _take_back(self, number: int, segment: forking.Descriptor) -> None:
        """Remove a segment that could not be begun. Nobody can have seen a byte in it.

        Only while it is locked and the newest: nobody begins the next one then. Where somebody has, whose lock file was
        removed meanwhile, the log would have a gap. If it stays, it is an empty segment, which every log may have.

        :raises AgentFencedError: somebody else has it locked.
        """
        path, tree = segment_path(self._agent, number), self._backend.tree()
        if not flock.try_lock(segment, f"{self._backend.root}/{path}"):
            raise self._fenced(f"it has locked {path}")
        try:
            if self._highest_number() == number:
                os.unlink(tree.checked(path), dir_fd=tree.descriptor)
        except (OSError, MemoryError):
            """Whether it was removed all the same, its number of names shows."""
        finally:
            if posix.has_name(segment.number):
                self._hold(number, segment)

    def _open_end(self, number: int) -> None:
        """Open and lock the newest segment, as an earlier session left it."""
        tree, path = self._backend.tree(), segment_path(self._agent, number)
        full = f"{self._backend.root}/{path}"
        segment = forking.Descriptor()
        try:
            try:
                # Writable, because on NFS an flock becomes a record lock, which needs it.
                segment.open(tree.checked(path), os.O_RDWR | _END, tree.descriptor)
            except PermissionError:  # somebody else's, who is gone; nothing is written to it any more
                segment.open(tree.checked(path), os.O_RDONLY | _END, tree.descriptor)
                self._is_writable = False
            if flock.try_lock(segment, full):
                self._hold(number, segment)
                self._is_shared = self._is_writable
                return
        finally:
            if self._segment is not segment:
                segment.close()
        holder = "a process whose lock file was removed"
        raise AgentBusyError(
            f"agent {self._agent!r} of {self._backend.url} is in use by {holder}, and which still has {full} locked: "
            "close the store there, end that process, or open under another agent name. Lock files are never stale, "
            "and must not be removed",
            self._agent,
            holder,
        )

    def _hold(self, number: int, segment: forking.Descriptor) -> None:
        """From now on the newest segment is this one, which is open and locked."""
        file = OpenFile(f"{self._backend.root}/{segment_path(self._agent, number)}", segment.number)
        former, self._segment, self._file = self._segment, segment, file
        self._number, self._offset, self._is_shared = number, 0, False
        flock.release(former)

    def _abandon_segment(self) -> None:
        """Never continue the current segment. It stays locked until the next one is."""
        self._continues = False

    # -- failures

    def _after_failed_write(self, error: OSError) -> OpslogError:
        """Make what did get into the file durable, and say how much that is.

        The file's size is the witness, not the sum of what `os.write` returned: a write that failed may have written.
        """
        try:
            size = os.fstat(self._segment.number).st_size
            durable = size - self._offset
            if durable:
                posix.datasync(self._segment.number)
            place = self._where()
        except OSError as second:
            return self._unknown(f"{posix.explain(error)}; then {posix.explain(second)}")
        if durable and place is not _Segment.IN_PLACE:
            return self._lost(place)
        path = self._path
        # An empty segment is kept: a disk that stays full shall not fill up with empty files.
        if size:
            self._abandon_segment()
        self._refusal = None
        outcome = f"only the first {durable} bytes of this append are in the log" if durable else _NOT_COMMITTED
        return self._backend.write_failed(path, error, outcome, durable)

    def _lost(self, place: _Segment) -> CommitUnknownError:
        if place is _Segment.DELETED:
            return self._unknown("the file was deleted meanwhile; restore the store's directory")
        return self._unknown(
            "its directory was moved away or replaced meanwhile, and what was written went with it, unless it was "
            "copied after that"
        )

    def _unknown(self, reason: str) -> CommitUnknownError:
        message = (
            f"the end of {self._backend.root}/{self._path} from byte {self._offset} may or may not be on disk: "
            f"{reason}. Close the store, open it again, and check which commits are there"
        )
        self._refusal = CommitUnknownError, message
        return CommitUnknownError(message)

    def _fenced(self, reason: str) -> AgentFencedError:
        message = self._message(reason)
        self._refusal = AgentFencedError, message
        return AgentFencedError(message)

    def _message(self, reason: str) -> str:
        return (
            f"another process can write the log of agent {self._agent!r} of {self._backend.url}: {reason}. "
            f"{_NOT_COMMITTED.capitalize()}. Close the store and open it again"
        )

    @property
    def _directory(self) -> str:
        return f"{OPS}{self._agent}"

    @property
    def _path(self) -> str:
        return segment_path(self._agent, self._number)
