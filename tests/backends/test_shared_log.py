"""Appends to a log with many writers when something fails, dies, pauses or is moved. The contract's suite,
`opslog.backends.testing_turns`, covers what holds when nothing does."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from opslog.backends import Backend, Position, forking, posix, turns
from opslog.backends.local import flock
from opslog.backends.local.fs import FsBackend
from opslog.backends.memory import MemoryBackend
from opslog.backends.testing_turns import end_of, line
from opslog.environment import Environment
from opslog.errors import ClosedError, CommitUnknownError, LockedError, ReopenError, WriteFailedError
from opslog.format.layout import log_prefix, segment_path
from tests.support.faults import failing, interrupted
from tests.support.files import files
from tests.support.scripts import Process

START = Position(1, 0)
FIRST = segment_path("shared", 1)
LOCK = "locks/agents/shared.lock"


def append(backend: Backend, text: object) -> Position:
    """Append one more line, after all lines that are there."""
    end = end_of(backend)
    position = backend.append_at("shared", end, line(text))
    assert position is not None
    return position


def log(backend: Backend) -> bytes:
    return b"".join(backend.read(entry.path) for entry in backend.list(log_prefix("shared")))


# In a directory: writes that fail


def test_a_write_that_failed_leaves_whole_lines_or_a_torn_tail(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    data = line(2) + line(3)
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        real(descriptor, data[: len(line(2)) + 3])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(WriteFailedError, match="only the first 14 bytes") as caught:
            backend.append_at("shared", end_of(backend), data)
    assert caught.value.durable == len(line(2)) + 3
    assert backend.append_at("shared", Position(1, len(line(1))), line("late")) is None, "line 2 is in the log"
    assert append(backend, 4) == Position(2, 0), "the torn tail stays behind"
    assert backend.read(FIRST) == line(1) + line(2) + line(3)[:3]
    assert files(root / "ops") == [f"shared/{number:020}.jsonl" for number in (1, 2)]


def test_a_full_disk_does_not_pile_up_empty_segments(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", failing(errno.ENOSPC))
        for _ in range(5):
            with pytest.raises(WriteFailedError, match="nothing of this append is in the log") as caught:
                backend.append_at("shared", START, line(1))
            assert caught.value.durable == 0
    assert files(root / "ops") == [FIRST.removeprefix("ops/")]
    assert append(backend, 1) == START


def test_after_a_failed_fdatasync_nobody_knows_and_the_next_one_syncs_what_is_there(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    with monkeypatch.context() as patch:
        patch.setattr(posix, "datasync", failing(errno.EIO))
        with pytest.raises(CommitUnknownError, match=r"00001\.jsonl from byte 11 .*Input/output error"):
            append(backend, 2)
        with pytest.raises(WriteFailedError, match="may not survive a power cut"):
            append(backend, 3)
    assert log(backend) == line(1) + line(2)
    append(backend, 4)
    assert log(backend) == line(1) + line(2) + line(4)


@pytest.mark.parametrize("function", ["write", "pwrite", "fstat", "pread", "listdir"])
def test_ctrl_c_at_any_call_leaves_the_log_usable(
    root: Path, backend: FsBackend, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    append(backend, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.append_at("shared", Position(1, len(line(1))), line(2))
    append(FsBackend(root), 3)
    # The note is written last, when everything is done.
    assert log(backend) == line(1) + (line(2) if function == "pwrite" else b"") + line(3)


def test_a_full_segment_is_followed_by_the_next(root: Path) -> None:
    backend = FsBackend(root, segment_bytes=len(line(0)) * 2)
    assert [append(backend, number).segment for number in range(5)] == [1, 1, 2, 2, 3]
    assert log(backend) == b"".join(map(line, range(5)))


def test_a_segment_that_may_not_be_written_to_is_followed_by_the_next(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It belongs to another user, and the group may not write."""
    append(backend, 1)
    real = forking.Descriptor.open

    def open_as_another_user(self: forking.Descriptor, path: str, flags: int, at: int | None = None) -> None:
        if path == FIRST and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        real(self, path, flags, at)

    monkeypatch.setattr(forking.Descriptor, "open", open_as_another_user)
    assert append(backend, 2) == Position(2, 0)
    assert append(backend, 3) == Position(2, len(line(2)))


