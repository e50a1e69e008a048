"""Breakages of what keeps a log to one writer, and its numbers to one use; as those in `tests.simulation.breakages`."""

from __future__ import annotations

from opslog.backends.local.fs_log import FsAppender
from opslog.backends.local.tree import OpenFile, Tree
from opslog.log.writer import Group, LogWriter
from opslog.testing.system import System
from tests.simulation.breakages import Breakage, likely


def _refuse_buffered(self: LogWriter, group: Group) -> None:
    """With a buffer nothing is stamped anew."""
    if self._buffer is None:
        _pass_seal(self, group)
    else:
        group.end(group.fence, 0)


_pass_seal = LogWriter._pass_seal


def _nothing(*arguments: object) -> None:
    """Do not do it."""


def _yes(*arguments: object) -> bool:
    return True


def _no(*arguments: object) -> bool:
    return False


FENCES = [
    Breakage(
        "do not stamp anew what is buffered when a seal comes first",
        LogWriter,
        "_pass_seal",
        _refuse_buffered,
        likely("s3", {}, buffered=3, undo_window=2, undo_ttl_seconds=5.0, nap_seconds=60.0, think_seconds=1.0),
    ),
    Breakage(
        "go on in a directory that was replaced",
        OpenFile,
        "is_in_place",
        _yes,
        likely("posix", {"moved": 1}, 3, 1500),
        more=((Tree, "is_replaced", _no),),
    ),
    Breakage(
        "go on without a lock file",
        FsAppender,
        "_check_name",
        _nothing,
        likely("posix", {"unlocked": 1}, 5, 1500, rivals=3),
        more=((System, "try_lock", _yes),),
    ),
]
