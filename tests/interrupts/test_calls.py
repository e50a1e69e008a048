"""An exception comes into every call of a store, at any place. Afterwards memory, log and a fresh reader agree, or the
store says that it has to be reopened."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.interrupts.calls import CALLS
from tests.interrupts.places import Kind
from tests.interrupts.running import Case, Runner
from tests.interrupts.stage import SETTINGS_OF_ALL, Setting
from tests.interrupts.watching import EXCEPTIONS

SEED = 17
KINDS: tuple[Kind, ...] = ("after", "instead")
NAMES = [call.name for call in CALLS]


@pytest.fixture(scope="module")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.end()


def check(runner: Runner, cases: list[Case]) -> None:
    for case in cases:
        result = runner.run(case)
        assert not result.problems, (
            f"at {result.where}: {'; '.join(result.problems)}\n"
            f"replay it with: python -m tests.interrupts --replay '{case}'"
        )


@pytest.mark.parametrize("places", [2, pytest.param(3, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_ends_early_at_some_places(runner: Runner, name: str, places: int) -> None:
    """At some places, chosen by a seed, on each kind of store."""
    chances = random.Random(f"{SEED} {name}")
    cases = []
    for setting in chances.sample(SETTINGS_OF_ALL, 3):
        for kind in KINDS:
            count = runner.count(name, setting, kind)
            numbers = chances.sample(range(1, count + 1), min(count, places))
            cases += [Case(name, str(setting), kind, number, chances.choice([*EXCEPTIONS])) for number in numbers]
    check(runner, cases)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("setting", SETTINGS_OF_ALL, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_call_ends_early_at_every_place(runner: Runner, name: str, setting: Setting) -> None:
    for kind in KINDS:
        numbers = range(1, runner.count(name, setting, kind) + 1)
        check(runner, [Case(name, str(setting), kind, number, event) for number in numbers for event in EXCEPTIONS])
