"""The same seed gives the same run, also in another process."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.simulation.scenario import random_scenario, run

SEEDS = range(0, 5)

PROGRAM = f"""
from tests.simulation.scenario import random_scenario, run
for seed in {list(SEEDS)}:
    print(run(random_scenario(seed)).digest)
"""


def test_a_seed_gives_the_same_run_in_every_process_and_others_give_others() -> None:
    """Other processes have other hashes of strings."""
    here = [run(random_scenario(seed)).digest for seed in SEEDS]
    environment = os.environ | {"PYTHONHASHSEED": "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == here
    assert len(set(here)) == len(SEEDS)


@pytest.mark.parametrize("storage", ["posix", "s3"])
def test_the_timeline_is_the_same_whether_it_is_kept_or_not(storage: str) -> None:
    scenario = random_scenario(1, storage)
    kept = run(scenario, keep_timeline=True)
    assert kept.digest == run(scenario).digest
    assert len(kept.timeline) > 100
