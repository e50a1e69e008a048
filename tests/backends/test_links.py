"""Links, pipes and foreign permissions in a store's directory: nothing outside of it is read, written or deleted.
docs/security.md refers to these tests.

docs/security.md refers to these tests.
"""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import opslog
from opslog.backends import Range, open_backend
from opslog.backends.local.fs import FsBackend
from opslog.errors import RetryError, WriteFailedError
from opslog.format.layout import segment_path
from opslog.verify.verify import verify

SECRET = b'{"secret":true}\n'
FOLLOWED = "links inside a store are not followed"


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """A directory that a store must not touch. Its files have the names that a store uses."""
    place = tmp_path / "outside"
    for name in ("manifests", "ops/a", "ops/b", "snapshots/00000000000000000002-aa", "archive/p", "locks/agents"):
        (place / name).mkdir(parents=True)
    for name in (
        "file",
        "manifests/00000000000000000002.json",
        "ops/a/00000000000000000001.jsonl",
        "ops/b/00000000000000000001.jsonl",
        "snapshots/00000000000000000002-aa/part-00000.jsonl",
        "archive/p/aa.jsonl",
        "archive/p/aa.index",
        "locks/clock",
        "locks/compaction.lock",
        "locks/agents/a.lock",
    ):
        (place / name).write_bytes(SECRET)
    return place


def contents(place: Path) -> dict[str, tuple[bytes, int]]:
    """For each file below: its bytes, and when they were written."""
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {path.relative_to(place).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


@pytest.fixture
def untouched(outside: Path) -> Callable[[], None]:
    before = contents(outside)

    def check() -> None:
        assert contents(outside) == before

    return check


def plant(root: Path, path: str, target: Path) -> None:
    """Puts a link where the store would have a file or a directory."""
    place = root / path
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.is_dir():
        place.rename(root / "former")
    elif place.exists():
        place.unlink()
    place.symlink_to(target)


CALLS: dict[str, Callable[[FsBackend, str], object]] = {
    "read": lambda backend, path: backend.read(path),
    "read_many": lambda backend, path: backend.read_many([Range(path)]),
    "map": lambda backend, path: backend.map(path),
}
CHANGES: dict[str, Callable[[FsBackend, str], object]] = {
    "create": lambda backend, path: backend.create(f"{path}-new", b"x"),
    "delete": lambda backend, path: backend.delete([path]),
}
PATHS = [
    "manifests/00000000000000000002.json",
    "ops/a/00000000000000000001.jsonl",
    "snapshots/00000000000000000002-aa/part-00000.jsonl",
    "archive/p/aa.jsonl",
]


def levels(path: str) -> list[str]:
    """The path, and each directory above it."""
    parts = path.split("/")
    return ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]


@pytest.mark.parametrize("call", [*CALLS, *CHANGES])
@pytest.mark.parametrize(("path", "level"), [(path, level) for path in PATHS for level in levels(path)])
def test_no_call_follows_a_link(backend: FsBackend, outside: Path, path: str, level: str, call: str) -> None:
    root, before = Path(backend.root), contents(outside)
    plant(root, level, outside / level)
    is_file = level == path
    if call in CALLS:
        with pytest.raises(RetryError, match=FOLLOWED):
            CALLS[call](backend, path)
    elif is_file:
        CHANGES[call](backend, path)  # beside the link, or of the link itself
        assert os.path.lexists(root / path) == (call == "create")
    else:
        with pytest.raises(WriteFailedError, match=FOLLOWED):
            CHANGES[call](backend, path)
    assert contents(outside) == before


@pytest.mark.parametrize("level", ["ops", "ops/a"])
def test_no_listing_reads_through_a_link(root: Path, outside: Path, level: str) -> None:
    backend = FsBackend(root)
    backend.create("ops/real/00000000000000000001.jsonl", b"")
    plant(root, level, outside / level)
    if level == "ops":
        for prefix in ("ops/", "ops/a/"):
            with pytest.raises(RetryError, match=FOLLOWED):
                backend.list(prefix)
        with pytest.raises(RetryError, match=FOLLOWED):
            backend.list_logs({})
    else:
        assert [entry.path for entry in backend.list("ops/")] == ["ops/a", "ops/real/00000000000000000001.jsonl"]
        with pytest.raises(RetryError, match=FOLLOWED):
            backend.list("ops/a/")


def test_a_link_is_listed_as_itself(root: Path, tmp_path: Path) -> None:
    """The listing does not follow it in circles, and does not show the size of its target. `verify` has a note of each
    link."""
    with opslog.open(root, agent="a") as store:
        store["x"] = {}
    (root / "ops" / "loop").symlink_to(root)
    (root / "ops" / "dangling").symlink_to(tmp_path / "nowhere")
    listed = {entry.path: entry.size for entry in FsBackend(root).list("ops/")}
    assert listed.keys() == {"ops/dangling", "ops/loop", segment_path("a", 1)}
    assert listed["ops/loop"] == len(os.fsencode(root))
    problems = {problem.path: problem.message for problem in verify(open_backend(root)).problems}
    assert problems.keys() == {"ops/dangling", "ops/loop"}
    assert all("or a link" in message for message in problems.values())


