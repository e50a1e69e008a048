"""All deliberate breakages, in the order of the table in docs/testing.md."""

from __future__ import annotations

from tests.simulation.breakages import ALL
from tests.simulation.concurrent_breakages import CONCURRENT
from tests.simulation.feed_breakages import FEED
from tests.simulation.fence_breakages import FENCES
from tests.simulation.lease_breakages import LEASES
from tests.simulation.program_breakages import PROGRAM
from tests.simulation.transaction_breakages import TRANSACTIONAL

EVERY = [*ALL, *FENCES, *CONCURRENT, *PROGRAM, *FEED, *TRANSACTIONAL, *LEASES]
