"""Which workloads became slower than on the committed page, from made-up reports."""

from __future__ import annotations

import pytest

from benchmarks.check import Slower, slower
from benchmarks.goals import KERNEL_GOALS, KERNEL_WORKLOADS
from benchmarks.report import Report
from benchmarks.runner import SMALL, WORKLOADS, Result


def result(contender: str, *values: float, workload: str = "get", unit: str = "µs") -> Result:
    return Result(workload, contender, "on disk", unit, [*values], 1.0)


def report(*results: Result) -> Report:
    return Report({}, 3, SMALL, [*results])


@pytest.mark.parametrize(
    ("before", "now", "is_slower"),
    [
        ((10.0, 11.0, 12.0), (10.0, 11.0, 12.0), False),
        ((10.0, 11.0, 12.0), (13.0, 14.0, 15.0), True),
        ((10.0, 11.0, 12.0), (5.0, 6.0, 7.0), False),
        # The same change in the median, but within the spread of the rounds.
        ((10.0, 11.0, 20.0), (13.0, 14.0, 15.0), False),
        ((10.0, 11.0, 12.0), (9.0, 14.0, 15.0), False),
    ],
)
def test_slower_is_what_is_beyond_the_noise_of_both(
    before: tuple[float, ...], now: tuple[float, ...], is_slower: bool
) -> None:
    found = slower(report(result("opslog", *before)), report(result("opslog", *now)))
    assert found == ([Slower("get", "opslog", 11.0, 14.0, "µs")] if is_slower else [])


def test_a_slower_machine_is_not_a_slower_program() -> None:
    """If a workload has a floor, the floor is slower there, too."""
    before = report(result("opslog", 10, 11, 12), result("floor: dict", 1, 1, 1))
    assert slower(before, report(result("opslog", 30, 33, 36), result("floor: dict", 3, 3, 3))) == []
    found = slower(before, report(result("opslog", 10, 11, 12), result("floor: dict", 0.5, 0.5, 0.5)))
    assert [str(each) for each in found] == ["get: opslog: 22.0 x the floor, and it was 11.0 x the floor"]


def test_only_what_both_have_measured_of_opslog_is_compared() -> None:
    before = report(result("opslog", 1, 1, 1), result("SQLite", 1, 1, 1), result("opslog", 1, 1, 1, workload="gone"))
    now = report(result("opslog", 1, 1, 1), result("SQLite", 9, 9, 9), result("opslog", 9, 9, 9, workload="new"))
    assert slower(before, now) == []


def test_every_figure_that_became_slower_is_named() -> None:
    before = report(result("opslog", 1, 1, 1), result("opslog.aio", 1, 1, 1), result("opslog", 5, 5, 5, workload="set"))
    now = report(result("opslog", 2, 2, 2), result("opslog.aio", 1, 1, 1), result("opslog", 6, 6, 6, workload="set"))
    assert [(each.workload, each.contender) for each in slower(before, now)] == [("get", "opslog"), ("set", "opslog")]


def test_goals_with_and_without_the_kernel() -> None:
    """Existing workloads measure each goal. A rate meets its goal from the limit upward, a time up to the limit."""
    pytest.importorskip("benchmarks.__main__")
    assert WORKLOADS.keys() >= KERNEL_WORKLOADS
    times, rate = KERNEL_GOALS[0], KERNEL_GOALS[1]
    results = [
        result("opslog", 12, workload=times.place[0]),
        result("floor", 10, workload=times.place[0]),
        result("opslog.aio", 10, workload=rate.place[0]),
        result("opslog, one caller", 100, workload=rate.place[0]),
    ]
    assert times.measure(results, times.on) == ("1.20 x", False)
    assert times.measure(results, times.off) == ("1.20 x", True)
    assert rate.measure(results, rate.on) == ("10.00 x", False)
    assert rate.measure(results, rate.off) == ("10.00 x", True)
    assert rate.measure(results[:2], rate.on) is None
    assert (times.limit_text(times.on), rate.limit_text(rate.off), times.limit_text(None)) == (
        "≤ 1.15 x",
        "≥ 9 x",
        "none",
    )
