"""The simulated storages obey the contract as long as nothing is made to fail."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.register_assert_rewrite("opslog.backends.testing")

import opslog  # noqa: E402  (after the rewrite is registered)
from opslog.backends import Backend  # noqa: E402
from opslog.backends.local.fs import FsBackend  # noqa: E402
from opslog.backends.objects.backend import ObjectBackend  # noqa: E402
from opslog.backends.testing import ODD_PATHS, BackendContract  # noqa: E402
from opslog.bulk.ingest import ingest  # noqa: E402
from opslog.environment import format_ts  # noqa: E402
from opslog.errors import InvalidNameError  # noqa: E402
from opslog.format.commits import Delete, encode_commit  # noqa: E402
from opslog.format.layout import segment_path  # noqa: E402
from opslog.importers import ImportedCommit, ImportedOp  # noqa: E402
from opslog.testing import all_commits, make_storage  # noqa: E402
from opslog.testing.bucket import Bucket  # noqa: E402
from opslog.testing.simulation import Simulation  # noqa: E402
from opslog.testing.system import ROOT, System  # noqa: E402
from opslog.verify.verify import verify  # noqa: E402


@pytest.fixture
def simulation(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    """A simulation in which threads also take turns, because the contract's tests use threads."""
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


class TestDirectoryThatDoesNotDistinguishCase(BackendContract):
    odd_paths = [path for path in ODD_PATHS if path != "UPPER/lower"] + ["upper/Lower"]

    @pytest.fixture(autouse=True)
    def _system(self, simulation: Simulation) -> Iterator[None]:
        with System(simulation, ignores_case=True).installed():
            yield

    def open_backend(self, space: Path) -> Backend:
        return FsBackend(f"{ROOT}/store")

    def test_an_agent_whose_name_differs_in_case_alone_is_refused(self, backend: Backend) -> None:
        backend.create(segment_path("Build", 1), b"x\n")
        with pytest.raises(InvalidNameError, match=r"'build' .* does not distinguish case.*'Build'"):
            backend.appender("build")
        backend.appender("Build").close()
        with pytest.raises(InvalidNameError, match="'Build'"):
            backend.create(segment_path("BUILD", 2), b"x\n")
        assert [entry.path for entry in backend.list("ops/")] == [segment_path("Build", 1)]

    def test_an_archive_whose_period_differs_in_case_alone_is_refused(self, backend: Backend) -> None:
        backend.create("archive/Old/1.jsonl", b"")
        with pytest.raises(InvalidNameError, match=r"'old' .* does not distinguish case.*'Old'"):
            backend.create("archive/old/2.jsonl", b"")
        assert backend.list("archive/old/") == []
        assert [entry.path for entry in backend.list("archive/")] == ["archive/Old/1.jsonl"]

    def test_stores(self) -> None:
        url = f"{ROOT}/store"
        with opslog.open(url, agent="Build") as store:
            store["x"] = {"by": "Build"}
            store.archive(lambda document: True, "Old")
            with pytest.raises(opslog.InvalidNameError, match="does not distinguish case"):
                opslog.open(url, agent="build")
            store["x"] = {"by": "Build"}
            with pytest.raises(opslog.InvalidNameError, match="does not distinguish case"):
                store.archive(lambda document: True, "old")
            assert list(store) == ["x"]
            with pytest.raises(opslog.NotFoundError):
                store.load_archive("old")
            assert list(store.load_archive("Old")) == ["x"]
        backend = FsBackend(url)
        with pytest.raises(InvalidNameError):
            ingest(backend, [ImportedCommit("BUILD", None, (ImportedOp("set", "y", {}),), "test")])
        assert verify(backend).problems == []


class TestSimulatedBucket(BackendContract):
    @pytest.fixture(autouse=True)
    def _bucket(self, simulation: Simulation) -> None:
        self.bucket = Bucket(simulation)

    def open_backend(self, space: Path) -> Backend:
        return ObjectBackend(self.bucket, "simulated://bucket", "prefix/")


def test_a_segment_that_was_collected_and_created_again_without_a_commit_keeps_its_commits(
    simulation: Simulation,
) -> None:
    """A process that was held up may create it, and then finds that it has lost its name."""
    place = make_storage("posix", simulation)
    path, line = segment_path("a", 1), encode_commit(Delete(format_ts(0.0), 1, "a", "x"))
    with place.installed():
        backend = place.backend(None)
        for content in (line, b""):
            backend.create(path, content)
            backend.delete([path])
        assert [commit.clock for commit in all_commits(place)["a"]] == [1]
