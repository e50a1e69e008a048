"""A store in a directory of a local (POSIX) filesystem.

What this file guarantees:

- A file made by `create` appears whole, under its name, exactly once, and survives a power cut after `create` has
  returned. It is written and fsynced under a temporary name and linked to its own name, which fails if that name
  exists. Then the directory is fsynced. The loser of a race fsyncs the directory, too. So it never acts on a winner
  that a power cut could still undo.
- A directory is used only after this process has fsynced its entry in its parent: another process may have made it and
  not yet fsynced it. `delete` may remove some directories when they are empty, and another process may make them again.
  The entry of such a directory is fsynced once there is a file in it, because from then on it stays.
- A log has one writer. From open to close, the appender holds an flock on the lock file of its name and one on the
  newest segment. The kernel releases them when the process dies. `opslog.backends.local.fs_log` says what happens when
  somebody removes `locks/`.
- Every call works in the directory that was opened, even if another one takes over its path; see
  `opslog.backends.local.tree`. A write is acknowledged only if the path still led to that directory after the write was
  durable.
- `append` returns when its bytes are on disk, in a file whose directory entry is on disk. In the steady state it is one
  write and one fdatasync.
- After a failed append a reader can see exactly the leading bytes that the error reports, and they are on disk.
- What an appender finds in its log is on disk before anything relies on it, however its writer ended. The appender
  fsyncs the newest segment. Older segments were fsynced by the sessions that wrote them, or by later ones.
- A later appender never continues a log file, so whatever a crash left at its end stays as it is. Only `append_at`
  continues a segment, if that ends where its caller has read to.
- No link inside the store is followed; see `opslog.backends.local.beneath`. No file is ever world-writable.
- In a forked child every call raises `ClosedError`; see `opslog.backends.forking`.
- list, read and read_many write nothing.

Roads not taken: `rename` replaces what exists, so it cannot be exclusive; `renameat2(RENAME_NOREPLACE)` has no Python
binding and is missing on some filesystems; O_EXCL on the final name shows readers half a file. POSIX record locks
vanish when *any* descriptor of the file is closed. Appending after a torn tail would need truncation, and a log is
never truncated. Preallocating segments would save the size update in each fdatasync, but readers could not distinguish
zeros from data.
"""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from opslog.backends import forking, posix, turns
from opslog.backends.contract import Buffer, Entry, Position, Range
from opslog.backends.local import clock, flock, mounts, vacancy
from opslog.backends.local.fs_log import FsAppender, goes_on
from opslog.backends.local.resting import Resting
from opslog.backends.local.tree import OpenFile, Tree
from opslog.backends.names import check_path, check_prefix
from opslog.environment import REAL, Environment
from opslog.errors import (
    AgentBusyError,
    AlreadyExistsError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    MissingFileError,
    MissingStoreError,
    OpslogError,
    ReopenError,
    RetryError,
    WriteFailedError,
)
from opslog.format.layout import ARCHIVE, LOCKS, OPS, SNAPSHOTS, check_name, segment_path, temporary_path

# A log begins a new segment at this size: few enough files to list, small enough to be collected one by one.
SEGMENT_BYTES = 64 * 1024 * 1024

_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL
# How often to create a directory or lock file again that another process removed at the same time.
_TRIES_MAX = 10


