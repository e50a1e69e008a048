"""Figures of a store over time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from opslog.environment import parse_ts
from opslog.server.stores.samples import Samples


def note(samples: Samples, now: float, commits: int, elapsed: float | None = None) -> None:
    samples.note(now, now if elapsed is None else elapsed, commits=commits, tail=0, documents=0, manifest=1)


def test_the_first_the_newest_and_some_in_between_are_kept() -> None:
    samples = Samples()
    assert samples.all() == []
    for number in range(100):
        note(samples, number / 10, number)
    assert [each.commits for each in samples.all()] == [*range(0, 100, 10), 99]
    assert [parse_ts(each.at) for each in samples.all()][:2] == [0.0, 1.0]


@pytest.mark.parametrize("seconds", [100, 10_000])
def test_they_stay_few_and_evenly_spaced_however_long_a_server_runs(seconds: int) -> None:
    samples = Samples(most=20)
    for second in range(seconds):
        note(samples, second, second)
    found = [each.commits for each in samples.all()]
    assert found[0] == 0
    assert found[-1] == seconds - 1
    assert len(found) <= 21
    apart = {after - before for before, after in pairwise(found[:-1])}
    assert len(apart) == 1


def test_samples_go_on_after_the_clock_was_set_back() -> None:
    samples = Samples()
    for second, now in enumerate([1000, 1001, 400, 401, 402]):
        note(samples, now, second, elapsed=second)
    note(samples, 402, 5, elapsed=4.5)
    assert [parse_ts(each.at) for each in samples.all()] == [1000, 1001, 400, 401, 402, 402]
