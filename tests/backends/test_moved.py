"""Somebody removes lock files, or moves or replaces the directory, while a store is open.

Others find everything that was acknowledged. No log has two writers. No store writes to a directory that it did not
open.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from opslog.backends import Position, posix
from opslog.backends.forking import Descriptor
from opslog.backends.local import flock
from opslog.backends.local.fs import FsBackend
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    CommitUnknownError,
    LockedError,
    OpslogError,
    ReopenError,
    RetryError,
    WriteFailedError,
)
from opslog.format.layout import segment_path
from tests.support.moving import Change, place_for, renamed_above, renamed_and_copied, switched

LINE = b"x\n"


def remove(root: Path) -> None:
    shutil.rmtree(root / "locks")


def move(root: Path) -> None:
    (root / "locks").rename(root.parent / "locks")


def remove_and_make_again(root: Path) -> None:
    shutil.copytree(root / "locks", root.parent / "copy")
    shutil.rmtree(root / "locks")
    (root.parent / "copy").rename(root / "locks")


def remove_one(root: Path) -> None:
    (root / "locks" / "agents" / "a.lock").unlink()


REMOVALS = [remove, move, remove_and_make_again, remove_one]


def contents(place: Path) -> dict[str, bytes | None]:
    """For everything below except lock files: the bytes, or None for a directory."""
    return {
        path.relative_to(place).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(place.rglob("*"))
        if "locks" not in path.relative_to(place).parts
    }


class Moment(NamedTuple):
    """Right before or right after a call of a function."""

    module: Any
    function: str
    after: bool


def moments(*functions: tuple[Any, str]) -> list[Any]:
    return [
        pytest.param(Moment(module, function, after), id=f"{'after' if after else 'before'} {function}")
        for module, function in functions
        for after in (False, True)
    ]


When = Callable[[Moment, Callable[[], object]], None]


@pytest.fixture
def when(monkeypatch: pytest.MonkeyPatch) -> When:
    """Runs `story` once, right before or after the next call of a function."""

    def arrange(moment: Moment, story: Callable[[], object]) -> None:
        real = getattr(moment.module, moment.function)

        def call(*args: Any, **options: Any) -> Any:
            monkeypatch.setattr(moment.module, moment.function, real)
            if not moment.after:
                story()
            result = real(*args, **options)
            if moment.after:
                story()
            return result

        monkeypatch.setattr(moment.module, moment.function, call)

    return arrange


# Lock files


@pytest.mark.parametrize("remove_locks", REMOVALS)
def test_a_writer_without_its_lock_file_writes_nothing(
    backend: FsBackend, root: Path, remove_locks: Callable[[Path], None]
) -> None:
    appender = backend.appender("a")
    assert appender.append(LINE) == Position(1, 0)
    remove_locks(root)
    before = contents(root)
    for _ in range(2):
        with pytest.raises(AgentFencedError, match=r"lock file was removed or replaced\. Nothing of this append"):
            appender.append(LINE)
    assert contents(root) == before
    with pytest.raises(AgentBusyError, match=r"whose lock file was removed.*00001\.jsonl locked"):
        FsBackend(root).appender("a")
    appender.close()
    successor = FsBackend(root).appender("a")
    assert successor.append(LINE) == Position(2, 0)
    successor.close()


@pytest.mark.parametrize("remove_locks", REMOVALS)
def test_a_writer_that_has_not_written_yet_gives_way_to_the_second(
    backend: FsBackend, root: Path, remove_locks: Callable[[Path], None]
) -> None:
    appender = backend.appender("a")
    remove_locks(root)
    second = FsBackend(root).appender("a")
    with pytest.raises(AgentFencedError):
        appender.append(b"first\n")
    assert second.append(LINE) == Position(1, 0)
    with pytest.raises(AgentFencedError):
        appender.append(b"first\n")
    appender.close()
    assert second.append(LINE) == Position(1, 2)
    second.close()


def test_a_writer_that_goes_on_a_log_of_an_earlier_session_is_alone(backend: FsBackend, root: Path) -> None:
    earlier = backend.appender("a")
    earlier.append(LINE)
    earlier.close()
    appender = backend.appender("a")
    remove(root)
    with pytest.raises(AgentBusyError):
        FsBackend(root).appender("a")
    appender.close()


@pytest.mark.parametrize("remove_locks", REMOVALS)
def test_lock_files_removed_while_an_append_is_under_way(
    backend: FsBackend, root: Path, when: When, remove_locks: Callable[[Path], None]
) -> None:
    """The writer is still alone, so its commits count."""
    appender = backend.appender("a")
    appender.append(b"1\n")
    seen: list[type] = []

    def story() -> None:
        remove_locks(root)
        try:
            FsBackend(root).appender("a")
        except AgentBusyError as error:
            seen.append(type(error))

    when(Moment(posix, "write_all", False), story)
    assert appender.append(b"2\n") == Position(1, 2)
    assert seen == [AgentBusyError]
    with pytest.raises(AgentFencedError):
        appender.append(b"3\n")
    assert backend.read(segment_path("a", 1)) == b"1\n2\n"
    appender.close()


@pytest.mark.parametrize("earlier", [0, 1])
@pytest.mark.parametrize(
    "moment",
    moments((posix, "names"), (Descriptor, "open"), (flock, "try_lock"), (posix, "fsync_directory")),
)
def test_at_most_one_of_two_writers_continues_wherever_the_first_was_paused(
    backend: FsBackend, root: Path, when: When, earlier: int, moment: Moment
) -> None:
    """The lock files are removed at each step of beginning a segment, and then another process opens, writes and
    closes."""
    if earlier:
        session = backend.appender("a")
        session.append(b"earlier\n")
        session.close()
    appender = backend.appender("a")
    acknowledged = [b"earlier\n"] * earlier
    others = FsBackend(root)

    def story() -> None:
        remove(root)
        with suppress(OpslogError):
            second = others.appender("a")
            try:
                second.append(b"second\n")
                acknowledged.append(b"second\n")
                second.append(b"again\n")
                acknowledged.append(b"again\n")
            finally:
                second.close()

    when(moment, story)
    for line in (b"first\n", b"then\n"):
        with suppress(OpslogError):
            appender.append(line)
            acknowledged.append(line)
    appender.close()
    log = b"".join(backend.read(entry.path) for entry in backend.list("ops/"))
    assert log == b"".join(acknowledged)
    assert not {b"first\n", b"second\n"} <= set(acknowledged), "there were two writers"
    later = backend.appender("a")
    later.append(LINE)
    later.close()
    log = b"".join(backend.read(entry.path) for entry in backend.list("ops/"))
    assert log == b"".join(acknowledged) + LINE


def test_a_segment_that_is_begun_while_a_second_process_opens(backend: FsBackend, root: Path, when: When) -> None:
    """Until the newest segment is locked there may be a newer one."""
    backend.create(segment_path("a", 1), LINE)
    when(Moment(flock, "try_lock", False), lambda: backend.create(segment_path("a", 2), LINE))
    appender = backend.appender("a")
    remove(root)
    with pytest.raises(AgentBusyError, match=r"00002\.jsonl locked"):
        FsBackend(root).appender("a")
    appender.close()
    appender = backend.appender("a")
    assert appender.append(LINE) == Position(3, 0)
    appender.close()


def test_a_segment_that_is_collected_while_its_log_is_opened(backend: FsBackend, when: When) -> None:
    backend.create(segment_path("a", 1), LINE)
    when(Moment(posix, "names", True), lambda: backend.delete([segment_path("a", 1)]))
    appender = backend.appender("a")
    appender.advance(1)
    assert appender.append(LINE) == Position(2, 0)
    appender.close()


HOLDER = """
import shutil, sys
from opslog.backends.local.fs import FsBackend
backend = FsBackend(sys.argv[1])
appender = backend.appender("a")
appender.append(b"from the holder\\n")
shutil.rmtree(f"{sys.argv[1]}/locks")
print("held", flush=True)
input()
"""


def test_a_killed_writer_without_a_lock_file_holds_nothing(backend: FsBackend, root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(AgentBusyError, match="Lock files are never stale"):
            backend.appender("a")
        holder.kill()
        holder.wait(60)
    appender = backend.appender("a")
    assert appender.append(LINE) == Position(2, 0)
    appender.close()


def test_a_name_is_free_once_a_failed_opening_has_ended(backend: FsBackend, root: Path) -> None:
    appender = backend.appender("a")
    appender.append(LINE)
    remove(root)
    for _ in range(3):
        with pytest.raises(AgentBusyError):
            FsBackend(root).appender("a")
    appender.close()
    for number in (2, 3):
        successor = backend.appender("a")
        assert successor.append(LINE) == Position(number, 0)
        successor.close()


@pytest.mark.parametrize("remove_locks", REMOVALS)
def test_locks_can_be_taken_after_their_directory_was_removed(
    backend: FsBackend, root: Path, remove_locks: Callable[[Path], None]
) -> None:
    backend.appender("a").close()
    with backend.lock("compaction"):
        pass
    remove_locks(root)
    with backend.lock("compaction"), pytest.raises(LockedError), FsBackend(root).lock("compaction"):
        pytest.fail("held twice")
    backend.appender("a").close()
    assert backend.now() > 0


def test_a_lock_file_removed_while_it_is_taken_is_taken_again(backend: FsBackend, root: Path, when: When) -> None:
    when(Moment(flock, "take", True), lambda: remove(root))
    with (
        backend.lock("compaction"),
        pytest.raises(LockedError),
        FsBackend(root).lock("compaction"),
    ):
        pytest.fail("held twice")


# Directories


def copied_as_hard_links(root: Path) -> Path:
    """As some backups are. The lock files and segments are then the same files."""
    copy = shutil.copytree(root, root.with_name("copy"), copy_function=os.link)
    former = root.rename(root.with_name("former"))
    Path(copy).rename(root)
    return former


def emptied(root: Path) -> Path:
    former = root.rename(root.with_name("former"))
    root.mkdir()
    return former


CHANGES = [renamed_and_copied, copied_as_hard_links, renamed_above, switched, emptied]


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def change(request: pytest.FixtureRequest) -> Change:
    chosen: Change = request.param
    return chosen


@pytest.fixture
def place(tmp_path: Path, change: Change) -> Path:
    return place_for(tmp_path, change)


def test_an_append_to_a_directory_that_was_replaced(place: Path, change: Change) -> None:
    appender = FsBackend(place).appender("a")
    appender.append(b"1\n")
    former = change(place)
    before = contents(former), contents(place)
    hard_links = change is copied_as_hard_links
    for _ in range(2):
        if hard_links:
            appender.append(b"2\n")  # to the segment of both
        else:
            with pytest.raises(AgentFencedError, match=r"another directory stands at .*Nothing of this append"):
                appender.append(b"2\n")
    assert hard_links or (contents(former), contents(place)) == before
    assert contents(place).get(segment_path("a", 1)) == (
        b"1\n2\n2\n" if hard_links else before[1].get(segment_path("a", 1))
    )
    appender.close()


def test_a_segment_is_not_begun_in_a_directory_that_was_replaced(place: Path, change: Change) -> None:
    appender = FsBackend(place, segment_bytes=1).appender("a")
    appender.append(b"1\n")
    former = change(place)
    before = contents(former), contents(place)
    for _ in range(2):
        with pytest.raises(AgentFencedError, match="another directory stands at"):
            appender.append(b"2\n")
    assert (contents(former), contents(place)) == before
    appender.close()


CALLS: dict[str, Callable[[FsBackend], object]] = {
    "create": lambda backend: backend.create("manifests/2", b"new"),
    "create what exists": lambda backend: backend.create("manifests/1", b"new"),
    "delete": lambda backend: backend.delete(["manifests/1"]),
    "list": lambda backend: backend.list(""),
    "list_logs": lambda backend: backend.list_logs({}),
    "appender": lambda backend: backend.appender("b"),
    "lock": lambda backend: backend.lock("compaction").__enter__(),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_goes_on_in_a_directory_that_was_replaced(place: Path, change: Change, call: str) -> None:
    backend = FsBackend(place)
    backend.create("manifests/1", b"1")
    former = change(place)
    before = contents(former), contents(place)
    for _ in range(2):
        with pytest.raises(ReopenError, match=r"another directory stands at .* Close the store and open it again"):
            CALLS[call](backend)
    assert (contents(former), contents(place)) == before
    assert backend.read("manifests/1") == b"1", "what was seen is still there to be read"
    backend.close()


def test_a_directory_that_is_put_back(place: Path, change: Change) -> None:
    backend = FsBackend(place)
    backend.create("manifests/1", b"1")
    former = change(place)
    with pytest.raises(ReopenError):
        backend.create("manifests/2", b"2")
    if place.is_symlink():
        place.unlink()
        place.symlink_to(former)
    elif former.parent == place.parent:
        shutil.rmtree(place)
        former.rename(place)
    else:
        shutil.rmtree(place.parent)
        former.parent.rename(place.parent)
    backend.create("manifests/2", b"2")
    assert [entry.path for entry in backend.list("manifests/")] == ["manifests/1", "manifests/2"]


@pytest.mark.parametrize("moment", moments((posix, "write_all"), (posix, "datasync")))
def test_a_directory_replaced_while_an_append_is_under_way(
    place: Path, change: Change, when: When, moment: Moment
) -> None:
    """Acknowledged commits are in the segment that others find, which is in the former directory and in no other."""
    appender = FsBackend(place).appender("a")
    appender.append(b"1\n")
    moved: list[Path] = []
    when(moment, lambda: moved.append(change(place)))
    if change is copied_as_hard_links:
        appender.append(b"2\n")
        assert (place / segment_path("a", 1)).read_bytes() == b"1\n2\n"
    else:
        with pytest.raises(CommitUnknownError, match="moved away or replaced meanwhile"):
            appender.append(b"2\n")
        with pytest.raises(CommitUnknownError):
            appender.append(b"3\n")
    assert (moved[0] / segment_path("a", 1)).read_bytes() == b"1\n2\n"
    appender.close()


@pytest.mark.parametrize("moment", moments((Descriptor, "open"), (posix, "write_all"), (os, "fsync"), (os, "link")))
def test_a_directory_replaced_while_a_file_is_created(place: Path, change: Change, when: When, moment: Moment) -> None:
    """Everything happens in the directory that was opened, and the call does not report success."""
    backend = FsBackend(place)
    backend.create("manifests/1", b"1")
    copied: list[list[str]] = []
    moved: list[Path] = []

    def story() -> None:
        moved.append(change(place))
        copied.append(list(contents(place)))

    when(moment, story)
    with pytest.raises(CommitUnknownError, match=r"manifests/2 was created, but its directory was moved away"):
        backend.create("manifests/2", b"2")
    assert list(contents(place)) == copied[0]
    assert contents(moved[0]) == {"manifests": None, "manifests/1": b"1", "manifests/2": b"2"}


def test_a_deletion_goes_on_where_it_began(place: Path, change: Change, when: When) -> None:
    backend = FsBackend(place)
    for name in "123":
        backend.create(f"manifests/{name}", b"")
    moved: list[Path] = []
    when(Moment(os, "unlink", True), lambda: moved.append(change(place)))
    backend.delete(f"manifests/{name}" for name in "123")
    assert contents(moved[0]) == {"manifests": None}
    if change is not emptied:
        assert list(contents(place)) == ["manifests", "manifests/2", "manifests/3"]


@pytest.mark.parametrize("part", ["ops", "ops/a"])
def test_a_part_of_the_directory_that_was_replaced(backend: FsBackend, root: Path, part: str) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    former = root.parent / "former"
    (root / part).rename(former)
    shutil.copytree(former, root / part)
    with pytest.raises(CommitUnknownError, match="moved away or replaced meanwhile"):
        appender.append(b"2\n")
    assert backend.read(segment_path("a", 1)) == b"1\n"
    appender.close()


def test_a_directory_deleted_and_made_again_is_another_one(root: Path) -> None:
    """A filesystem may give an inode's number to the next one as soon as nobody has it open."""
    backend = FsBackend(root)
    appender = backend.appender("a")
    appender.append(LINE)
    for _ in range(20):
        shutil.rmtree(root)
        with pytest.raises(WriteFailedError, match="removed or moved"):
            appender.append(LINE)
        root.mkdir()
        with pytest.raises(ReopenError):
            backend.list("")
    with pytest.raises(AgentFencedError):
        appender.append(LINE)
    assert contents(root) == {}
    appender.close()


