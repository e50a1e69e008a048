"""Exceptions come while queued transactions are decided or given up. Each transaction still ends: a caller in another
thread waits for that."""

from __future__ import annotations

import itertools
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

import opslog
from opslog.log.reader import Cursor
from opslog.log.shared import SharedLog
from opslog.replica.deciding import Deciding
from opslog.replica.transaction import Transaction
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places
from tests.support import bucket  # noqa: F401  (stores at bucket://)

_numbers = itertools.count()


def _set(id: str, transaction: Transaction[dict[str, Any]]) -> None:
    transaction.set(id, {})


def _opened() -> tuple[opslog.Store[dict[str, Any]], Deciding[dict[str, Any]]]:
    store: opslog.Store[dict[str, Any]] = opslog.open(f"memory://undecided-{next(_numbers)}", agent="a")
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
    assert pairs > 30, "too few to say anything; Python 3.13, which has the fewest places, has 68"


@pytest.mark.parametrize("scheme", ["memory", "bucket"])
@pytest.mark.parametrize("then", ["create another", "set the same"])
def test_an_interrupted_call_has_happened_or_never_will(scheme: str, then: str) -> None:
    """If it has, later writes of its caller count as later, although it is unknown to the caller."""
    for number in itertools.count(1, 3):
        url = f"{scheme}://interrupted-{then}-{number}".replace(" ", "-")
        seen, raised = itertools.count(1), False

        def at(place: Place, number: int = number, seen: itertools.count[int] = seen) -> None:
            nonlocal raised
            if place.where.startswith(("opslog.replica.", "opslog.log.shared.")) and next(seen) == number:
                raised = True
                raise KeyboardInterrupt

        with opslog.open(url, agent="a", compact_after=None) as store:
            store["old"] = {}
            with suppress(KeyboardInterrupt):
                at_places(partial(store.create, "x", {"n": 1}), at)
            with opslog.open(url, read_only=True) as fresh:
                before = "x" in fresh
            if then == "set the same":
                store["x"] = {"n": 2}
            else:
                store.create("another", {})
            with opslog.open(url, read_only=True) as fresh:
                assert ("x" in fresh) == (before or then == "set the same"), number
                assert dict(fresh.items()) == dict(store.items()), number
                assert then == "create another" or fresh["x"] == {"n": 2}, number
        if not raised:
            break
    assert number > 100


def test_a_set_after_an_unknown_outcome_counts_as_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = SharedLog.append

    def unknown(self: SharedLog, lines: bytes, end: Cursor) -> NoReturn:
        append(self, lines, end)
        raise opslog.CommitUnknownError("no answer")

    with opslog.open(tmp_path, agent="a", compact_after=None) as store:
        store["x"] = {"n": 0}
        with monkeypatch.context() as patch:
            patch.setattr(SharedLog, "append", unknown)
            with pytest.raises(opslog.CommitUnknownError):
                store.modify("x", lambda document: {"n": 1})
        store["x"] = {"n": 2}
        assert store["x"] == {"n": 2}
    assert opslog.open(tmp_path, read_only=True)["x"] == {"n": 2}


def test_a_transaction_whose_caller_has_left_is_not_decided_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store, deciding = _opened()

    def leave(transaction: Transaction[dict[str, Any]]) -> None:
        transaction.set("x", {})
        deciding.cancel(waiting)

    waiting = deciding.submit(leave)
    with monkeypatch.context() as patch:
        patch.setattr(deciding, "_make_durable", _no_memory)
        with pytest.raises(MemoryError):
            deciding.run(partial(_set, "w"))
    deciding.decide_all()
    store.create("y", {})
    assert sorted(store) == ["y"]


def test_an_exception_that_cannot_be_copied_ends_one_group_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class OddError(Exception):
        def __init__(self, one: int, two: int) -> None:
            super().__init__(one)

    def fail() -> NoReturn:
        raise OddError(1, 2)

    store, deciding = _opened()
    waiting = [deciding.submit(partial(_set, id)) for id in ("x", "y")]
    with monkeypatch.context() as patch:
        patch.setattr(replica_of(store), "read_logs", fail)
        with pytest.raises(OddError):
            deciding.decide_all()
    assert all(isinstance(each.error, OddError) for each in waiting)
    store.create("z", {})
    store.close()
    assert not {"x", "y"} & {*opslog.open(replica_of(store).backend.url, read_only=True)}


@pytest.mark.skipif(
    sys.version_info[:2] == (3, 13),
    reason="Python itself crashes where memory ends while it makes a function: python/cpython#122752",
)
def test_no_transaction_is_lost_where_memory_ends() -> None:
    """In a list, for example, that cannot grow."""
    memory = pytest.importorskip("_testcapi", reason="this Python has no module for tests of itself")
    failed = 0
    for start in range(60):
        store, deciding = _opened()
        waiting = [deciding.submit(partial(_set, f"{number}")) for number in range(40)]
        try:
            memory.set_nomemory(start, start + 1)
            try:
                deciding.decide_all()
            finally:
                memory.remove_mem_hooks()
        except MemoryError:
            failed += 1
        deciding.decide_all()
        assert all(each.done for each in waiting), start
        store.close()
    assert failed > 5


def _no_memory(*_: object, **__: object) -> NoReturn:
    raise MemoryError
