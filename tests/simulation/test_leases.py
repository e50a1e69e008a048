"""The lease that a compaction on an object storage holds, while it is renewed; and workers that share out jobs by
`opslog.Lease`, whatever goes wrong."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest.mock import patch

import pytest

from opslog.backends.objects.backend import ObjectBackend
from opslog.errors import LockedError
from opslog.testing import Fault, Process, Simulation
from opslog.testing.bucket import Bucket
from opslog.testing.threads import Threading
from tests.simulation import audit
from tests.simulation.leasing import JOBS, ROUNDS, check_workers
from tests.simulation.scenario import random_scenario, run

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


def test_workers_lose_leases_and_take_over_from_those_that_are_gone() -> None:
    """Without such events the invariants of leases would prove nothing."""
    ends: Counter[tuple[str, str]] = Counter()
    for seed in range(6):
        with patch.object(audit, "check_workers") as check:
            assert run(replace(random_scenario(seed), workers=3)).violation is None
        shared, workers, logs = check.call_args.args
        check_workers(shared, workers, logs)
        calls = [call for worker in workers for call in worker.calls]
        ends.update((call.kind, call.attempt.outcome) for call in calls if call.attempt is not None)
        finished = {(call.job, call.round) for call in calls if call.kind == "finish" and call.attempt is not None}
        assert finished >= {(job, round) for job in JOBS for round in range(ROUNDS)}, (
            "each was done as often as it is to"
        )
    for kind in ("claim", "renew", "set", "finish", "release"):
        assert ends[kind, "done"] > 3, ends
    assert ends["claim", "nothing"] > 10, "somebody else has it"
    assert sum(ends[kind, "refused"] for kind in ("renew", "set", "finish", "release")) > 3, "it was taken over"
