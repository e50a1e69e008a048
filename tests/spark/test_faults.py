"""Files that compactions and jobs leave when tasks and drivers die, and compactions beside live writers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

import opslog
import opslog.spark
from opslog.backends import open_backend
from opslog.compaction import compact as compaction
from opslog.compaction.compact import Compaction
from opslog.snapshot.manifests import ManifestStore
from opslog.spark.compaction import compacting, executing
from opslog.spark.compaction.executing import Batches
from opslog.verify.verify import verify
from tests.support import programs
from tests.support.processes import start

# No tests are installed where tasks run.
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]


def fill(url: Path, seed: int, count: int = 300) -> None:
    settings = opslog.Settings(undo_window=3, grace_seconds=0)
    with opslog.open(url, agent=f"agent-{seed}", compact_after=None, settings=settings) as store:
        for number in range(count):
            store[f"{number % 100:03}-{seed}"] = {"n": number, "seed": seed, "text": "x" * 50}


def documents(url: Path) -> dict[str, object]:
    with opslog.open(url, read_only=True) as store:
        return dict(store.items())


def problems(url: Path) -> list[str]:
    backend = open_backend(str(url))
    report = verify(backend)
    backend.close()
    return [str(problem) for problem in report.problems]


def library_compaction(url: Path) -> Compaction:
    backend = open_backend(str(url))
    done = compaction.compact(backend, opslog.Environment())
    backend.close()
    return done


def _write_parts(batches: Batches, **arguments: object) -> Batches:
    # Taken from the installed module, which no test has patched.
    from opslog.spark.compaction import executing as installed

    return installed.write_parts(batches, **arguments)  # type: ignore[arg-type]


def killed_first(batches: Batches, **arguments: object) -> Batches:
    """The first attempt writes its parts, and then its process dies."""
    from pyspark import TaskContext

    yield from _write_parts(batches, **arguments)
    context = TaskContext.get()
    if context is not None and context.attemptNumber() == 0:
        os._exit(1)


def twice(batches: Batches, **arguments: object) -> Batches:
    """Two attempts both reach their end, as with speculation."""
    rows = list(batches)
    first = list(_write_parts(iter(rows), **arguments))
    second = list(_write_parts(iter(rows), **arguments))
    assert first == second
    yield from second


def failing(batches: Batches, **arguments: object) -> Batches:
    for written in _write_parts(batches, **arguments):
        yield written
        raise RuntimeError("lost executor")


@pytest.mark.parametrize("fate", [killed_first, twice], ids=["killed", "speculative"])
def test_parts_are_right_whatever_becomes_of_the_tasks(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fate: Callable[..., Iterator[object]]
) -> None:
    fill(tmp_path, 1)
    before = documents(tmp_path)
    monkeypatch.setattr(executing, "write_parts", fate)
    assert opslog.spark.compact(spark, str(tmp_path)).number == 2
    assert documents(tmp_path) == before
    assert problems(tmp_path) == []


@pytest.mark.long
def test_a_compaction_that_fails_leaves_the_store_as_it_was(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    before = documents(tmp_path)
    monkeypatch.setattr(executing, "write_parts", failing)
    with pytest.raises(Exception, match="lost executor"):
        opslog.spark.compact(spark, str(tmp_path))
    assert documents(tmp_path) == before
    assert not list(tmp_path.glob("snapshots/*/*"))
    assert problems(tmp_path) == []


def test_a_driver_that_dies_before_the_manifest_leaves_what_is_collected(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1)
    before = documents(tmp_path)

    class DeadError(BaseException):
        """No code catches it, so no code cleans up."""

    def die(*_: object) -> None:
        raise DeadError

    with monkeypatch.context() as patch:
        patch.setattr(ManifestStore, "create", die)
        with pytest.raises(DeadError):
            opslog.spark.compact(spark, str(tmp_path))
    garbage = list(tmp_path.glob("snapshots/*/*"))
    assert garbage
    assert documents(tmp_path) == before
    assert all("has not published" in problem for problem in problems(tmp_path))
    assert library_compaction(tmp_path).number == 2
    assert not any(path.exists() for path in garbage)
    assert documents(tmp_path) == before
    assert problems(tmp_path) == []


def test_the_library_may_be_first(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compaction that does not see the lock publishes while Spark compacts: Spark stops, and deletes its parts."""
    fill(tmp_path, 1)
    before = documents(tmp_path)
    slices = compacting._slices

    def too_late(lengths: object) -> object:
        backend = open_backend(str(tmp_path))
        assert compaction.compact_unlocked(backend, opslog.Environment()).number == 2
        backend.close()
        return slices(lengths)  # type: ignore[arg-type]

    monkeypatch.setattr(compacting, "_slices", too_late)
    assert opslog.spark.compact(spark, str(tmp_path)) == Compaction()
    assert len(list(tmp_path.glob("snapshots/*"))) == 1
    assert documents(tmp_path) == before
    assert problems(tmp_path) == []


