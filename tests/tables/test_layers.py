"""A table is made from a run as stored, and from later writes. It shows what the store has, whatever the history."""

from __future__ import annotations

import random
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
import pytest

import opslog
from opslog.snapshot import runs

Store = opslog.Store[dict[str, Any]]


def shown(store: Store) -> dict[object, tuple[object, ...]]:
    table = store.to_arrow(["id", "clock", "agent", "author", "ts", "n", "data"])
    rows = [tuple(row.values()) for row in table.to_pylist()]
    assert [row[0] for row in rows] == sorted(store)
    return {row[0]: row[1:] for row in rows}


def expected(store: Store) -> dict[object, tuple[object, ...]]:
    found: dict[object, tuple[object, ...]] = {}
    for id, document in store.items():
        record = store.record(id)
        assert record is not None
        ts = datetime.fromisoformat(record.ts)
        text = orjson.dumps(document).decode()
        found[id] = (record.clock, record.agent, record.author, ts, document.get("n"), text)
    return found


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("loaded", [True, False], ids=["in-memory", "on-storage"])
def test_a_table_is_the_store_after_any_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int, loaded: bool
) -> None:
    """Two agents, one of which is behind, write, delete and undo, and compactions make one run or several."""
    if not loaded:
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    rng = random.Random(seed)
    settings = opslog.Settings(undo_window=1, grace_seconds=0)
    with (
        opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store,
        opslog.open(tmp_path, agent="b", compact_after=None) as other,
    ):
        for step in range(60):
            writer = rng.choice([store, other])
            id = f"{rng.choice('xyzé')}{rng.randrange(12)}"
            match rng.choice(["set", "set", "set", "delete", "undo", "create", "compact", "full", "table"]):
                case "set":
                    writer[id] = {"n": step, "text": '"op":"delete"\n'}
                case "delete":
                    writer.pop(id, None)
                case "undo":
                    writer.undo()
                case "create":
                    writer.refresh()
                    if id not in writer:
                        writer.create(id, {"n": step})
                case "compact":
                    store.compact()
                case "full":
                    other.compact(full=rng.random() < 0.5)
                case "table":
                    assert shown(store) == expected(store)
        assert shown(store) == expected(store)
        with opslog.open(tmp_path, read_only=True) as reader:
            assert shown(reader) == expected(reader)


@pytest.mark.parametrize("loaded", [True, False], ids=["in-memory", "on-storage"])
def test_a_write_that_the_snapshot_outranks_is_no_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loaded: bool
) -> None:
    if not loaded:
        monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with (
        opslog.open(tmp_path, agent="behind", compact_after=None, settings=settings) as behind,
        opslog.open(tmp_path, agent="a", compact_after=None) as store,
    ):
        for n in range(3):
            store["x"] = {"n": n}
        store.compact(full=True)
        behind["x"] = {"n": "it knew nothing of those"}
    with opslog.open(tmp_path, read_only=True) as reader:
        assert reader["x"] == {"n": 2}
        assert shown(reader) == expected(reader)


def test_tombstones_of_the_snapshot_are_no_rows(tmp_path: Path) -> None:
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store:
        store["kept"], store["gone"] = {"n": 1}, {"n": 2}
        del store["gone"]
        store.compact(full=True)
    with opslog.open(tmp_path, read_only=True) as reader:
        assert b'"op":"delete"' in b"".join(path.read_bytes() for path in tmp_path.glob("snapshots/*/*.jsonl"))
        assert reader.sql("SELECT id, n FROM documents").to_pylist() == [{"id": "kept", "n": 1}]


def test_damage_is_named_by_file_and_offset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store:
        store["x"] = {"n": 1}
        store.compact(full=True)
    [part] = tmp_path.glob("snapshots/*/*.jsonl")
    with opslog.open(tmp_path, read_only=True) as reader:
        part.write_bytes(part.read_bytes().replace(b'"n":1', b'"n":}'))
        with pytest.raises(opslog.CorruptError, match=part.name) as caught:
            reader.sql("SELECT n FROM documents")
        assert caught.value.path == part.relative_to(tmp_path).as_posix()


@pytest.mark.parametrize("fault", [b"\xff", b"}"], ids=["no UTF-8", "no JSON"])
def test_a_damaged_line_whose_checksum_fits_is_named_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: bytes
) -> None:
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    monkeypatch.setattr(runs, "check_block", lambda data, block, path: None)
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(tmp_path, agent="a", compact_after=None, settings=settings) as store:
        store["x"] = {"n": 1}
        store.compact(full=True)
    [part] = tmp_path.glob("snapshots/*/*.jsonl")
    with opslog.open(tmp_path, read_only=True) as reader:
        part.write_bytes(part.read_bytes().replace(b'"n":1', b'"n":' + fault))
        with pytest.raises(opslog.CorruptError, match=part.name):
            reader.sql("SELECT n FROM documents")


def test_columns_that_are_renamed_by_their_places(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a") as store:
        store["x"] = {"n": 1}
        query = "SELECT f FROM documents AS d(a, b, c, d, e, f)"
        assert store.sql(query).to_pylist() == [{"f": 1}]
