"""Simulated agents read logs in chunks of a few lines, so that most records stay lines, whatever goes wrong."""

from __future__ import annotations

import pytest

from opslog.format import scanned
from opslog.log import reader
from opslog.merge.lines import Lines
from tests.simulation.scenario import random_scenario, run

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


@pytest.mark.parametrize("seeds", [range(4, 6), pytest.param(range(12), marks=pytest.mark.long)], ids=["two", "all"])
def test_all_invariants_hold(monkeypatch: pytest.MonkeyPatch, seeds: range) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 400)
    monkeypatch.setattr(reader, "_READ_BYTES", 400)
    monkeypatch.setattr(scanned, "scan", _kernel.scan)
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    taken = 0
    take = Lines.take

    def counted(lines: Lines, commits: scanned.ScannedCommits) -> bool:
        nonlocal taken
        taken += 1
        return take(lines, commits)

    monkeypatch.setattr(Lines, "take", counted)
    for seed in seeds:
        outcome = run(random_scenario(50_000 + seed))
        assert outcome.violation is None, (seed, outcome.violation)
    assert taken > 20
