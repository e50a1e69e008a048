"""The order in which data reaches the disk: nothing comes before what it depends on."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import Position, posix
from opslog.backends.local.fs import FsBackend
from opslog.environment import Environment
from opslog.errors import AlreadyExistsError, MissingFileError, WriteFailedError
from opslog.format.layout import segment_path
from tests.support.faults import failing, interrupted


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, root: Path) -> list[str]:
    """Records the system calls that matter, as "fsync ops/a" and the like. Paths are relative to the store."""
    calls: list[str] = []

    def name(target: object, at: int | None = None) -> str:
        path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else str(target)
        # Relative paths are relative to the store's directory.
        return os.path.relpath(path, root if at is None else ".").replace(".tmp-n", ".tmp")

    def record(module: Any, function: str, label: str) -> None:
        real = getattr(module, function)

        def call(*args: Any, **options: Any) -> Any:
            # Recorded after the call, so that only calls that worked are recorded.
            result = real(*args, **options)
            at = options.get("dir_fd", options.get("dst_dir_fd"))
            calls.append(f"{label} {name(args[1] if label == 'link' else args[0], at)}")
            return result

        monkeypatch.setattr(module, function, call)

    for function in ("write", "fsync", "link", "mkdir"):
        record(os, function, function)
    record(posix, "datasync", "fdatasync")
    return calls


def test_a_created_file_is_on_disk_before_it_has_its_name(root: Path, trace: list[str]) -> None:
    backend = FsBackend(root, environment=Environment(nonce=lambda: "n"))
    trace.clear()
    backend.create("manifests/1", b"x")
    assert trace == [
        "fsync ..",
        "mkdir manifests",
        "fsync .",
        "write manifests/1.tmp",
        "fsync manifests/1.tmp",
        "link manifests/1",
        "fsync manifests",
    ]
    trace.clear()
    backend.create("manifests/2", b"x")
    assert trace == ["write manifests/2.tmp", "fsync manifests/2.tmp", "link manifests/2", "fsync manifests"]


def test_the_loser_of_a_race_makes_the_winner_durable(backend: FsBackend, trace: list[str]) -> None:
    backend.create("a", b"x")
    trace.clear()
    with pytest.raises(AlreadyExistsError):
        backend.create("a", b"y")
    assert trace[-1] == "fsync ."
    assert not [call for call in trace if call.startswith("link")]


def test_directories_that_can_be_removed_never_count_as_durable(backend: FsBackend, trace: list[str]) -> None:
    for number in range(2):
        trace.clear()
        backend.create(f"archive/2026-Q4/{number}", b"x")
        assert "fsync archive" in trace[: trace.index(f"link archive/2026-Q4/{number}")]


def test_a_segment_has_its_name_on_disk_before_its_first_append_returns(root: Path, trace: list[str]) -> None:
    appender = FsBackend(root, segment_bytes=4).appender("a")
    trace.clear()
    appender.append(b"1\n")
    segment = segment_path("a", 1)
    assert trace == [
        "mkdir ops",
        "fsync .",
        "mkdir ops/a",
        "fsync ops",
        "fsync ops/a",
        f"write {segment}",
        f"fdatasync {segment}",
    ]
    trace.clear()
    appender.append(b"2\n")
    assert trace == [f"write {segment}", f"fdatasync {segment}"]
    trace.clear()
    assert appender.append(b"3\n") == Position(2, 0)
    segment = segment_path("a", 2)
    assert trace == ["fsync ops", "fsync ops/a", f"write {segment}", f"fdatasync {segment}"]
    appender.close()


def test_a_new_root_has_its_name_on_disk(tmp_path: Path, root: Path, trace: list[str]) -> None:
    FsBackend(root / "x" / "y")
    made = ["mkdir .", "fsync ..", "mkdir x", "fsync .", "mkdir x/y", "fsync x"]
    assert trace == ["fsync ../..", *made], "each has its name on disk before anything is made in it"


def test_a_directory_above_the_store_that_another_process_just_made_gets_its_name_on_disk(
    root: Path, trace: list[str]
) -> None:
    root.mkdir()
    FsBackend(root / "x")
    assert trace.index("fsync ..") < trace.index("mkdir x")


def test_commits_of_a_killed_session_are_on_disk_before_the_next_can_rest_on_them(
    root: Path, trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = FsBackend(root).appender("a")
    with monkeypatch.context() as patch:
        patch.setattr(posix, "datasync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            killed.append(b"1\n")
    killed.close()
    trace.clear()
    appender = FsBackend(root).appender("a")
    assert trace[-3:] == ["fsync ops/a", "fsync .", "fsync ops"]
    assert f"fdatasync {segment_path('a', 1)}" in trace
    appender.close()


def shared_line(number: int) -> bytes:
    return b'{"by":"%d"}\n' % number


def test_an_append_to_a_shared_log_costs_one_fdatasync(root: Path, trace: list[str]) -> None:
    """Also if another process wrote before: that process noted in the lock file how far the log is durable."""
    backends = [FsBackend(root) for _ in range(2)]
    ends = [Position(1, 0) for _ in range(2)]
    for number in range(8):
        # Each backend fsyncs the directories of its lock files once.
        shared = f"shared-{number % 2}"
        backend, end = backends[number // 2 % 2], ends[number % 2]
        trace.clear()
        assert backend.append_at(shared, end, shared_line(number)) == end
        ends[number % 2] = Position(1, end.offset + len(shared_line(number)))
        segment = segment_path(shared, 1)
        assert trace[-2:] == [f"write {segment}", f"fdatasync {segment}"]
        if number > 3:
            assert len(trace) == 2


def test_bytes_of_a_killed_append_are_on_disk_before_the_next_one_writes(
    root: Path, trace: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, killed_at in enumerate(["datasync", "sync_directory"]):
        shared = f"shared-{number}"
        segment = segment_path(shared, 1)
        with monkeypatch.context() as patch:
            patch.setattr(posix if killed_at == "datasync" else FsBackend, killed_at, interrupted)
            with pytest.raises(KeyboardInterrupt):
                FsBackend(root).append_at(shared, Position(1, 0), shared_line(1))
        end = Position(1, os.path.getsize(root / segment)) if (root / segment).exists() else Position(1, 0)
        trace.clear()
        assert FsBackend(root).append_at(shared, end, shared_line(2)) == end
        before = trace[: trace.index(f"write {segment}")]
        if killed_at == "datasync":
            assert {f"fdatasync {segment}", "fsync ops"} <= set(before)
        assert f"fsync ops/{shared}" in before


def test_the_manifest_that_a_writer_finds_is_on_disk_before_it_writes(root: Path, trace: list[str]) -> None:
    """Its creator may have been killed before its fsync, and logs without a manifest cannot be read."""
    opslog.open(root, agent="a").close()
    trace.clear()
    opslog.open(root, agent="b").close()
    assert "fsync manifests" in trace
    assert "fsync ." in trace


def test_commits_read_by_a_compaction_are_on_disk_before_its_manifest(root: Path, trace: list[str]) -> None:
    """Another agent's commit can be visible before it is durable. A compaction must not compact what a power cut could
    take."""
    with (
        opslog.open(root, agent="a", compact_after=None, settings=opslog.Settings(undo_window=0)) as store,
        opslog.open(root, agent="b", compact_after=None) as other,
    ):
        store["x"] = {}
        trace.clear()
        other.compact()
        linked = trace.index("link manifests/00000000000000000002.json")
        assert {f"fdatasync {segment_path('a', 1)}", "fsync ops/a", "fsync ops"} <= set(trace[:linked])
        trace.clear()
        assert other.compact().number is None
        store["y"] = {}
        other["z"] = {}
        trace.clear()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(posix, "datasync", failing(errno.EIO))
            with pytest.raises(WriteFailedError, match="may not survive a power cut"):
                other.compact()
        assert not [call for call in trace if call.startswith("link manifests")]
        assert other.compact().commits == 2


def test_persist_of_what_is_not_there(backend: FsBackend) -> None:
    with pytest.raises(MissingFileError) as caught:
        backend.persist([segment_path("a", 1)])
    assert caught.value.path == segment_path("a", 1)


def test_deletions_are_made_durable_and_empty_runs_go(backend: FsBackend, root: Path, trace: list[str]) -> None:
    appender = backend.appender("a")
    appender.append(b"1\n")
    for path in ["snapshots/1-a/p", "snapshots/2-b/p", "snapshots/2-b/q", "archive/2026-Q4/x"]:
        backend.create(path, b"")
    trace.clear()
    backend.delete(["snapshots/1-a/p", "snapshots/2-b/p", "archive/2026-Q4/x", segment_path("a", 1), "gone/x"])
    assert sorted(trace) == ["fsync archive", "fsync ops", "fsync snapshots", "fsync snapshots/2-b"]
    assert sorted(os.listdir(root / "snapshots")) == ["2-b"]
    assert os.listdir(root / "archive") == []
    assert os.listdir(root / "ops") == []
    assert appender.append(b"2\n") == Position(2, 0), "in the directory, made again"
    appender.close()
