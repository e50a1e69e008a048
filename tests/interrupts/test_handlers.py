"""A signal handler calls the store, or another one, at any place of a call. Its call is carried out or refused, and the
interrupted call ends as if there had been no handler."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest

import opslog
from opslog.store import replica_of
from tests.interrupts.calls import CALLS
from tests.interrupts.handlers import HANDLERS
from tests.interrupts.places import Place, at_places
from tests.interrupts.running import Case, Runner
from tests.interrupts.stage import SETTINGS_OF_ALL

SEED = 17


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.end()


# A refresh would take the commits that a watch waits for.
PAIRS = [
    (call.name, handler)
    for call in CALLS
    for handler in HANDLERS
    if not (call.name.startswith("watch") and handler == "refresh")
]


@pytest.mark.parametrize(
    ("settings", "places"),
    [(1, 2), pytest.param(2, 3, marks=pytest.mark.long), pytest.param(3, 4, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize(("name", "handler"), PAIRS)
def test_a_handler_calls_the_store(runner: Runner, name: str, handler: str, settings: int, places: int) -> None:
    """At some places, chosen by a seed."""
    chances = random.Random(f"{SEED} {name} {handler}")
    for setting in chances.sample(SETTINGS_OF_ALL, settings):
        count = runner.count(name, setting)
        for number in chances.sample(range(1, count + 1), min(count, places)):
            case = Case(name, str(setting), "after", number, handler)
            result = runner.run(case)
            assert not result.problems, (
                f"at {result.where}: {'; '.join(result.problems)}\n"
                f"replay it with: python -m tests.interrupts --replay '{case}'"
            )


def test_a_handler_never_comes_between_the_lock_of_the_state_and_the_note_who_has_it() -> None:
    """Its call would wait for ever, for another thread that waits for the state: `Memory.check_not_in_state` could not
    refuse it."""
    with opslog.open("memory://between-lock-and-note", agent="a") as store:
        replica, came, between = replica_of(store), list[Place](), list[Place]()
        lock: Any = replica._state_lock
        calls = [
            lambda: replica.read(lambda state: None),
            lambda: replica.change(lambda state: None),
            lambda: replica.apply([]),
            lambda: replica.read_frozen(replica.freeze().release),
        ]

        def note(place: Place) -> None:
            came.append(place)
            if lock._is_owned() and replica.in_state != threading.get_ident():
                between.append(place)

        for call in calls:
            at_places(call, note)
        assert len(came) > 10
        assert not between
