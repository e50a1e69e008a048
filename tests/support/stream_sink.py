"""A consumer of a stream, as docs/spark.md describes it: one part keeps the state, and one counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

Row = dict[str, Any]


class Sink:
    """Takes batches of rows.

    :ivar rows: all rows.
    :ivar resyncs: how many batches had a resync.
    :ivar delivered: for each commit, as (agent, clock), how many times it came, not counting resyncs.
    """

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.resyncs = 0
        self.delivered: Counter[tuple[str, int]] = Counter()
        self._stored: dict[str, Row] = {}
        self._commits: dict[tuple[int, str], list[Row]] = {}

    def take(self, batch: Iterable[Row]) -> None:
        batch = list(batch)
        self.rows += batch
        if any(row["op"] == "resync" for row in batch):
            self.resyncs += 1
            self._stored.clear()
            self._commits.clear()
        for row in batch:
            if row["delivery"] != "resync" and row["place"] in (None, 0):
                self.delivered[row["agent"], row["clock"]] += 1
            if row["op"] == "resync" or row["delivery"] == "folded":
                continue
            if row["delivery"] == "resync" and row["segment"] is None:
                self._stored[row["id"]] = row
            else:
                self._commits.setdefault((row["clock"], row["agent"]), []).append(row)

    def state(self) -> dict[str, str]:
        """The documents by the merge rule, from everything since the last resync."""
        undone = {(row["target"], row["agent"]) for rows in self._commits.values() for row in rows if row["target"]}
        best = dict(self._stored)
        for stamp, rows in sorted(self._commits.items()):
            for row in sorted(rows, key=lambda row: row["place"] or 0):
                known = best.get(row["id"])
                if row["op"] != "undo" and stamp not in undone and (known is None or _stamp(known) <= stamp):
                    best[row["id"]] = row
        return {id: row["data"] for id, row in best.items() if row["op"] == "set"}


def _stamp(row: Row) -> tuple[int, str]:
    return row["clock"], row["agent"]
