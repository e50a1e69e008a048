"""Whole runs. `make simulate` runs as many as there is time for. Its failing seeds are kept here."""

from __future__ import annotations

import pytest

from opslog.testing import invariants
from tests.simulation.many import report, run_seeds, simulate
from tests.simulation.scenario import Scenario, random_scenario, run

FOUND: dict[str, tuple[int, str | None]] = {
    "a tombstone expired before an older set was compacted": (658, "posix"),
    "a power cut took what was compacted": (709, "posix"),
    "a power cut took the first manifest": (857, "posix"),
    "a commit that was compacted was reported as not written": (123, "s3"),
    "a refused probe was taken for a server without put-if-absent": (781, "s3"),
    "a manifest came back under a collected number": (521, "s3"),
    "all that a listing had was collected meanwhile": (1795324622322, None),
    "a segment came back under a collected number, and history read it": (94, "s3"),
    "a segment came back under a collected number, and verify read it": (98, "s3"),
    "a delayed seal was taken for the end of the log": (1795391368220, None),
    "a segment came back under a collected number, and a refresh handed it out": (211, "s3"),
}
"""Runs that once failed, by what was wrong. They change when the simulation changes, so each mistake also has a test of
its own."""


@pytest.mark.parametrize("name", FOUND, ids=[name.replace(" ", "-") for name in FOUND])
def test_seeds_that_once_failed(name: str) -> None:
    seed, storage = FOUND[name]
    assert run(random_scenario(seed, storage)).violation is None


@pytest.mark.parametrize("first", [10, 20, *(pytest.param(first, marks=pytest.mark.long) for first in (30, 40, 50))])
def test_ten_seeds(first: int) -> None:
    totals = run_seeds(first, 10)
    assert totals.failed == []
    assert totals.acknowledged > 0


@pytest.mark.slow
def test_many_seeds() -> None:
    totals = simulate(100_000, 300.0, 2)
    assert totals.failed == []
    assert totals.seeds > 500


def test_ten_more_seeds_whose_figures_name_every_invariant_and_fault_that_was_seen() -> None:
    totals = run_seeds(0, 10)
    assert totals.failed == []
    assert totals.acknowledged > 0
    text = "\n".join(report(totals, 1.0))
    assert "10 seeds" in text
    for name in (*totals.injected, *totals.checked):
        assert name in text
    assert totals.checked.keys() <= invariants.INVARIANTS.keys()
    assert all(invariants.INVARIANTS.values()), "each says what must hold"


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_without_faults_everybody_gets_everything_done(storage: str) -> None:
    outcome = run(Scenario(seed=1, storage=storage, weights={"set": 1.0}))
    assert outcome.violation is None
    assert outcome.acknowledged == 3 * 20 + 2 * 16, "what three agents set; an undo takes one of 32 places, too"
