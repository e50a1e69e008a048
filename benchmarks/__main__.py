"""python -m benchmarks: measures, and prints a table; see the package for how to read it."""

from __future__ import annotations

from benchmarks import maintenance, reading, writing
from benchmarks.report import main
from benchmarks.runner import SMALL, Scale

GROUPS = (writing, reading, maintenance)
"""Importing a group registers its contenders."""

if __name__ == "__main__":
    main("python -m benchmarks", Scale(), SMALL, rounds=7)