def test_another_filesystem_mounted_in_its_place(small_disk: Path) -> None:
    root = small_disk.parent / "store"
    backend = FsBackend(root)
    appender = backend.appender("a")
    appender.append(LINE)
    subprocess.run(["mount", "--bind", str(small_disk), str(root)], check=True)
    try:
        with pytest.raises(AgentFencedError, match="another directory stands at"):
            appender.append(LINE)
        with pytest.raises(ReopenError):
            backend.create("manifests/1", b"")
        assert contents(small_disk) == {}
    finally:
        subprocess.run(["umount", str(root)], check=True)
    appender.close()
    appender = backend.appender("a")
    assert appender.append(LINE) == Position(2, 0)
    appender.close()


def test_a_call_under_way_keeps_the_directory_open_and_nobody_else_does(backend: FsBackend) -> None:
    tree = backend.tree()
    descriptor = tree.descriptor
    backend.close()
    assert os.fstat(descriptor).st_ino
    assert os.path.samestat(os.fstat(descriptor), os.stat(backend.root))
    del tree
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_a_directory_that_may_be_entered_and_not_listed(
    root: Path, forked: Callable[[Callable[[], None]], None]
) -> None:
    """Holding the root does not need the right to read it."""
    if os.geteuid() != 0:
        pytest.skip("only root can become somebody else")
    FsBackend(root).create("manifests/1", b"1")
    for directory in root.parents:
        if directory.name.startswith(("pytest-", "popen-", "test_")):
            directory.chmod(0o711)
    root.chmod(0o711)

    def work() -> None:
        os.setuid(65534)
        backend = FsBackend(root, create=False)
        assert backend.read("manifests/1") == b"1"
        assert [entry.path for entry in backend.list("manifests/")] == ["manifests/1"]
        with pytest.raises(RetryError, match="Permission denied"):
            backend.list("")

    forked(work)
