"""Breakages of what transactions rely on, like those in `tests.simulation.breakages`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import msgspec

from opslog.backends import Backend, Position
from opslog.backends.objects import backend as objects
from opslog.compaction.compact import CompactionInput, Tail
from opslog.format import snapshot
from opslog.format.commits import Commit, Undo
from opslog.format.layout import TRANSACTIONS, segment_path
from opslog.format.manifest import Cut
from opslog.log import shared
from opslog.log.freshness import NewestRead
from opslog.log.reader import list_log
from opslog.log.session import WriterSession
from opslog.log.shared import SharedLog
from opslog.log.survey import Survey
from opslog.merge.merge import Merge
from opslog.merge.undo import newest_undoable
from opslog.replica import deciding, following, loading
from opslog.replica.deciding import Deciding, Waiting
from opslog.replica.replica import Replica
from opslog.replica.state import State, View
from opslog.replica.transaction import Reads, Transaction
from tests.simulation.breakages import ANSWERS, Breakage, likely

# Nothing but transactions, by many agents with short pauses.
CLAIMS: dict[str, Any] = {"transactions": 5.0, "think_seconds": 0.01, "weights": {"refresh": 1.0, "set": 2.0}}


def _append_anywhere(self: Any, data: bytes) -> Position:
    """It appends at the end of the log, whatever was read of it."""
    backend: Backend = self._backend
    position = backend.append_at(TRANSACTIONS, self._end, data)
    while position is None:
        last = list_log(backend, TRANSACTIONS)[-1]
        end = Position(last.number, last.bytes) if backend.segments_grow else Position(last.number + 1, 0)
        position = backend.append_at(TRANSACTIONS, end, data)
    return position


def _no_answer_is_a_conflict(self: objects.ObjectBackend, agent: str, end: Position, data: bytes) -> Position | None:
    """Whatever is under that number counts as another transaction, and this one is decided again."""
    outcome = self.driver.put_new(self._prefix + segment_path(agent, end.segment), data)
    return end if outcome is objects.Put.CREATED else None


def _number_unchecked(self: WriterSession) -> NewestRead | None:
    return None if self.agent == TRANSACTIONS else _check_number(self)


def _unconfirmed(self: WriterSession, position: Position, read_at: float, free: NewestRead | None) -> None:
    if self.agent != TRANSACTIONS:
        _confirm(self, position, read_at, free)


_check_number = WriterSession._check_number
_confirm = WriterSession._confirm


def _cut_at_the_end_of_now(self: Tail, backend: Backend, *arguments: Any) -> CompactionInput:
    """The cut of the shared log is its current end, whoever has appended since it was read."""
    found = _input(self, backend, *arguments)
    listed = list_log(backend, TRANSACTIONS)
    if not listed or TRANSACTIONS not in found.cut:
        return found
    last = listed[-1]
    position = (last.number, last.bytes) if backend.segments_grow else (last.number + 1, 0)
    cut = {**found.cut, TRANSACTIONS: Cut(*position, found.cut[TRANSACTIONS].commits)}
    return msgspec.structs.replace(found, cut=cut)


_input = Tail.input


def _end_before_the_append(self: Deciding[Any], group: Any, commits: list[Commit | None], view: View) -> bool:
    if any(commit is not None for commit in commits):
        for waiting in group.decided:
            waiting.end()
    return _append(self, group, commits, view)


_append = Deciding._append


def _nothing(*arguments: object, **options: object) -> None:
    """Does nothing."""


def _join_late(self: Deciding[Any], group: Any, remaining: list[Waiting[Any, Any]]) -> None:
    """A caller that arrives while the group's refresh is under way still joins the group."""
    replica: Any = self._replica
    freeze = replica.freeze

    def joined() -> View:
        view: View = freeze()
        while self._queue:
            waiting = self._queue.popleft()
            remaining.append(waiting)
            group.waiting.append(waiting)
        return view

    replica.freeze = joined
    try:
        _attempt(self, group, remaining)
    finally:
        del replica.freeze


_attempt = Deciding._attempt


def _stamp_without_nonce(self: SharedLog, *arguments: Any, **options: Any) -> bytes:
    environment = self._freshness.environment
    self._freshness.environment = replace(environment, nonce=lambda: "0" * 16)
    try:
        return _stamp(self, *arguments, **options)
    finally:
        self._freshness.environment = environment


_stamp = SharedLog.stamp


def _no(*arguments: object) -> bool:
    return False


def _no_hashes(hashes: Iterable[int]) -> bytes:
    return b""


def _undo_whatever(self: Transaction[Any], author: str) -> tuple[str, ...] | None:
    """Whether or not others have overwritten it."""
    commit = self.undoable(author)
    if commit is None or commit.agent != TRANSACTIONS:
        return None
    self._undo = Undo("", 0, "", commit.clock, by=author)
    return tuple(record.id for record in commit.records)


def _as_listed(backend: Backend, found: Survey, own: str) -> Survey:
    """The shared log is read after the logs whose names come before its own."""
    return found


def _undo_newest_of_own_log(self: Replica[Any], author: str) -> tuple[str, ...] | None:
    """The newest commit of the own log, although another thread's undo may have left a newer one in the shared log."""
    undone: tuple[str, ...] | None = None

    def prepare(state: State) -> Undo | None:
        nonlocal undone
        target = newest_undoable(state.merge.recent.get(author, ()))
        if target is None:
            return None
        undone = tuple(record.id for record in target.records)
        return Undo("", 0, "", target.clock)

    return undone if self.commit_decided("undo", prepare) else None


