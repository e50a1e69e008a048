"""The benchmark of stream servers runs with small sizes, and its page says what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import server
from benchmarks.server_page import GOALS, Report, Result, above, goals, write_page
from tests.support.node_streams import REFERENCE
from tests.support.npm import installed


@pytest.mark.parametrize(
    "contender",
    [pytest.param(name, marks=pytest.mark.long) if name == server.REFERENCE else name for name in server.CONTENDERS],
)
@pytest.mark.parametrize("name", [name for name in server.WORKLOADS if "64" not in name and "16" not in name])
def test_every_kind_of_workload_runs(name: str, contender: str) -> None:
    if contender == server.REFERENCE:
        installed(*REFERENCE)
    workload = server.WORKLOADS[name]
    if contender not in workload.contenders:
        pytest.skip("the floors cannot do this")
    figures = server.measure(workload, contender, small=True)
    # So little may take less processor time than the system counts.
    assert all(value > 0 for figure, value in figures.items() if "CPU" not in figure), figures
    assert "memory MB" in figures


def test_goals_are_about_workloads_that_there_are() -> None:
    assert {goal.workload for goal in GOALS} <= set(server.WORKLOADS)


def test_a_page_says_what_was_measured_and_which_goals_were_missed(tmp_path: Path) -> None:
    name, sse = "append, 64 connections, 1 stream", "deliver to 200 followers, sse"
    results = [
        Result(name, server.OPSLOG, {"appends/s": [900.0, 1000.0, 5000.0], "p99 ms": [1.0, 1.0, 1.0]}),
        Result(name, server.REFERENCE, {"appends/s": [100.0, 100.0, 90.0], "p99 ms": [9.0, 9.0, 9.0]}),
        Result(sse, server.OPSLOG, {"p99 ms": [20.0]}),
        Result(sse, server.REFERENCE, {"p99 ms": [100.0]}),
    ]
    report = Report({"machine": "this one"}, 3, results)
    write_page(report, tmp_path / "page.md")
    text = (tmp_path / "page.md").read_text()
    assert "| appends/s, 64 connections over 1 stream | 10 x as much | 10.0 x | met |" in text
    assert "| p99 of delivery, sse | 10 x lower | 5.00 x | missed |" in text
    assert "| opslog | 1,000 (900 to 5,000) | 1.00 (1.00 to 1.00) |" in text
    assert json.loads((tmp_path / "page" / "results.json").read_text())["rounds"] == 3
    assert goals(results[:1]) == "", "nothing is said of what was not measured"
    assert above(results) == ""


def test_a_page_says_how_far_above_the_floors_the_server_is() -> None:
    name, sse = "append, 64 connections, 1 stream", "deliver to 200 followers, sse"
    contenders = (server.OPSLOG, server.FLOOR, server.LOWER_FLOOR)
    results = [
        *(Result(name, one, {"CPU µs/append": [us]}) for one, us in zip(contenders, (80.0, 40.0, 20.0), strict=True)),
        *(Result(sse, one, {"CPU µs/event": [us]}) for one, us in zip(contenders, (50.0, 20.0, 10.0), strict=True)),
    ]
    text = above(results)
    assert f"| {name} | CPU µs/append | 80.0 | 2.00 x | 4.00 x | met |" in text
    assert f"| {sse} | CPU µs/event | 50.0 | 2.50 x | 5.00 x | missed |" in text
