"""Writing one agent's log in a directory: numbered segments, one process, each append on disk when it returns.

`opslog.backends.local.fs` says what is guaranteed. Two locks hold an agent's name, both from opening to closing:

- the lock on the file ``locks/agents/<agent>.lock``. It keeps other processes out and names its holder;
- the lock on the newest segment. A new segment is created and locked while the one before it is still locked.

Somebody may remove ``locks/`` because its files seem stale. Another process can then take the first lock, but not the
second. So no log ever has two writers, even if one of them is paused between two system calls: only the holder of the
newest segment writes to it, and each segment number is created once. An appender that finds its lock file gone refuses
to continue, because other processes can no longer see who it is.
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

# How many bytes after a position are read first; most likely they have a whole line.
_CHUNK_BYTES = 64 * 1024


class _Segment(Enum):
    """Where the file is to which an appender writes."""

    IN_PLACE = "in place"
    DELETED = "deleted"
    # It was moved with one of the directories above it, or another file is in its place.
    MOVED = "moved"


class Directory(Protocol):
    """The methods that an appender uses of the backend that made it."""

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
    """Whether somebody has appended to a log after `end`, in the same segment. False if that cannot be read."""
    tree, path = backend.tree(), segment_path(agent, end.segment)
    try:
        found = posix.read_range(tree.checked(path), end.offset, end.offset + _CHUNK_BYTES, tree.descriptor)
    except OSError:
        return False
    return _begins_with_line(found)


def _has_line(descriptor: int, start: int, size: int) -> bool:
    """Whether an open segment has a whole line after `start`; a torn tail is none."""
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

    def __init__(self, backend: Directory, agent: str, lock_path: str, lock: flock.LockFile) -> None:
        self._backend = backend
        self._agent = agent
        self._lock = lock
        self._lock_path = f"{backend.root}/{lock_path}"
        self._lock_file = OpenFile(self._lock_path, lock.number)
        super().__init__()
        # Why no append is possible any more; None if appends are possible.
        self._refusal: tuple[type[OpslogError], str] | None = None
        self._floor = 0
        # The number of the newest segment; 0 if there is none.
        self._number = 0
        # The newest segment, open and locked; closed if there is none.
        self._segment = forking.Descriptor()
        # The path at which others find it.
        self._file: OpenFile | None = None
        # Its length when it was locked last, in bytes.
        self._size = 0
        # Whether the next append continues the newest segment; otherwise it begins a new one.
        self._continues = False
        # Whether an earlier session's newest segment was opened for writing.
        self._is_writable = True
        # Whether the newest segment was opened with O_APPEND: each write goes to its end, whoever wrote there last.
        self._is_shared = False
        self._offset = 0

    def settle(self, newest: int = 0) -> None:
        """Lock the newest segment.

        :param newest: its number, if the caller has read the log; then one listing is enough.
        :raises AgentBusyError: a process whose lock file was removed still writes this log.
        :raises OSError: the log cannot be opened.
        """
        number = newest or self._highest_number()
        while number > self._number:
            with suppress(FileNotFoundError):  # compacted and collected since
                self._open_end(number)
            # Before it was locked, a process whose lock file was removed may have begun the next segment.
            number = self._highest_number()

    def rest(self) -> bool:
        """Give the name back, and keep the files open for `resume`. Idempotent. Returns False if they were closed
        instead."""
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
        """Become the writer again after `rest`. Returns False if that takes a new appender. Then, and after any error
        but LockedError, the caller has to close this one.

        :param newest: as in `settle`.
        :raises LockedError: another process has the name. This appender still rests.
        """
        flock.take_again(self._lock, self._lock_path, f"agents/{self._agent}")
        if newest != self._number or not flock.try_again(self._segment, f"{self._backend.root}/{self._path}"):
            return False
        assert self._file is not None
        size = self._file.size_in_place()
        if size is None:
            return False
        self._size = size
        # Nobody can begin the next segment now. If somebody began it before this one was locked, it is still there: it
        # may be collected only after a compaction that every reader of this position knows (`opslog.log.freshness`).
        return not self._has_next()

    def make_durable(self) -> None:
        """Make durable what an earlier session wrote: it may have been killed between a write and its fdatasync."""
        if self._number:
            with suppress(MissingFileError):  # compacted and collected since
                self._backend.persist([self._path])

    def append(self, data: bytes) -> Position:
        if self._refusal is not None or self._is_forked:
            self._refuse()
        self._keep_name()
        # A file without a name is in no log: somebody removed the directory or the segment.
        if self._continues and not posix.has_name(self._segment.number):
            self._abandon_segment()
        return self._append(data)

    def _append(self, data: bytes) -> Position:
        if not self._continues or self._offset >= self._backend.segment_bytes:
            self._begin_segment()
        descriptor = self._segment.number
        # This stays if the append neither succeeds nor fails cleanly, for example after KeyboardInterrupt.
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
        """As `Backend.append_at`. The appender must not have been used since it took the name.

        It asks the system nothing twice. While it holds the locks, nobody else writes to the segment or to the lock
        file, so the length and the note are still those that were read when they were locked. The name of the segment
        was seen then, too. If somebody deletes the segment later, the check after the write finds that out, and the
        write is not acknowledged.
        """
        if self._number > end.segment or (self._number < end.segment and end.offset):
            return None
        is_there, size = self._number == end.segment, self._size
        try:
            if is_there and (size < end.offset or _has_line(self._segment.number, end.offset, size)):
                return None
        except OSError as error:
            raise self._backend.write_failed(self._path, error, _NOT_COMMITTED) from error
        if self._number and flock.note(self._lock) != self._durable_up_to(size):
            self.make_durable()
        if is_there and size == end.offset and self._is_writable:
            self._continues, self._offset = True, size
        self.advance(end.segment - 1)
        self._keep_name()
        position = self._append(data)
        flock.write_note(self._lock, self._durable_up_to(self._offset))
        return position

    def _durable_up_to(self, size: int) -> str:
        """The note for the lock that says that this segment is durable up to `size`, with its name. It has the file's
        inode, because in a copy of the store the segment is another file."""
        assert self._file is not None
        device, inode = self._file.identity
        return f"durable {self._number:020d} {size:020d} {device} {inode}"

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
        """Check before a write that no other process can have taken the name; errors as in `check_name`. After an error
        this appender refuses further appends."""
        if (reason := self._loss_of_name()) is not None:
            raise self._fenced(reason)

    def _loss_of_name(self) -> str | None:
        """The reason why another process can have taken the name; None if none can.

        :raises WriteFailedError: the store's directory is gone.
        """
        try:
            if self._lock_file.is_in_place():
                return None
            return self._loss_of_directory() or "its lock file was removed or replaced"
        except OSError as error:
            raise self._backend.write_failed("", error, _NOT_COMMITTED) from error

    def _loss_of_directory(self) -> str | None:
        """The reason, if another directory has taken over the store's path; otherwise None.

        :raises OSError: there is no directory at the path.
        """
        tree = self._backend.tree()
        if not tree.is_replaced():
            return None
        return f"another directory stands at {tree.path}, and its lock file was removed from there"

    def _where(self) -> _Segment:
        """Where the newest segment is now.

        :raises OSError: that cannot be found out.
        """
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
        """Whether the log has a next segment. The numbers of segments have no gaps."""
        try:
            os.lstat(segment_path(self._agent, self._number + 1), dir_fd=self._backend.tree().descriptor)
        except FileNotFoundError:
            return False
        return True

    # -- segments

    def _begin_segment(self) -> None:
        """Leave the current segment as it is and create the next one, empty, with a durable directory entry."""
        self._abandon_segment()
        backend, tree = self._backend, self._backend.tree()
        segment = forking.Descriptor()
        path, number = "", 0
        try:
            highest = self._highest_number()
            if highest > self._number:
                raise self._fenced(f"it created {segment_path(self._agent, highest)}")
            self._keep_name()
            if (reason := self._loss_of_directory()) is not None:  # a copy made with hard links has the same lock file
                raise self._fenced(reason)
            number = max(self._number, self._floor) + 1
            path = segment_path(self._agent, number)
            backend.open_new(tree, path, segment)
            if not flock.try_lock(segment, f"{backend.root}/{path}"):
                raise self._fenced(f"it has locked {path}")
            self._keep_name()  # so nobody else had the name between the creation and the lock
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
        """Remove a new segment that could not be made durable. It is empty, so nobody has read a byte of it.

        It is removed only while it is locked and the newest, because nobody can begin the next one then. If a process
        whose lock file was removed has begun the next one already, the log would have a gap. If the segment stays, it
        is an empty one, which every log may have.

        :raises AgentFencedError: another process has locked it.
        """
        path, tree = segment_path(self._agent, number), self._backend.tree()
        if not flock.try_lock(segment, f"{self._backend.root}/{path}"):
            raise self._fenced(f"it has locked {path}")
        try:
            if self._highest_number() == number:
                os.unlink(tree.checked(path), dir_fd=tree.descriptor)
        except (OSError, MemoryError):
            pass  # it may have been removed all the same: the number of its names shows that
        finally:
            if posix.has_name(segment.number):
                self._hold(number, segment)

    def _open_end(self, number: int) -> None:
        """Open and lock the newest segment of an earlier session."""
        tree, path = self._backend.tree(), segment_path(self._agent, number)
        full = f"{self._backend.root}/{path}"
        segment = forking.Descriptor()
        try:
            try:
                # Writable, because on NFS an flock becomes a record lock, which needs it.
                segment.open(tree.checked(path), os.O_RDWR | _END, tree.descriptor)
            except PermissionError:  # another user's, who is gone; nothing more is written to it
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
            f"agent {self._agent!r} of {self._backend.url} is in use by {holder}, which still has {full} locked: "
            "close the store there, end that process, or open under another agent name. Lock files are never stale, "
            "and must not be removed",
            self._agent,
            holder,
        )

    def _hold(self, number: int, segment: forking.Descriptor) -> None:
        """Make this segment, which is open and locked, the newest one. Releases the one before it."""
        file = OpenFile(f"{self._backend.root}/{segment_path(self._agent, number)}", segment.number)
        former, self._segment, self._file = self._segment, segment, file
        self._number, self._offset, self._size, self._is_shared = number, 0, file.size, False
        flock.release(former)

    def _abandon_segment(self) -> None:
        """Never continue the current segment. It stays locked until the next one is locked."""
        self._continues = False

    # -- failures

    def _after_failed_write(self, error: OSError) -> OpslogError:
        """Make durable what was written nevertheless, and return an error that says how much that is.

        The size of the file decides, not the sum of what `os.write` returned: a failed write may have written
        something.
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
        # The next append continues an empty segment. Otherwise a full disk would collect empty files.
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
