"""Tests that need a real filesystem, real processes and failing system calls."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from opslog.backends import Position, Range, posix
from opslog.backends.local.fs import FsBackend
from opslog.errors import (
    AgentBusyError,
    AlreadyExistsError,
    ClosedError,
    CommitUnknownError,
    InvalidNameError,
    LockedError,
    MissingFileError,
    OpslogError,
    RetryError,
    WriteFailedError,
)
from opslog.format.layout import segment_path
from tests.support.faults import failing, interrupted
from tests.support.files import files
from tests.support.scripts import Process

# Other processes


RACER = """
import sys
from opslog.backends.local.fs import FsBackend
from opslog.errors import AlreadyExistsError
backend = FsBackend(sys.argv[1])
print("ready", flush=True)
input()
won = []
for turn in range(40):
    try:
        backend.create(f"manifests/{turn}", sys.argv[2].encode() * 10000)
        won.append(turn)
    except AlreadyExistsError:
        pass
    assert len(set(backend.read(f"manifests/{turn}"))) == 1
print(*won, flush=True)
"""


def test_exactly_one_of_racing_processes_creates_each_file(root: Path, start: Callable[..., Process]) -> None:
    racers = {name: start(RACER, root, name) for name in "abcd"}
    for racer in racers.values():
        assert racer.hear() == "ready"
    for racer in racers.values():
        racer.resume()
    winners = {int(turn): name for name, racer in racers.items() for turn in racer.hear().split()}
    assert [racer.end() for racer in racers.values()] == [0, 0, 0, 0]
    assert sorted(winners) == list(range(40))
    backend = FsBackend(root)
    for turn, name in winners.items():
        assert backend.read(f"manifests/{turn}") == name.encode() * 10000
    assert len(files(root)) == 40


HOLDER = """
import sys
from opslog.backends.local.fs import FsBackend
backend = FsBackend(sys.argv[1])
appender = backend.appender("a")
appender.append(b"from the holder\\n")
with backend.lock("compaction"):
    print("held", flush=True)
    input()
"""


def test_everything_that_a_killed_process_held_is_free_at_once(
    root: Path, backend: FsBackend, start: Callable[..., Process]
) -> None:
    holder = start(HOLDER, root)
    assert holder.hear() == "held"
    with pytest.raises(AgentBusyError, match=rf"pid {holder.pid} on host \S+: close the store") as busy:
        backend.appender("a")
    assert busy.value.agent == "a"
    with pytest.raises(LockedError, match=f"pid {holder.pid} on host") as locked, backend.lock("compaction"):
        pytest.fail("held twice")
    assert locked.value.lock == "compaction"
    holder.process.send_signal(signal.SIGKILL)
    holder.end()
    appender = backend.appender("a")
    assert appender.append(b"x\n") == Position(2, 0)
    appender.close()
    with backend.lock("compaction"):
        pass


def test_a_holder_in_this_process_is_named_as_such(backend: FsBackend) -> None:
    appender = backend.appender("a")
    with pytest.raises(AgentBusyError, match=rf"pid {os.getpid()} on host \S+ \(this process\)"):
        backend.appender("a")
    appender.close()


def test_a_lock_is_free_again_after_ctrl_c_while_it_was_taken(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backend.appender("a")
    backend.appender("a").close()


# Forks


def test_a_forked_child_is_refused_and_harms_nothing(
    backend: FsBackend, root: Path, forked: Callable[[Callable[[], None]], None]
) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    lock = backend.lock("compaction")
    lock.__enter__()

    def work() -> None:
        calls: list[Callable[[], object]] = [
            lambda: appender.append(b"2\n"),
            lambda: appender.advance(7),
            lambda: backend.list(""),
            lambda: backend.read("x"),
            lambda: backend.read_many([Range("x")]),
            lambda: backend.map("x"),
            lambda: backend.create("x", b""),
            lambda: backend.delete(["x"]),
            lambda: backend.persist([]),
            lambda: backend.appender("b"),
            lambda: backend.lock("b").__enter__(),
            backend.now,
        ]
        for call in calls:
            with pytest.raises(ClosedError, match="parent of this process"):
                call()
        appender.close()
        backend.close()
        lock.__exit__(None, None, None)
        own = FsBackend(root)
        with pytest.raises(AgentBusyError):
            own.appender("a")
        with pytest.raises(LockedError):
            own.lock("compaction").__enter__()
        other = own.appender("b")
        other.append(b"from the child\n")
        other.close()

    forked(work)
    assert appender.append(b"3\n") == Position(1, 2)
    with pytest.raises(AgentBusyError):
        FsBackend(root).appender("a")
    lock.__exit__(None, None, None)
    appender.close()
    assert backend.read(segment_path("a", 1)) == b"1\n3\n"
    assert backend.read(segment_path("b", 1)) == b"from the child\n"


FORKER = """
import os, sys
from opslog.backends.local.fs import FsBackend
backend = FsBackend(sys.argv[1])
appender = backend.appender("a")
backend.lock("compaction").__enter__()
if os.fork() == 0:
    print(os.getpid(), flush=True)  # said by the child, which then has closed what it must not keep
    os.read(int(sys.argv[2]), 1)
    os._exit(0)
