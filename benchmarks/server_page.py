"""The results of `benchmarks.server` as a page: goals, a table for each workload, and the raw figures beside it."""

from __future__ import annotations

import itertools
import statistics
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.report import shown

_HEAD = """# Benchmarks of the stream server

Written by `python -m benchmarks.server --page docs/benchmarks-server.md`; do not edit.

- Both servers keep streams in files, and answer an append when it is on disk.
- Each workload runs {rounds} times on a fresh server, in turns. A figure is the median. The clients run in a process of
  their own, on the same machine.
- The floors append each body to one file; waiting requests share one fdatasync. They pass each body on to all who
  follow. They have no streams, checks or limits. One is an application for uvicorn, the other a protocol of asyncio on
  httptools.
- CPU is the processor time of the server's process, with all its threads. It varies less than times do.
- Messages have 100 bytes unless a title says otherwise.
- Memory is the peak of the server's process, including the time in which the data to be read was written.

On: {environment}.
"""


class Result(msgspec.Struct, frozen=True):
    """:ivar figures: by name, one of each round."""

    workload: str
    contender: str
    figures: dict[str, list[float]]

    def median(self, figure: str) -> float:
        return statistics.median(self.figures[figure])


class Report(msgspec.Struct, frozen=True):
    environment: dict[str, str]
    rounds: int
    results: list[Result]


class Goal(NamedTuple):
    """:ivar times: how many times as much as the reference server; `least`: that is the goal."""

    text: str
    workload: str
    figure: str
    least: float
    lower: bool = False


GOALS = [
    *(
        Goal(f"appends/s, {count} over {streams}", f"append, {count}, {streams}", "appends/s", least)
        for count, least in (("64 connections", 10.0), ("1 connection", 1.0))
        for streams in ("1 stream", "64 streams")
    ),
    *(
        Goal(f"catch-up, messages of {size}", f"catch up on 100 MB, messages of {size}", "MB/s", 1.0)
        for size in ("1 kB", "1 MB")
    ),
    *(
        Goal(f"p99 of delivery{to}, {live}", f"deliver to {followers} followers, {live}", "p99 ms", 10.0, lower=True)
        for followers, to in (("200", ""), ("1,000", " to 1,000"))
        for live in ("sse", "long-poll")
    ),
]
_OURS, _THEIRS = "opslog", "reference"
# How many times the processor time of the first floor is the goal.
_OVER_FLOOR = 2.0
_FLOORS = ("floor: uvicorn", "floor: httptools")


def write_page(report: Report, page: Path) -> None:
    """:param page: the Markdown file; a folder of the same name, without ``.md``, gets the raw figures."""
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    environment = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    sections = [
        _HEAD.format(rounds=report.rounds, environment=environment),
        goals(report.results),
        above(report.results),
    ]
    for workload, group in itertools.groupby(report.results, key=lambda result: result.workload):
        sections.append(f"## {workload[0].upper()}{workload[1:]}\n\n{table(list(group))}")
    page.write_text("\n".join(section for section in sections if section), encoding="utf-8")


def goals(results: list[Result]) -> str:
    """A table of goals and results, for the measured workloads."""
    rows = [row for goal in GOALS if (row := _row(goal, results)) is not None]
    if not rows:
        return ""
    return "## Goals\n\n" + _markdown(["against the reference server", "goal", "measured", ""], rows)


def above(results: list[Result]) -> str:
    """A table of processor times beside those of the floors, for the measured workloads."""
    rows = []
    for ours in results:
        figure = next((figure for figure in ours.figures if figure.startswith("CPU")), None)
        floors = [one for name in _FLOORS for one in results if (one.workload, one.contender) == (ours.workload, name)]
        if ours.contender != _OURS or figure is None or len(floors) < len(_FLOORS):
            continue
        times = [ours.median(figure) / floor.median(figure) for floor in floors]
        reached = "met" if times[0] <= _OVER_FLOOR else "missed"
        rows.append([ours.workload, figure, shown(ours.median(figure)), *(f"{shown(one)} x" for one in times), reached])
    if not rows:
        return ""
    heads = ["", "", _OURS, *_FLOORS, f"at most {_OVER_FLOOR:g} x the first"]
    return "## Above the floors\n\n" + _markdown(heads, rows)


def _row(goal: Goal, results: list[Result]) -> list[str] | None:
    def median(contender: str) -> float | None:
        found = [one for one in results if one.workload == goal.workload and one.contender.startswith(contender)]
        return found[0].median(goal.figure) if found else None

    ours, theirs = median(_OURS), median(_THEIRS)
    if ours is None or theirs is None:
        return None
    times = theirs / ours if goal.lower else ours / theirs
    what = "lower" if goal.lower else "as much"
    return [goal.text, f"{goal.least:g} x {what}", f"{shown(times)} x", "met" if times >= goal.least else "missed"]


def table(results: list[Result]) -> str:
    rows = []
    for result in results:
        cells = []
        for figure in result.figures:
            values = result.figures[figure]
            spread = f" ({shown(min(values))} to {shown(max(values))})" if len(values) > 1 else ""
            cells.append(f"{shown(result.median(figure))}{spread}")
        rows.append([result.contender, *cells])
    return _markdown(["", *results[0].figures], rows)


def _markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] + ["---:"] * (len(heads) - 1), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)
