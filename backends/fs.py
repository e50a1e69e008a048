"""A store in a directory of a local (POSIX) filesystem.

What this file guarantees:

- A file made by `create` appears whole, under its name, exactly once, and survives a power cut once `create` has
  returned: it is written and fsynced under a temporary name, linked to its own (which fails if that exists), and the
  directory is fsynced. The loser of a race fsyncs the directory too, so that it never acts on a winner that a power cut
  could still undo.
- A directory is used only after its entry in its parent was fsynced by this process; another process may have made it
  and not yet come to its fsync.
- A log has one writer: the appender holds an flock from open to close. The kernel releases it when the process dies.
- `append` returns when its bytes are on disk, in a file whose directory entry is on disk. In the steady state it is one
  write and one fdatasync.
- After a failed append a reader can see exactly the leading bytes that the error admits to, and they are on disk.
- A log file is never continued by a later appender, so whatever a crash left at its end stays as it is.
- Lock files are never unlinked (whoever waits on the old file and whoever makes a new one would both hold "the" lock).
  What stands in them (pid, host, boot id) is for messages only.
- In a forked child every call raises `ClosedError`; see `opslog.backends.forking`.
- Nothing is written by list, read and read_many.

Roads not taken: `rename` replaces what exists, so it cannot be exclusive; `renameat2(RENAME_NOREPLACE)` has no Python
binding and is missing on some filesystems; O_EXCL on the final name shows readers half a file. POSIX record locks
vanish when *any* descriptor of the file is closed. Appending after a torn tail would need truncation, and a log is
never truncated. Preallocating segments would save the size update in each fdatasync, but readers could not tell zeros
from data.
"""

from __future__ import annotations

import builtins
import errno
import os
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn
from urllib.parse import unquote

from opslog.backends import forking
from opslog.backends.contract import Entry, Position, Range
from opslog.backends.names import check_path, check_prefix
from opslog.environment import REAL
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    ClosedError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    MissingFileError,
    NotFoundError,
    OpslogError,
    RetryError,
    WriteFailedError,
)
from opslog.layout import ARCHIVE, LOCKS, OPS, SNAPSHOTS, TEMPORARY, check_name, segment_of, segment_path

SEGMENT_BYTES = 64 * 1024 * 1024
"""A log begins a new segment at this size: few enough files to list, small enough to be collected one by one."""

_CLOCK = f"{LOCKS}clock"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL

# How reading a file fails that is not there; ESTALE: a network filesystem noticed late that it was deleted.
_MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE)

_datasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync.


