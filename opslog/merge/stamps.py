"""The order of stamps: of two records of one document, the one with the greater stamp wins. Pure.

A stamp is (clock, agent). Clocks are compared first, then agents, by code point. No two commits have the same stamp. So
the order is total, and all readers of the same records find the same winner.
"""

from __future__ import annotations

from typing import TypeVar

from opslog.format.commits import Commit, Record, Stamp

# The fields of a stamp, for comparing columns.
FIELDS = ("clock", "agent")

R = TypeVar("R", bound=Record)


def stamp_of(commit: Commit | Record) -> Stamp:
    """The sort key of commits and records."""
    return commit.stamp


def is_greater(stamp: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether a record with the first stamp wins against one with the second."""
    return stamp > other


def outranks(record: Record, other: Record) -> bool:
    """Whether a record wins against another one."""
    # As `is_greater`, but without making two stamps: a load does this for every commit.
    return record.clock > other.clock or (record.clock == other.clock and record.agent > other.agent)


def newer(record: R, other: R | None) -> R:
    """The winner of two records; the first, if there is no other."""
    return record if other is None or outranks(record, other) else other
