"""python -m benchmarks: measures, and prints tables; see the package for how to read them."""

from __future__ import annotations

from pathlib import Path

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
from benchmarks import amplification, maintenance
from benchmarks.page import write_page
from benchmarks.report import parser, run
from benchmarks.runner import SMALL, Scale

GROUPS = (writing, transactions, reading, finding, opening, tails, feed, tables, amplification, maintenance)

if __name__ == "__main__":
    _parser = parser("python -m benchmarks", rounds=7)
    _parser.add_argument("--page", type=Path, metavar="FILE", help="also write a page with all tables and plots there")
    _arguments = _parser.parse_args()
    _page, _only = _arguments.page, _arguments.only
    run(
        _arguments, Scale(), SMALL, finish=lambda report: write_page(report, _page, keep=bool(_only)) if _page else None
    )
