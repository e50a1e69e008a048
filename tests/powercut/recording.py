"""Records what a run does to the disk, by replacing the system calls of `opslog.backends`.

`Recorder` is for threads of one process. With `Turns` only one of them runs at a time, and at each system call a seed
decides which one. `SharedRecorder` is for one of many processes that write one record together.
"""

from __future__ import annotations

import fcntl
import os
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec

from opslog.backends import forking, posix
from tests.powercut.disk import Ack, Event, Link, Make, Remove, Sync, Truncate, Write


class Killed(BaseException):
    """Raised in a thread of a process that counts as killed. From then on it can change nothing."""


_PAUSES = {"_fdatasync": 0.5, "_fsync": 0.15}
"""The probability that a thread is passed over for a while before a call. Its writes can then be seen, but are not
durable."""


class Turns:
    """Threads of which only one runs at a time.

    :ivar doomed: for each thread to be killed, how many system calls it may still make; 0 after the kill.
    """

    def __init__(self, seed: object) -> None:
        self._rng = random.Random(f"turns of {seed}")
        self._condition = threading.Condition()
        self._waiting: list[str] = []
        self._current = ""
        self._failures: list[BaseException] = []
        self._taken = 0
        self._asleep: dict[str, int] = {}
        """For each thread, the turn until which it is passed over, as long as there are others."""
        self.doomed: dict[str, int] = {}

    def run(self, works: dict[str, Callable[[], None]]) -> None:
        """Run all works at once, each in a thread with the given name. Raises what one of them raised."""
        self._waiting = sorted(works)
        threads = [threading.Thread(target=self._work, args=work, name=work[0]) for work in works.items()]
        with self._condition:
            self._current = self._rng.choice(self._waiting)
            for thread in threads:
                thread.start()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def take(self, call: str) -> None:
        """Called before each system call. Other threads may run here, and before an fsync they may do a lot."""
        name = threading.current_thread().name
        if name not in self._waiting:
            return
        if name in self.doomed:
            if self.doomed[name] == 0:
                raise Killed
            self.doomed[name] -= 1
        # Nobody else holds that lock, so nobody waits for it here.
        if not forking.lock._is_owned():  # type: ignore[attr-defined]
            with self._condition:
                if self._rng.random() < _PAUSES.get(call, 0):
                    self._asleep[name] = self._taken + self._rng.randrange(80)
                self._give_on()
                self._condition.wait_for(lambda: self._current == name)

    def _give_on(self) -> None:
        self._taken += 1
        awake = [name for name in self._waiting if self._asleep.get(name, 0) < self._taken]
        self._current = self._rng.choice(awake or self._waiting)
        self._condition.notify_all()

    def _work(self, name: str, work: Callable[[], None]) -> None:
        with self._condition:
            self._condition.wait_for(lambda: self._current == name)
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (it is raised where `run` was called)
            self._failures.append(error)
        with self._condition:
            self._waiting.remove(name)
            if self._waiting:
                self._give_on()


