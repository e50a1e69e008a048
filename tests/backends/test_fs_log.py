"""The log in a directory after an append during which system calls failed."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from opslog.backends import Appender, Position, forking, posix
from opslog.backends.local import flock
from opslog.backends.local.fs import FsBackend
from opslog.backends.local.tree import Tree
from opslog.errors import (
    AgentFencedError,
    ClosedError,
    CommitUnknownError,
    WriteFailedError,
)
from opslog.format.layout import segment_path
from tests.support.faults import failing
from tests.support.files import files


def test_bytes_of_a_short_write_are_durable_and_admitted(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = backend.appender("a")
    appender.append(b"before\n")
    synced: list[int] = []
    real_write, real_sync = os.write, posix.datasync
    room = 10

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real_write(descriptor, bytes(data)[: min(room, 6)])
        room -= written
        return written

    def datasync(descriptor: int) -> None:
        real_sync(descriptor)
        synced.append(os.fstat(descriptor).st_size)

    monkeypatch.setattr(os, "write", write)
    monkeypatch.setattr(posix, "datasync", datasync)
    with pytest.raises(WriteFailedError, match=r"only the first 10 bytes.*No space left") as caught:
        appender.append(b"one line\nand another line\n")
    assert caught.value.durable == 10
    assert synced == [17]
    assert backend.read(segment_path("a", 1)) == b"before\none line\na"
    # Still full: no further line is written, and empty segments do not pile up.
    for _ in range(5):
        with pytest.raises(WriteFailedError, match="nothing of this append is in the log") as caught:
            appender.append(b"again\n")
        assert caught.value.durable == 0
    assert files(root) == [segment_path("a", 1), segment_path("a", 2)]
    monkeypatch.undo()
    assert appender.append(b"at last\n") == Position(2, 0)
    assert backend.read(segment_path("a", 1)) == b"before\none line\na"
    assert backend.read(segment_path("a", 2)) == b"at last\n"
    appender.close()


def test_a_write_that_failed_but_wrote_is_admitted(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    real = os.write

    def write(descriptor: int, data: bytes) -> int:
        real(descriptor, data[:3])
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(WriteFailedError) as caught:
        appender.append(b"234\n")
    assert caught.value.durable == 3
    monkeypatch.undo()
    assert appender.append(b"5\n") == Position(2, 0)
    appender.close()


@pytest.mark.parametrize("short", [False, True])
def test_after_a_failed_fdatasync_the_outcome_is_unknown(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch, short: bool
) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    monkeypatch.setattr(posix, "datasync", failing(errno.EIO))
    if short:
        real = os.write
        monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:1]) and failing(errno.EIO)())
    with pytest.raises(CommitUnknownError, match=r"00001\.jsonl from byte 2 .*Input/output error") as first:
        appender.append(b"2\n")
    monkeypatch.undo()
    with pytest.raises(CommitUnknownError) as second:
        appender.append(b"3\n")
    assert str(first.value) == str(second.value)
    assert b"3" not in backend.read(segment_path("a", 1))
    appender.close()
    with pytest.raises(ClosedError):
        appender.append(b"4\n")
    appender = backend.appender("a")
    assert appender.append(b"4\n") == Position(2, 0)
    appender.close()


def test_an_interrupted_append_is_unknown(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")

    def interrupt(descriptor: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(posix, "datasync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        appender.append(b"2\n")
    monkeypatch.undo()
    with pytest.raises(CommitUnknownError, match="interrupted"):
        appender.append(b"3\n")
    appender.close()


@pytest.mark.parametrize("broken", ["open", "fsync_directory"])
def test_a_segment_that_cannot_be_begun(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    appender.append(b"2\n")
    appender._abandon_segment()
    monkeypatch.setattr(posix if broken == "fsync_directory" else forking.Descriptor, broken, failing(errno.ENOSPC))
    for _ in range(3):
        with pytest.raises(WriteFailedError, match=r"00002\.jsonl .*nothing of this append.*No space left") as caught:
            appender.append(b"3\n")
        assert caught.value.durable == 0
    assert files(root) == [segment_path("a", 1)]
    monkeypatch.undo()
    assert appender.append(b"4\n") == Position(2, 0)
    appender.close()


def _replaced_after_the_creation_of_segment_two(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Appender, Appender]:
    """Returns an appender whose append has failed after creating segment 2, and the appender that wrote segment 3
    meanwhile, because somebody had removed the lock files as "stale"."""
    appender = backend.appender("a")
    appender.append(b"1\n")
    others: list[Appender] = []
    real = FsBackend.open_new

    def create(self: FsBackend, tree: Tree, path: str, file: forking.Descriptor) -> None:
        real(self, tree, path, file)
        if path == segment_path("a", 2) and not others:
            shutil.rmtree(root / "locks")
            other = FsBackend(str(root)).appender("a")
            others.append(other)
            other.settle()
            other.append(b"3\n")
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(FsBackend, "open_new", create)
    appender.advance(1)
    monkeypatch.setattr(appender, "_continues", False)
    with pytest.raises((WriteFailedError, AgentFencedError)):
        appender.append(b"2\n")
    return appender, others[0]


def test_a_segment_that_somebody_has_gone_past_is_not_removed_while_it_is_locked(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender, other = _replaced_after_the_creation_of_segment_two(backend, root, monkeypatch)
    assert files(root / "ops") == [f"a/{number:020}.jsonl" for number in (1, 2, 3)]
    with pytest.raises(AgentFencedError):
        appender.append(b"again\n")
    appender.close()
    assert other.append(b"more\n").segment == 3
    other.close()


@pytest.mark.parametrize("error", [OSError(errno.EIO, "the disk"), MemoryError("none"), KeyboardInterrupt()])
def test_an_interrupt_after_a_segment_was_begun_leaves_no_gap(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """The appender lets go of the segment before it last."""
    appender = backend.appender("a")
    appender.append(b"1\n")
    monkeypatch.setattr(appender, "_continues", False)
    real = flock.release

    def release(held: forking.Descriptor) -> None:
        real(held)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(flock, "release", release)
        with pytest.raises((WriteFailedError, MemoryError, KeyboardInterrupt)):
            appender.append(b"2\n")
    appender.append(b"3\n")
    numbers = [int(Path(name).stem) for name in files(root / "ops")]
    assert numbers == list(range(1, len(numbers) + 1))
    appender.close()


def test_an_agents_directory_that_was_removed(backend: FsBackend, root: Path) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    shutil.rmtree(root / "ops")
    # A segment number that readers have seen is not used again.
    assert appender.append(b"2\n") == Position(2, 0)
    assert files(root) == [segment_path("a", 2)]
    appender.close()


def test_a_store_that_was_removed(backend: FsBackend, root: Path) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    shutil.rmtree(root)
    for _ in range(2):
        with pytest.raises(WriteFailedError, match="directory was removed or moved: put it back") as caught:
            appender.append(b"2\n")
        assert caught.value.durable == 0
    # Somebody begins a new store there. The old lock does not keep anybody out of it.
    successor = FsBackend(root).appender("a")
    for _ in range(2):
        with pytest.raises(AgentFencedError, match="lock file was removed"):
            appender.append(b"3\n")
    appender.close()
    assert successor.append(b"new\n") == Position(1, 0)
    successor.close()


def test_a_segment_that_is_removed_while_it_is_written(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    real = posix.datasync

    def datasync(descriptor: int) -> None:
        real(descriptor)
        os.unlink(root / segment_path("a", 1))

    monkeypatch.setattr(posix, "datasync", datasync)
    with pytest.raises(CommitUnknownError, match="deleted meanwhile"):
        appender.append(b"2\n")
    appender.close()


def test_a_second_writer_without_a_lock_fences(backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    appender = backend.appender("a")
    monkeypatch.setattr(appender, "_highest_number", lambda: 0)
    backend.create(segment_path("a", 1), b"from another\n")
    for _ in range(2):
        with pytest.raises(AgentFencedError, match=r"it created ops/a/0+1\.jsonl\. Nothing of this append"):
            appender.append(b"1\n")
    assert backend.read(segment_path("a", 1)) == b"from another\n"
    appender.close()


def test_a_disk_that_is_really_full(small_disk: Path) -> None:
    backend = FsBackend(small_disk / "store")
    appender = backend.appender("a")
    line = b"x" * 9999 + b"\n"
    written = b""
    while shutil.disk_usage(small_disk).free >= 2 * len(line):
        appender.append(line)
        written += line
    line = b"x" * 49_999 + b"\n"
    with pytest.raises(WriteFailedError, match="No space left on device; free some space") as caught:
        appender.append(line)
    assert backend.read(segment_path("a", 1)) == written + line[: caught.value.durable]
    with pytest.raises(WriteFailedError) as caught:
        backend.create("manifests/1", line)
    assert files(small_disk / "store") == [segment_path("a", 1)]
    with pytest.raises(WriteFailedError):
        appender.append(line)
    filler = segment_path("a", 1)
    backend.delete([filler])
    assert appender.append(line) == Position(2, 0)
    assert backend.read(segment_path("a", 2)) == line
    appender.close()


def test_a_filesystem_mounted_read_only(small_disk: Path) -> None:
    backend = FsBackend(small_disk / "store")
    appender = backend.appender("a")
    appender.append(b"1\n")
    appender.close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    reader = FsBackend(small_disk / "store", create=False)
    assert reader.read(segment_path("a", 1)) == b"1\n"
    assert [entry.path for entry in reader.list("ops/")] == [segment_path("a", 1)]
    assert reader.now() > 0
    for write in (lambda: reader.create("x", b""), lambda: reader.appender("a"), lambda: reader.lock("l").__enter__()):
        with pytest.raises(WriteFailedError, match=r"mounted read-only.*read_only=True"):
            write()
