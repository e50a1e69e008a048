"""The command line of a benchmark, and the table that it prints."""

from __future__ import annotations

import argparse
import os
import platform
import sqlite3
import sys
from collections.abc import Callable, Container, Iterable
from importlib.metadata import version
from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.runner import WORKLOADS, Result, Scale, measure
from opslog import kernel


class Report(msgspec.Struct, frozen=True):
    """All results of a run, and the circumstances that they depend on.

    :ivar without_kernel: the results of another run with the kernel switched off.
    """

    environment: dict[str, str]
    rounds: int
    scale: Scale
    results: list[Result]
    without_kernel: list[Result] = []


def machine() -> dict[str, str]:
    """The circumstances, besides the code. `load` is of the minute before: others may be using the machine."""
    return {
        "machine": f"{platform.platform()}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.2f}",
        "python": platform.python_version(),
        "kernel": kernel.NAME,
        "sqlite": sqlite3.sqlite_version,
        **{name: version(name) for name in ("opslog", "msgspec", "orjson", "lmdb", "diskcache", "tinydb")},
    }


def shown(value: float) -> str:
    """A figure with about three digits."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:,.2f}"


def table(results: Iterable[Result]) -> Table:
    table = Table(title="per operation, and how many times as much that is for opslog")
    for heading in ("workload", "contender", "safe on return"):
        table.add_column(heading)
    for heading in ("median", "min to max", "ratio"):
        table.add_column(heading, justify="right")
    last = None
    for result in results:
        if last not in (None, result.workload):
            table.add_section()
        table.add_row(
            "" if result.workload == last else result.workload,
            result.contender,
            result.durability,
            f"{shown(result.median)} {result.unit}",
            f"{shown(min(result.values))} to {shown(max(result.values))}",
            f"{result.ratio:.2f}",
        )
        last = result.workload
    return table


def at_least_one(text: str) -> int:
    if int(text) < 1:
        raise argparse.ArgumentTypeError("1 or more")
    return int(text)


def parser(program: str, rounds: int) -> argparse.ArgumentParser:
    """The command line that all benchmarks have in common."""
    parser = argparse.ArgumentParser(prog=program, description="Measure opslog beside floors and peers.")
    parser.add_argument("--small", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--rounds", type=at_least_one, default=rounds, help=f"rounds that count (default {rounds})")
    parser.add_argument("--only", action="append", default=[], help="only workloads whose name contains this (repeat)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write all figures there")
    return parser


def run(
    arguments: argparse.Namespace,
    sizes: Scale,
    least: Scale,
    *,
    extra: dict[str, str] | None = None,
    finish: Callable[[Report], None] = lambda report: None,
    chosen: Container[str] | None = None,
) -> None:
    """Measure the registered workloads, as the command line says, and print the results. Exits with an error if a
    workload failed, after the others.

    :param sizes: of the workloads; `least`: with ``--small``. :param extra: further circumstances.
    :param finish: called with all results. :param chosen: only these workloads.
    """
    scale, rounds = (least, 2) if arguments.small else (sizes, arguments.rounds)
    environment = machine() | (extra or {})
    results: list[Result] = []
    failed: list[str] = []
    console = Console(width=None if os.isatty(1) else 200)
    for workload in WORKLOADS:
        if chosen is not None and workload not in chosen:
            continue
        if not arguments.only or any(part in workload for part in arguments.only):
            try:
                measured = measure(workload, scale, rounds)
            except Exception:  # noqa: BLE001  (named at the end; others' figures shall not be lost with it)
                console.print_exception()
                failed.append(workload)
                continue
            console.print(table(measured))
            results += measured
            _write(Report(environment, rounds, scale, results), arguments.json)
    console.print(", ".join(f"{name} {value}" for name, value in environment.items()), highlight=False)
    console.print(f"{rounds} rounds of {scale}", highlight=False)
    report = Report(environment, rounds, scale, results)
    _write(report, arguments.json)
    finish(report)
    if failed:
        sys.exit(f"these workloads failed: {'; '.join(failed)}")


def _write(report: Report, path: Path | None) -> None:
    if path is not None:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
