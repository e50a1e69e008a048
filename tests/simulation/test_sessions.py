"""Agents without a log of their own (`log="shared"`), beside others, whatever goes wrong."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.scenario import Scenario, random_scenario, run

SEEDS = 30


def scenario_of(seed: int) -> Scenario:
    """Half of the agents, or all of them, have no log of their own. There are no imports: they write to logs of the
    agents' names, and a session does not undo those commits, and says so."""
    scenario = random_scenario(seed)
    return replace(scenario, sessions=scenario.agents if seed % 2 else scenario.agents // 2, imports=0)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in (1, 2))])
def test_all_invariants_hold(part: int) -> None:
    for seed in range(part, SEEDS, 3):
        outcome = run(scenario_of(20_000 + seed))
        assert outcome.violation is None, (seed, outcome.violation)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_all_invariants_hold_for_long() -> None:
    for seed in range(600):
        outcome = run(scenario_of(30_000 + seed))
        assert outcome.violation is None, (seed, outcome.violation)
