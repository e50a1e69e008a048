"""The recording of system calls is complete, and the same for the same seed."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.powercut.disk import Ack, Disk, Event, Everything, Link, Make, Remove, Sync, Truncate, Write
from tests.powercut.recording import read_record
from tests.powercut.story import play
from tests.powercut.test_powercut import start_process

KINDS: dict[type[Event], str] = {
    Make: "make", Write: "write", Truncate: "truncate", Link: "link", Remove: "remove", Sync: "sync",
}  # fmt: skip
CALLS = {
    "open": "make", "openat": "make", "creat": "make", "mkdir": "make", "mkdirat": "make",
    "write": "write", "pwrite64": "write", "writev": "write", "pwritev": "write",
    "truncate": "truncate", "ftruncate": "truncate", "fallocate": "truncate",
    "link": "link", "linkat": "link", "unlink": "remove", "unlinkat": "remove", "rmdir": "remove",
    "fsync": "sync", "fdatasync": "sync", "sync_file_range": "sync",
    "rename": "?", "renameat": "?", "renameat2": "?", "symlink": "?", "symlinkat": "?",
}  # fmt: skip
"""The system calls that change a disk, by their names in strace."""


def test_strace_sees_the_same(tmp_path: Path) -> None:
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed")
    trace, world, record = tmp_path / "trace", tmp_path / "world", tmp_path / "record"
    world.mkdir()
    options = ("strace", "-f", "-y", "-qq", "-s", "0", "-e", f"trace={','.join(CALLS)}", "-o", str(trace))
    if subprocess.run([*options, "true"], capture_output=True, check=False).returncode:
        pytest.skip("strace may not trace here")
    assert start_process(world, record, "one", "single", 8, under=options).wait() == 0
    recorded = [(KINDS[type(event)], event.path) for event in read_record(record) if not isinstance(event, Ack)]
    assert traced(trace, str(world.resolve())) == recorded
    # A file gets shorter only if the last holder of a lock wrote more about itself.
    assert {kind for kind, _ in recorded} | {"truncate"} == set(KINDS.values())


def traced(trace: Path, world: str) -> list[tuple[str, str]]:
    """The changes in the world that strace saw, in the words of the record."""
    seen: list[tuple[str, str]] = []
    for line in trace.read_text(encoding="utf-8").splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\((.*)\) += +(\d+)", line)
        if match is None:
            assert " = -1 " in line or world not in line, f"not understood: {line}"
            continue
        call, arguments = match[1], match[2]
        path = path_of(arguments)
        if not path.startswith(f"{world}/") and path != world:
            continue
        kind = CALLS[call]
        if call in ("open", "openat") and ("O_CREAT" not in arguments or ("make", path) in seen):
            continue
        seen.append((kind, path))
    return seen


def path_of(arguments: str) -> str:
    """The path that a call is about. Paths are in quotes, after the directory that they are relative to, or there is
    only a descriptor. A link counts under its new name, the last one."""
    found = re.findall(r'(?:\d+<([^>]*)>, )?"([^"]*)"', arguments)
    if found:
        directory, path = found[-1]
        return f"{directory}/{path}".rstrip("/") if directory and not path.startswith("/") else path
    behind = re.match(r"\d+<([^>]*)>", arguments)
    return behind[1] if behind else ""


def test_the_same_seed_is_the_same_run(tmp_path: Path) -> None:
    """Only the times in lines and the inodes differ."""
    runs = []
    for turn in range(2):
        world = tmp_path / str(turn)
        world.mkdir()
        events = play(world, 5)
        runs.append([(type(event), getattr(event, "path", "").removeprefix(str(world))) for event in events])
    assert runs[0] == runs[1]
    assert len(runs[0]) > 50


def test_the_model_ends_where_the_filesystem_does(tmp_path: Path) -> None:
    world = tmp_path / "world"
    world.mkdir()
    disk = Disk(world)
    for event in play(world, 6):
        disk.apply(event)
    there = {str(path.relative_to(world)): path.read_bytes() if path.is_file() else None for path in world.rglob("*")}
    assert disk.after_cut(Everything()) == there
