"""Test your own agents as opslog is tested: many processes, simulated storage and time, one seed.

A `Simulation` runs processes; `make_storage` gives it a storage, "posix" or "s3"; `open_store` opens a store on that in
a simulated process, `run_tasks` is its `asyncio.run`, and `Threading` its `threading`. Failures are a list of
`Fault`s. `opslog.testing.invariants` has functions that check the invariants of every store.

opslog's own scenarios, which run on this, are not installed: see `tests/simulation/` in the repository.

Needs the extra: ``pip install 'opslog[testing]'``.
"""

from opslog.testing.faults import Fault, random_faults
from opslog.testing.invariants import ViolationError
from opslog.testing.simulation import Process, Simulation
from opslog.testing.storages import all_commits, make_storage, open_async_store, open_store
from opslog.testing.tasks import run_tasks
from opslog.testing.threads import Threading

__all__ = [
    "Fault",
    "Process",
    "Simulation",
    "Threading",
    "ViolationError",
    "all_commits",
    "make_storage",
    "open_async_store",
    "open_store",
    "random_faults",
    "run_tasks",
]