TRANSACTIONAL = [
    Breakage(
        "append a transaction wherever the shared log ends",
        shared._AtEnd,
        "append",
        _append_anywhere,
        likely("s3", {}, **CLAIMS),
    ),
    Breakage(
        "treat a lost answer as a conflict, and decide again",
        objects.ObjectBackend,
        "append_at",
        _no_answer_is_a_conflict,
        likely("s3", ANSWERS, 15, **CLAIMS),
    ),
    Breakage(
        "append a transaction under a number that may have been used",
        WriterSession,
        "_check_number",
        _number_unchecked,
        likely(
            "s3",
            {"pause": 1},
            10,
            2500,
            {"pause": "put-new prefix/ops/transactions"},
            amounts={"pause": 500.0},
            undo_window=0,
            agents=4,
            calls=30,
            compactors=4,
            grace_seconds=0.5,
            **CLAIMS | {"think_seconds": 3.0},
        ),
        more=((WriterSession, "_confirm", _unconfirmed),),
    ),
    Breakage(
        "compact the shared log past the end that was read",
        Tail,
        "input",
        _cut_at_the_end_of_now,
        likely("s3", {}, undo_window=0, agents=4, compactors=4, **CLAIMS),
    ),
    Breakage(
        "acknowledge transactions before their append",
        Deciding,
        "_append",
        _end_before_the_append,
        likely("posix", {"fail": 1, "full": 1}, 20, **CLAIMS),
    ),
    Breakage(
        "decide on commits that are not on disk",
        Deciding,
        "_make_durable",
        _nothing,
        likely(
            "posix",
            {"pause after": 2, "power": 1},
            20,
            1500,
            {"pause after": "write /store/ops/agent"},
            amounts={"pause after": 20.0},
            agents=4,
            documents=2,
            compactors=0,
            readers=0,
            **CLAIMS | {"weights": {"set": 40.0}},
        ),
    ),
    Breakage(
        "join a group of transactions whose refresh has begun",
        Deciding,
        "_attempt",
        _join_late,
        likely(
            "s3",
            {"stall after": 1},
            40,
            3000,
            {"stall after": "list prefix/ops"},
            threaded=4,
            threads=5,
            agents=4,
            documents=3,
            calls=100,
            compactors=0,
            think_seconds=0.01,
            weights={"set": 10.0, "answer": 10.0, "audit": 20.0, "create": 2.0},
        ),
    ),
    Breakage(
        "give all transactions one nonce",
        SharedLog,
        "stamp",
        _stamp_without_nonce,
        likely("posix", {}, **CLAIMS),
    ),
    Breakage(
        "write guarded documents to the agent's own log",
        State,
        "guards",
        _no,
        likely("posix", {}, **CLAIMS),
    ),
    Breakage(
        "compact guarded documents without listing them",
        snapshot,
        "encode_hashes",
        _no_hashes,
        likely("posix", {}, undo_window=0, agents=4, compactors=4, **CLAIMS),
    ),
    Breakage(
        "undo a transaction that others have built on",
        Transaction,
        "undo",
        _undo_whatever,
        likely("posix", {}, undo_window=16, **CLAIMS | {"weights": {"undo": 10.0}}),
    ),
    Breakage(
        "keep decisions after a lost race",
        deciding,
        "_changed",
        _nothing,
        likely("s3", {}, agents=4, **CLAIMS),
    ),
    Breakage(
        "read the logs in the order of their names",
        following,
        "shared_log_first",
        _as_listed,
        likely(
            "posix",
            {"fail": 1},
            150,
            12_000,
            {"fail": "open /store/ops/transactions/0"},
            agents=5,
            calls=40,
            transactions=0.1,
            think_seconds=0.01,
            weights={"refresh": 2.0, "set": 10.0},
        ),
        more=((loading, "shared_log_first", _as_listed),),
    ),
    Breakage(
        "forget which commits an undo cannot reach any more",
        Merge,
        "_note_settled",
        _nothing,
        likely(
            "posix",
            {},
            calls=40,
            undo_window=1,
            compactors=0,
            transactions=0.5,
            think_seconds=0.01,
            weights={"undo": 10.0, "set": 8.0},
        ),
    ),
    Breakage(
        "choose the log of an undo before other undos have ended",
        Replica,
        "_undo_own",
        _undo_newest_of_own_log,
        likely(
            "s3",
            {},
            agents=2,
            calls=80,
            threaded=2,
            threads=5,
            undo_window=16,
            transactions=0.5,
            think_seconds=0.01,
            weights={"undo": 10.0, "set": 8.0},
        ),
    ),
    Breakage(
        "find nothing to undo after a commit with an unknown outcome",
        Replica,
        "check_own_log",
        _nothing,
        likely(
            "posix",
            {"lost": 1},
            40,
            4500,
            {"lost": "fsync /store/ops/agent"},
            calls=40,
            undo_window=1,
            threaded=3,
            threads=2,
            weights={"undo": 10.0, "set": 4.0, "batch": 2.0},
        ),
    ),
    Breakage(
        "compare only a query's documents after a lost race",
        Reads,
        "matches",
        _no,
        likely("s3", {}, agents=4, think_seconds=0.01, weights={"take_few": 10.0, "release": 8.0}),
    ),
]