class FsBackend(forking.ProcessBound):
    """A storage in a local directory; the module's docstring says what it guarantees.

    :param root: the store's directory.
    :param create: whether to make `root` and its parents if they do not exist.
    :param environment: names temporary files, and waits.
    :param segment_bytes: a log begins a new segment once the current one has reached this size.
    :raises NotFoundError: `root` does not exist, and `create` is false.
    :raises InvalidNameError: `root` is not a directory.
    :raises WriteFailedError: `root` could not be made.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        create: bool = True,
        environment: Environment = REAL,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> None:
        # Absolute, so that a later chdir does not move the store.
        self.root = os.path.abspath(root)
        self.url = self.root
        self.segment_bytes = segment_bytes
        self._environment = environment
        super().__init__()
        # Directories whose entries this backend has fsynced.
        self._durable: set[str] = set()
        # Directories that a listing showed under exactly these names.
        self._spelled: set[str] = set()
        # The appenders of `append_at`.
        self._resting = Resting()
        # Whether `mounts.check_writable` was called: locks are reliable on this filesystem.
        self._is_checked = False
        if not os.path.isdir(self.root):
            self._make_root(create)
        try:
            self._opened: Tree | None = Tree(self.root)
        except OSError as error:
            raise self._read_failed("", error) from error

    # There is no server.
    requests = 0
    segments_grow = True

    # Reading

    def list(self, prefix: str, after: str = "") -> list[Entry]:
        tree = self.tree()
        check_prefix(prefix)
        entries = self._scan(tree, prefix, lambda directory: "")
        return [entry for entry in entries if entry.path > after] if after else entries

    def list_logs(self, seen: Mapping[str, int]) -> builtins.list[Entry]:
        def first(directory: str) -> str:
            agent = directory[len(OPS) : -1]
            return segment_path(agent, seen[agent]) if agent in seen else ""

        return self._scan(self.tree(), OPS, first)

    def _scan(self, tree: Tree, prefix: str, first: Callable[[str], str]) -> builtins.list[Entry]:
        """List files. Every reader begins with this, so it also checks whether another directory is at the path now."""
        entries: list[Entry] = []
        try:
            if prefix.startswith(ARCHIVE):
                self._check_spelling(tree, prefix[:-1])
            posix.scan(tree.checked(prefix), entries, first, tree.descriptor)
            tree.check()
        except InvalidNameError:
            return []  # the directory that is there has another name
        except OSError as error:
            if error.errno in posix.MISSING and not os.path.isdir(self.root):
                return []  # the store's directory is gone
            raise self._read_failed(prefix, error) from error
        return entries

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        tree = self.tree()
        check_path(path)
        try:
            return posix.read_range(tree.checked(path), start, stop, tree.descriptor)
        except OSError as error:
            raise self._not_read(path, error) from error

    def read_many(self, ranges: Sequence[Range]) -> builtins.list[bytes | None]:
        return [self._read_if_there(part) for part in ranges]

    def _read_if_there(self, part: Range) -> bytes | None:
        try:
            return self.read(*part)
        except MissingFileError:
            return None

    def map(self, path: str) -> Buffer | None:
        tree = self.tree()
        check_path(path)
        try:
            return posix.map_file(tree.checked(path), tree.descriptor)
        except OSError as error:
            raise self._not_read(path, error) from error

    def now(self) -> float:
        tree = self.tree()
        try:
            return clock.touch(tree)
        except OSError as error:
            if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
                # A process that cannot write here compares ages for information only, and collects nothing.
                return self._environment.time()
            raise self._read_failed(clock.CLOCK, error) from error

    # Creating and deleting

    def create(self, path: str, data: bytes) -> None:
        tree = self.tree()
        check_path(path)
        temporary = temporary_path(path, self._environment.nonce())
        won = False
        file = forking.Descriptor()
        try:
            tree.check()
            try:
                self.open_new(tree, temporary, file)
                self.sync_above(temporary)
                posix.write_all(file.number, data)
                os.fsync(file.number)
                won = self._link(file.number, temporary, path)
            finally:
                file.close()
                # If this fails too, the temporary file does no harm, and is collected later.
                with suppress(OSError):
                    os.unlink(tree.checked(temporary), dir_fd=tree.descriptor)
            self.sync_directory(_parent(path))
        except OSError as error:
            if won:  # a caller that believed in a failure would delete the files that this one names
                raise CommitUnknownError(
                    f"{self.root}/{path} was created, but may not survive a power cut: {posix.explain(error)}"
                ) from error
            raise self.write_failed(path, error, "nothing was created") from error
        if won:
            self._check_kept(tree, path)
        else:
            raise AlreadyExistsError(f"{self.root}/{path} exists already", path)

    def _link(self, descriptor: int, temporary: str, path: str) -> bool:
        """Give the temporary file its real name. Returns False if another file has that name."""
        tree = self.tree()
        at, target = tree.descriptor, tree.checked(path)
        try:
            os.link(tree.checked(temporary), target, src_dir_fd=at, dst_dir_fd=at)
        except OSError as error:
            # A network filesystem can lose the reply to a link that it made. Its client may then report any error.
            with suppress(FileNotFoundError):
                if os.path.samestat(os.lstat(target, dir_fd=at), os.fstat(descriptor)):
                    return True
            if isinstance(error, FileExistsError):
                return False
            raise
        return True

    def _check_kept(self, tree: Tree, path: str) -> None:
        """Check that the store's directory is still at its path, where others find the file that was just created."""
        try:
            tree.check()
        except (OSError, ReopenError) as error:
            raise CommitUnknownError(
                f"{path} was created, but its directory was moved away from {self.root}, or replaced, meanwhile: close "
                "the store, open it again, and check what is there"
            ) from error

    def delete(self, paths: Iterable[str]) -> None:
        tree = self.tree()
        touched: set[str] = set()
        try:
            tree.check()
            for path in paths:
                check_path(path)
                with suppress(FileNotFoundError, NotADirectoryError):
                    os.unlink(tree.checked(path), dir_fd=tree.descriptor)
                    touched.add(_parent(path))
            self._sync_after_delete(tree, touched)
        except OSError as error:
            raise self.write_failed("", error, "some of the files may still be there") from error

    def _sync_after_delete(self, tree: Tree, directories: set[str]) -> None:
        """Remove directories that are empty and may be removed; fsync the others, and the parents of removed ones."""
        remaining = set()
        for directory in sorted(directories):
            if not _is_removable(directory):
                remaining.add(directory)
                continue
            try:
                os.rmdir(tree.checked(directory), dir_fd=tree.descriptor)
                remaining.add(_parent(directory))
            except FileNotFoundError:
                remaining.add(_parent(directory))
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
                remaining.add(directory)
        for directory in sorted(remaining):
            with suppress(FileNotFoundError):
                self.sync_directory(directory)

    def persist(self, paths: Iterable[str]) -> None:
        tree = self.tree()
        above: set[str] = set()
        for path in paths:
            check_path(path)
            directory = _parent(path)
            try:
                # Only logs need this: a file made by `create` is on disk before it has its name.
                if path.startswith(OPS):
                    posix.datasync_file(tree.checked(path), tree.descriptor)
                if not _is_removable(directory):
                    self._make_directory(tree, directory)
                self.sync_directory(directory)
            except OSError as error:
                if error.errno in posix.MISSING:
                    raise MissingFileError(f"no file {self.root}/{path}", path) from error
                raise self.write_failed(path, error, "and may not survive a power cut") from error
            if _is_removable(directory):
                above.add(_parent(directory))
        for directory in sorted(above):
            try:
                self._make_directory(tree, directory)
                self.sync_directory(directory)
            except OSError as error:
                raise self.write_failed(directory, error, "and may not survive a power cut") from error

    # One writer per log, and locks

    def appender(self, agent: str) -> FsAppender:
        return self._take_name(agent, durable=True)

    def append_at(self, agent: str, end: Position, data: bytes) -> Position | None:
        def attempt() -> Position | None:
            mine: list[FsAppender] = []

            def append() -> Position | None:
                resumed = self._resumed(agent, end.segment)
                mine.append(resumed or self._take_name(agent, durable=False, newest=end.segment))
                return mine[0].append_at(end, data)

            return turns.append_once(append, lambda: self._resting.rest(agent, mine))

        return turns.in_turn(attempt, lambda: goes_on(self, agent, end), self._environment, agent, self.url)

    def is_free(self, agent: str) -> bool:
        try:
            self._take_name(agent, durable=False).close()
        except AgentBusyError:
            return False
        return True

    def _take_name(self, agent: str, *, durable: bool, newest: int = 0) -> FsAppender:
        """Make an appender that holds its two locks.

        :param durable: whether to make durable what is in its log.
        :param newest: as in `FsAppender.settle`.
        """
        tree = self.tree()
        check_name(agent, "agent")
        path = f"{LOCKS}agents/{agent}.lock"
        try:
            lock = self._take_lock(tree, path)
        except LockedError as error:
            with suppress(OSError):
                self._check_spelling(tree, f"{OPS}{agent}")  # the lock may belong to a name that differs in case
            raise self._busy(agent, error) from None
        try:
            appender = FsAppender(self, agent, path, lock)
            try:
                self._check_spelling(tree, f"{OPS}{agent}")
                appender.settle(newest)
                if durable:
                    appender.make_durable()
            except BaseException:
                appender.close()
                raise
        except BaseException as error:
            flock.release(lock)
            if isinstance(error, OSError):
                raise self.write_failed(f"{OPS}{agent}", error, "the log was not opened") from error
            raise
        return appender

    def _resumed(self, agent: str, newest: int) -> FsAppender | None:
        """`Resting.resumed`, with the errors of a backend."""
        try:
            # Otherwise an appender would miss that another directory has taken over the path.
            self.tree().check()
            return self._resting.resumed(agent, newest)
        except LockedError as error:
            raise self._busy(agent, error) from None
        except OSError as error:
            raise self.write_failed(f"{OPS}{agent}", error, "the log was not opened") from error

    def _busy(self, agent: str, error: LockedError) -> AgentBusyError:
        return AgentBusyError(
            f"agent {agent!r} of {self.url} is in use by {error.holder}: close the store there, end that process, "
            "or open under another agent name",
            agent,
            error.holder,
        )

    @contextmanager
    def lock(self, name: str) -> Iterator[None]:
        tree = self.tree()
        check_name(name, "lock")
        held = self._take_lock(tree, f"{LOCKS}{name}.lock")
        try:
            yield
        finally:
            if not self._is_forked:
                flock.release(held)

    def _take_lock(self, tree: Tree, path: str) -> flock.LockFile:
        """Take a lock. Every writer does so first, so this is where the filesystem is checked.

        A lock counts only if its file is still at its path after it was locked. Before that another process may remove
        the file, and a third one may create and lock a new one."""
        if not self._is_checked:
            mounts.check_writable(self.root, tree.descriptor)
            self._is_checked = True
        name = path.removeprefix(LOCKS).removesuffix(".lock")
        try:
            for _ in range(_TRIES_MAX):
                tree.check()
                held = self._lock_once(tree, path, name)
                if held is not None:
                    return held
                self._durable.clear()  # a directory that was there is gone
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        except OSError as error:
            raise self.write_failed(path, error, "the lock was not taken") from error

    def _lock_once(self, tree: Tree, path: str, name: str) -> flock.LockFile | None:
        """Try to take a lock. Returns None if another process removed its file meanwhile."""
        full = f"{self.root}/{path}"
        try:
            self._make_directory(tree, _parent(path))
            held = flock.take(full, name, tree.checked(path), tree.descriptor)
        except FileNotFoundError:
            return None
        try:
            if OpenFile(full, held.number).is_in_place():
                return held
        except BaseException:
            flock.release(held)
            raise
        flock.release(held)
        return None

    # Used by several of these; `FsAppender` uses it, too.

    def close(self) -> None:
        self._opened = None
        self._resting.close()

    def tree(self) -> Tree:
        """The directory to work in. It stays open as long as the caller keeps this object, so keep it until the call
        ends."""
        tree = self._opened
        if tree is None or self._is_forked:
            self._check_open()
        assert tree is not None
        return tree

    def _name(self) -> str:
        return self.url

    @property
    def _is_closed(self) -> bool:
        return self._opened is None

    def _make_root(self, create: bool) -> None:
        if os.path.lexists(self.root) and not os.path.isdir(self.root):
            raise InvalidNameError(f"{self.root} is not a directory: give the path of a store's directory")
        if not create:
            raise MissingStoreError(
                f"no store at {self.root}: check the path, or open it for writing to create it", self.root
            )
        new, level = [], self.root
        while not os.path.isdir(level):
            new.append(level)
            level = os.path.dirname(level)
        try:
            # Each directory is durable before anything is made in it, so a process that finds one only has to make its
            # entry durable: a process that was killed since may just have made it.
            with suppress(PermissionError):
                posix.fsync_directory(os.path.dirname(level))
            for level in reversed(new):
                with suppress(FileExistsError):
                    os.mkdir(level, posix.DIRECTORY_MODE)
                posix.fsync_directory(os.path.dirname(level))
        except OSError as error:
            raise self.write_failed("", error, "no store was made") from error

    def _make_directory(self, tree: Tree, directory: str) -> None:
        """Make a directory and its parents below the root. Make durable the entries of those that are never removed.
        The root itself must exist."""
        if directory in self._durable:
            return
        if directory:
            parent = _parent(directory)
            self._make_directory(tree, parent)
            try:
                os.mkdir(tree.checked(directory), posix.DIRECTORY_MODE, dir_fd=tree.descriptor)
            except FileExistsError:
                self._check_spelling(tree, directory)
            # Not noted as durable: `delete` can remove it, and another process make it again. See `sync_above`.
            if _is_removable(directory):
                return
            self.sync_directory(parent)
        else:
            # If this process may not even read the parent, the root's owner made the root long before.
            with suppress(PermissionError):
                posix.fsync_directory(os.path.dirname(self.root))
        self._durable.add(directory)

    def _check_spelling(self, tree: Tree, directory: str) -> None:
        """Check that no directory of an agent or a period has this name in another case.

        :raises InvalidNameError: one has, and the filesystem does not distinguish case. Two agents would share a log,
            and readers would find it under one of the two names.
        :raises OSError: the names could not be read.
        """
        folder, _, name = directory.rpartition("/")
        if f"{folder}/" not in (OPS, ARCHIVE) or directory in self._spelled:
            return
        try:
            os.lstat(tree.checked(directory), dir_fd=tree.descriptor)
            names = posix.names(folder, tree.descriptor)
        except FileNotFoundError:
            return
        if f"{folder}/" == OPS:
            self._spelled.update(f"{folder}/{other}" for other in names)
        twin = next((other for other in names if other.lower() == name.lower()), name)
        if name not in names and twin != name:
            what = "agent" if f"{folder}/" == OPS else "period"
            raise InvalidNameError(
                f"{what} {name!r} of {self.url}: this filesystem does not distinguish case, and {twin!r} is there "
                f"already, so both would be one. Use exactly {twin!r}, or a name that differs by more than case"
            )

    def open_new(self, tree: Tree, path: str, file: forking.Descriptor) -> None:
        """Create a new file and its directories, and open it for writing as `file`. Its entry is not durable yet, nor
        is the entry of a directory that can be removed: see `sync_above`."""
        directory = _parent(path)
        for _ in range(_TRIES_MAX):
            self._spelled.discard(directory)  # it may have been removed and made again under another name
            try:
                self._make_directory(tree, directory)
                file.open(tree.checked(path), _NEW_FILE, tree.descriptor)
            except FileNotFoundError:
                # `delete` has removed a directory that was empty: make it again. If the root is gone, this fails.
                self._durable.clear()
            else:
                return
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    def sync_above(self, path: str) -> None:
        """Make durable the entry of the directory of a new file. This comes after the file is created: an empty
        directory could be removed, and made again by a process that has not fsynced it."""
        directory = _parent(path)
        if _is_removable(directory):
            self.sync_directory(_parent(directory))

    def sync_directory(self, directory: str) -> None:
        tree = self.tree()
        posix.fsync_directory(tree.checked(directory) or ".", tree.descriptor)

    def _not_read(self, path: str, error: OSError) -> OpslogError:
        if error.errno in posix.MISSING:
            return MissingFileError(f"no file {self.root}/{path}", path)
        return self._read_failed(path, error)

    def _read_failed(self, path: str, error: OSError) -> OpslogError:
        full = f"{self.root}/{path}"
        return self._name_error(full, error) or RetryError(f"{full} could not be read: {posix.explain(error)}")

    def write_failed(self, path: str, error: OSError, outcome: str, durable: int = 0) -> OpslogError:
        full = f"{self.root}/{path}"
        return self._name_error(full, error) or WriteFailedError(
            f"{full} could not be written, {outcome}: {posix.explain(error)}", durable
        )

    def _name_error(self, full: str, error: OSError) -> OpslogError | None:
        if error.errno == errno.ENAMETOOLONG:
            return InvalidNameError(f"the name {full} is too long for this filesystem: {posix.explain(error)}")
        return None


def open_url(url: str, *, create: bool = True, segment_bytes: int = SEGMENT_BYTES) -> FsBackend:
    """The backend of a plain path or of ``file:///absolute/path`` (percent-encoded); parameters as in `FsBackend`.

    :raises InvalidNameError: as in `FsBackend`; or `create` is true, and the directory has other files and no store.
    """
    root = vacancy.path_of(url)
    if create:
        vacancy.check(root)
    return FsBackend(root, create=create, segment_bytes=segment_bytes)


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def _is_removable(directory: str) -> bool:
    """Whether `FsBackend.delete` may remove the directory when it is empty: a run's, a period's or an agent's."""
    return directory.startswith((SNAPSHOTS, ARCHIVE, OPS))
