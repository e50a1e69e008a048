from __future__ import annotations

import random
import shutil
from contextlib import ExitStack, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import opslog
import opslog.spark
from opslog.backends import open_backend
from opslog.backends.local.fs import FsBackend
from opslog.compaction import compact as compaction
from opslog.environment import Environment, format_ts
from opslog.format.commits import Delete
from opslog.format.snapshot import PartEnds, Row, build_parts
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.spark.compaction import compacting
from opslog.verify.verify import verify
from tests.support import missing_logs

NOW = 1_800_000_000.0
LATER = 4_000_000_000.0
"""Seconds since 1970, at which tombstones that were compacted at `NOW` have expired."""


def environment(at: float) -> Environment:
    numbers = count(1)
    return Environment(time=lambda: at, nonce=lambda: f"n{next(numbers)}")


def write(
    url: Path, seed: int, *, ids: int = 200, text: int = 20, commits: int = 60, transactions: float = 0.0
) -> None:
    """Sessions of three agents that take turns to set, delete, undo and write batches.

    :param transactions: what part of it is transactions.
    """
    dice = random.Random(seed)
    settings = opslog.Settings(undo_window=5, grace_seconds=0, undo_ttl_seconds=1e12)
    with ExitStack() as stack:
        opened = (opslog.open(url, agent=name, compact_after=None, settings=settings) for name in ("a", "b", "Zz-9"))
        stores = [stack.enter_context(store) for store in opened]
        for _ in range(commits * 3):
            store = dice.choice(stores)
            id = f"{dice.choice(('doc', 'ключ', '😀', ''))}-{dice.randrange(ids)}"
            action = dice.random()
            if transactions and dice.random() < transactions:
                if action < 0.5:
                    store.modify(id, lambda document: None if document else {"made": "by a transaction"})
                else:
                    store.transact(partial(several, id))
            elif action < 0.1:
                with suppress(opslog.ConflictError):  # others have overwritten a transaction
                    store.undo()
            elif action < 0.25 and id in store:
                del store[id]
            elif action < 0.45:
                with store.batch():
                    for number in range(dice.randrange(1, 6)):
                        store[f"{id}-{number}"] = {"n": number, "t": "x" * dice.randrange(text)}
            else:
                store[id] = {"f": dice.random(), "t": "ü" * dice.randrange(text), "deep": [{"a": None}, 1.0, 1]}
            if dice.random() < 0.05:
                store.refresh()


def several(id: str, transaction: opslog.Transaction[Any]) -> None:
    for number in range(3):
        transaction[f"{id}-{number}"] = {"seen": len(transaction.get(id, {}))}


def snapshot_files(root: Path) -> dict[str, bytes]:
    """All files except logs and locks."""
    folders = (root / name for name in ("manifests", "snapshots"))
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def documents(url: Path) -> dict[str, Any]:
    with opslog.open(url, read_only=True) as store:
        return {record.id: (record.stamp, record.ts, bytes(record.data)) for record in store.records()}


def tombstones(root: Path) -> list[Delete]:
    """The tombstones of the newest snapshot."""
    backend = open_backend(str(root))
    runs = [BlockRun(backend, run) for run in ManifestStore(backend).newest().runs]
    return [record for run in runs for record in run.records() if isinstance(record, Delete)]


def both(spark: SparkSession, root: Path, at: float, **options: Any) -> compaction.Compaction:
    """Compact a store with Spark, and a copy of it with the library, at the same time by the storage's clock. Both must
    give the same result."""
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FsBackend, "now", lambda self: at)
        backend = open_backend(str(copy))
        expected = compaction.compact(backend, environment(at), **options)
        backend.close()
        done = opslog.spark.compact(spark, str(root), environment=environment(at), **options)
    assert snapshot_files(root) == snapshot_files(copy)
    assert (done.number, done.commits, done.records, done.bytes, done.runs_merged, done.sealed) == (
        expected.number,
        expected.commits,
        expected.records,
        expected.bytes,
        expected.runs_merged,
        expected.sealed,
    )
    shutil.rmtree(copy)
    return done


