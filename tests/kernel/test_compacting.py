"""A compaction with the kernel writes what one by Python writes, byte for byte."""

from __future__ import annotations

import random
import shutil
from bisect import bisect_left
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.compaction import compact
from opslog.format import scanned, snapshot
from opslog.format.commits import Set, encode_commit
from opslog.log import reader
from opslog.log.survey import survey
from opslog.snapshot.manifests import ManifestStore
from opslog.store import replica_of
from opslog.verify.verify import verify

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")


def fill(root: Path, seed: int) -> None:
    """Sets of the usual form and others: deletes, batches, undos, other versions, ids that are escaped."""
    chance = random.Random(seed)
    for number, agent in enumerate(("a", "b", "c")):
        settings = opslog.Settings(undo_window=chance.choice([0, 1, 5]))
        with opslog.open(root, agent=agent, settings=settings if not number else None, version=1 + number) as store:
            for count in range(200):
                id = chance.choice(["id-", "ü", "🚀", '"', "\n", "\U00010000", "\uffff"]) + str(chance.randrange(60))
                kind = chance.random()
                if kind < 0.8:
                    store[id] = {"n": count, "by": agent, "text": "x" * chance.choice([1, 10, 300])}
                elif kind < 0.9:
                    store.pop(id, None)
                elif kind < 0.95:
                    with store.batch():
                        store[id] = {}
                        store.pop(f"id-{count}", None)
                else:
                    store.undo()
            if chance.random() < 0.3:
                store.create(f"claim-{agent}", {})


def files(root: Path) -> dict[str, bytes]:
    """The runs, without the part of their names that is drawn at random."""
    return {f"{path.parent.name[:20]}/{path.name}": path.read_bytes() for path in sorted(root.glob("snapshots/*/*"))}


@pytest.mark.parametrize("seed", range(12))
def test_runs_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 700)
    monkeypatch.setattr(snapshot, "PART_BYTES", 3000)
    fill(tmp_path / "one", seed)
    shutil.copytree(tmp_path / "one", tmp_path / "other")
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    monkeypatch.setattr("opslog.compaction.compact.format_ts", lambda _: "2026-11-24T12:00:00.000000Z")
    found = []
    for name, scan in (("one", None), ("other", _kernel.scan)):
        monkeypatch.setattr(scanned, "scan", scan)
        with opslog.open(tmp_path / name, agent="reader", version=9) as store:
            before = list(store.items())
            done = store.compact(full=True)
            manifest = replica_of(store).state.manifest
            parts = [
                (part.records, part.live, part.bytes, part.first, part.last, part.shared, part.sha256)
                for run in manifest.runs
                for part in run.parts
            ]
            assert list(store.items()) == before
            assert len(store) == len(before)
            assert verify(replica_of(store).backend).ok
            figures = done.commits, done.records, done.bytes, manifest.documents
            found.append((files(tmp_path / name), before, figures, parts))
    assert found[0] == found[1]
    assert len(found[0][0]) > 4


def test_lines_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(scanned, "scan", _kernel.scan)
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    fill(tmp_path, 0)
    with opslog.open(tmp_path, agent="reader", version=9) as store:
        backend = replica_of(store).backend
        tail = survey(ManifestStore(backend), lambda found: compact.Tail.read(backend, found))
    assert tail.merge.lines is not None
    rows = compact._Winners(backend, tail, None)
    assert sum(len(some) for some in rows._rows) < rows.count / 2


def test_places_in_a_table() -> None:
    ids = [f"{number * 7 % 50:02}" for number in range(50)]
    lines = [line(clock, id) for clock, id in enumerate(ids, 1)]
    sets, _ = _kernel.scan(b"".join(lines), "a")
    table = _kernel.Table()
    assert (table.size(0, 9), table.block(0, 0, 5), table.rank("x")) == (0, (b"", 0), 0)
    table = _kernel.Table()
    table.add(sets)
    ordered = sorted(ids)
    for id in ("", "0", "00", "000", "17", "17x", "\U00010000", "99"):
        assert table.rank(id) == bisect_left(ordered, id)
    for start in range(0, 50, 7):
        for room in (0, 1, 100, 1000, 10**9):
            text, after = table.block(start, 50, room)
            assert text == table.lines(start, after)
            assert len(text) == table.size(start, after)
            assert after == 50 or len(text) >= room
            assert after == start or table.size(start, after - 1) < room
    for bad in ((-1, 1, 1), (2, 1, 1), (0, 51, 1), (0, 50, -1)):
        with pytest.raises(ValueError, match="range"):
            table.block(*bad)
    with pytest.raises(UnicodeEncodeError):
        table.rank("\ud800")


def line(clock: int, id: str) -> bytes:
    return encode_commit(Set("2026-11-24T12:00:00.000000Z", clock, "a", id, msgspec.Raw(b"{}")))