class FsBackend:
    """See the module's docstring.

    :param root: the store's directory.
    :param create: whether `root` (and its parents) may be made if there is none.
    :param nonce: names of temporary files: letters and digits, never the same twice.
    :param segment_bytes: a log begins a new segment once the current one has reached this size.
    :raises NotFoundError: there is no `root`, and `create` is false.
    :raises InvalidNameError: `root` is not a directory.
    :raises WriteFailedError: `root` could not be made.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        create: bool = True,
        nonce: Callable[[], str] = REAL.nonce,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        # Absolute, so that a later chdir does not move the store.
        self.root = os.path.abspath(root)
        self.url = self.root
        self.segment_bytes = segment_bytes
        self._nonce = nonce
        self._generation = forking.generation
        self._closed = False
        self._durable: set[str] = set()
        """Directories whose entries this backend has fsynced."""
        if not os.path.isdir(self.root):
            self._make_root(create)

    # Reading

    def list(self, prefix: str) -> list[Entry]:
        self._check_open()
        check_prefix(prefix)
        entries: list[Entry] = []
        try:
            _scan(self._full(prefix), prefix, entries)
        except OSError as error:
            raise self._read_failed(prefix, error) from error
        return entries

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self._check_open()
        check_path(path)
        try:
            return _read(self._full(path), start, stop)
        except OSError as error:
            if error.errno in _MISSING:
                raise MissingFileError(f"no file {self._full(path)}", path) from error
            raise self._read_failed(path, error) from error

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        return [self._read_if_there(part) for part in ranges]

    def _read_if_there(self, part: Range) -> bytes | None:
        try:
            return self.read(*part)
        except MissingFileError:
            return None

    def now(self) -> float:
        self._check_open()
        try:
            return self._touch_clock()
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                # Whoever cannot write here only compares ages for information; nothing is collected on their word.
                return REAL.time()
            raise self._read_failed(_CLOCK, error) from error

    def _touch_clock(self) -> float:
        path = self._full(_CLOCK)
        try:
            os.utime(path)
        except FileNotFoundError:
            with suppress(FileExistsError):
                os.mkdir(self._full(LOCKS))
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o666))
            os.utime(path)
        return os.stat(path).st_mtime

    # Creating and deleting

    def create(self, path: str, data: bytes) -> None:
        self._check_open()
        check_path(path)
        temporary = f"{path}{TEMPORARY}{self._nonce()}"
        try:
            descriptor = self._open_new(temporary)
            try:
                _write_all(descriptor, data)
                os.fsync(descriptor)
                won = self._link(descriptor, temporary, path)
            finally:
                forking.close_descriptor(descriptor)
                # If even this fails, a leftover with ".tmp-" in its name harms nobody.
                with suppress(OSError):
                    os.unlink(self._full(temporary))
        except OSError as error:
            raise self._write_failed(path, error, "nothing was created") from error
        try:
            self._sync_directory(_parent(path))
        except OSError as error:
            if won:
                raise CommitUnknownError(
                    f"{self._full(path)} was created, but may not survive a power cut: {_explain(error)}"
                ) from error
            raise self._write_failed(path, error, "nothing was created") from error
        if not won:
            raise AlreadyExistsError(f"{self._full(path)} exists already", path)

    def _link(self, descriptor: int, temporary: str, path: str) -> bool:
        """Give the temporary file its real name; False when another file has that name."""
        target = self._full(path)
        try:
            os.link(self._full(temporary), target)
        except OSError as error:
            # A network filesystem can lose the reply to a link that it made, and its client then reports any error.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(target), os.fstat(descriptor)):
                    return True
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def delete(self, paths: Iterable[str]) -> None:
        self._check_open()
        touched: set[str] = set()
        try:
            for path in paths:
                check_path(path)
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(self._full(path))
                    touched.add(_parent(path))
            self._sync_after_delete(touched)
        except OSError as error:
            raise self._write_failed("", error, "some of the files may still be there") from error

    def _sync_after_delete(self, directories: set[str]) -> None:
        """Remove those of the directories that are empty and whose names are not used again, fsync the others."""
        remaining = set()
        for directory in directories:
            if not _is_removable(directory):
                remaining.add(directory)
                continue
            try:
                os.rmdir(self._full(directory))
                remaining.add(_parent(directory))
            except FileNotFoundError:
                remaining.add(_parent(directory))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                remaining.add(directory)
        for directory in remaining:
            with suppress(FileNotFoundError):
                self._sync_directory(directory)

    # One writer per log, and locks

    def appender(self, agent: str) -> FsAppender:
        self._check_open()
        check_name(agent, "agent")
        try:
            lock = self._take_lock(f"{LOCKS}agents/{agent}.lock")
        except LockedError as error:
            raise AgentBusyError(
                f"agent {agent!r} of {self.url} is in use by {error.holder}: close the store there, end that process, "
                "or open under another agent name",
                agent,
                error.holder,
            ) from None
        return FsAppender(self, agent, lock)

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        self._check_open()
        check_name(name, "lock")
        descriptor = self._take_lock(f"{LOCKS}{name}.lock")
        try:
            yield
        finally:
            if self._generation == forking.generation:
                _release_lock(descriptor)

    def _take_lock(self, path: str) -> int:
        """Lock the file at `path` and return the descriptor that holds the lock.

        :raises LockedError: another open file, of this process or another one, has it.
        """
        # Only here, because the package imports much that reading a store has no use for (asyncio among it).
        from portalocker import LockFlags
        from portalocker import lock as flock
        from portalocker.exceptions import AlreadyLocked, LockException

        full = self._full(path)
        try:
            self._make_directory(_parent(path))
            # Writable, because on NFS an flock becomes a record lock, which needs it.
            descriptor = forking.open_descriptor(full, os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise self._write_failed(path, error, "the lock was not taken") from error
        try:
            flock(descriptor, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING)
            _write_holder(descriptor)
        except AlreadyLocked:
            holder = _read_holder(descriptor)
            forking.close_descriptor(descriptor)
            message = f"{full} is locked by {holder}: try again when that process is done"
            raise LockedError(message, path.removeprefix(LOCKS).removesuffix(".lock"), holder) from None
        except LockException as error:
            forking.close_descriptor(descriptor)
            raise WriteFailedError(
                f"{full} cannot be locked: {error}; does this filesystem support flock? Keep the store on one that does"
            ) from error
        return descriptor

    # Common ground; `FsAppender` uses it too.

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._generation != forking.generation:
            raise ClosedError(f"{self.url} was opened by the parent of this process: open it again after the fork")
        if self._closed:
            raise ClosedError(f"{self.url} is closed: open it again")

    def _full(self, path: str) -> str:
        return f"{self.root}/{path}"

    def _make_root(self, create: bool) -> None:
        if os.path.lexists(self.root) and not os.path.isdir(self.root):
            raise InvalidNameError(f"{self.root} is not a directory: give the path of a store's directory")
        if not create:
            raise NotFoundError(f"no store at {self.root}: check the path, or open it for writing to create it")
        new, level = [], self.root
        while not os.path.isdir(level):
            new.append(level)
            level = os.path.dirname(level)
        try:
            os.makedirs(self.root, exist_ok=True)
            for level in new:
                _fsync_directory(os.path.dirname(level))
        except OSError as error:
            raise self._write_failed("", error, "no store was made") from error

    def _make_directory(self, directory: str) -> None:
        """Make a directory and its parents below the root, and their entries durable. The root itself must exist."""
        if directory in self._durable:
            return
        if directory:
            parent = _parent(directory)
            self._make_directory(parent)
            with suppress(FileExistsError):
                os.mkdir(self._full(directory))
            self._sync_directory(parent)
        else:
            # Where the parent may not even be read, the root was made by its owner, long before this process came.
            with suppress(PermissionError):
                _fsync_directory(os.path.dirname(self.root))
        # What `delete` can remove and somebody make anew cannot be remembered.
        if not _is_removable(directory):
            self._durable.add(directory)

    def _open_new(self, path: str) -> int:
        """Create a file that must not exist, and the directories it lies in, and open it for writing.

        To be closed with `forking.close_descriptor`.
        """
        for _ in range(10):
            self._make_directory(_parent(path))
            try:
                return forking.open_descriptor(self._full(path), _NEW_FILE)
            except FileNotFoundError:
                # A directory was removed since we saw it, as `delete` does with empty ones: make it again. If the
                # root is gone, making one fails.
                self._durable.clear()
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def _sync_directory(self, directory: str) -> None:
        _fsync_directory(self._full(directory))

    def _read_failed(self, path: str, error: OSError) -> OpslogError:
        full = self._full(path)
        return self._name_error(full, error) or RetryError(f"{full} could not be read: {_explain(error)}")

    def _write_failed(self, path: str, error: OSError, outcome: str, durable: int = 0) -> OpslogError:
        full = self._full(path)
        return self._name_error(full, error) or WriteFailedError(
            f"{full} could not be written, {outcome}: {_explain(error)}", durable
        )

    def _name_error(self, full: str, error: OSError) -> OpslogError | None:
        if error.errno == errno.ENAMETOOLONG:
            return InvalidNameError(f"{full} is too long a name for this filesystem: {_explain(error)}")
        return None


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

    def append(self, data: bytes) -> Position:
        if self._refusal is not None or self._generation != forking.generation:
            self._refuse()
        # A file without a name is in no log: the directory was removed, or somebody deleted the segment.
        if self._descriptor < 0 or self._offset >= self._backend.segment_bytes or not _has_name(self._descriptor):
            self._begin_segment()
        descriptor = self._descriptor
        # Stands if anything but a clean end or a clean failure follows, such as KeyboardInterrupt.
        self._refusal = _INTERRUPTED
        try:
            _write_all(descriptor, data)
        except OSError as error:
            raise self._after_failed_write(error) from error
        try:
            _datasync(descriptor)
        except OSError as error:
            raise self._unknown(_explain(error)) from error
        if not _has_name(descriptor):
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
        _release_lock(lock)

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
        if not _has_name(self._lock) and os.path.isdir(backend.root):
            raise self._fenced("its lock file was removed")
        path = ""
        try:
            number = max(self._number, self._floor, self._highest_number()) + 1
            path = segment_path(self._agent, number)
            descriptor = backend._open_new(path)
        except FileExistsError:
            raise self._fenced(f"it created {path}") from None
        except OSError as error:
            raise backend._write_failed(path or self._directory, error, _NOT_COMMITTED) from error
        try:
            backend._sync_directory(self._directory)
        except OSError as error:
            forking.close_descriptor(descriptor)
            # Nobody can have seen a byte in it. If it stays, it is an empty segment, which every log may have.
            with suppress(OSError):
                os.unlink(backend._full(path))
            raise backend._write_failed(path, error, _NOT_COMMITTED) from error
        self._descriptor, self._number, self._offset = descriptor, number, 0

    def _highest_number(self) -> int:
        try:
            names = os.listdir(self._backend._full(self._directory))
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
                _datasync(self._descriptor)
        except OSError as second:
            return self._unknown(f"{_explain(error)}; then {_explain(second)}")
        if durable and not status.st_nlink:
            return self._unknown(f"{_explain(error)}; and the file was deleted meanwhile")
        path = self._path
        # An empty segment is kept: a disk that stays full shall not fill up with empty files.
        if status.st_size:
            self._abandon_segment()
        self._refusal = None
        outcome = f"only the first {durable} bytes of this append are in the log" if durable else _NOT_COMMITTED
        return self._backend._write_failed(path, error, outcome, durable)

    def _unknown(self, reason: str) -> CommitUnknownError:
        path = self._backend._full(self._path)
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


_NOT_COMMITTED = "nothing of this append is in the log"
_INTERRUPTED = (
    CommitUnknownError,
    "an earlier append was interrupted: close the store, open it again, and look which commits are there",
)


def open_url(url: str, *, create: bool = True, segment_bytes: int = SEGMENT_BYTES) -> FsBackend:
    """The backend of a plain path or of ``file:///absolute/path`` (percent-encoded); parameters as of `FsBackend`."""
    if not url.startswith("file://"):
        return FsBackend(url, create=create, segment_bytes=segment_bytes)
    path = unquote(url.removeprefix("file://").removeprefix("localhost"))
    if not path.startswith("/"):
        raise InvalidNameError(
            f"{url!r} does not name a directory of this machine: write file:///absolute/path or a plain path"
        )
    return FsBackend(path, create=create, segment_bytes=segment_bytes)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_removable(directory: str) -> bool:
    """Whether `FsBackend.delete` may remove the directory: a run's or a period's. An agent's is forever."""
    return directory.startswith((SNAPSHOTS, ARCHIVE))


