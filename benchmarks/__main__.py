"""python -m benchmarks: measures, and prints a table; see the package for how to read it."""

from __future__ import annotations

from benchmarks import maintenance, reading, writing
from benchmarks.report import parser, run
from benchmarks.runner import SMALL, Scale

GROUPS = (writing, reading, maintenance)
"""Importing a group registers its contenders."""

if __name__ == "__main__":
    run(parser("python -m benchmarks", rounds=7).parse_args(), Scale(), SMALL)
