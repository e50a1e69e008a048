"""Each commit is found again at the call that wrote it, whichever thread or process is faster."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import msgspec
import pytest

import opslog
from opslog.format.commits import Set
from opslog.format.layout import TRANSACTIONS
from opslog.log.writer import Pending
from opslog.store import replica_of
from opslog.testing.invariants import ViolationError
from tests.simulation.ledger import Attempt, Ledger
from tests.simulation.transaction_invariants import Replay, plain_commits_outrank_no_unread_transaction


class Hasty(deque[Any]):
    """A queue that another thread empties before the caller continues."""

    def __init__(self, decide_all: Any) -> None:
        super().__init__()
        self.decide_all = decide_all

    def append(self, waiting: Any) -> None:
        super().append(waiting)
        other = threading.Thread(target=self.decide_all)
        other.start()
        other.join()


def test_a_transaction_that_another_thread_writes_at_once_is_known() -> None:
    ledger = Ledger()
    with opslog.open("memory://hasty", agent="a") as store, ledger.listening():
        deciding = replica_of(store).deciding_of("test")
        deciding._queue = Hasty(deciding.decide_all)
        with ledger.attempt(store, "a", ("set", ("x", b'{"n":1}'))) as attempt:
            store.create("x", {"n": 1})
        record = store.record("x")
    assert record is not None
    assert (attempt.outcome, attempt.stamp) == ("done", record.stamp)


def test_a_call_that_lost_a_race_is_not_taken_for_the_one_that_won_it() -> None:
    calls = []
    for author, outcome in ("winner", "done"), ("loser", "refused"):
        content = ("set", ("x", b'{"n":1}', 1))
        call = Attempt(None, author, content)
        # Both have read the same log, so both give their lines the same stamp.
        line = Set("2026-01-01T00:00:00Z", 5, TRANSACTIONS, "x", msgspec.Raw(b'{"n":1}'), by=author, tx=f"{author}-1")
        call.sent.append(line)
        call.end(outcome)
        calls.append(call)
    winner, loser = calls
    replay = Replay(calls, {TRANSACTIONS: [winner.sent[0]]})
    assert replay.calls == [winner]
    assert replay.place(loser) is None


def test_a_refused_commit_is_not_taken_for_the_one_that_has_its_stamp() -> None:
    """Two processes were admitted under one name, and both stamped a commit with the same clock."""

    def line(id: str, clock: int, agent: str = "a", by: str = "") -> Set:
        return Set("2026-01-01T00:00:00Z", clock, agent, id, msgspec.Raw(b"{}"), by=by)

    logs = {TRANSACTIONS: [line("t", 3, TRANSACTIONS, "b")], "a": [line("x", 5)]}

    def queued(id: str, seen: int, outcome: str) -> Attempt:
        call = Attempt(None, "a", ("set", (id, b"{}")), pending=Pending(line(id, 5), b"", 0.0), seen=seen)
        call.end(outcome)
        return call

    plain_commits_outrank_no_unread_transaction([queued("y", 0, "refused"), queued("x", 1, "done")], logs)
    with pytest.raises(ViolationError, match="which its store had not read"):
        plain_commits_outrank_no_unread_transaction([queued("x", 0, "done")], logs)
