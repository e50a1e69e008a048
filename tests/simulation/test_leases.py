"""The lease that a compaction on an object storage holds, while it is being renewed."""

from __future__ import annotations

import pytest

from opslog.backends.objects.backend import ObjectBackend
from opslog.errors import LockedError
from opslog.testing import Fault, Process, Simulation
from opslog.testing.bucket import Bucket
from opslog.testing.threads import Threading

LEASE_SECONDS = 20.0


@pytest.mark.parametrize("kind", ["down", "no memory"])
@pytest.mark.parametrize("call", ["get prefix/locks/job.lease", "put prefix/locks/job.lease"])
def test_a_lease_is_renewed_again_after_a_request_that_failed(kind: str, call: str) -> None:
    simulation = Simulation(3, [Fault(0, kind, 5.0, call)])
    bucket = Bucket(simulation)
    refused: list[float] = []

    def backend(process: Process) -> ObjectBackend:
        url = f"simulated://{process.name}"
        return ObjectBackend(bucket, url, "prefix/", lease_seconds=LEASE_SECONDS, environment=process.environment)

    def holder(process: Process) -> None:
        process.is_tough = True
        with backend(process).lock("job"):
            process.sleep(10 * LEASE_SECONDS)

    def rival(process: Process) -> None:
        for _ in range(8):
            process.sleep(LEASE_SECONDS)
            with pytest.raises(LockedError), backend(process).lock("job"):
                """It is held."""
            refused.append(process.environment.time())

    with Threading(simulation).installed():
        simulation.start("holder", holder)
        simulation.start("rival", rival)
        simulation.run()
    assert simulation.injected == {kind: 1}
    assert len(refused) == 8
