"""All deliberate breakages, and the table of them in docs/testing.md."""

from __future__ import annotations

from collections.abc import Iterator

from tests.simulation.breakages import ALL, caught
from tests.simulation.concurrent_breakages import CONCURRENT
from tests.simulation.feed_breakages import FEED
from tests.simulation.fence_breakages import FENCES
from tests.simulation.lease_breakages import LEASES
from tests.simulation.program_breakages import PROGRAM
from tests.simulation.transaction_breakages import TRANSACTIONAL

EVERY = [*ALL, *FENCES, *CONCURRENT, *PROGRAM, *FEED, *TRANSACTIONAL, *LEASES]


def table(seeds: int) -> Iterator[str]:
    """The whole table, in Markdown: how many of the seeds catch each breakage, and by which invariants."""
    yield f"| breakage | storage | caught in n of {seeds} seeds | first by |"
    yield "| --- | --- | --- | --- |"
    for breakage in EVERY:
        scenario = breakage.scenario(0)
        inside = (", tasks" if scenario.asynchronous else ", threads") if scenario.threaded else ""
        tried = range(breakage.first, breakage.first + seeds)
        found = [invariant for seed in tried if (invariant := caught(breakage, seed))]
        by = found[0] if found else "-"
        yield f"| {breakage.name} | {scenario.storage}{inside} | {len(found)} | `{by}` |"
