"""Breakages of what keeps a log to one writer, and its numbers to one use; as those in `tests.simulation.breakages`."""

from __future__ import annotations

from opslog.backends import Backend
from opslog.backends.local.fs_log import FsAppender
from opslog.backends.local.tree import OpenFile, Tree
from opslog.format.layout import segment_path
from opslog.log import fencing
from opslog.log.fencing import Fence, Passage
from opslog.log.writer import Group, LogWriter
from opslog.testing.system import System
from tests.simulation.breakages import Breakage, likely


def _any_seal(self: Fence, backend: Backend, agent: str, number: int) -> Passage | None:
    """What stands there is the end of the log if it is a seal, whatever the newest manifest says of that number."""
    passage = _passage(self, backend, agent, number)
    seals = vars(fencing)["_read_seals"](backend, segment_path(agent, number))
    return Passage(number, seals) if seals else passage


_passage = Fence.pass_seal


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
        "take any seal for the end of the log",
        Fence,
        "pass_seal",
        _any_seal,
        likely(
            "s3",
            {"pause": 1},
            20,
            6000,
            {"pause": "put-new prefix/ops/"},
            amounts={"pause": 70.0},
            undo_window=2,
            undo_ttl_seconds=5.0,
            grace_seconds=0.5,
            compactors=8,
            think_seconds=30.0,
            calls=30,
        ),
        first=5,
    ),
    Breakage(
        "do not stamp anew what is buffered when a seal comes first",
        LogWriter,
        "_pass_seal",
        _refuse_buffered,
        likely("s3", {}, buffered=3, undo_window=2, undo_ttl_seconds=5.0, nap_seconds=60.0, think_seconds=1.0),
    ),
    Breakage(
        "append what rests on what was read long ago",
        Fence,
        "_check_age",
        _nothing,
        likely(
            "posix",
            {"pause": 1},
            6,
            1500,
            {"pause": "locks/agents/import"},
            amounts={"pause": 2000.0},
            agents=4,
            imports=3,
            documents=16,
            compactors=3,
            calls=30,
            undo_window=0,
            tombstone_ttl_seconds=400.0,
            think_seconds=15.0,
            weights={"set": 6, "delete": 6},
        ),
        first=10,
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
