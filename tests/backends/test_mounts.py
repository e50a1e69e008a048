"""Shared filesystems: opslog refuses them, or warns, only when it writes."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

import opslog
from opslog.backends.local import mounts
from opslog.backends.local.fs import FsBackend
from opslog.backends.local.tree import Tree

Mounted = Callable[[str], None]


@pytest.fixture
def mounted(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mounted:
    """Makes the system report that the directory is on such a filesystem, as one mount among others."""
    with opslog.open(root, agent="a") as store:
        store["x"] = {}
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fdinfo = Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    except OSError:
        pytest.skip("this system does not say on which filesystem a file is")
    finally:
        os.close(descriptor)
    mount = next(line.split()[1] for line in fdinfo.splitlines() if line.startswith("mnt_id"))

    def arrange(kind: str) -> None:
        text = (
            "1 0 8:1 / / rw - ext4 /dev/sda rw\n"
            f"{mount}0 1 0:50 / /other rw,relatime - tmpfs tmpfs rw\n"
            f"{mount} 1 0:51 /dir\\040ectory {tmp_path} rw shared:2 master:1 - {kind} host:/export rw,vers=4.2\n"
        )
        proc = tmp_path / "proc"
        (proc / "fdinfo").mkdir(parents=True, exist_ok=True)
        (proc / "mountinfo").write_text(text, encoding="ascii")
        for number in range(256):
            (proc / "fdinfo" / str(number)).write_text(fdinfo, encoding="ascii")
        monkeypatch.setattr(mounts, "_PROC", str(proc))

    return arrange


@pytest.mark.parametrize("kind", ["cifs", "smb3", "fuse.sshfs", "fuse.s3fs"])
def test_where_locks_are_not_shared_nothing_is_written(root: Path, mounted: Mounted, kind: str) -> None:
    mounted(kind)
    for _ in range(2):
        with pytest.raises(opslog.UsageError, match=rf"is on {kind}, where two machines can both have a lock"):
            opslog.open(root, agent="a")
    with pytest.raises(opslog.UsageError), FsBackend(root).lock("compaction"):
        pytest.fail("it was locked")
    with opslog.open(root, read_only=True) as store:
        assert dict(store.items()) == {"x": {}}


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "9p", "ceph", "fuse.glusterfs", "lustre", "virtiofs"])
def test_where_stores_are_not_tested_there_is_a_warning(root: Path, mounted: Mounted, kind: str) -> None:
    mounted(kind)
    with pytest.warns(opslog.FilesystemWarning, match=rf"is on {kind}: .*Keep all writers on one machine") as seen:
        store = opslog.open(root, agent="a")
    assert len(seen) == 1
    store["y"] = {}
    store.compact()
    store.close()
    with opslog.open(root, read_only=True) as reader:
        assert sorted(reader) == ["x", "y"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", opslog.FilesystemWarning)
        opslog.open(root, agent="a").close()


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "apfs", "fuse", "fuse.gocryptfs", "zfs"])
def test_local_filesystems_are_taken_as_they_are(root: Path, mounted: Mounted, kind: str) -> None:
    mounted(kind)
    with opslog.open(root, agent="a") as store:
        store["y"] = {}


def test_an_unknown_filesystem_is_no_reason_to_refuse(
    root: Path, mounted: Mounted, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mounted("cifs")
    for text in ("", "garbage\n", "1 0 8:1 / / rw - ext4 /dev/sda rw\n"):
        (tmp_path / "proc" / "mountinfo").write_text(text, encoding="ascii")
        opslog.open(root, agent="a").close()
    monkeypatch.setattr(mounts, "_PROC", str(tmp_path / "nothing"))
    opslog.open(root, agent="a").close()


def test_the_filesystem_of_a_directory_is_that_of_its_mount(small_disk: Path) -> None:
    (small_disk / "store").mkdir()
    link = small_disk.parent / "link"
    link.symlink_to(small_disk / "store")
    for path in (small_disk, small_disk / "store", link):
        assert mounts.filesystem_of(Tree(str(path)).descriptor) == "tmpfs"
