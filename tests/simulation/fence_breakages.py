"""Breakages of the rules that a log has one writer and each number one use; like those in
`tests.simulation.breakages`."""

from __future__ import annotations

from opslog.backends.local.fs import FsBackend
from opslog.backends.local.fs_log import FsAppender
from opslog.backends.local.tree import OpenFile, Tree
from opslog.errors import AgentFencedError
from opslog.format.commits import Commit, Seal
from opslog.format.layout import segment_of
from opslog.log import session
from opslog.log.freshness import Freshness, NewestRead
from opslog.log.session import Passage, WriterSession
from opslog.log.writer import Group, LogWriter
from opslog.testing.system import System
from tests.simulation.breakages import Breakage, likely


def _any_seal(self: WriterSession, fenced: AgentFencedError) -> Passage:
    """A seal under the next number counts as the end of the log, whatever the newest manifest says about that
    number."""
    self.freshness.read_newest()
    named = segment_of(fenced.path)
    seals = vars(session)["_read_seals"](self._backend, fenced.path) if named else None
    if not named or not seals:
        return _passage(self, fenced)
    return Passage(named[1], seals, seals[-1].clock, vars(self)["_commits"] + len(seals))


_passage = WriterSession.pass_seal


def _number_by_what_was_loaded(self: WriterSession) -> NewestRead:
    """A number counts as used only if the owner does not know it. After a load the appender may still be before it."""
    parts = vars(self)
    after, parts["_after"] = parts["_after"], self.last_segment
    try:
        return _check_number(self)
    finally:
        parts["_after"] = after


_check_number = WriterSession._check_number


def _stamp_seals_as_before(self: WriterSession, commit: Commit, after: int | None = None) -> bytes:
    """Of two seals of one log end, the one made later has a greater clock, as before 0.2. Today both have the same
    clock, so confusing them does no harm."""
    if after is not None and isinstance(commit, Seal):
        after += int(self.freshness.environment.monotonic())
    return _stamp(self, commit, after)


_stamp = WriterSession.stamp


def _refuse_buffered(self: LogWriter, group: Group) -> None:
    """Buffered commits get no new stamps."""
    if self._buffer is None:
        _pass_seal(self, group)
    else:
        group.end(group.fence, 0)


_pass_seal = LogWriter._pass_seal


def _nothing(*arguments: object) -> None:
    """Does nothing."""


def _yes(*arguments: object) -> bool:
    return True


def _no(*arguments: object) -> bool:
    return False


FENCES = [
    Breakage(
        "treat any seal as the end of the log",
        WriterSession,
        "pass_seal",
        _any_seal,
        likely(
            "s3",
            {"pause": 1},
            40,
            6000,
            {"pause": "put-new prefix/ops/"},
            amounts={"pause": 70.0},
            undo_window=2,
            undo_ttl_seconds=5.0,
            grace_seconds=0.5,
            compactors=8,
            think_seconds=30.0,
            calls=60,
        ),
        more=((WriterSession, "stamp", _stamp_seals_as_before),),
    ),
    Breakage(
        "count a seal that was only loaded as passed",
        WriterSession,
        "_check_number",
        _number_by_what_was_loaded,
        likely(
            "s3",
            {},
            undo_window=2,
            undo_ttl_seconds=1.0,
            grace_seconds=0.6,
            compactors=16,
            agents=8,
            calls=80,
            think_seconds=3.0,
            weights={"refresh": 6, "set": 6},
            large=True,
        ),
    ),
    Breakage(
        "do not stamp buffered commits anew behind a seal",
        LogWriter,
        "_pass_seal",
        _refuse_buffered,
        likely("s3", {}, buffered=3, undo_window=2, undo_ttl_seconds=5.0, nap_seconds=60.0, think_seconds=1.0),
    ),
    Breakage(
        "append commits that rest on old reads",
        Freshness,
        "check_age",
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
        "continue in a directory that was replaced",
        OpenFile,
        "is_in_place",
        _yes,
        likely("posix", {"moved": 1}, 3, 1500),
        more=((Tree, "is_replaced", _no),),
    ),
    Breakage(
        "continue without a lock file",
        FsAppender,
        "_keep_name",
        _nothing,
        likely("posix", {"unlocked": 1}, 5, 1500, rivals=3),
        more=((System, "try_lock", _yes),),
    ),
    Breakage(
        "give one directory to agents whose names differ in case alone",
        FsBackend,
        "_check_spelling",
        _nothing,
        likely("posix", {}, ignores_case=True, agents=4),
    ),
]
