"""The simulated storages obey the contract as long as nothing is made to fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend  # noqa: E402  (after the rewrite is registered)
from opslog.backends.fs import FsBackend  # noqa: E402
from opslog.backends.objects import ObjectBackend  # noqa: E402
from opslog.backends.testing import BackendContract  # noqa: E402
from opslog.testing.bucket import Bucket  # noqa: E402
from opslog.testing.simulation import Simulation  # noqa: E402
from opslog.testing.system import ROOT, System  # noqa: E402


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """One in which threads take turns, too: the contract's tests use them, and a simulation has one."""
    simulation, mutex = Simulation(0), threading.RLock()
    step = simulation.step

    def one_by_one(*arguments: Any) -> Any:
        with mutex:
            return step(*arguments)

    monkeypatch.setattr(simulation, "step", one_by_one)
    return simulation


class TestSimulatedDirectory(BackendContract):
    @pytest.fixture(autouse=True)
    def _system(self, simulation: Simulation) -> Iterator[None]:
        with System(simulation).installed():
            yield

    def open_backend(self, space: Path) -> Backend:
        return FsBackend(f"{ROOT}/store")


class TestSimulatedBucket(BackendContract):
    @pytest.fixture(autouse=True)
    def _bucket(self, simulation: Simulation) -> None:
        self.bucket = Bucket(simulation)

    def open_backend(self, space: Path) -> Backend:
        return ObjectBackend(self.bucket, "simulated://bucket", "prefix/")