def _has_name(descriptor: int) -> bool:
    return os.fstat(descriptor).st_nlink > 0


def _fsync_directory(full: str) -> None:
    descriptor = os.open(full, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_all(descriptor: int, data: bytes) -> None:
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def _read(full: str, start: int, stop: int | None) -> bytes:
    descriptor = os.open(full, os.O_RDONLY)
    try:
        end = os.fstat(descriptor).st_size
        if stop is not None:
            end = min(end, stop)
        data = os.pread(descriptor, max(end - start, 0), start)
        while len(data) < end - start:
            more = os.pread(descriptor, end - start - len(data), start + len(data))
            if not more:
                break
            data += more
        return data
    finally:
        os.close(descriptor)


def _scan(full: str, prefix: str, entries: list[Entry]) -> None:
    """Add the files below directory `full`, whose paths begin with `prefix`, in the order of their paths."""
    try:
        with os.scandir(full) as scan:
            # With its slash a directory's name takes the place that the paths below it have among the files.
            found = sorted(
                (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry) for entry in scan
            )
    except (FileNotFoundError, NotADirectoryError):
        return
    for name, entry in found:
        if name[-1] == "/":
            _scan(entry.path, prefix + name, entries)
            continue
        try:
            status = entry.stat()
        except FileNotFoundError:
            continue
        # Only a link can be one here, and links to directories are not followed: they could lead in circles.
        if not stat.S_ISDIR(status.st_mode):
            entries.append(Entry(prefix + name, status.st_size, status.st_mtime))


def _release_lock(descriptor: int) -> None:
    from portalocker import unlock

    # Closing alone would not release it if a child made by native code still shares the open file.
    try:
        unlock(descriptor)
    finally:
        forking.close_descriptor(descriptor)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return "-"


def _this_process() -> bytes:
    return f"{os.getpid()} {socket.gethostname()} {_boot_id()}\n".encode()


def _write_holder(descriptor: int) -> None:
    text = _this_process()
    # For messages only: a full disk shall not keep anybody from the lock. Truncated last, so that it is never seen
    # empty.
    with suppress(OSError):
        os.pwrite(descriptor, text, 0)
        os.ftruncate(descriptor, len(text))


def _read_holder(descriptor: int) -> str:
    """The holder of a lock in words: ``pid 4711 on host web1``."""
    text = os.pread(descriptor, 1024, 0)
    words = text.decode(errors="replace").partition("\n")[0].split()
    if len(words) != 3:
        return "a process that has not written its name yet"
    here = " (this process)" if text == _this_process() else ""
    return f"pid {words[0]} on host {words[1]}{here}"


_ADVICE = {
    errno.ENOSPC: "free some space on that filesystem and try again",
    errno.EDQUOT: "your disk quota is used up: free some space and try again",
    errno.EROFS: "the filesystem is mounted read-only: mount it for writing, or open the store with read_only=True",
    errno.ENOENT: "the store's directory was removed or moved: put it back and open the store again",
    errno.ENOTDIR: "a file stands where the store needs a directory: move it away",
    errno.EISDIR: "a directory stands where the store needs a file: move it away",
    errno.EACCES: "check the owner and the permissions of the store's directory",
    errno.EPERM: "check the owner and the permissions, and whether this filesystem has hard links",
    errno.EOPNOTSUPP: "this filesystem lacks what a store needs (hard links, fsync): keep the store on another one",
    errno.EMLINK: "this filesystem has too few hard links: keep the store on another one",
    errno.EMFILE: "this process has too many open files: close some, or raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many open files: close some programs and try again",
    errno.EFBIG: "the file would exceed a limit: raise it (ulimit -f)",
    errno.EIO: "the disk failed: look into the kernel's log (dmesg) before you go on",
    errno.ENAMETOOLONG: "use a shorter one",
}


def _explain(error: OSError) -> str:
    """The system's reason and what to do about it."""
    reason = error.strerror or str(error)
    return f"{reason}; {_ADVICE.get(error.errno or 0, 'try again')}"
