"""Compares a run with the committed page: finds figures that became slower by more than the noise of their rounds.
Pure.

Figures of two machines, or of two days, cannot be compared directly. If a workload has a floor, which does the
bare work in the same rounds, a figure is taken as a multiple of that floor; otherwise directly.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.report import Report, shown
from benchmarks.runner import Result


class Slower(NamedTuple):
    """A figure that became slower, or takes more.

    :ivar before, now: the medians, in `unit`.
    """

    workload: str
    contender: str
    before: float
    now: float
    unit: str

    def __str__(self) -> str:
        return (
            f"{self.workload}: {self.contender}: {shown(self.now)} {self.unit}, and it was {shown(self.before)} "
            f"{self.unit}"
        )


def slower(before: Report, now: Report) -> list[Slower]:
    """The figures for which opslog needs more now than before, and by more than its rounds vary: the new median is
    beyond all rounds of before, and all new rounds are beyond the median of before. A figure that only one of the two
    has measured is left out."""
    known = {(result.workload, result.contender): result for result in before.results}
    found = []
    for result in now.results:
        earlier = known.get((result.workload, result.contender))
        if earlier is None or not result.contender.startswith("opslog"):
            continue
        floors = _floor(before, result.workload), _floor(now, result.workload)
        if floors[0] is None or floors[1] is None:
            unit, old, new = result.unit, earlier.values, result.values
        else:
            unit, old, new = "x the floor", [*_times(earlier, floors[0])], [*_times(result, floors[1])]
        old_median, new_median = statistics.median(old), statistics.median(new)
        if new_median > max(old) and min(new) > old_median:
            found.append(Slower(result.workload, result.contender, old_median, new_median, unit))
    return found


def _floor(report: Report, workload: str) -> Result | None:
    results = (result for result in report.results if result.workload == workload)
    return next((result for result in results if result.contender.startswith("floor")), None)


def _times(result: Result, floor: Result) -> Iterator[float]:
    """Round by round: both were measured in the same minute."""
    return (own / least for own, least in zip(result.values, floor.values, strict=True))
