"""The kind of filesystem that a directory is on, and whether a store may be written there.

A store relies on locks that every process that can write to it respects. Some filesystems that are shared between
machines do not have such locks. Nothing would fail there: each machine would give the lock to its own process.

The kind is that of the mount (`/proc/self/mountinfo`) through which the directory was opened (`/proc/self/fdinfo`).
Device numbers do not lead to a mount on every filesystem (subvolumes of btrfs), and statfs has one number for
everything that is mounted through FUSE. Systems other than Linux do not have these files, so nothing is checked there.
"""

from __future__ import annotations

import warnings

from opslog.errors import FilesystemWarning, UsageError

_PROC = "/proc/self"

# Each machine has its own locks, or files do not behave as POSIX says.
_UNSHARED_LOCKS = frozenset({
    "afs",
    "cifs",
    "davfs",
    "fuse.curlftpfs",
    "fuse.davfs2",
    "fuse.gcsfuse",
    "fuse.goofys",
    "fuse.mountpoint-s3",
    "fuse.rclone",
    "fuse.s3fs",
    "fuse.sshfs",
    "smb3",
    "smbfs",
})  # fmt: skip

# Shared between machines, and the locks can be shared, too.
_UNTESTED = frozenset({
    "9p",
    "beegfs",
    "ceph",
    "fuse.ceph",
    "fuse.ceph-fuse",
    "fuse.glusterfs",
    "fuse.grpcfuse",
    "fuse.juicefs",
    "fuse.vmhgfs-fuse",
    "gfs2",
    "glusterfs",
    "gpfs",
    "lustre",
    "nfs",
    "nfs4",
    "ocfs2",
    "orangefs",
    "prl_fs",
    "pvfs2",
    "vboxsf",
    "virtiofs",
})  # fmt: skip


def check_writable(root: str, descriptor: int) -> None:
    """Check that a store may be written in the directory `root`, which is open at `descriptor`. Warns if the filesystem
    is not tested.

    :raises UsageError: the filesystem is shared between machines, but its locks are not.
    """
    kind = filesystem_of(descriptor)
    if kind in _UNSHARED_LOCKS:
        raise UsageError(
            f"{root} is on {kind}, where two machines can both have a lock, so a store there would lose writes, and is "
            "not opened for writing. Keep it on a local filesystem, or in a bucket"
        )
    if kind in _UNTESTED:
        warnings.warn(
            f"{root} is on {kind}: stores are not tested on filesystems that machines share. Keep all writers on one "
            "machine; docs/operations.md has more",
            FilesystemWarning,
            stacklevel=2,
        )


def filesystem_of(descriptor: int) -> str | None:
    """The kind of filesystem that an open file is on, as mount(8) names it: ``ext4``, ``nfs4``, ``fuse.sshfs``. None if
    the system does not say."""
    try:
        with open(f"{_PROC}/fdinfo/{descriptor}", encoding="ascii") as file:
            fields = dict(line.split(":", 1) for line in file if ":" in line)
        with open(f"{_PROC}/mountinfo", encoding="utf-8", errors="replace") as file:
            return _kind_of(file.read(), fields["mnt_id"].strip())
    except (OSError, KeyError, ValueError):
        return None


def _kind_of(mounts: str, mount: str) -> str | None:
    """The type of the mount with this number. A line is ``36 35 98:0 /root /place options [fields] - type source
    …``."""
    for line in mounts.split("\n"):
        before, _, after = line.partition(" - ")
        if before.partition(" ")[0] == mount:
            return after.partition(" ")[0] or None
    return None