@pytest.mark.parametrize("level", ["locks", "locks/agents", "locks/agents/a.lock", "ops", "ops/a"])
def test_no_agent_writes_through_a_link(root: Path, outside: Path, untouched: Callable[[], None], level: str) -> None:
    """The holder of a lock writes its name into the lock file. Through a link that would overwrite any file."""
    with opslog.open(root, agent="b") as store:
        store["x"] = {}
    plant(root, level, outside / level)
    with pytest.raises((RetryError, WriteFailedError), match=FOLLOWED), opslog.open(root, agent="a") as store:
        store["y"] = {}
    untouched()
    if level in {"locks/agents/a.lock", "ops/a"}:
        with opslog.open(root, agent="b") as store:
            assert store["x"] == {}, "others go on"


def test_a_log_that_became_a_link_while_its_store_is_open(
    root: Path, outside: Path, untouched: Callable[[], None]
) -> None:
    with opslog.open(root, agent="a", segment_bytes=1) as store:
        store["x"] = {}
        plant(root, "ops/a", outside / "ops/a")
        with pytest.raises(WriteFailedError, match=FOLLOWED):
            store["y"] = {}
        assert list(store) == ["x"]
    untouched()


@pytest.mark.parametrize("level", ["locks/compaction.lock", "locks/clock", "snapshots", "archive", "archive/p"])
def test_no_maintenance_writes_through_a_link(
    root: Path, outside: Path, untouched: Callable[[], None], level: str
) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(root, agent="a", settings=settings, compact_after=None) as store:
        store["x"] = {"n": 1}
        plant(root, level, outside / level)
        with pytest.raises((RetryError, WriteFailedError), match=FOLLOWED):
            store.archive(lambda document: True, "p") if level.startswith("archive") else store.compact()
        assert store["x"] == {"n": 1}
    untouched()


@pytest.mark.parametrize("kind", ["snapshots", "manifests", "ops"])
def test_no_garbage_is_collected_through_a_link(
    root: Path, outside: Path, untouched: Callable[[], None], kind: str
) -> None:
    """Links to directories and files whose names say that they may be deleted."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(root, agent="a", settings=settings, compact_after=None) as store:
        for number in range(3):
            store[str(number)] = {}
            store.compact(full=True)
        old = {
            "snapshots": "snapshots/00000000000000000002-aa",
            "manifests": "manifests/00000000000000000002.json",
            "ops": "ops/b",
        }[kind]
        plant(root, old, outside / old)
        store["last"] = {}
        store.compact(full=True)
        store.compact(full=True)
    untouched()
    assert verify(open_backend(root)).ok


def test_repair_moves_nothing_through_a_link(root: Path, outside: Path, untouched: Callable[[], None]) -> None:
    with opslog.open(root, agent="a", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
        store["x"] = {}
        store.compact()
    (index,) = root.glob("snapshots/*/part-00000.index")
    index.unlink()
    plant(root, "removed", outside)
    (root / "snapshots" / "00000000000000000001-zz").mkdir()
    (root / "snapshots" / "00000000000000000001-zz" / "part-00000.jsonl").write_bytes(b"")
    with pytest.raises(WriteFailedError, match=FOLLOWED):
        verify(open_backend(root), repair=True)
    untouched()


def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "name").symlink_to(tmp_path / "real")
    with opslog.open(tmp_path / "name", agent="a") as store:
        store["x"] = {}
    with opslog.open(tmp_path / "real", read_only=True) as store:
        assert list(store) == ["x"]


@pytest.mark.parametrize("path", PATHS)
def test_a_pipe_is_not_waited_for(root: Path, path: str) -> None:
    backend = FsBackend(root)
    (root / path).parent.mkdir(parents=True)
    os.mkfifo(root / path)
    for call in CALLS.values():
        with pytest.raises(RetryError, match="something else than a file"):
            call(backend, path)


@pytest.mark.parametrize("umask", [0o000, 0o002, 0o022, 0o077], ids=oct)
def test_new_files_are_never_writable_for_everybody(tmp_path: Path, umask: int) -> None:
    """Directories, manifests, parts, indexes, segments, archives, locks and the clock; the umask takes more away."""
    code = f"""
import os, opslog
os.umask({umask})
with opslog.open("store", agent="a", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
    store["x"] = {{}}
    store["y"] = {{}}
    store.archive(lambda document: True, "p")
    store["z"] = {{}}
    store.compact()
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    paths = [tmp_path / "store", *(tmp_path / "store").rglob("*")]
    assert {path.name for path in paths} >= {"clock", "a.lock", "compaction.lock", "p", "snapshots", "manifests"}
    for path in paths:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o775 if path.is_dir() else 0o664) & ~umask, path
