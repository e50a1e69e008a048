"""Locks between processes: an flock on a file, in which its holder writes who it is.

The kernel releases a lock when its holder dies. Lock files are never unlinked: otherwise a process that waits on the
old file and one that creates a new file would both hold "the" lock. The first line of the file (pid, host, boot id) is
for messages only. A second line may follow: a note from one holder to the next.

portalocker takes the first lock of a file, because it knows the ways in which a filesystem refuses. While the file
stays open, it is locked again and unlocked by the system call alone. portalocker makes the same call, but checks the
file and the flags each time, which takes ten times as long as the call.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

from opslog.backends import forking
from opslog.errors import LockedError, WriteFailedError

if TYPE_CHECKING:
    from portalocker import LockFlags

# More than two lines take.
_CONTENT_BYTES = 1024

_UNKNOWN = "-"


class _Locks(NamedTuple):
    """The part of portalocker that is used here."""

    lock: Callable[[int, LockFlags], None]
    flags: LockFlags
    already: type[Exception]
    failed: type[Exception]


@cache
def _locks() -> _Locks:
    # Imported late, because portalocker imports much that reading a store does not need (asyncio among it).
    from portalocker import LockFlags, lock
    from portalocker.exceptions import AlreadyLocked, LockException

    return _Locks(lock, LockFlags.EXCLUSIVE | LockFlags.NON_BLOCKING, AlreadyLocked, LockException)


class LockFile(forking.Descriptor):
    """An open lock file, locked or not.

    :ivar content: the content of the file when it was locked, or what was written since. While the file is locked,
        nobody else writes to it. Empty if it could not be read.
    """

    content = b""


def take(full: str, name: str, path: str | None = None, at: int | None = None) -> LockFile:
    """Lock the file `full`, for the lock called `name`. Returns the descriptor that holds the lock.

    :param full: the path of the file in messages.
    :param path: the path with which to open it, if that is another one.
    :param at: the directory that `path` is relative to.
    :raises LockedError: another open file, of this process or another one, holds the lock.
    :raises WriteFailedError: the filesystem has no locks.
    :raises OSError: the file cannot be opened.
    """
    held = LockFile()
    try:
        # Writable, because on NFS an flock becomes a record lock, which needs it.
        held.open(path or full, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, at)
        _begin(held, full, name, is_locked=try_lock(held, full))
    except BaseException:
        held.close()  # also after Ctrl-C: otherwise nothing would ever release the lock
        raise
    return held


def take_again(held: LockFile, full: str, name: str) -> None:
    """Lock a file again that `take` has locked before, and that is still open; errors as in `take`. After any error but
    LockedError the caller has to close the file."""
    _begin(held, full, name, is_locked=try_again(held, full))


def _begin(held: LockFile, full: str, name: str, *, is_locked: bool) -> None:
    if not is_locked:
        holder = _read_holder(held.number)
        raise LockedError(f"{full} is locked by {holder}: try again when that process is done", name, holder)
    _write_holder(held)


def try_lock(held: forking.Descriptor, full: str) -> bool:
    """Lock an open file, without writing into it. Returns False if another open file holds the lock.

    :param full: the path of the file in messages.
    :raises WriteFailedError: the filesystem has no locks.
    """
    locks = _locks()
    try:
        locks.lock(held.number, locks.flags)
    except locks.already:
        return False
    except locks.failed as error:
        raise _refused(full, error) from error
    return True


def try_again(held: forking.Descriptor, full: str) -> bool:
    """As `try_lock`, but costs less, for a file that was locked before and is still open."""
    try:
        fcntl.flock(held.number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):  # EACCES: a record lock on NFS
            return False
        raise _refused(full, error) from error
    return True


def _refused(full: str, error: Exception) -> WriteFailedError:
    return WriteFailedError(f"{full} cannot be locked: {error}. Keep the store on a filesystem that supports flock")


def unlock(held: forking.Descriptor) -> None:
    """Release a lock, and leave its file open. Idempotent.

    :raises OSError: the file may still be locked.
    """
    if held.number >= 0:
        fcntl.flock(held.number, fcntl.LOCK_UN)


def release(held: forking.Descriptor) -> None:
    """Release a lock and close its file. Idempotent."""
    # Closing alone would not release the lock if a child made by native code still shares the open file.
    try:
        with suppress(OSError):  # without such a child, closing releases it
            unlock(held)
    finally:
        held.close()


def note(held: LockFile) -> str:
    """The last note of an earlier holder of this lock. Empty if there is none, or if the machine was restarted
    since."""
    written = held.content.partition(b"\n")[2]
    text, newline, _ = written.partition(b"\n")
    said, _, boot_id = text.decode(errors="replace").rpartition(" ")
    return said if newline and boot_id == _boot_id() != _UNKNOWN else ""


def write_note(held: LockFile, text: str) -> None:
    """Leave a note of one line for the next holder of this lock. It may get lost."""
    with suppress(OSError):
        _replace(held, _this_process() + f"{text} {_boot_id()}\n".encode())


@cache
def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return _UNKNOWN


def _this_process() -> bytes:
    return _process_of(forking.generation)


@cache
def _process_of(generation: int) -> bytes:
    return f"{os.getpid()} {os.uname().nodename} {_boot_id()}\n".encode()


def _write_holder(held: LockFile) -> None:
    """Write this process into the lock file. The note of the last holder stays."""
    held.content = b""
    # A full disk must not prevent locking.
    with suppress(OSError):
        held.content = _content(held.number)
        _replace(held, _this_process() + held.content.partition(b"\n")[2])


def _content(descriptor: int) -> bytes:
    return os.pread(descriptor, _CONTENT_BYTES, 0)


def _replace(held: LockFile, content: bytes) -> None:
    """Replace the content of a lock file. It is truncated last, so nobody sees it empty."""
    found = held.content
    if content != found:
        os.pwrite(held.number, content, 0)
        held.content = content
        if len(content) < len(found):
            os.ftruncate(held.number, len(content))


def _read_holder(descriptor: int) -> str:
    """The holder of a lock in words: ``pid 4711 on host web1``."""
    text = _content(descriptor)
    words = text.decode(errors="replace").partition("\n")[0].split()
    if len(words) != 3:
        return "a process that has not written its name yet"
    here = " (this process)" if text.startswith(_this_process()) else ""
    return f"pid {words[0]} on host {words[1]}{here}"
