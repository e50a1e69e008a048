"""Tasks that read logs with the kernel find what those find that read them by Python, and decode less. Without Spark
itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import opslog
from opslog.backends import open_backend
from opslog.format import commits as lines
from opslog.format import scanned
from opslog.format.scanned import ScannedCommits
from opslog.log import reader
from opslog.merge.lines import Lines
from opslog.spark.compaction.executing import StoreAddress, merge_logs
from opslog.spark.read import views
from opslog.spark.read.planning import LogSplit, share, survey_state
from opslog.spark.read.ranges import IdRange
from opslog.spark.read.views import EVERYTHING, Asked, CandidatesView, OpsView, StateView, View
from tests.kernel.test_compacting import fill
from tests.support.random_stores import state

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


@pytest.fixture(autouse=True)
def with_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the environment says; and so that a short log is several chunks."""
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)


def use(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    monkeypatch.setattr(scanned, "scan", _kernel.scan if used else None)


def rows(url: str, view: View, asked: Asked = EVERYTHING) -> list[tuple[Any, ...]]:
    """The rows of all tasks of a view, each with the number of its task; of a task in an order of their own."""
    backend = open_backend(url, create=False)
    found = []
    for number, task in enumerate(view.plan(backend, asked)):
        own = [tuple(row.values()) for batch in view.read(backend, task, asked) for row in batch.to_pylist()]
        found += [(number, *row) for row in sorted(own, key=repr)]
    backend.close()
    return found


def merged(url: str, window: int, tasks: list[tuple[LogSplit, ...]]) -> list[dict[str, Any]]:
    numbers = pa.record_batch({"id": list(range(len(tasks)))})
    batches = merge_logs(iter([numbers]), address=StoreAddress(url, {}), window=window, tasks=tasks)
    return sorted((row for batch in batches for row in batch.to_pylist()), key=repr)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_rows_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, compacted: bool) -> None:
    url = str(tmp_path / "store")
    fill(tmp_path / "store", seed)
    if compacted:
        with opslog.open(url, agent="reader", version=9) as store:
            store.compact()
            for number in range(300):
                store[f"id-{number % 90}"] = {"again": number}
            del store["id-0"]
    taken: list[ScannedCommits] = []
    take = Lines.take

    def noted(self: Lines, commits: ScannedCommits) -> bool:
        taken.append(commits)
        return take(self, commits)

    monkeypatch.setattr(Lines, "take", noted)
    backend = open_backend(url, create=False)
    survey = survey_state(backend)
    past = survey.manifest.clock + 50
    asked = [EVERYTHING, Asked(ids=IdRange("id-2", "id-5")), Asked(one_of=frozenset({"id-1", "id-0"}))]
    found = []
    for used in (False, True):
        use(monkeypatch, used)
        of_views = []
        for tail_bytes in (0, views.TAIL_BYTES):
            monkeypatch.setattr(views, "TAIL_BYTES", tail_bytes)
            of_views += [rows(url, StateView(None, 5000), each) for each in asked]
        of_views += [rows(url, CandidatesView(None, size), each) for size in (3000, 10**6) for each in asked]
        of_views += [rows(url, view) for view in (CandidatesView(past, 3000), OpsView(None, 3000))]
        assert sorted(row[1:] for row in of_views[0]) == state(url)
        compactions = [
            merged(url, survey.manifest.settings.undo_window, share(survey.logs, size)) for size in (3000, 10**6)
        ]
        assert bool(taken) == used
        found.append((of_views, compactions))
    backend.close()
    assert found[0] == found[1]


def test_sets_that_were_overwritten_are_not_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = str(tmp_path / "store")
    with opslog.open(url, agent="a", settings=opslog.Settings(undo_window=5), compact_after=None) as store:
        for number in range(2000):
            store[f"task-{number % 10}"] = {"n": number}
    decoded: list[int] = []
    decode = lines._decode

    def counted(decoder: Any, text: bytes, path: str, offset: int) -> Any:
        decoded.append(text.count(b"\n"))
        return decode(decoder, text, path, offset)

    monkeypatch.setattr(lines, "_decode", counted)
    use(monkeypatch, True)
    backend = open_backend(url, create=False)
    (task,) = CandidatesView().plan(backend, EVERYTHING)
    (batch,) = CandidatesView().read(backend, task, EVERYTHING)
    assert batch.num_rows == 10
    assert sum(decoded) < 100
    decoded.clear()
    (task,) = StateView().plan(backend, EVERYTHING)
    assert sum(decoded) < 100, "the driver merges a short tail"
    decoded.clear()
    assert len(merged(url, 5, [task_.logs for task_ in CandidatesView().plan(backend, EVERYTHING)])) == 10 + 1
    assert sum(decoded) < 100
    backend.close()
