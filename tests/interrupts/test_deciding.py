"""An exception comes while queued transactions are taken or given up. Each of them still ends: a caller in another
thread waits for that."""

from __future__ import annotations

import itertools
from functools import partial
from typing import Any

import pytest

import opslog
from opslog.replica.deciding import Deciding
from opslog.replica.transaction import Transaction
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places

_numbers = itertools.count()


def _set(id: str, transaction: Transaction[dict[str, Any]]) -> None:
    transaction.set(id, {})


def _opened() -> tuple[opslog.Store[dict[str, Any]], Deciding[dict[str, Any]]]:
    store: opslog.Store[dict[str, Any]] = opslog.open(f"memory://deciding-{next(_numbers)}", agent="a")
    deciding = replica_of(store).transactions
    assert deciding is not None
    return store, deciding


@pytest.mark.parametrize("call", ["decide", "close"])
def test_every_queued_transaction_ends(call: str) -> None:
    interrupted = 0
    for number in itertools.count(1):
        store, deciding = _opened()
        waiting = [deciding.submit(partial(_set, id)) for id in ("x", "y", "z")]
        seen = itertools.count(1)

        def at(place: Place, number: int = number, seen: itertools.count[int] = seen) -> None:
            if place.where.startswith("opslog.replica.deciding.Deciding.") and next(seen) == number:
                raise KeyboardInterrupt

        try:
            at_places(deciding.decide_all if call == "decide" else store.close, at)
            interrupted -= 1
        except KeyboardInterrupt:
            """As asked for."""
        interrupted += 1
        if call == "decide":
            deciding.decide_all()
        store.close()
        assert all(each.done for each in waiting), number
        if next(seen) <= number:
            break
    assert interrupted > 5