class Recorder:
    """What happens below the directory `world` while it is `recording`.

    :param before: called before each system call, with its name.
    """

    def __init__(self, world: Path, before: Callable[[str], None] = lambda call: None) -> None:
        self.world = world.resolve()
        self.events: list[Event] = []
        self._prefix = f"{self.world}/"
        self._before = before
        self._lock = threading.RLock()

    def acknowledge(self, agent: str, clock: int) -> None:
        with self._alone():
            self._note(Ack(agent, clock))

    @contextmanager
    def recording(self) -> Iterator[None]:
        with ExitStack() as stack:
            for function in ("open", "mkdir", "rmdir", "unlink", "link", "write", "pwrite", "ftruncate", "fsync"):
                call = self._recorded(getattr(self, f"_{function}"), getattr(os, function))
                stack.enter_context(patch.object(os, function, call))
            stack.enter_context(patch.object(posix, "datasync", self._recorded(self._fdatasync, posix.datasync)))
            stack.enter_context(patch.object(os, "scandir", self._recorded(_just, os.scandir)))
            for function in ("rename", "replace", "truncate", "symlink", "fdatasync"):
                stack.enter_context(patch.object(os, function, _unexpected))
            yield

    def _recorded(self, record: Callable[..., Any], real: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *args: Any, **options: Any) -> Any:
            path = self._path(target, options.get("dir_fd", options.get("src_dir_fd")))
            if path is None:
                return real(target, *args, **options)
            self._before(record.__name__)
            with self._alone():
                return record(real, path, target, *args, **options)

        return call

    def _path(self, target: str | int, at: int | None) -> str | None:
        """The path of a file, if it is in the world. :param at: the descriptor of the directory that a path is relative
        to."""
        path = _whole(target, at)
        return path if f"{path}/".startswith(self._prefix) else None

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Inside the block nobody else does or records anything."""
        with self._lock:
            yield

    def _note(self, event: Event) -> None:
        self.events.append(event)

    # The result of each call. `path` and `target` name the same thing.

    def _open(self, real: Any, path: str, target: str, flags: int, *args: Any, **options: Any) -> int:
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(path)
        assert not flags & os.O_TRUNC
        descriptor: int = real(target, flags, *args, **options)
        if is_new:
            self._note(Make(path, os.fstat(descriptor).st_ino, False))
        return descriptor

    def _mkdir(self, real: Any, path: str, target: str, *args: Any, **options: Any) -> None:
        real(target, *args, **options)
        self._note(Make(path, os.stat(path).st_ino, True))

    def _rmdir(self, real: Any, path: str, target: str, **options: Any) -> None:
        real(target, **options)
        self._note(Remove(path))

    _unlink = _rmdir

    def _link(self, real: Any, path: str, target: str, name: str, **options: Any) -> None:
        real(target, name, **options)
        self._note(Link(path, _whole(name, options.get("dst_dir_fd"))))

    def _write(self, real: Any, path: str, target: int, data: bytes) -> int:
        appends = fcntl.fcntl(target, fcntl.F_GETFL) & os.O_APPEND
        offset = os.lseek(target, 0, os.SEEK_END if appends else os.SEEK_CUR)
        written: int = real(target, data)
        self._note(Write(path, os.fstat(target).st_ino, offset, bytes(data[:written])))
        return written

    def _pwrite(self, real: Any, path: str, target: int, data: bytes, offset: int) -> int:
        written: int = real(target, data, offset)
        self._note(Write(path, os.fstat(target).st_ino, offset, bytes(data[:written])))
        return written

    def _ftruncate(self, real: Any, path: str, target: int, size: int) -> None:
        real(target, size)
        self._note(Truncate(path, os.fstat(target).st_ino, size))

    def _fsync(self, real: Any, path: str, target: int) -> None:
        # Noted, but not done: the model knows what it is good for, and a real fsync would make the tests slow.
        self._note(Sync(path, os.fstat(target).st_ino))

    def _fdatasync(self, real: Any, path: str, target: int) -> None:
        self._fsync(real, path, target)


class SharedRecorder(Recorder):
    """One record of many processes: a file to which each process adds a line while no other process does anything."""

    def __init__(self, world: Path, record: Path) -> None:
        super().__init__(world)
        self._file = os.open(record, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        self._write_line = os.write
        self._depth = 0

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with self._lock:
            self._depth += 1
            if self._depth == 1:
                fcntl.flock(self._file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    fcntl.flock(self._file, fcntl.LOCK_UN)

    def _fsync(self, real: Any, path: str, target: int) -> None:
        real(target)
        super()._fsync(real, path, target)

    def _note(self, event: Event) -> None:
        self._write_line(self._file, msgspec.json.encode(event) + b"\n")


def read_record(record: Path) -> list[Event]:
    """The actions of processes with a `SharedRecorder`, in order."""
    return msgspec.json.Decoder(Event).decode_lines(record.read_bytes())


def _whole(target: str | int, at: int | None) -> str:
    """The path of a descriptor, or of a path that may be relative to the directory open at `at`."""
    if isinstance(target, int):
        return os.readlink(f"/proc/self/fd/{target}")
    return os.path.abspath(os.path.join(_whole(at, None), target) if at is not None else target)


def _just(real: Any, path: str, target: Any) -> Any:
    return real(target)


def _unexpected(*args: object, **options: object) -> Any:
    raise AssertionError(f"a system call that is not recorded: {args}")
