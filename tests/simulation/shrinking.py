"""Making a failing run small: fewer faults, fewer processes, fewer calls, as long as the same invariant is violated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.scenario import Outcome, Scenario, run


def shrink(failed: Outcome, runs_max: int = 300) -> Outcome:
    """The smallest run found that violates the same invariant, with its timeline. :param runs_max: how many runs may be
    tried.

    :param runs_max: how many runs may be tried.
    """
    assert failed.violation is not None, "there is nothing to look for"
    invariant, best, runs = failed.violation.invariant, failed.scenario, 0
    progress = True
    while progress and runs < runs_max:
        progress = False
        for smaller in _smaller(best):
            runs += 1
            violation = run(smaller).violation
            if violation is not None and violation.invariant == invariant:
                best, progress = smaller, True
                break
            if runs >= runs_max:
                break
    return run(best, keep_timeline=True)


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Scenarios that are a little smaller. Those that take away most come first."""
    yield from _fewer_faults(scenario)
    for name in (
        "rivals",
        "readers",
        "compactors",
        "imports",
        "inspectors",
        "workers",
        "threaded",
        "buffered",
        "agents",
    ):
        count = getattr(scenario, name)
        for fewer in sorted({0, count // 2, count - 1}):
            if (name == "agents") <= fewer < count:
                yield replace(scenario, **{name: fewer})
    if scenario.threaded and scenario.threads > 2:
        yield replace(scenario, threads=scenario.threads - 1)
    if scenario.transactions:
        yield replace(scenario, transactions=0.0)
    if scenario.statements:
        yield replace(scenario, statements=0)
    if scenario.compact_after is not None:
        yield replace(scenario, compact_after=None)
    for calls in sorted({scenario.calls // 2, scenario.calls * 3 // 4, scenario.calls - 1}):
        if 0 < calls < scenario.calls:
            yield replace(scenario, calls=calls)
    for op in scenario.weights:
        if len(scenario.weights) > 1:
            yield replace(scenario, weights={name: weight for name, weight in scenario.weights.items() if name != op})


def _fewer_faults(scenario: Scenario) -> Iterator[Scenario]:
    faults = scenario.faults
    size = len(faults)
    while size:
        for start in range(0, len(faults), size):
            yield replace(scenario, faults=faults[:start] + faults[start + size :])
        size //= 2


def story(outcome: Outcome) -> str:
    """A run as text for people: the scenario, the events, and the result."""
    scenario = outcome.scenario
    lines = [
        f"seed {scenario.seed} on {scenario.storage}: {scenario.agents} agents, {scenario.rivals} rivals, "
        f"{scenario.readers} readers, {scenario.compactors} compactors, {scenario.imports} importers, "
        f"{scenario.inspectors} inspectors, {scenario.calls} calls each; {scenario.threaded} agents of "
        f"{scenario.threads} threads, {scenario.buffered} with a buffer; transactions: {scenario.transactions:g}",
        str(scenario.settings),
        f"faults: {', '.join(map(str, scenario.faults)) or 'none'}",
        *map(str, outcome.timeline),
        f"=> {outcome.violation or 'all invariants hold'}",
    ]
    return "\n".join(lines)