def test_idle_agents_are_sealed_and_live_ones_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=3, grace_seconds=0, undo_ttl_seconds=0)
    with opslog.open(tmp_path, agent="live", compact_after=None, settings=settings) as live:
        live["a"] = {}
        fill(tmp_path, 1, 5)
        assert opslog.spark.compact(spark, str(tmp_path)).sealed == ("agent-1",)
        assert live.undo()
    assert len(documents(tmp_path)) == 5
    assert problems(tmp_path) == []


def beside_writers(spark: SparkSession, url: Path, writers: int, commits: int) -> None:
    """Nothing acknowledged is lost while Spark compacts without a pause."""
    settings = opslog.Settings(undo_window=3, grace_seconds=0)
    opslog.open(url, settings=settings).close()
    with ExitStack() as stack:
        options = {"compact_after": None}
        agents = [f"w-{n}" for n in range(writers)]
        running = [stack.enter_context(start(programs.write, str(url), name, commits, options)) for name in agents]
        for process in running:
            assert process.hear() == "ready"
        for process in running:
            process.resume()
        published = [opslog.spark.compact(spark, str(url), full=turn % 2 == 1).number for turn in range(3)]
        for process in running:
            assert process.hear() == "written"
        published.append(opslog.spark.compact(spark, str(url)).number)
        for process in running:
            process.resume()
            process.hear()
            process.end()
    assert any(published)
    expected = {f"{name}-{n}": {"agent": name, "number": n} for name in agents for n in range(commits)}
    assert documents(url) == expected
    assert problems(url) == []


@pytest.mark.long
def test_nothing_is_lost_beside_live_writers(spark: SparkSession, tmp_path: Path) -> None:
    beside_writers(spark, tmp_path / "store", 4, 200)


@pytest.mark.slow
def test_nothing_is_lost_beside_eight_live_writers(spark: SparkSession, tmp_path: Path) -> None:
    beside_writers(spark, tmp_path / "store", 8, 4000)


KILLED = """
import os, signal, sys
import opslog.spark
from opslog.snapshot.manifests import ManifestStore

small = {"spark.ui.enabled": False, "spark.driver.memory": "512m"}
spark = opslog.spark.session("test", master="local[2]", config=small)
ManifestStore.create = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
opslog.spark.compact(spark, sys.argv[1])
"""


@pytest.mark.slow
def test_a_driver_that_is_killed_before_the_manifest_loses_nothing(tmp_path: Path) -> None:
    fill(tmp_path, 1)
    before = documents(tmp_path)
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert list(tmp_path.glob("snapshots/*/*"))
    assert documents(tmp_path) == before
    assert library_compaction(tmp_path).number == 2
    assert len(list(tmp_path.glob("snapshots/*"))) == 1
    assert documents(tmp_path) == before
    assert problems(tmp_path) == []
