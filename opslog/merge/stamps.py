"""The order of stamps: of two records of one document, the one with the greater stamp wins. Pure.

A stamp is (clock, agent), compared in this order, and agents by code point. No two commits have the same one, so the
order is total, and everybody who has the same records finds the same winner.
"""

from __future__ import annotations

from typing import TypeVar

from opslog.format.commits import Commit, Record, Stamp

# What a stamp is made of, for those who compare columns.
FIELDS = ("clock", "agent")

R = TypeVar("R", bound=Record)


def stamp_of(commit: Commit | Record) -> Stamp:
    """The sort key of commits and records."""
    return commit.stamp


def is_greater(stamp: tuple[int, str], other: tuple[int, str]) -> bool:
    """Whether what has the one stamp wins against what has the other."""
    return stamp > other


def outranks(record: Record, other: Record) -> bool:
    """Whether a record wins against another one."""
    # As `is_greater`, without making two stamps for it: a load asks this of every commit.
    return record.clock > other.clock or (record.clock == other.clock and record.agent > other.agent)


def newer(record: R, other: R | None) -> R:
    """Which of two records wins; the one, where there is no other."""
    return record if other is None or outranks(record, other) else other
