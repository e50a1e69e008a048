"""Damaged, forged or foreign files: readers give the right answer, or an error that names the place."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.fuzz.mutations import mutate
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")
KEPT = sorted(path.relative_to(CORPUS).as_posix() for path in CORPUS.glob("*/*"))


@pytest.mark.parametrize("target", TARGETS)
def test_unchanged_inputs_pass(target: str) -> None:
    for seed in TARGETS[target].seeds():
        TARGETS[target].check(seed)


@pytest.mark.parametrize("name", KEPT)
def test_inputs_that_failed_once_pass(name: str) -> None:
    TARGETS[name.partition("/")[0]].check((CORPUS / name).read_bytes())


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
@given(random=st.randoms(use_true_random=False))
def test_any_change(target: str, random: Random) -> None:
    seeds = TARGETS[target].seeds()
    TARGETS[target].check(mutate(random.choice(seeds), random, seeds))
