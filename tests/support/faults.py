"""Failing system calls, and writes that meet them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import posix

Store = opslog.Store[dict[str, Any]]
Write = Callable[[int, bytes], int]


def failing(code: int) -> Callable[..., Any]:
    """A system call that fails with this error."""

    def fail(*args: object, **options: object) -> Any:
        raise OSError(code, os.strerror(code))

    return fail


def interrupted(*args: object, **options: object) -> Any:
    """A system call that Ctrl-C interrupts."""
    raise KeyboardInterrupt


def stored(root: Path) -> dict[str, Any]:
    """The documents that a newly opened store finds."""
    with opslog.open(root, read_only=True) as fresh:
        return dict(fresh.items())


def write_first(length: int, code: int = errno.ENOSPC) -> Write:
    """An `os.write` for a disk that has room for this many bytes."""
    real, room = os.write, length

    def write(descriptor: int, data: bytes) -> int:
        nonlocal room
        if not room:
            raise OSError(code, os.strerror(code))
        written = real(descriptor, bytes(data)[:room])
        room -= written
        return written

    return write


def attempts(store: Store) -> dict[str, Callable[[], object]]:
    """One write of each kind, on a store that has a document "old"."""

    def batch() -> None:
        with store.batch():
            store["old"] = {"by": "batch"}
            store["new"] = {"by": "batch"}

    return {
        "set": lambda: store.set("new", {"by": "set"}),
        "delete": lambda: store.delete("old"),
        "batch": batch,
        "undo": store.undo,
    }


KINDS = ["set", "delete", "batch", "undo"]


def check_failed_sync(opened: Callable[[], Store], root: Path, kind: str) -> None:
    """The outcome of a write is unknown if fdatasync fails. The store refuses further writes, and after reopening the
    commit is whole or absent.

    :param opened: opens the store.
    :param root: where it is.
    """
    before = {"old": {"turn": 2}}
    with opened() as store:
        store["old"] = {"turn": 1}
        store["old"] = {"turn": 2}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(posix, "datasync", failing(errno.EIO))
            with pytest.raises(opslog.CommitUnknownError, match=r"may or may not be.*open it again, and check"):
                attempts(store)[kind]()
        assert dict(store.items()) == before
        with pytest.raises(opslog.ReopenError, match="open it again"):
            store["next"] = {}
        assert dict(store.items()) == before
    with opened() as store:
        if dict(store.items()) == before:
            attempts(store)[kind]()
        assert dict(store.items()) == stored(root) != before
        store["next"] = {}
    assert "next" in stored(root)
