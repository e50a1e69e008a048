"""A log, or the end of one, was removed by hand. A manifest shows that it was there, compacted or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.backends import open_backend
from opslog.format.layout import manifest_path, segment_path
from opslog.format.manifest import Cut, encode_manifest
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify
from tests.support import bucket  # noqa: F401  (stores at bucket://)

Remove = Callable[[Path], None]


def whole_log(root: Path) -> None:
    shutil.rmtree(root / "ops" / "worker")


def last_commit(root: Path) -> None:
    path = max((root / "ops" / "worker").iterdir())
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store after a compaction. The undo window covers all logs."""
    with opslog.open(tmp_path, agent="worker") as worker, opslog.open(tmp_path, agent="planner") as planner:
        for number in range(3):
            worker[f"worker-{number}"] = {"number": number}
        planner["planner"] = {}
        assert planner.compact().number == 2
    return tmp_path


@pytest.mark.parametrize("remove", [whole_log, last_commit])
class TestRemoved:
    def test_opening_the_store_finds_it(self, root: Path, remove: Remove) -> None:
        remove(root)
        for agent in ("planner", "worker", "new"):
            with pytest.raises(opslog.CorruptError, match=r"ops/worker/0+1\.jsonl is missing, or ends before byte"):
                opslog.open(root, agent=agent)

    def test_it_is_found_by_verify(self, root: Path, remove: Remove) -> None:
        remove(root)
        (problem,) = (problem for problem in verify(open_backend(root)).problems if problem.severity == "error")
        assert problem.path == segment_path("worker", 1)

    def test_it_is_found_by_a_store_that_has_not_read_it_yet(self, root: Path, remove: Remove) -> None:
        with opslog.open(root, agent="reader", compact_after=None) as reader:
            with opslog.open(root, agent="worker") as worker:
                worker["worker-3"] = {}
                with opslog.open(root, agent="third") as third:
                    third["third"] = {}
                    assert third.compact(full=True).number == 3
            remove(root)
            with pytest.raises(opslog.CorruptError, match="ops/worker/"):
                reader.refresh()

    def test_history_finds_it(self, root: Path, remove: Remove) -> None:
        with opslog.open(root, read_only=True) as reader:
            remove(root)
            with pytest.raises(opslog.CorruptError, match="ops/worker/"):
                list(reader.ops(since=0))


def test_nothing_names_commits_after_the_newest_manifest(root: Path) -> None:
    """As the README says."""
    with opslog.open(root, agent="worker") as worker, opslog.open(root, agent="late") as late:
        worker["worker-3"] = late["late"] = {}
    last_commit(root)
    shutil.rmtree(root / "ops" / "late")
    with opslog.open(root, read_only=True) as reader:
        assert sorted(reader) == ["planner", "worker-0", "worker-1", "worker-2"]


def test_a_manifest_names_each_log_once(root: Path) -> None:
    """Compactions without work create no manifests only because logs have grown."""
    with opslog.open(root, agent="worker", compact_after=None) as worker:
        for number in range(5):
            worker[f"again-{number}"] = {}
            assert worker.compact().number is None
        with opslog.open(root, agent="new") as new:
            new["new"] = {}
        assert worker.compact().number == 3
        assert worker.compact().number is None
    newest = ManifestStore(open_backend(root)).newest()
    assert {agent: end.commits for agent, end in newest.log_ends.items()} == {"planner": 1, "worker": 8, "new": 1}


def test_logs_that_end_at_the_cut_are_not_named(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="worker", settings=opslog.Settings(undo_window=0)) as worker:
        worker["a"] = {}
        worker.compact()
    assert ManifestStore(open_backend(tmp_path)).newest().log_ends == {}


@pytest.mark.parametrize("end", [Cut(0, 0, 1), Cut(1, -1, 1), Cut(1, 0, 0)])
def test_an_end_that_cannot_be_is_found(root: Path, end: Cut) -> None:
    manifests = ManifestStore(open_backend(root))
    newest = manifests.newest()
    damaged = msgspec.structs.replace(newest, logs={"worker": end})
    (root / manifest_path(newest.number)).write_bytes(encode_manifest(damaged))
    with pytest.raises(opslog.CorruptError, match="its end of 'worker' is no position in a log"):
        opslog.open(root, agent="reader")


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("removed", [slice(None), slice(-1, None)], ids=["whole log", "last commit"])
def test_where_each_append_is_a_segment(removed: slice, count: int) -> None:
    url = f"bucket://log-ends-{removed.start}-{count}"
    with opslog.open(url, agent="worker") as worker:
        for number in range(count):
            worker[f"worker-{number}"] = {}
        worker.compact()
    backend = open_backend(url)
    backend.delete([entry.path for entry in backend.list("ops/worker/")][removed])
    with pytest.raises(opslog.CorruptError, match="ops/worker/"):
        opslog.open(url, read_only=True)
    assert not verify(backend).ok