input()
"""


def test_a_child_that_outlives_its_killed_parent_holds_nothing(root: Path, backend: FsBackend) -> None:
    waiting, ending = os.pipe()
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKER, str(root), str(waiting)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=[waiting],
    )
    try:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        with pytest.raises(AgentBusyError):
            backend.appender("a")
        parent.kill()
        parent.wait(60)
        os.kill(child, 0)  # It lives.
        backend.appender("a").close()
        with backend.lock("compaction"):
            pass
    finally:
        os.close(ending)
        os.close(waiting)
        parent.communicate(timeout=60)


# Failing system calls: create


def test_no_space_for_a_new_file(backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "write", failing(errno.ENOSPC))
    with pytest.raises(WriteFailedError, match=r"manifests/1 .*nothing was created: No space left.*free some space"):
        backend.create("manifests/1", b"x" * 100)
    assert files(root) == []
    monkeypatch.undo()
    backend.create("manifests/1", b"y")
    assert files(root) == ["manifests/1"]


def test_a_deletion_that_may_not_last(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    backend.create("manifests/0", b"")
    with monkeypatch.context() as patch:
        patch.setattr(posix, "fsync_directory", failing(errno.EIO))
        with pytest.raises(WriteFailedError, match="some of the files may still be there"):
            backend.delete(["manifests/0"])
    backend.delete(["manifests/0"])
    assert backend.read_many([Range("manifests/0")]) == [None]


@pytest.mark.parametrize("function", ["fsync", "link"])
def test_a_failure_before_the_name_is_given_creates_nothing(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch, function: str
) -> None:
    backend.create("manifests/0", b"")
    monkeypatch.setattr(os, function, failing(errno.EIO))
    with pytest.raises(WriteFailedError, match="nothing was created"):
        backend.create("manifests/1", b"x")
    assert files(root) == ["manifests/0"]


def test_a_failure_after_the_name_is_given_is_unknown(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.create("manifests/0", b"")
    monkeypatch.setattr(posix, "fsync_directory", failing(errno.EIO))
    with pytest.raises(CommitUnknownError, match=r"manifests/1 was created, but may not survive"):
        backend.create("manifests/1", b"x")
    with pytest.raises(WriteFailedError):
        backend.create("manifests/0", b"x")
    assert files(root) == ["manifests/0", "manifests/1"]


def test_a_link_whose_reply_was_lost_is_won(backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link(source: str, target: str, **options: Any) -> None:
        real(source, target, **options)
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    monkeypatch.setattr(os, "link", link)
    backend.create("manifests/1", b"x")
    assert files(root) == ["manifests/1"]
    with pytest.raises(FileExistsError):
        link(str(root / "manifests/1"), str(root / "manifests/1"))
    with pytest.raises(AlreadyExistsError):
        backend.create("manifests/1", b"x")


def test_a_root_that_was_removed_is_not_made_again(backend: FsBackend, root: Path) -> None:
    backend.create("manifests/1", b"x")
    shutil.rmtree(root)
    with pytest.raises(WriteFailedError, match="directory was removed or moved"):
        backend.create("manifests/2", b"x")
    with pytest.raises(WriteFailedError):
        backend.appender("a")
    with pytest.raises(RetryError, match="directory was removed or moved"):
        backend.now()
    assert not root.exists()
    assert backend.list("") == []


def append_once(backend: FsBackend, agent: str = "a") -> None:
    appender = backend.appender(agent)
    try:
        appender.append(b"x\n")
    finally:
        appender.close()


def hold_lock(backend: FsBackend) -> None:
    with backend.lock("l"):
        pass


READS: list[tuple[str, Callable[[FsBackend], object]]] = [
    ("open", lambda backend: backend.read("there")),
    ("pread", lambda backend: backend.read("there")),
    ("scandir", lambda backend: backend.list("")),
    ("utime", lambda backend: backend.now()),
]
WRITES: list[tuple[str, Callable[[FsBackend], object]]] = [
    ("open", lambda backend: backend.create("new", b"x")),
    ("mkdir", lambda backend: backend.create("new/file", b"x")),
    ("write", lambda backend: backend.create("new", b"x")),
    ("fsync", lambda backend: backend.create("new", b"x")),
    ("link", lambda backend: backend.create("new", b"x")),
    ("unlink", lambda backend: backend.delete(["there"])),
    ("rmdir", lambda backend: backend.delete(["snapshots/1-a/part"])),
    ("open", append_once),
    ("mkdir", append_once),
    ("listdir", lambda backend: append_once(backend, "there")),
    ("write", append_once),
    ("open", hold_lock),
    ("mkdir", hold_lock),
]
# Some errors mean something else than a failure: nothing is there any more, or the clock may not be touched.
HANDLED = {
    "scandir": {errno.ENOENT, errno.ENOTDIR},
    "utime": {errno.ENOENT, errno.EROFS, errno.EACCES, errno.EPERM},
    "unlink": {errno.ENOENT, errno.ENOTDIR},
    "rmdir": {errno.ENOENT},
    "listdir": {errno.ENOENT},
}
CODES = sorted({*posix.ADVICE, errno.EBUSY, errno.EINVAL, errno.ELOOP, errno.ENODEV, errno.ENXIO, errno.ESTALE})


@pytest.mark.parametrize("code", CODES, ids=lambda code: errno.errorcode[code])
def test_no_error_of_the_system_comes_through(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    for number, (function, call) in enumerate([*READS, *WRITES]):
        if code in HANDLED.get(function, ()):
            continue
        backend = FsBackend(tmp_path / str(number))
        backend.create("there", b"x")
        backend.create("snapshots/1-a/part", b"x")
        backend.create(segment_path("there", 1), b"x\n")
        backend.now()
        expected: type[OpslogError] = WriteFailedError if number >= len(READS) else RetryError
        missing = function in ("open", "pread") and number < len(READS) and code in posix.MISSING
        if missing:
            expected = MissingFileError
        elif code == errno.ENAMETOOLONG:
            expected = InvalidNameError
        with monkeypatch.context() as patch:
            patch.setattr(os, function, failing(code))
            with pytest.raises(expected) as caught:
                call(backend)
        message = str(caught.value)
        assert backend.root in message, (function, message)
        if not missing:
            assert f"{os.strerror(code)}; {posix.ADVICE.get(code, 'try again')}" in message


# Listings


def test_reading_writes_nothing(backend: FsBackend, root: Path) -> None:
    backend.create("a/b", b"x")
    before = sorted(str(path) for path in root.rglob("*"))
    reader = FsBackend(root, create=False)
    reader.list("")
    reader.list("missing/")
    reader.read_many([Range("a/b"), Range("missing/x")])
    assert sorted(str(path) for path in root.rglob("*")) == before


def test_segments_before_a_cursor_are_not_listed(backend: FsBackend) -> None:
    for agent in "ab":
        for number in (1, 2, 3):
            backend.create(segment_path(agent, number), b"")
    paths = [entry.path for entry in backend.list_logs({"a": 3, "c": 1})]
    assert paths == [segment_path(*segment) for segment in (("a", 3), ("b", 1), ("b", 2), ("b", 3))]


def test_many_agents_are_not_listed_for_each_of_them(backend: FsBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that opens all logs in turn, such as a compaction that seals them, lists the logs once."""
    agents = [f"agent-{number}" for number in range(50)]
    for agent in agents:
        append_once(backend, agent)
    names, real = 0, os.listdir

    def listdir(descriptor: int) -> list[str]:
        nonlocal names
        found = real(descriptor)
        names += len(found)
        return found

    monkeypatch.setattr(os, "listdir", listdir)
    other = FsBackend(backend.root)
    for agent in agents:
        other.appender(agent).close()
    assert names <= 5 * len(agents)


