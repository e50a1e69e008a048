"""The simulated storages obey the contract as long as nothing is made to fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

from opslog.backends import Backend  # noqa: E402  (after the rewrite is registered)
from opslog.backends.fs import FsBackend  # noqa: E402
from opslog.backends.testing import BackendContract  # noqa: E402
from opslog.testing.bucket import Bucket, BucketBackend  # noqa: E402
from opslog.testing.simulation import Simulation  # noqa: E402
from opslog.testing.system import ROOT, System  # noqa: E402


class TestSimulatedDirectory(BackendContract):
    @pytest.fixture(autouse=True)
    def _system(self) -> Iterator[None]:
        with System(Simulation(0)).installed():
            yield

    def open_backend(self, space: Path) -> Backend:
        return FsBackend(f"{ROOT}/store")


class TestSimulatedBucket(BackendContract):
    @pytest.fixture(autouse=True)
    def _bucket(self) -> None:
        self.bucket = Bucket(Simulation(0))

    def open_backend(self, space: Path) -> Backend:
        return BucketBackend(self.bucket, "simulated://bucket", "prefix/")
