"""Writing one agent's log in a directory: numbered segments, one process, each append on disk when it returns.

`opslog.backends.fs` says what is guaranteed.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

from opslog.backends import flock, forking, posix
from opslog.backends.contract import Position
from opslog.errors import AgentFencedError, ClosedError, CommitUnknownError, OpslogError
from opslog.layout import OPS, segment_of, segment_path

if TYPE_CHECKING:
    from opslog.backends.fs import FsBackend

_NOT_COMMITTED = "nothing of this append is in the log"
_INTERRUPTED = (
    CommitUnknownError,
    "an earlier append was interrupted: close the store, open it again, and look which commits are there",
)


class FsAppender:
    """The appender of `FsBackend`. `lock` is the descriptor that holds the agent's lock; the appender releases it."""

    def __init__(self, backend: FsBackend, agent: str, lock: int) -> None:
        self._backend = backend
        self._agent = agent
        self._lock = lock
        self._generation = forking.generation
        self._refusal: tuple[type[OpslogError], str] | None = None
        """Why no append is possible any more, None while all is well."""
        self._floor = 0
        self._number = 0
        self._descriptor = -1
        """Of the current segment, -1 when the next append has to begin one."""
        self._offset = 0

    def settle(self) -> None:
        """Make durable what an earlier session left: it may have been killed between a write and its fdatasync."""
        try:
            number = self._highest_number()
        except OSError as error:
            raise self._backend.write_failed(self._directory, error, "the log was not opened") from error
        if number:
            self._backend.persist([segment_path(self._agent, number)])

    def append(self, data: bytes) -> Position:
        if self._refusal is not None or self._generation != forking.generation:
            self._refuse()
        # A file without a name is in no log: the directory was removed, or somebody deleted the segment.
        if self._descriptor < 0 or self._offset >= self._backend.segment_bytes or not posix.has_name(self._descriptor):
            self._begin_segment()
        descriptor = self._descriptor
        # Stands if anything but a clean end or a clean failure follows, such as KeyboardInterrupt.
        self._refusal = _INTERRUPTED
        try:
            posix.write_all(descriptor, data)
        except OSError as error:
            raise self._after_failed_write(error) from error
        try:
            posix.datasync(descriptor)
        except OSError as error:
            raise self._unknown(posix.explain(error)) from error
        if not posix.has_name(descriptor):
            raise self._unknown("the file was deleted meanwhile; restore the store's directory")
        position = Position(self._number, self._offset)
        self._offset += len(data)
        self._refusal = None
        return position

    def advance(self, segment: int) -> None:
        if self._refusal is not None or self._generation != forking.generation:
            self._refuse()
        self._floor = max(self._floor, segment)

    def close(self) -> None:
        if self._lock < 0 or self._generation != forking.generation:
            return
        self._abandon_segment()
        lock, self._lock = self._lock, -1
        self._refusal = ClosedError, f"the log of agent {self._agent!r} is closed: open the store again"
        flock.release(lock)

    def _refuse(self) -> NoReturn:
        if self._generation != forking.generation:
            raise ClosedError(
                f"the log of agent {self._agent!r} was opened by the parent of this process: "
                "open the store again after the fork"
            )
        assert self._refusal is not None
        kind, message = self._refusal
        raise kind(message)

    def _begin_segment(self) -> None:
        """Leave the current segment as it is and make the next one, empty, with its directory entry on disk."""
        self._abandon_segment()
        backend = self._backend
        # The lock only excludes others while its file can be found. (Without a root nobody else finds one either.)
        if not posix.has_name(self._lock) and os.path.isdir(backend.root):
            raise self._fenced("its lock file was removed")
        path = ""
        try:
            number = max(self._number, self._floor, self._highest_number()) + 1
            path = segment_path(self._agent, number)
            descriptor = backend.open_new(path)
        except FileExistsError:
            raise self._fenced(f"it created {path}") from None
        except OSError as error:
            raise backend.write_failed(path or self._directory, error, _NOT_COMMITTED) from error
        try:
            backend.sync_directory(self._directory)
        except OSError as error:
            forking.close_descriptor(descriptor)
            # Nobody can have seen a byte in it. If it stays, it is an empty segment, which every log may have.
            with suppress(OSError):
                os.unlink(backend.full(path))
            raise backend.write_failed(path, error, _NOT_COMMITTED) from error
        self._descriptor, self._number, self._offset = descriptor, number, 0

    def _highest_number(self) -> int:
        try:
            names = os.listdir(self._backend.full(self._directory))
        except FileNotFoundError:
            return 0
        found = (segment_of(f"{self._directory}/{name}") for name in names)
        return max((segment[1] for segment in found if segment), default=0)

    def _abandon_segment(self) -> None:
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            forking.close_descriptor(descriptor)

    def _after_failed_write(self, error: OSError) -> OpslogError:
        """Make what did get into the file durable, and say how much that is.

        The file's size is the witness, not the sum of what `os.write` returned: a write that failed may have written.
        """
        try:
            status = os.fstat(self._descriptor)
            durable = status.st_size - self._offset
            if durable:
                posix.datasync(self._descriptor)
        except OSError as second:
            return self._unknown(f"{posix.explain(error)}; then {posix.explain(second)}")
        if durable and not status.st_nlink:
            return self._unknown(f"{posix.explain(error)}; and the file was deleted meanwhile")
        path = self._path
        # An empty segment is kept: a disk that stays full shall not fill up with empty files.
        if status.st_size:
            self._abandon_segment()
        self._refusal = None
        outcome = f"only the first {durable} bytes of this append are in the log" if durable else _NOT_COMMITTED
        return self._backend.write_failed(path, error, outcome, durable)

    def _unknown(self, reason: str) -> CommitUnknownError:
        path = self._backend.full(self._path)
        message = (
            f"the end of {path} from byte {self._offset} may or may not be on disk: {reason}. "
            "Close the store, open it again, and look which commits are there"
        )
        self._refusal = CommitUnknownError, message
        return CommitUnknownError(message)

    def _fenced(self, reason: str) -> AgentFencedError:
        message = (
            f"another process can write the log of agent {self._agent!r} of {self._backend.url}: {reason}. "
            f"{_NOT_COMMITTED.capitalize()}. Close the store and open it again"
        )
        self._refusal = AgentFencedError, message
        return AgentFencedError(message)

    @property
    def _directory(self) -> str:
        return f"{OPS}{self._agent}"

    @property
    def _path(self) -> str:
        return segment_path(self._agent, self._number)