def test_files_that_vanish_while_listing_are_left_out(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ["a/1", "a/2", "b/1", "c/1"]:
        backend.create(path, b"")
    real = os.scandir

    def scandir(descriptor: int) -> Any:
        scan: Any = real(descriptor)
        if os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}")) == "a":
            entries = list(scan)
            (root / "a" / "2").unlink()
            (root / "b" / "1").unlink()
            (root / "b").rmdir()
            scan = _Scan(entries)
        return scan

    monkeypatch.setattr(os, "scandir", scandir)
    assert [entry.path for entry in backend.list("")] == ["a/1", "c/1"]


def test_a_directory_that_is_deleted_between_opening_and_listing_it(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend.create("snapshots/1-a/part", b"")
    backend.create("snapshots/2-b/part", b"")
    real = os.scandir

    def scandir(descriptor: int) -> Any:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith("1-a"):
            (root / "snapshots" / "1-a" / "part").unlink()
            (root / "snapshots" / "1-a").rmdir()
        return real(descriptor)

    monkeypatch.setattr(os, "scandir", scandir)
    assert [entry.path for entry in backend.list("")] == ["snapshots/2-b/part"]


class _Scan(list[Any]):
    def __enter__(self) -> _Scan:
        return self

    def __exit__(self, *details: object) -> None:
        pass


def test_a_creator_survives_the_removal_of_its_empty_directory(
    backend: FsBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.mkdir
    removals = 3

    def make_then_remove(path: str, mode: int, *, dir_fd: int) -> None:
        nonlocal removals
        real(path, mode, dir_fd=dir_fd)
        if path == "snapshots/1-a" and removals:
            removals -= 1
            os.rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", make_then_remove)
    backend.create("snapshots/1-a/part", b"x")
    assert removals == 0
    assert backend.read("snapshots/1-a/part") == b"x"


@pytest.mark.parametrize("directory", ["ops/a", "snapshots/1-a", "archive/2026-Q4"])
def test_the_entry_of_a_directory_that_can_be_removed_is_fsynced_when_there_is_a_file_in_it(
    backend: FsBackend, root: Path, monkeypatch: pytest.MonkeyPatch, directory: str
) -> None:
    """Until it holds a file, somebody may remove it, and make it again without having fsynced it yet."""
    real = posix.fsync_directory
    found: list[list[str]] = []

    def fsync(path: str, at: int | None = None) -> None:
        if path == directory.partition("/")[0]:
            found.append(os.listdir(root / directory))
        real(path, at)

    monkeypatch.setattr(posix, "fsync_directory", fsync)
    for number in (1, 2):
        found.clear()
        if directory == "ops/a":
            appender = backend.appender("a")
            appender.append(b"1\n")
            appender.close()
            path = segment_path("a", 1)
        else:
            path = f"{directory}/{number}"
            backend.create(path, b"x")
        assert found[-1] != []
        backend.delete([path])
        assert not (root / directory).exists()