@pytest.mark.long
def test_the_files_are_those_of_a_compaction_by_the_library(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "RANGE_BYTES", 20_000)  # so that little data makes several tasks
    root = tmp_path / "store"
    write(root, 1, ids=20)
    before = documents(root)
    assert both(spark, root, NOW).number == 2
    assert documents(root) == before
    old = tombstones(root)
    assert {tombstone.folded for tombstone in old} == {format_ts(NOW)}
    write(root, 2, ids=20)
    before = documents(root)
    assert both(spark, root, LATER, full=True).runs_merged == 1
    assert documents(root) == before
    assert tombstones(root)
    assert {tombstone.folded for tombstone in tombstones(root)} == {format_ts(LATER)}, "and expired tombstones go"
    assert verify(open_backend(str(root))).ok


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_any_store_is_compacted_alike(
    spark: SparkSession, tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    dice = random.Random(seed)
    monkeypatch.setattr(compacting, "RANGE_BYTES", dice.choice([5_000, 20_000, 1_000_000]))
    root = tmp_path / "store"
    for turn in range(dice.randrange(3, 8)):
        write(
            root, 100 * seed + turn, ids=dice.choice([5, 50, 500]), commits=dice.choice([1, 20, 100]), transactions=0.1
        )
        before = documents(root)
        both(spark, root, dice.choice([NOW, LATER]), full=dice.random() < 0.2)
        assert documents(root) == before
    assert verify(open_backend(str(root))).ok


@pytest.mark.long
def test_transactions_are_compacted_alike(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compacting, "RANGE_BYTES", 20_000)
    root = tmp_path / "store"
    write(root, 3, ids=8, commits=30, transactions=0.4)
    with opslog.open(root, agent="quiet", compact_after=None) as quiet, opslog.open(root, agent="late") as late:
        quiet["older"] = {}
        quiet.modify("newer", lambda document: {"n": 1})
        quiet.modify("undone", lambda document: {"n": 1})
        assert quiet.undo()
        for _ in range(12):
            late.modify("newer", lambda document: {"n": 2})
    with opslog.open(root, agent="mirrored", compact_after=None) as mirrored:
        mirrored.create("claimed", {})
        mirrored["plain"] = {}
        for _ in range(6):
            mirrored["undone"] = {}
            assert mirrored.undo()
    before = documents(root)
    assert both(spark, root, NOW).number == 2
    assert ManifestStore(open_backend(str(root))).newest().settled_by.keys() >= {"quiet", "mirrored"}
    assert documents(root) == before
    backend = open_backend(str(root))
    records = [record for run in ManifestStore(backend).newest().runs for record in BlockRun(backend, run).records()]
    assert {(record.agent == "transactions", bool(record.by), bool(record.tx)) for record in records} == {
        (True, True, True),
        (False, False, False),
    }
    assert any(isinstance(record, Delete) and record.by for record in records)
    assert verify(backend).problems == []


@pytest.mark.long
@missing_logs.BOTH_LOGS
def test_an_undo_does_not_pass_a_commit_that_a_listing_showed_without_the_older_one(
    spark: SparkSession, tmp_path: Path, missed: str
) -> None:
    url = str(tmp_path)
    missing_logs.check_undo_after_missing(url, missed, lambda store: opslog.spark.compact(spark, url))


@pytest.mark.long
def test_parts_are_cut_alike_though_many_tasks_write_them(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compacting, "RANGE_BYTES", 3_000_000)
    root = tmp_path / "store"
    write(root, 7, ids=150, text=100_000, commits=60)
    done = both(spark, root, LATER)
    assert done.bytes > 3 * 4 * 1024 * 1024, "so there are parts within a range, and parts across ranges"


def test_lengths_alone_show_where_parts_end() -> None:
    dice = random.Random(3)
    for largest in (100, 70_000, 3_000_000):
        lengths = [dice.randrange(1, largest) for _ in range(40_000_000 // largest)]
        rows = [Row(f"{number:08}", b"x" * length, None, False) for number, length in enumerate(lengths)]
        ends = PartEnds()
        cuts = [number for number, length in enumerate(lengths) if ends.add(length)]
        records = [file.part.records for file in build_parts("0-0", rows)]
        assert len(records) > 1 or largest == 100
        sums = [sum(records[:place]) - 1 for place in range(1, len(records) + 1)]
        assert cuts == [last for last in sums if last != len(lengths) - 1 or last in cuts]
