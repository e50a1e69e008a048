"""System calls on files and directories for `opslog.backends.local.fs`, and the meaning of their errors in words.

Paths are relative to the directory that is open at the descriptor `at`; if it is None, to the working directory.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Callable, Iterator
from functools import partial

from opslog.backends.contract import Entry

# The errors of reading a file that does not exist; ESTALE: a network filesystem noticed late that it was deleted.
MISSING = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE)

# Less the umask. Even with a umask of 0, a store is not writable for everybody.
FILE_MODE, DIRECTORY_MODE = 0o664, 0o775

# The most memory that one read may take. Readers ask for twice as much as they had until they have a whole line, and no
# line has more than a quarter of this.
READ_BYTES_MAX = 1024 * 1024 * 1024

# Otherwise opening a pipe at this path would wait until somebody writes into it.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK

_READ_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

datasync = getattr(os, "fdatasync", os.fsync)  # macOS has no fdatasync.


def has_name(descriptor: int) -> bool:
    """Whether an open file is still in a directory."""
    return os.fstat(descriptor).st_nlink > 0


def opening(path: str, flags: int, at: int | None = None) -> Iterator[int]:
    """Opens a file when its descriptor is taken: ``[descriptor] = opening(…)``, and then ``try: … finally: close``.

    A signal handler, which may raise, can run when a call returns, but not while a sequence is unpacked. So the
    file is closed in any case.
    """
    return map(partial(os.open, dir_fd=at), (path,), (flags,), (FILE_MODE,))


def fsync_directory(path: str, at: int | None = None) -> None:
    """Make the entries of a directory durable."""
    [descriptor] = opening(path, os.O_RDONLY | os.O_DIRECTORY, at)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def datasync_file(path: str, at: int | None = None) -> None:
    """Make the bytes of a file durable, also if another process wrote them."""
    [descriptor] = opening(path, _READ, at)
    try:
        datasync(descriptor)
    finally:
        os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of the data, however many calls the system needs for it."""
    written = os.write(descriptor, data)
    while written < len(data):
        written += os.write(descriptor, memoryview(data)[written:])


def read_range(path: str, start: int, stop: int | None, at: int | None = None) -> bytes:
    """Bytes `start` to `stop` (None: the end) of a file; fewer where it ends earlier."""
    [descriptor] = opening(path, _READ, at)
    try:
        end = _regular(descriptor).st_size
        if stop is not None:
            end = min(end, stop)
        if end - start > READ_BYTES_MAX:
            raise OSError(errno.EMSGSIZE, os.strerror(errno.EMSGSIZE))
        return read_open(descriptor, start, end)
    finally:
        os.close(descriptor)


def read_open(descriptor: int, start: int, stop: int) -> bytes:
    """Bytes `start` to `stop` of an open file; fewer where it ends earlier."""
    data = os.pread(descriptor, max(stop - start, 0), start)
    while len(data) < stop - start:
        more = os.pread(descriptor, stop - start - len(data), start + len(data))
        if not more:
            break
        data += more
    return data


def _regular(descriptor: int) -> os.stat_result:
    """The status of an open file.

    :raises OSError: it is a pipe, a device or a socket; or a directory.
    """
    status = os.fstat(descriptor)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
    return status


def map_file(path: str, at: int | None = None) -> mmap.mmap | bytes:
    """All of a file."""
    [descriptor] = opening(path, _READ, at)
    try:
        _regular(descriptor)
        return mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ)
    except ValueError:  # it is empty, which mmap refuses
        return b""
    finally:
        os.close(descriptor)


def names(path: str, at: int | None = None) -> list[str]:
    """The names in a directory."""
    [descriptor] = opening(path, _READ_DIRECTORY, at)
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


def scan(prefix: str, entries: list[Entry], first: Callable[[str], str], at: int | None = None) -> None:
    """Add the files whose paths begin with `prefix`, which is a directory and a slash or empty, in the order of their
    paths.

    :param first: returns the path of the first file to list in the directory of a prefix; earlier ones are left out.
    """
    try:
        # Without the trailing slash, since with it the system would follow a link.
        [descriptor] = opening(prefix[:-1] or ".", _READ_DIRECTORY, at)
    except (FileNotFoundError, NotADirectoryError):
        return
    try:
        _scan(descriptor, prefix, entries, first, at)
    finally:
        os.close(descriptor)


def _scan(descriptor: int, prefix: str, entries: list[Entry], first: Callable[[str], str], at: int | None) -> None:
    begin = first(prefix)
    try:
        with os.scandir(descriptor) as directory:
            # With the trailing slash, a directory sorts among the files as the paths below it do.
            found = sorted(
                (f"{entry.name}/" if entry.is_dir(follow_symlinks=False) else entry.name, entry) for entry in directory
            )
    except FileNotFoundError:
        return  # it was deleted since it was opened
    for name, entry in found:
        if name[-1] == "/":
            scan(prefix + name, entries, first, at)
            continue
        if prefix + name < begin:
            continue
        try:
            # A link is listed as a link, and reading it as a file fails with an error that says so.
            status = entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue
        entries.append(Entry(prefix + name, status.st_size, status.st_mtime))


ADVICE = {
    errno.ENOSPC: "free some space on that filesystem and try again",
    errno.EDQUOT: "your disk quota is used up: free some space and try again",
    errno.EROFS: "the filesystem is mounted read-only: mount it for writing, or open the store with read_only=True",
    errno.ENOENT: "the store's directory was removed or moved: put it back and open the store again",
    errno.ENOTDIR: "a file stands where the store needs a directory: move it away",
    errno.EISDIR: "a directory stands where the store needs a file: move it away",
    errno.ELOOP: "a link stands there, and links inside a store are not followed: put the real one in its place",
    errno.EMSGSIZE: "no line is so long, so opslog did not write this: move the file away, and run `opslog verify`",
    errno.ENODEV: "something else than a file stands there: move it away",
    errno.EACCES: "check the owner and the permissions of the store's directory",
    errno.EPERM: "check the owner and the permissions, and whether this filesystem has hard links",
    errno.EOPNOTSUPP: "this filesystem lacks what a store needs (hard links, fsync): keep the store on another one",
    errno.EMLINK: "this filesystem has too few hard links: keep the store on another one",
    errno.EMFILE: "this process has too many open files: close some, or raise the limit (ulimit -n)",
    errno.ENFILE: "this machine has too many open files: close some programs and try again",
    errno.EFBIG: "the file would exceed a limit: raise it (ulimit -f)",
    errno.EIO: "the disk failed: read the kernel's log (dmesg) before you go on",
    errno.ENAMETOOLONG: "use a shorter one",
}


def explain(error: OSError) -> str:
    """The system's reason and what to do about it."""
    reason = error.strerror or str(error)
    return f"{reason}; {ADVICE.get(error.errno or 0, 'try again')}"
