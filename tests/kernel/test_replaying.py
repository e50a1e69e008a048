"""A replay with the kernel writes the same bytes as one in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.bulk.replay import write_state
from opslog.environment import REAL
from opslog.format import scanned
from opslog.format.commits import encode_commit
from opslog.log import reader
from opslog.replica.loading import Loader
from opslog.snapshot.manifests import ManifestStore
from opslog.verify.verify import verify
from tests.kernel.test_compacting import fill

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


@pytest.fixture(autouse=True)
def with_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses the kernel, whatever the environment says. Small chunks make several of a short log."""
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)


@pytest.mark.parametrize("compacted", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_the_written_lines_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, compacted: bool
) -> None:
    fill(tmp_path / "store", seed)
    if compacted:
        with opslog.open(tmp_path / "store", agent="reader", version=9) as store:
            store.compact()
            for number in range(100):
                store[f"id-{number % 40}"] = {"again": number}
            del store["id-0"]
    backend = open_backend(tmp_path / "store")
    found = []
    for name, scan in (("python", None), ("kernel", _kernel.scan)):
        monkeypatch.setattr(scanned, "scan", scan)
        state = Loader(backend).load()
        assert (state.lines is not None) == (scan is not None)
        expected = b"".join(map(encode_commit, state.records()))
        reports: list[int] = []
        documents = write_state(state, tmp_path / name / "lines", "jsonl", REAL, reports.append)
        assert (tmp_path / name / "lines" / "part-00000.jsonl").read_bytes() == expected
        assert reports[-1] == documents == expected.count(b"\n")
        assert write_state(state, tmp_path / name / "store", "store", REAL) == documents
        found.append((expected, of_store(tmp_path / name / "store")))
    backend.close()
    assert found[0] == found[1]


def of_store(root: Path) -> object:
    """The files, without the parts that depend on the time of writing or on chance."""
    backend = open_backend(root)
    assert verify(backend).ok
    manifest = ManifestStore(backend).newest()
    parts = [
        (part.records, part.live, part.bytes, part.first, part.last, part.shared, part.sha256)
        for run in manifest.runs
        for part in run.parts
    ]
    backend.close()
    return manifest.clock, manifest.ts, manifest.documents, manifest.cut, parts


def test_of_a_tail_alone_no_set_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scanned, "scan", _kernel.scan)
    with opslog.open(tmp_path / "store", agent="a", settings=opslog.Settings(undo_window=5)) as store:
        for number in range(500):
            store[f"task-{number % 100}"] = {"n": number}
    backend = open_backend(tmp_path / "store")
    state = Loader(backend).load()
    backend.close()
    monkeypatch.setattr("opslog.merge.lines.decode_records", None)
    assert write_state(state, tmp_path / "lines", "jsonl", REAL) == 100
    assert write_state(state, tmp_path / "copy", "store", REAL) == 100
