"""Exceptions come while queued transactions are decided or given up. Each transaction still ends: a caller in another
thread waits for that."""

from __future__ import annotations

import itertools
from contextlib import suppress
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


@pytest.mark.parametrize("leads", [True, False])
def test_every_transaction_ends_after_a_second_interrupt(leads: bool) -> None:
    """The second one comes while the transactions that the first one left undecided are queued again. Those that have
    an error that says so are not in the store; the others are."""
    pairs = raised = 0
    for first in itertools.count(1, 7):
        for second in itertools.count(1, 3):
            store, deciding = _opened()
            waiting = [deciding.submit(partial(_set, id)) for id in ("x", "y", "z")]
            seen, raised = itertools.count(1), 0

            def at(place: Place, first: int = first, second: int = second, seen: itertools.count[int] = seen) -> None:
                nonlocal raised
                if place.where.startswith("opslog.replica.deciding.") and next(seen) in (first, first + second):
                    raised += 1
                    raise KeyboardInterrupt

            with suppress(KeyboardInterrupt):
                at_places(partial(deciding.run, partial(_set, "w")) if leads else deciding.decide_all, at, goes_on=True)
            deciding.decide_all()
            for each, id in zip(waiting, "xyz", strict=True):
                assert each.done, (first, second, id)
                assert isinstance(each.error, opslog.CommitUnknownError) or (id in store) == (each.error is None)
            store.close()
            pairs += raised == 2
            if raised < 2:
                break
        if not raised:
            break
    assert pairs > 100
