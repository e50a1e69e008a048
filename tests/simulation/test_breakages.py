"""The simulator finds every deliberate breakage of the product, and nothing where nothing is broken."""

from __future__ import annotations

import inspect
from types import FunctionType

import pytest

from tests.simulation.breakages import ALL, Breakage, caught
from tests.simulation.every_breakage import EVERY
from tests.simulation.scenario import run
from tests.simulation.shrinking import shrink, story

SEEDS_MAX = 40
"""Each breakage has to show in this many runs; `python -m tests.simulation --breakages 200` says in how many it
does."""


def test_there_are_many_breakages_each_with_a_name_of_its_own() -> None:
    assert len(EVERY) >= 30
    assert len({breakage.name for breakage in EVERY}) == len(EVERY)


@pytest.mark.parametrize("breakage", EVERY, ids=[breakage.name.replace(" ", "-") for breakage in EVERY])
def test_a_breakage_can_be_called_as_what_it_replaces(breakage: Breakage) -> None:
    """Otherwise a TypeError would show in every run, and prove nothing."""
    for target, attribute, broken in ((breakage.target, breakage.attribute, breakage.broken), *breakage.more):
        original = getattr(target, attribute)
        if not (isinstance(original, FunctionType) and isinstance(broken, FunctionType)):
            continue
        parameters = inspect.signature(original).parameters.values()
        by_name = {parameter.name: None for parameter in parameters if parameter.kind is parameter.KEYWORD_ONLY}
        in_order = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
        inspect.signature(broken).bind(*in_order, **by_name)


@pytest.mark.long
@pytest.mark.parametrize("breakage", EVERY, ids=[breakage.name.replace(" ", "-") for breakage in EVERY])
def test_a_breakage_is_caught(breakage: Breakage) -> None:
    seeds = range(breakage.first, breakage.first + SEEDS_MAX)
    seed = next((seed for seed in seeds if caught(breakage, seed)), None)
    assert seed is not None, f"no run of {SEEDS_MAX} shows it"
    assert run(breakage.scenario(seed)).violation is None, "the same run fails without the breakage"


def test_a_failing_run_is_made_small_and_shown() -> None:
    (breakage,) = (breakage for breakage in ALL if breakage.name == "skip the fdatasync of an append")
    seed = next(seed for seed in range(SEEDS_MAX) if caught(breakage, seed))
    with breakage.made():
        failed = run(breakage.scenario(seed))
        small = shrink(failed, runs_max=20)
    assert failed.violation is not None
    assert small.violation is not None
    assert small.violation.invariant == failed.violation.invariant
    assert len(small.scenario.faults) < len(failed.scenario.faults)
    text = story(small)
    assert "power cut" in text
    assert text.endswith(f"=> {small.violation}")
