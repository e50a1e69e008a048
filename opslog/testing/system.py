"""The directory backend on a simulated disk: each of its system calls is a step of the simulation.

`opslog.backends.local.fs` and its modules run unchanged. They reach the system through a handful of names of
their own modules (`os`, `posix.datasync`, `flock`, `forking`). While a `System` is installed, those names lead
here; calls with paths outside `ROOT` go on to the real system.

So the simulation runs the same code as users do, with the same order of calls. That order is where the mistakes that
matter most are made (a directory that nobody synced), so a separate backend for the simulation would not find them.
Another way would be to pass an object with twenty system calls through all functions. But then the one file that
everybody must be able to check would be harder to read.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest.mock import patch

from opslog.backends import forking, posix
from opslog.backends.local import beneath, clock, flock, fs, fs_log, tree
from opslog.errors import LockedError
from opslog.format.layout import LOCKS
from opslog.testing.disk import Directory, Disk, File, Node
from opslog.testing.faults import Fault
from opslog.testing.simulation import Died, Process, Simulation

T = TypeVar("T")

ROOT = "/simulated"
# The names of directories that were moved away.
_FORMER = "former-"

# Far above those of the real system.
_FIRST_DESCRIPTOR = 1 << 30

READS = frozenset({"fail"})
WRITES = frozenset({"fail", "full", "short"})
SYNCS = frozenset({"fail", "lost"})
CHANGES = frozenset({"fail", "full"})
LINKS = frozenset({"fail", "full", "lost"})
DELETES = frozenset({"fail", "lost"})
_NONE = frozenset[str]()
# What people may do to the directory of a store while it is in use.
_BY_PEOPLE = frozenset({"moved", "unlocked"})


class _Open:
    """An open file."""

    def __init__(self, node: Node, path: str, owner: Process | None) -> None:
        self.node = node
        self.path = path
        self.owner = owner


class _Descriptor(forking.Descriptor):
    """Holds an open file of the simulated system."""

    def __init__(self, system: System) -> None:
        self._system = system

    def open(self, path: str, flags: int, at: int | None = None) -> None:
        if self._system.is_ours(path, at):
            self.number = self._system.open(path, flags, 0o666, dir_fd=at)
        else:
            super().open(path, flags, at)

    def close(self) -> None:
        if self.number < _FIRST_DESCRIPTOR:
            super().close()
            return
        number, self.number = self.number, -1
        self._system.close(number)

    def __del__(self, is_finalizing: Callable[[], bool] = bool) -> None:
        """Does nothing, since the seed does not decide when it would run; a process that dies closes all its files."""


class System:
    """The `os`, `flock` and `forking` of the directory backend's modules.

    :ivar on_unlink: called with a path and its file, when the file is removed from the place to which the path leads.
    """

    kinds = READS | WRITES | SYNCS | CHANGES | LINKS | DELETES | _BY_PEOPLE

    def __init__(self, simulation: Simulation, *, ignores_case: bool = False) -> None:
        self.simulation = simulation
        self.disk = Disk(lambda: simulation.time, ignores_case=ignores_case)
        self.disk.make_directory(ROOT)
        self.disk.root.sync()
        self._open: dict[int, _Open] = {}
        self._next = _FIRST_DESCRIPTOR
        # The descriptor that holds the lock of each locked file (by number).
        self._locks: dict[int, int] = {}
        # The note of the last holder in each lock file.
        self._notes: dict[int, str] = {}
        self._full_until = 0.0
        self._moved = 0
        self.on_unlink: Callable[[str, File], None] = lambda path, file: None
        self.generation = 0
        self.path = SimpleNamespace(
            abspath=lambda path: path if _is_ours(path) else os.path.abspath(path),
            isdir=self._isdir,
            lexists=self._lexists,
            dirname=os.path.dirname,
            samestat=os.path.samestat,
        )
        simulation.storages.append(self)

    def __getattr__(self, name: str) -> Any:
        """Constants, and functions that need no simulation."""
        if name.startswith(("O_", "PathLike", "strerror", "fspath", "getpid", "uname")):
            return getattr(os, name)
        raise AttributeError(f"the simulated system has no os.{name}: add it to opslog/testing/system.py")

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside the block the directory backend uses this system."""
        with ExitStack() as stack:
            for module in (beneath, clock, fs, fs_log, posix, tree):
                stack.enter_context(patch.object(module, "os", self))
            for module in (fs, fs_log):
                stack.enter_context(patch.object(module, "forking", self))
                stack.enter_context(patch.object(module, "flock", self))
            stack.enter_context(patch.object(posix, "datasync", self.fdatasync))
            stack.enter_context(patch.object(posix, "mmap", SimpleNamespace(mmap=self._map, ACCESS_READ=1)))
            yield

    # -- the storage of a simulation

    def lose_power(self, choices: random.Random) -> None:
        self.disk.lose_power(choices)
        self._open.clear()
        self._locks.clear()
        self._notes.clear()
        self._full_until = 0.0

    def process_died(self, process: Process) -> None:
        for descriptor in [number for number, opened in self._open.items() if opened.owner is process]:
            self.close(descriptor)

    def recover(self) -> None:
        self._full_until = 0.0

    # -- os

    def is_ours(self, path: str, dir_fd: int | None) -> bool:
        """Whether the path is in the simulated filesystem."""
        return _is_ours(self._path(path, dir_fd))

    def _path(self, path: str, dir_fd: int | None) -> str:
        """The whole path. One that is relative to an open directory is put behind the directory's path when it was
        opened."""
        if dir_fd is None or dir_fd < _FIRST_DESCRIPTOR:
            return path
        return f"{self._at(dir_fd).path}/{path}".removesuffix("/.")

    def _start(self, dir_fd: int | None) -> Directory | None:
        """The open directory that paths are relative to."""
        if dir_fd is None or dir_fd < _FIRST_DESCRIPTOR:
            return None
        node = self._at(dir_fd).node
        assert isinstance(node, Directory)
        return node

    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        given, start, path = path, self._start(dir_fd), self._path(path, dir_fd)
        if not _is_ours(path):
            return os.open(path, flags, mode, dir_fd=dir_fd)
        if flags & os.O_PATH:
            return self._opened(self.disk.directory(given, start), path)  # touches nothing
        creates = bool(flags & os.O_CREAT)

        def perform(fault: Fault | None) -> int:
            self._check(fault, creates)
            try:
                node = self.disk.find(given, start)
            except FileNotFoundError:
                if not creates:
                    raise
                node = self.disk.make_file(given, start)
            else:
                if flags & os.O_EXCL:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if flags & os.O_DIRECTORY and not isinstance(node, Directory):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            if isinstance(node, Directory) and not flags & os.O_DIRECTORY:
                # The system would open it for reading and fail at the read, which has the same result.
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            return self._opened(node, path)

        return self._call("create" if creates else "open", path, perform, CHANGES if creates else READS)

    def close(self, descriptor: int) -> None:
        if descriptor < _FIRST_DESCRIPTOR:
            os.close(descriptor)
            return
        opened = self._open.pop(descriptor, None)
        if opened is None:
            return  # it was lost with the power
        if self._locks.get(opened.node.number) == descriptor:
            del self._locks[opened.node.number]

    def _at(self, descriptor: int) -> _Open:
        """The open file of a descriptor. If a power cut closed it, only code of a dead process can still use it."""
        if descriptor not in self._open:
            raise Died
        return self._open[descriptor]

    def write(self, descriptor: int, data: bytes | memoryview) -> int:
        if descriptor < _FIRST_DESCRIPTOR:
            return os.write(descriptor, data)
        opened = self._at(descriptor)

        def perform(fault: Fault | None) -> int:
            length = len(data)
            if fault is not None and fault.kind == "short":
                length = int(length * fault.amount)
            else:
                self._check(fault, True)
            assert isinstance(opened.node, File)
            self.disk.write(opened.node, bytes(data[:length]))
            return length

        return self._call("write", opened.path, perform, WRITES)

    def pread(self, descriptor: int, length: int, offset: int) -> bytes:
        node = self._at(descriptor).node
        assert isinstance(node, File)
        return bytes(node.content[offset : offset + length])

    def fsync(self, descriptor: int) -> None:
        if descriptor < _FIRST_DESCRIPTOR:
            os.fsync(descriptor)
            return
        opened = self._at(descriptor)

        def perform(fault: Fault | None) -> None:
            if fault is None or fault.kind == "lost":
                if isinstance(opened.node, Directory):
                    opened.node.sync()
                else:
                    opened.node.synced = len(opened.node.content)
            self._check(fault, False)

        self._call("fsync", opened.path, perform, SYNCS)

    fdatasync = fsync

    def fstat(self, descriptor: int) -> Any:
        return os.fstat(descriptor) if descriptor < _FIRST_DESCRIPTOR else _status(self._at(descriptor).node)

    def stat(self, path: str, *, dir_fd: int | None = None) -> Any:
        if not self.is_ours(path, dir_fd):
            return os.stat(path, dir_fd=dir_fd)
        return _status(self.disk.find(path, self._start(dir_fd)))

    lstat = stat

    def utime(self, path: str, *, dir_fd: int | None = None) -> None:
        def perform(fault: Fault | None) -> None:
            self._check(fault, False)
            self.disk.find(path, self._start(dir_fd)).modified = self.simulation.time

        self._call("utime", self._path(path, dir_fd), perform, READS)

    def link(self, source: str, target: str, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        assert src_dir_fd == dst_dir_fd, "the disk links within one directory"

        def perform(fault: Fault | None) -> None:
            if fault is None or fault.kind == "lost":
                self.disk.link(source, target, self._start(dst_dir_fd))
            self._check(fault, True)

        self._call("link", self._path(target, dst_dir_fd), perform, LINKS)

    def unlink(self, path: str, *, dir_fd: int | None = None) -> None:
        whole = self._path(path, dir_fd)

        def perform(fault: Fault | None) -> None:
            if fault is None or fault.kind == "lost":
                start = self._start(dir_fd)
                file = self.disk.unlink(path, start)
                if start is None or self._leads_to(self._at(dir_fd or 0).path, start):
                    self.on_unlink(whole, file)
            self._check(fault, False)

        self._call("unlink", whole, perform, DELETES)

    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        def perform(fault: Fault | None) -> None:
            self._check(fault, True)
            self.disk.make_directory(path, self._start(dir_fd))

        self._call("mkdir", self._path(path, dir_fd).rstrip("/"), perform, CHANGES)

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        if not _is_ours(path):
            os.makedirs(path, mode, exist_ok)
            return
        parent = os.path.dirname(path)
        if not self._isdir(parent):
            self.makedirs(parent, mode, exist_ok=True)
        try:
            self.mkdir(path)
        except FileExistsError:
            if not exist_ok:
                raise

    def rmdir(self, path: str, *, dir_fd: int | None = None) -> None:
        def perform(fault: Fault | None) -> None:
            if fault is None or fault.kind == "lost":
                self.disk.remove_directory(path, self._start(dir_fd))
            self._check(fault, False)

        self._call("rmdir", self._path(path, dir_fd), perform, DELETES)

    def listdir(self, descriptor: int) -> list[str]:
        def perform(fault: Fault | None) -> list[str]:
            self._check(fault, False)
            return list(self._listable(descriptor).entries)

        return self._call("list", self._at(descriptor).path, perform, READS)

    @contextmanager
    def scandir(self, descriptor: int) -> Iterator[Sequence[_Entry]]:
        def perform(fault: Fault | None) -> list[_Entry]:
            self._check(fault, False)
            directory = self._listable(descriptor)
            return [_Entry(directory, name) for name in directory.entries]

        yield self._call("list", self._at(descriptor).path, perform, READS)

    def _listable(self, descriptor: int) -> Directory:
        """:raises FileNotFoundError: it was removed since it was opened."""
        directory = self._start(descriptor)
        assert directory is not None
        if not directory.links:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return directory

    def _leads_to(self, path: str, directory: Directory) -> bool:
        try:
            return self.disk.find(path) is directory
        except OSError:
            return False

    def _isdir(self, path: str) -> bool:
        if not _is_ours(path):
            return os.path.isdir(path)
        try:
            return isinstance(self.disk.find(path), Directory)
        except OSError:
            return False

    def _lexists(self, path: str) -> bool:
        if not _is_ours(path):
            return os.path.lexists(path)
        try:
            self.disk.find(path)
        except OSError:
            return False
        return True

    def _map(self, descriptor: int, length: int, access: int) -> bytes:
        node = self._at(descriptor).node
        assert isinstance(node, File)
        if not node.content:
            raise ValueError("cannot mmap an empty file")
        return bytes(node.content)

    # -- forking and flock

    def Descriptor(self) -> forking.Descriptor:
        """The class of the same name in `forking`."""
        return _Descriptor(self)

    def take(self, full: str, name: str, path: str | None = None, at: int | None = None) -> forking.Descriptor:
        if not _is_ours(full):
            return flock.take(full, name, path, at)

        def perform(fault: Fault | None) -> forking.Descriptor:
            self._check(fault, False)
            start = self._start(at)
            try:
                node = self.disk.find(path or full, start)
            except FileNotFoundError:
                node = self.disk.make_file(path or full, start)
            self._check_unlocked(node, full, name)
            held = self.Descriptor()
            held.number = self._locks[node.number] = self._opened(node, full)
            return held

        return self._call("lock", full, perform, READS)

    def _check_unlocked(self, node: Node, full: str, name: str) -> None:
        holder = self._locks.get(node.number)
        if holder is not None:
            owner = self._open[holder].owner
            who = f"pid 1 on host {owner.name if owner else 'test'}"
            raise LockedError(f"{full} is locked by {who}: try again when that process is done", name, who)

    def take_again(self, held: forking.Descriptor, full: str, name: str) -> None:
        if isinstance(held, flock.LockFile):
            flock.take_again(held, full, name)
            return
        node = self._at(held.number).node

        def perform(fault: Fault | None) -> None:
            self._check(fault, False)
            self._check_unlocked(node, full, name)
            self._locks[node.number] = held.number

        self._call("lock", full, perform, READS)

    def try_lock(self, held: forking.Descriptor, full: str) -> bool:
        if held.number < _FIRST_DESCRIPTOR:
            return flock.try_lock(held, full)
        return self.try_again(held, full)

    def try_again(self, held: forking.Descriptor, full: str) -> bool:
        if held.number < _FIRST_DESCRIPTOR:
            return flock.try_again(held, full)
        node = self._at(held.number).node.number
        return self._call("lock", full, lambda fault: self._locks.setdefault(node, held.number) == held.number, _NONE)

    def unlock(self, held: forking.Descriptor) -> None:
        if held.number < _FIRST_DESCRIPTOR:
            flock.unlock(held)
        elif (opened := self._open.get(held.number)) and self._locks.get(opened.node.number) == held.number:
            del self._locks[opened.node.number]

    def release(self, held: forking.Descriptor) -> None:
        if 0 <= held.number < _FIRST_DESCRIPTOR:
            flock.release(held)
        else:
            held.close()

    def note(self, held: forking.Descriptor) -> str:
        if isinstance(held, flock.LockFile):
            return flock.note(held)
        return self._notes.get(self._at(held.number).node.number, "")

    def write_note(self, held: forking.Descriptor, text: str) -> None:
        if isinstance(held, flock.LockFile):
            flock.write_note(held, text)
            return
        opened = self._at(held.number)

        def perform(fault: Fault | None) -> None:
            if fault is None:
                self._notes[opened.node.number] = text

        self._call("note", opened.path, perform, READS)

    # -- common ground

    def _call(self, call: str, path: str, perform: Callable[[Fault | None], T], kinds: frozenset[str]) -> T:
        def performed(fault: Fault | None) -> T:
            if fault is not None and fault.kind in _BY_PEOPLE:
                self._interfere(fault)
                fault = None
            return perform(fault)

        return self.simulation.step(f"{call} {path.removeprefix(ROOT)}", performed, kinds | _BY_PEOPLE)

    def _interfere(self, fault: Fault) -> None:
        """Change the directory of a store as people might, right before a call."""
        stores = [name for name in self.disk.directory(ROOT).entries if not name.startswith(_FORMER)]
        for name in stores:
            path = f"{ROOT}/{name}"
            if fault.kind == "unlocked":
                self.disk.remove_tree(f"{path}/{LOCKS}".rstrip("/"))
                continue
            self._moved += 1
            self.disk.replace_by_copy(path, f"{ROOT}/{_FORMER}{self._moved}", of_links=fault.amount < 0.5)

    def _opened(self, node: Node, path: str) -> int:
        self._next += 1
        self._open[self._next] = _Open(node, path, self.simulation.current)
        return self._next

    def _check(self, fault: Fault | None, takes_space: bool) -> None:
        """Fail as the fault says, or because the disk is full."""
        if fault is not None and fault.kind == "full":
            self._full_until = self.simulation.time + fault.amount
        elif fault is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        if takes_space and self.simulation.time < self._full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class _Entry:
    """One entry of a directory that is being read."""

    def __init__(self, directory: Directory, name: str) -> None:
        self.name = name
        self._directory = directory

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        """False if it is gone by now."""
        try:
            return stat.S_ISDIR(self.stat().st_mode)
        except FileNotFoundError:
            return False

    def stat(self, *, follow_symlinks: bool = True) -> Any:
        if self.name not in self._directory.entries:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return _status(self._directory.entries[self.name])


def _status(node: Node) -> SimpleNamespace:
    is_file = isinstance(node, File)
    return SimpleNamespace(
        st_mode=stat.S_IFREG | 0o644 if is_file else stat.S_IFDIR | 0o755,
        st_ino=node.number,
        st_dev=1,
        st_nlink=node.links,
        st_size=len(node.content) if isinstance(node, File) else 0,
        st_mtime=node.modified,
    )


def _is_ours(path: str) -> bool:
    return path == ROOT or path.startswith(f"{ROOT}/")
