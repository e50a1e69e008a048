"""A report as a page, docs/benchmarks.md: goals, and a table and a plot for each workload; raw figures beside it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import matplotlib as mpl
import msgspec
from matplotlib import pyplot

from benchmarks.goals import GOALS, KERNEL_GOALS
from benchmarks.report import Report, shown
from benchmarks.runner import WORKLOADS, Result

_HEAD = """# Benchmarks

Written by `make bench`; do not edit. Every workload runs for opslog, for a floor and for peers, in turns, in one run.
The floor is the bare system calls, or decoding the same bytes: nothing can be faster and keep the same promise.

- A figure is the median over the rounds. Times are per operation.
- A ratio divides opslog's figure by the contender's (the median of the ratios within a round): below 1, opslog is
  better.
- "Safe on return" says what a crash of the machine cannot remove any more once a call has returned. Times of contenders
  that differ in it cannot be compared directly.
- Documents have 7 fields and about 170 bytes of JSON, 290 bytes as a line of a log.
- Memory is what a process holds itself, beyond what it held before. Mapped files (opslog, LMDB) come on top as far as
  the system has room for them.

This is opslog's own benchmark: it measures what opslog is made for.
"""
_PEERS = """Not every peer does everything:

- TinyDB and diskcache would need hours for a million documents (TinyDB writes its whole file at each call).
- SQLite, LMDB, TinyDB and diskcache have no log to open, no undo and no other agents.
- The npm package runs in a process of its own, where its times are taken. It cannot open ten million documents (it
  reads a file as one string, of at most 512 MB). With several agents it cannot open a log of more than about 120,000
  commits (RangeError), so workloads with one log measure it as the only writer.
- The npm package compacts every 100 sets by default. This is switched off here, and so is opslog's automatic
  compaction where sets are measured.
- Where the npm package promises less, a second row promises the same as opslog: "copies" copies its input and output
  (structuredClone), so that nobody changes the store by changing an object; "synced" syncs each file.
"""


def write_page(report: Report, page: Path, *, keep: bool) -> None:
    """:param page: the Markdown file; a folder of the same name, without ``.md``, gets plots and raw figures.

    :param keep: keep earlier results of other workloads in it.
    """
    mpl.use("svg")  # needs no screen
    folder = page.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    raw = folder / "results.json"
    if keep and raw.exists():
        report = _merged(msgspec.json.decode(raw.read_bytes(), type=Report), report)
    raw.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    environment = ", ".join(f"{name} {value}" for name, value in report.environment.items())
    sections = [
        _HEAD,
        f"{report.rounds} rounds (2 or 3 for long workloads), on: {environment}.\n\n{_PEERS}",
        _kernel_goals(report),
        _goals(report),
    ]
    for workload, group in itertools.groupby(report.results, key=lambda result: result.workload):
        results = list(group)
        name = re.sub(r"[^a-z0-9]+", "-", workload.lower()).strip("-")
        _plot(results, folder / f"{name}.svg")
        sections.append(f"## {workload}\n\n{_table(results)}\n![{workload}]({folder.name}/{name}.svg)\n")
    page.write_text("\n".join(sections))


def _merged(earlier: Report, report: Report) -> Report:
    return msgspec.structs.replace(
        report,
        results=_of_both(earlier.results, report.results),
        without_kernel=_of_both(earlier.without_kernel, report.without_kernel),
    )


def _of_both(earlier: list[Result], now: list[Result]) -> list[Result]:
    """All results of now, and the earlier ones of other workloads that there are still, in the order of the page."""
    measured = {result.workload for result in now}
    kept = [result for result in earlier if result.workload in WORKLOADS.keys() - measured]
    place = list(WORKLOADS).index
    return sorted([*kept, *now], key=lambda result: place(result.workload))


def _table(results: list[Result]) -> str:
    lines = [f"| contender | safe on return | median, {results[0].unit} | min to max | ratio |", "| --- " * 5 + "|"]
    lines += [
        f"| {result.contender} | {result.durability} | {shown(result.median)} "
        f"| {shown(min(result.values))} to {shown(max(result.values))} | {result.ratio:.2f} |"
        for result in results
    ]
    return "\n".join(lines) + "\n"


def _kernel_goals(report: Report) -> str:
    """The goals that opslog has with its kernel in C and without it, each beside its figure."""
    lines = [
        "## Goals with the kernel in C, and without it",
        "",
        "The figures without it are from a run with `OPSLOG_KERNEL=0`, right before this one.",
        "",
        "| goal | with the kernel | | | without it | | |",
        "| --- " * 7 + "|",
    ]
    notes = []
    for goal in KERNEL_GOALS:
        cells, is_missed = [goal.text], False
        for results, limit in ((report.results, goal.on), (report.without_kernel, goal.off)):
            measured = goal.measure(results, limit)
            cells.append(goal.limit_text(limit))
            if measured is None:
                cells += ["not measured", ""]
            else:
                cells += [measured.text, "" if limit is None else "met" if measured.met else "missed"]
                is_missed |= not measured.met
        lines.append(f"| {' | '.join(cells)} |")
        if is_missed and goal.why_missed:
            notes.append(f"- **{goal.text}.** {goal.why_missed}")
    return "\n".join([*lines, "", *notes, ""]) if notes else "\n".join([*lines, ""])


def _goals(report: Report) -> str:
    lines = ["## Goals", "", "| goal | measured | |", "| --- | --- | --- |"]
    notes = []
    for goal in GOALS:
        measured = goal.measure(report.results)
        if measured is not None:
            lines.append(f"| {goal.text} | {measured.text} | {'met' if measured.met else 'missed'} |")
            if not measured.met and goal.why_missed:
                notes.append(f"- **{goal.text}.** {goal.why_missed}")
    return "\n".join([*lines, "", *notes, ""]) if notes else "\n".join([*lines, ""])


def _plot(results: list[Result], path: Path) -> None:
    """Bars of the medians, with lines from least to most, on a logarithmic scale."""
    with mpl.rc_context({"svg.hashsalt": "opslog", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(7, 0.6 + 0.35 * len(results)))
        names = [result.contender for result in results]
        medians = [result.median for result in results]
        spread = [
            [result.median - min(result.values) for result in results],
            [max(result.values) - result.median for result in results],
        ]
        colors = ["#1f6feb" if name.startswith("opslog") else "#b0b0b0" for name in names]
        axes.barh(names, medians, xerr=spread, color=colors, error_kw={"elinewidth": 1, "ecolor": "#404040"})
        axes.invert_yaxis()
        if min(medians) > 0:
            axes.set_xscale("log")
        axes.set_xlabel(f"{results[0].unit}, less is better")
        axes.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
        pyplot.close(figure)
