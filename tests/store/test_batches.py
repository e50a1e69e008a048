"""Blocks of `Store.batch`, however they begin and end: their writes are committed as one, or discarded."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

import opslog
from opslog.store import replica_of
from tests.interrupts.places import Place, at_places

Store = opslog.Store[dict[str, Any]]

_numbers = itertools.count()


@pytest.fixture
def store() -> Iterator[Store]:
    """A store that writes to its log only when it is flushed."""
    options: dict[str, Any] = {"durability": "buffered", "buffer_seconds": 3600.0, "compact_after": None}
    with opslog.open(f"memory://batches-{next(_numbers)}", agent="a", **options) as store:
        yield store


class InterruptError(BaseException):
    """As a signal handler raises it."""


def with_block(store: Store) -> None:
    with store.batch():
        store["x"] = {"v": 2}
        store["y"] = {"v": 2}


def nested(store: Store) -> None:
    with store.batch():
        store["x"] = {"v": 2}
        with store.batch():
            store["y"] = {"v": 2}


def in_a_generator(store: Store) -> None:
    """If an exception leaves the generator early, the batch may stay open until that exception is gone."""

    @contextmanager
    def both() -> Iterator[None]:
        with store.batch():
            yield

    with both():
        store["x"] = {"v": 2}
        store["y"] = {"v": 2}


@pytest.mark.parametrize("call", [with_block, nested, in_a_generator])
def test_no_batch_stays_open_wherever_an_exception_ends_its_block(store: Store, call: Callable[[Store], None]) -> None:
    """Also while the program keeps the exception, with everything that it refers to."""
    kept: BaseException | None = None
    for number in itertools.count(1):
        came: list[Place] = []

        def interrupt(place: Place) -> None:
            is_of_a_generator = call is in_a_generator and place.where.startswith("contextlib.")
            if place.number == number and not is_of_a_generator:  # noqa: B023
                came.append(place)  # noqa: B023
                raise InterruptError

        places = count_places(lambda: call(store))
        try:
            at_places(lambda: call(store), interrupt)
        except InterruptError as error:
            kept = error
        store["after"] = {"v": number}
        store.flush()
        with opslog.open(replica_of(store).backend.url, read_only=True) as fresh:
            assert fresh.get("after") == {"v": number}, f"it is in a batch that is over, after {came}"
            assert dict(fresh.items()) == dict(store.items())
        if places < number:
            break
    assert number > 50
    assert isinstance(kept, InterruptError)


def count_places(call: Callable[[], None]) -> int:
    places: list[Place] = []
    at_places(call, places.append)
    return len(places)


def test_a_block_can_be_entered_by_something_else_than_a_with_statement(store: Store) -> None:
    with ExitStack() as stack:
        assert stack.enter_context(store.batch()) is store
        store["x"] = {"v": 1}
        assert store.stats().commits == 0
    assert store.stats().commits == 1
    batch = store.batch()
    assert hasattr(batch, "__exit__")
    batch.__enter__()
    store["x"] = {"v": 2}
    assert hasattr(batch, "__exit__"), "which does not end it"
    store["y"] = {"v": 2}
    assert store.stats().commits == 1
    batch.__exit__(None, None, None)
    assert store.stats().commits == 2
    assert dict(store.items()) == {"x": {"v": 2}, "y": {"v": 2}}


def test_a_batch_begins_and_ends_once(store: Store) -> None:
    batch = store.batch()
    with batch:
        store["x"] = {"v": 1}
        with pytest.raises(opslog.UsageError, match="begun already"), batch:
            pass
    with pytest.raises(opslog.UsageError, match="has ended"):
        batch.__exit__(None, None, None)
    assert dict(store.items()) == {"x": {"v": 1}}
    assert store.stats().commits == 1


READS_OF_MANY: dict[str, Callable[[Store], object]] = {
    "len": len,
    "iteration": list,
    "items": lambda store: list(store.items()),
    "find": lambda store: list(store.find({"v": 1})),
    "count": lambda store: store.count({"v": 1}),
    "group": lambda store: store.group("v"),
    "filter": lambda store: store.filter(lambda document: True),
    "clear": lambda store: store.clear(),
}


@pytest.mark.parametrize("name", READS_OF_MANY)
def test_a_batch_in_a_transaction_leaves_reads_of_many_documents_to_that(store: Store, name: str) -> None:
    """They would come without what the transaction has written, and it would not depend on them."""
    store["x"] = {"v": 1}
    with store.transaction() as transaction:
        transaction["y"] = {"v": 2}
        with store.batch():
            store["z"] = {"v": 3}
            with pytest.raises(opslog.UsageError, match="through the transaction"):
                READS_OF_MANY[name](store)
            assert (store["x"], store["y"], store["z"]) == ({"v": 1}, {"v": 2}, {"v": 3})
        assert len(transaction) == 3
    assert dict(store.items()) == {"x": {"v": 1}, "y": {"v": 2}, "z": {"v": 3}}
