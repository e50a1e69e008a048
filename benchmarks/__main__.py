"""python -m benchmarks: measures, and prints tables; see the package for how to read them."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

# In the order of the page: importing one registers its contenders.
from benchmarks import writing

# isort: split
from benchmarks import transactions

# isort: split
from benchmarks import reading

# isort: split
from benchmarks import finding

# isort: split
from benchmarks import opening

# isort: split
from benchmarks import tails

# isort: split
from benchmarks import feed

# isort: split
from benchmarks import tables

# isort: split
from benchmarks import elsewhere

# isort: split
from benchmarks import amplification, maintenance
from benchmarks.check import slower
from benchmarks.goals import KERNEL_WORKLOADS
from benchmarks.page import write_page
from benchmarks.report import Report, parser, run
from benchmarks.runner import SMALL, Scale

GROUPS = (writing, transactions, reading, finding, opening, tails, feed, tables, elsewhere, amplification, maintenance)

# The report that `--check` compares a run with.
PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


def _report(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def _check(report: Report, committed: Path) -> None:
    """Exits with an error if something became slower."""
    found = slower(_report(committed), report)
    print(f"slower than in {committed}, by more than the noise of the rounds: {len(found)} figures", *found, sep="\n  ")
    if found:
        sys.exit(1)


if __name__ == "__main__":
    _parser = parser("python -m benchmarks", rounds=7)
    _parser.add_argument("--page", type=Path, metavar="FILE", help="also write a page with all tables and plots there")
    _parser.add_argument(
        "--without-kernel",
        type=Path,
        metavar="FILE",
        help="figures of a run with OPSLOG_KERNEL=0, for the page (--json)",
    )
    _parser.add_argument(
        "--kernel-goals", action="store_true", help="only workloads with a goal of their own without the kernel"
    )
    _parser.add_argument(
        "--check",
        type=Path,
        nargs="?",
        const=PAGE.with_suffix("") / "results.json",
        metavar="FILE",
        help="name what became slower since these figures (default: those of docs/benchmarks.md); exit code 1 if any",
    )
    _arguments = _parser.parse_args()

    def _finish(report: Report) -> None:
        if _arguments.without_kernel is not None:
            report = msgspec.structs.replace(report, without_kernel=_report(_arguments.without_kernel).results)
        if _arguments.page is not None:
            write_page(report, _arguments.page, keep=bool(_arguments.only or _arguments.kernel_goals))
        if _arguments.check is not None:
            _check(report, _arguments.check)

    run(_arguments, Scale(), SMALL, finish=_finish, chosen=KERNEL_WORKLOADS if _arguments.kernel_goals else None)
