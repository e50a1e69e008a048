"""An exception comes in the middle of applying a commit: the half-applied state is not shown, and nothing builds on
it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import pytest

import opslog
from opslog.format.commits import Record, Set
from opslog.merge.merge import Merge
from opslog.store import replica_of

_numbers = itertools.count()
Store = opslog.Store[dict[str, Any]]


class InterruptError(BaseException):
    """As a signal handler raises it."""


@pytest.fixture
def url() -> str:
    return f"memory://torn-states-{next(_numbers)}"


@contextmanager
def interrupted(handler: Callable[[], object]) -> Iterator[None]:
    """In the block a signal comes while the second record of a batch is applied."""
    contest = Merge._contest

    def contest_half(self: Merge, records: Iterable[Record]) -> None:
        records = list(records)
        contest(self, records[:1])
        if len(records) > 1:
            handler()
        contest(self, records[1:])

    with patch.object(Merge, "_contest", contest_half):
        yield


def raise_interrupt() -> None:
    raise InterruptError


def write_both(store: Store, value: int) -> None:
    with store.batch():
        store["left"] = {"v": value}
        store["right"] = {"v": value}


READS: dict[str, Callable[[Store], object]] = {
    "get": lambda store: (store.get("left"), store.get("right")),
    "contains": lambda store: ("left" in store, "right" in store),
    "count": len,
    "items": lambda store: list(store.items()),
    "records": lambda store: [(record.id, record.clock) for record in store.records()],
    "stats": lambda store: (store.stats().documents, store.stats().commits),
}


@pytest.mark.parametrize("read", READS)
def test_reads_after_an_interrupted_refresh_show_what_is_in_the_logs(url: str, read: str) -> None:
    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        write_both(other, 1)
        with interrupted(raise_interrupt), pytest.raises(InterruptError):
            store.refresh()
        with opslog.open(url, read_only=True) as fresh:
            assert READS[read](store) == READS[read](fresh)
        assert [commit.op for commit in store.refresh()] == ["batch"], "it was never handed out"


def test_writes_after_an_interrupt_are_read(url: str) -> None:
    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        write_both(other, 1)
        with interrupted(raise_interrupt), pytest.raises(InterruptError):
            store.refresh()
        store["mine"] = {}
        assert set(store) == {"left", "right", "mine"}
        assert store.stats().commits == 2


def test_an_undo_after_an_interrupt_cancels_what_is_newest_in_the_log(url: str) -> None:
    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        store["first"] = {}
        write_both(other, 1)
        with interrupted(raise_interrupt), pytest.raises(InterruptError):
            store.refresh()
        store["second"] = {}
        assert store.undo()
        assert set(store) == {"first", "left", "right"}
        assert [commit.op for commit in other.refresh()] == ["set", "set", "undo"]


def test_a_view_of_the_past_that_is_torn_says_so(url: str) -> None:
    with opslog.open(url, agent="a") as store:
        store["x"] = {}
    with opslog.open(url, as_of=1) as past:
        replica_of(past).state.is_torn = True
        with pytest.raises(opslog.ReopenError, match="open it again"):
            past.get("x")


@pytest.mark.parametrize("read", READS)
def test_a_handler_that_interrupts_a_refresh_sees_no_half_batch(url: str, read: str) -> None:
    outcomes: list[object] = []

    def handle() -> None:
        try:
            outcomes.append(READS[read](store))
        except opslog.UsageError as error:
            outcomes.append(error)

    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        write_both(other, 1)
        with interrupted(handle):
            (commit,) = store.refresh()
        assert commit.op == "batch"
        (outcome,) = outcomes
        assert "handler" in str(outcome)
        assert store["left"] == store["right"] == {"v": 1}


def test_a_handler_in_the_middle_of_a_commit_cannot_write_or_refresh(url: str) -> None:
    refused: list[str] = []

    def handle() -> None:
        calls: list[Callable[[], object]] = [
            lambda: store.set("x", {}),
            lambda: store.delete("first"),
            store.undo,
            store.compact,
            lambda: store.archive(lambda document: True),
            store.refresh,
            lambda: next(store.watch()),
        ]
        for call in calls:
            with pytest.raises(opslog.UsageError) as caught:
                call()
            refused.append(str(caught.value))

    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        store["first"] = {}
        write_both(other, 1)
        with interrupted(handle):
            assert len(store.refresh()) == 1
        assert len(refused) == 7
        assert all("handler of a signal" in text for text in refused)
        assert set(store) == {"first", "left", "right"}


def test_a_state_that_is_torn_takes_in_nothing_more(url: str) -> None:
    taken: list[str] = []
    with opslog.open(url, agent="a") as store, opslog.open(url, agent="b") as other:
        write_both(other, 1)
        with interrupted(raise_interrupt), pytest.raises(InterruptError):
            store.refresh()
        torn = replica_of(store).state
        assert torn.is_torn
        torn.apply((), lambda: taken.append("in"))
        assert not taken
        assert len(store) == 2
        assert replica_of(store).state is not torn


def test_an_interrupt_while_sets_come_into_the_merge_leaves_nothing_half_done(url: str) -> None:
    with opslog.open(url, agent="a", durability="buffered", settings=opslog.Settings(undo_window=4)) as store:
        for number in range(20):
            store[f"task-{number % 7}"] = {"n": number}
        apply_sets = Merge.apply_sets

        def apply_half(self: Merge, sets: Sequence[Set]) -> None:
            apply_sets(self, sets[:10])
            raise InterruptError

        with patch.object(Merge, "apply_sets", apply_half), pytest.raises(InterruptError):
            store.undo()
        assert store["task-5"] == {"n": 19}
        assert [store.undo() for _ in range(3)] == [True, True, False]  # the window then has two undos
        assert {id: document["n"] for id, document in store.items()} == {f"task-{n % 7}": n for n in range(11, 18)}
    with opslog.open(url, read_only=True) as fresh:
        assert {id: document["n"] for id, document in fresh.items()} == {f"task-{n % 7}": n for n in range(11, 18)}


def test_a_handler_that_comes_while_sets_come_into_the_merge_cannot_change_it(url: str) -> None:
    with opslog.open(url, agent="a", durability="buffered") as store:
        for number in range(20):
            store[f"task-{number % 7}"] = {"n": number}
        refused: list[opslog.UsageError] = []
        apply_sets = Merge.apply_sets

        def interrupted_by_a_set(self: Merge, sets: Sequence[Set]) -> None:
            apply_sets(self, sets[:10])
            with pytest.raises(opslog.UsageError) as caught:
                store["other"] = {}
            refused.append(caught.value)
            apply_sets(self, sets[10:])

        with patch.object(Merge, "apply_sets", interrupted_by_a_set):
            assert store.undo()
        assert len(refused) == 1
        assert store["task-5"] == {"n": 12}
        assert len(store) == 7
