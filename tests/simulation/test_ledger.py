"""The ledger knows the call of every commit, whichever thread is faster."""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import opslog
from opslog.store import replica_of
from tests.simulation.ledger import Ledger


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
