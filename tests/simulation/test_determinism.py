"""The same seed gives the same run, also in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.scenario import random_scenario, run

PROGRAM = """
import sys
from tests.simulation.scenario import random_scenario, run
for seed in sys.argv[1:]:
    print(run(random_scenario(int(seed))).digest)
"""


@pytest.mark.long
@pytest.mark.parametrize("seeds", [range(2), range(2, 5)], ids=["two", "three"])
def test_a_seed_gives_the_same_run_in_every_process_and_others_give_others(seeds: range) -> None:
    """Other processes have other hashes of strings."""
    here = [run(random_scenario(seed)).digest for seed in seeds]
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    command = [sys.executable, "-c", PROGRAM, *map(str, seeds)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == here
    assert len(set(here)) == len(seeds)


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_the_timeline_is_the_same_whether_it_is_kept_or_not(storage: str) -> None:
    scenario = random_scenario(1, storage)
    kept = run(scenario, keep_timeline=True)
    assert kept.digest == run(scenario).digest
    assert len(kept.timeline) > 100