# How far the log is durable


def synced(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Records the file sizes at each sync from now on."""
    sizes: list[int] = []
    real = posix.datasync

    def datasync(descriptor: int) -> None:
        real(descriptor)
        sizes.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(posix, "datasync", datasync)
    return sizes


@pytest.mark.parametrize(
    "note",
    ["", "durable", "durable {n} {size} {dev} {ino}", "durable {n} {size} {dev} {ino} another-boot\n"],
    ids=["none", "cut short", "without its end", "before a restart"],
)
def test_a_note_that_does_not_count_costs_one_more_sync(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch, note: str
) -> None:
    append(backend, 1)
    status = os.stat(root / FIRST)
    text = note.format(n=f"{1:020}", size=f"{status.st_size:020}", dev=status.st_dev, ino=status.st_ino)
    holder = (root / LOCK).read_text().split("\n")[0]
    (root / LOCK).write_text(f"{holder}\n{text}")
    sizes = synced(monkeypatch)
    append(backend, 2)
    append(backend, 3)
    size = len(line(0))
    assert sizes == [size, 2 * size, 3 * size]


def test_a_note_says_nothing_of_a_copy(backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append(backend, 1)
    shutil.copytree(root, root.parent / "copy")
    sizes = synced(monkeypatch)
    append(FsBackend(root.parent / "copy"), 2)
    assert len(sizes) == 2


def test_a_note_outlives_the_names_of_other_holders(root: Path) -> None:
    (root / "x").parent.mkdir(parents=True)
    full = str(root / "x")
    held = flock.take(full, "x")
    assert flock.note(held) == ""
    for text in ("a longer note", "short"):
        flock.write_note(held, text)
        flock.release(held)
        (root / "x").write_bytes((root / "x").read_bytes().replace(str(os.getpid()).encode(), b"1234567890"))
        held = flock.take(full, "x")
        assert flock.note(held) == text
        assert (root / "x").read_bytes().count(b"\n") == 2
    flock.release(held)


def test_appends_are_synced_again_since_an_appender_notes_nothing(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    appender = backend.appender("shared")
    appender.append(line("seal"))
    appender.close()
    sizes = synced(monkeypatch)
    append(backend, 2)
    assert sizes == [len(line("seal")), len(line("seal")) + len(line(2))]


# Other processes

WRITER = """
import os, signal, sys
from opslog.backends import posix
from opslog.backends.local.fs import FsBackend
from opslog.backends.testing_turns import end_of, line
backend = FsBackend(sys.argv[1])
real = posix.datasync
def datasync(descriptor):
    print("written", flush=True)
    input()
    real(descriptor)
posix.datasync = datasync
print(backend.append_at("shared", end_of(backend), line("other")), flush=True)
"""


def test_a_stopped_holder_is_named_and_not_robbed(
    backend: FsBackend, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    holder = start(WRITER, backend.root)
    assert holder.hear() == "written"
    holder.process.send_signal(signal.SIGSTOP)
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.05)
    before = log(backend)
    assert before == line(1) + line("other"), "it can be read before it is durable"
    end = end_of(backend)
    named = rf"pid {holder.pid} on host \S+ for 0.05 seconds.*nothing was written"
    with pytest.raises(LockedError, match=named) as caught:
        backend.append_at("shared", end, line("late"))
    assert (caught.value.lock, caught.value.holder.split()[1]) == ("agents/shared", str(holder.pid))
    assert log(backend) == before
    assert backend.append_at("shared", Position(1, len(line(1))), line("late")) is None, "this one need not wait"
    own = backend.appender("own")
    own.append(line("plain"))
    own.close()
    holder.process.send_signal(signal.SIGCONT)
    holder.resume()
    assert "offset=11" in holder.hear()
    assert holder.end() == 0
    monkeypatch.undo()
    assert append(backend, 2) == end


def test_bytes_of_a_killed_writer_are_synced_before_anybody_goes_on(
    backend: FsBackend, start: Callable[..., Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    holder = start(WRITER, backend.root)
    assert holder.hear() == "written"
    holder.process.send_signal(signal.SIGKILL)
    holder.end()
    sizes = synced(monkeypatch)
    assert append(backend, 2) == Position(1, len(line(1) + line("other")))
    assert sizes == [len(line(1) + line("other")), len(line(1) + line("other") + line(2))]


RACER = """
import sys
from opslog.backends import open_backend
from opslog.backends.testing_turns import end_of, line
backend = open_backend(sys.argv[1])
input()
done = 0
while done < 25:
    end = end_of(backend)
    position = backend.append_at("shared", end, line(f"{sys.argv[2]}-{done}"))
    if position is not None:
        assert position == end or position.segment == end.segment + 1
        print(position.segment, position.offset, flush=True)
        done += 1
"""


def test_each_append_of_racing_processes_is_there_once(backend: FsBackend, start: Callable[..., Process]) -> None:
    racers = [start(RACER, backend.root, str(number)) for number in range(4)]
    for racer in racers:
        racer.resume()
    said = {
        tuple(map(int, racer.hear().split())): line(f"{number}-{done}")
        for number, racer in enumerate(racers)
        for done in range(25)
    }
    assert [racer.end() for racer in racers] == [0] * 4
    assert len(said) == 100
    assert log(backend) == b"".join(data for _, data in sorted(said.items()))


def test_a_forked_child_appends_nothing(backend: FsBackend, forked: Callable[[Callable[[], None]], None]) -> None:
    append(backend, 1)

    def child() -> None:
        with pytest.raises(ClosedError):
            backend.append_at("shared", Position(1, len(line(1))), line("child"))

    forked(child)
    append(backend, 2)
    assert log(backend) == line(1) + line(2)


# Files that stay open from one append to the next


def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records the paths that are opened for writing from now on."""
    paths: list[str] = []
    real = forking.Descriptor.open

    def open_(self: forking.Descriptor, path: str, flags: int, at: int | None = None) -> None:
        paths.append(path)
        real(self, path, flags, at)

    monkeypatch.setattr(forking.Descriptor, "open", open_)
    return paths


def test_the_next_append_opens_nothing_and_others_may_come_in_between(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = FsBackend(root)
    for number in range(2):
        append(backend, number)
    append(other, 2)
    paths = opened(monkeypatch)
    for number in range(3, 7):
        append([other, backend][number % 2], number)
    assert paths == []
    assert log(backend) == b"".join(map(line, range(7)))


def test_the_next_append_asks_the_system_nothing_twice(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        append(backend, number)
    end = end_of(backend)
    calls: Counter[str] = Counter()

    def counted(real: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            calls[name] += 1
            return real(*args, **options)

        return call

    system = [(os, ("open", "stat", "lstat", "fstat", "pread", "pwrite", "ftruncate", "scandir", "listdir", "write"))]
    for module, names in [*system, (fcntl, ("flock",))]:
        for name in names:
            monkeypatch.setattr(module, name, counted(getattr(module, name), name))
    assert backend.append_at("shared", end, line(2)) == end
    monkeypatch.undo()
    # The directory; the segment, the one after it and the lock file, and the segment again once it is durable.
    assert calls == {"stat": 1, "lstat": 4, "flock": 4, "pread": 1, "write": 1, "pwrite": 1}


def test_a_segment_that_is_deleted_once_it_was_locked_makes_the_append_unknown(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        append(backend, number)
    end = end_of(backend)
    real = flock.note

    def note(held: flock.LockFile) -> str:
        (root / FIRST).unlink()
        return real(held)

    with monkeypatch.context() as patch:
        patch.setattr(flock, "note", note)
        with pytest.raises(CommitUnknownError, match="the file was deleted meanwhile"):
            backend.append_at("shared", end, line(2))
    assert append(backend, 3) == Position(1, 0), "as in a log that has nothing"


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.EACCES])
def test_a_lock_that_is_refused_as_taken_is_waited_for(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    for number in range(2):
        append(backend, number)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(code))
        patch.setattr(turns, "WAIT_SECONDS", 0.0)
        with pytest.raises(LockedError, match=f"pid {os.getpid()} on host"):
            append(backend, 2)
    append(backend, 3)
    assert log(backend) == line(0) + line(1) + line(3)


def test_a_lock_that_cannot_be_taken_again_ends_the_append(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        append(backend, number)
    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", failing(errno.ENOLCK))
        with pytest.raises(WriteFailedError, match="a filesystem that supports flock"):
            append(backend, 2)
    append(backend, 3)
    assert log(backend) == line(0) + line(1) + line(3)


def test_what_others_began_meanwhile_is_the_end(root: Path) -> None:
    """Also if the caller has not read that far."""
    backend, other = (FsBackend(root, segment_bytes=len(line(0)) * 3) for _ in range(2))
    for number in range(2):
        append(backend, number)
    end = end_of(backend)
    for number in range(2, 5):
        append(other, number)
    assert backend.append_at("shared", end, line("late")) is None
    assert backend.append_at("shared", Position(1, 3 * len(line(0))), line("late")) is None
    assert append(backend, 5) == Position(2, 2 * len(line(0)))
    assert append(backend, 6) == Position(3, 0)
    assert log(backend) == b"".join(map(line, range(7)))


def test_another_may_have_begun_a_segment_behind_one_that_has_room(backend: FsBackend, root: Path) -> None:
    """Because that writer may not write to it, or uses another segment size."""
    for number in range(3):
        append(backend, number)
    end = end_of(backend)
    assert append(FsBackend(root, segment_bytes=1), 3) == Position(2, 0)
    assert backend.append_at("shared", end, line("late")) is None
    assert append(backend, 4) == Position(2, len(line(3)))


def test_what_was_collected_meanwhile_is_not_the_end(backend: FsBackend) -> None:
    for number in range(3):
        append(backend, number)
    end = end_of(backend)
    backend.delete([FIRST])
    assert backend.append_at("shared", end, line("late")) is None
    assert backend.list(log_prefix("shared")) == []


@pytest.mark.parametrize("moved", [FIRST, "ops/shared", "ops"])
def test_what_was_moved_away_meanwhile_gets_nothing_and_a_copy_in_its_place_goes_on(
    backend: FsBackend, root: Path, moved: str
) -> None:
    for number in range(3):
        append(backend, number)
    away = root.parent / "away"
    shutil.move(root / moved, away)
    (shutil.copy2 if away.is_file() else shutil.copytree)(away, root / moved)
    append(backend, 3)
    assert log(backend) == b"".join(map(line, range(4)))
    [segment] = [away] if away.is_file() else [path for path in away.rglob("*") if path.is_file()]
    assert segment.read_bytes() == b"".join(map(line, range(3)))


def test_a_name_that_another_has_is_waited_for_with_open_files(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        append(backend, number)
    appender = FsBackend(root).appender("shared")
    times: list[float] = []

    def sleep(seconds: float) -> None:
        times.append(seconds)
        if len(times) == 3:
            appender.close()

    backend._environment = Environment(sleep=sleep)
    paths = opened(monkeypatch)
    append(backend, 3)
    assert len(times) == 3
    assert paths == []
    assert log(backend) == b"".join(map(line, range(4)))


def test_threads_that_append_by_one_backend_take_turns(root: Path) -> None:
    backend = FsBackend(root)
    append(backend, "first")

    def extend(name: str) -> None:
        for number in range(20):
            while backend.append_at("shared", end_of(backend), line(f"{name}{number}")) is None:
                pass

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(extend, "abcd"))
    lines = log(backend).splitlines()
    assert len(lines) == len(set(lines)) == 81


def test_close_closes_them(backend: FsBackend) -> None:
    before = set(os.listdir("/proc/self/fd"))
    for number in range(3):
        append(backend, number)
    assert len(set(os.listdir("/proc/self/fd")) - before) == 2
    backend.close()
    assert not set(os.listdir("/proc/self/fd")) - before


def test_a_copy_of_links_gets_nothing(backend: FsBackend, root: Path) -> None:
    """Its files are the same as the original's. So the log may continue in segments that are not in the directory that
    was opened."""
    for number in range(3):
        append(backend, number)
    end = end_of(backend)
    shutil.move(root, root.parent / "moved")
    shutil.copytree(root.parent / "moved", root, copy_function=os.link)
    with pytest.raises(ReopenError, match="another directory stands at"):
        backend.append_at("shared", end, line("late"))
    assert (root / FIRST).read_bytes() == b"".join(map(line, range(3)))


# Directories that are moved, and locks that are removed


def test_locks_may_be_removed_at_any_moment(backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of an append another process comes, and finds the segment locked."""
    append(backend, 1)
    real = posix.datasync
    outcomes: list[object] = []

    def datasync(descriptor: int) -> None:
        if not outcomes:
            outcomes.append("begun")
            shutil.rmtree(root / "locks")
            with monkeypatch.context() as patch:
                patch.setattr(turns, "WAIT_SECONDS", 0.0)
                other = FsBackend(root)
                with pytest.raises(LockedError, match="whose lock file was removed"):
                    other.append_at("shared", end_of(other), line("other"))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(posix, "datasync", datasync)
        append(backend, 2)
    assert outcomes
    assert append(FsBackend(root), 3)
    assert log(backend) == line(1) + line(2) + line(3)


def test_an_append_whose_lock_file_was_removed_is_tried_again(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = flock.note
    removed: list[bool] = []

    def note(held: flock.LockFile) -> str:
        if not removed:
            removed.append(True)
            shutil.rmtree(root / "locks")
        return real(held)

    append(backend, 1)
    monkeypatch.setattr(flock, "note", note)
    append(backend, 2)
    assert removed
    assert log(backend) == line(1) + line(2)


def test_a_directory_that_was_replaced_gets_nothing(backend: FsBackend, root: Path) -> None:
    append(backend, 1)
    shutil.move(root, root.parent / "moved")
    shutil.copytree(root.parent / "moved", root)
    with pytest.raises(ReopenError, match="another directory stands at"):
        backend.append_at("shared", Position(1, len(line(1))), line(2))
    for store in (root, root.parent / "moved"):
        assert (store / FIRST).read_bytes() == line(1)


def test_a_directory_that_is_moved_during_an_append_makes_it_unknown(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(backend, 1)
    real = posix.datasync

    def datasync(descriptor: int) -> None:
        real(descriptor)
        shutil.move(root, root.parent / "moved")
        shutil.copytree(root.parent / "moved", root)

    monkeypatch.setattr(posix, "datasync", datasync)
    with pytest.raises(CommitUnknownError, match="moved away or replaced"):
        append(backend, 2)


# In memory


def test_in_memory_an_append_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = MemoryBackend()
    appender = backend.appender("shared")
    monkeypatch.setattr(turns, "WAIT_SECONDS", 0.0)
    with pytest.raises(LockedError, match=f"pid {os.getpid()} on host"):
        backend.append_at("shared", START, line(1))
    assert backend.list("") == []
    appender.close()
    assert append(backend, 1) == START
