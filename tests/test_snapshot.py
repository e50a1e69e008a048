"""Runs: blocks, indexes, parts, size tiers, and reading runs whole or block by block."""

from __future__ import annotations

import bisect
import gc
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opslog.backends import Backend, open_backend
from opslog.backends.memory import MemoryBackend
from opslog.errors import CorruptError, MissingFileError
from opslog.format import snapshot
from opslog.format.checksum import encode_checked
from opslog.format.commits import Delete, Record, Set, encode_commit
from opslog.format.layout import index_path, part_path
from opslog.format.manifest import Run
from opslog.format.snapshot import (
    BLOCK_BYTES,
    Ages,
    Block,
    Index,
    Row,
    build_archive,
    build_parts,
    decode_block,
    decode_index,
    runs_to_merge,
    tier,
)
from opslog.snapshot.runs import BlockRun, LoadedRun, load_runs, merge_rows

TS = "2026-11-20T12:00:00.123456Z"
_numbers = itertools.count()


def row(id: str, clock: int = 1, *, size: int = 0, dead: bool = False, folded: str | None = None) -> Row:
    record: Record = Set(TS, clock, "a", id, msgspec.Raw(b'{"t":"%b"}' % (b"x" * size)))
    if dead:
        record = Delete(TS, clock, "a", id, folded=folded)
    return Row.of(record, encode_commit(record))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and parts so small that a test has many."""
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 400)
    monkeypatch.setattr(snapshot, "PART_BYTES", 2000)


@pytest.fixture
def backend() -> Iterator[Backend]:
    backend = open_backend(f"memory://snapshot-{next(_numbers)}")
    yield backend
    backend.close()


def store_run(backend: Backend, rows: Iterable[Row], name: str = "00000000000000000002-ab") -> Run:
    run = Run(name, [])
    for file in build_parts(name, rows):
        backend.create(file.part.path, file.data)
        backend.create(index_path(file.part.path), file.index)
        run.parts.append(file.part)
    return run


# -- the form


@pytest.mark.usefixtures("small")
def test_parts_are_cut_into_blocks_of_whole_lines() -> None:
    rows = [row(f"{number:03}", size=number % 90, dead=number % 10 == 0) for number in range(100)]
    files = list(build_parts("run", iter(rows)))
    assert b"".join(file.data for file in files) == b"".join(one.line for one in rows)
    assert [file.part.path for file in files] == [part_path("run", number) for number in range(len(files))]
    assert len(files) > 4
    for file in files:
        part, index = file.part, decode_index(file.index, file.part.path)
        assert (index.bytes, index.records, index.sha256) == (part.bytes, part.records, part.sha256)
        assert part.bytes == len(file.data)
        found: list[Row] = []
        for block in index.blocks:
            data = file.data[block.offset : block.offset + block.length]
            assert data.endswith(b"\n")
            block_rows = decode_block(data, block, part.path)
            assert block_rows[0].id == block.first
            found += block_rows
        assert [len(file.data)] == [sum(block.length for block in index.blocks)]
        assert (found[0].id, found[-1].id, len(found)) == (part.first, part.last, part.records)
        assert part.live == sum(one.deleted is None for one in found)
    assert sum(file.part.records for file in files) == 100
    assert list(build_parts("run", [])) == []


def test_sizes_are_those_that_the_format_names() -> None:
    rows = (row(f"{number:06}", size=1000) for number in range(40_000))
    first, *_, last = build_parts("run", rows)
    blocks = decode_index(first.index, first.part.path).blocks
    assert snapshot.PART_BYTES <= len(first.data) < snapshot.PART_BYTES + BLOCK_BYTES + 2000
    assert {block.length // 1024 for block in blocks} == {64}
    assert len(last.data) < len(first.data)


def test_one_line_larger_than_a_part_is_a_part() -> None:
    (file,) = build_parts("run", [row("x", size=20_000_000)])
    (block,) = decode_index(file.index, "p").blocks
    assert block.length == len(file.data) > 20_000_000


@pytest.mark.usefixtures("small")
def test_every_flipped_byte_of_a_block_or_index_is_found() -> None:
    file = build_archive("archive/p/x.jsonl", [row("a"), row("b", dead=True)])
    (block,) = decode_index(file.index, file.part.path).blocks
    for place in range(len(file.data)):
        damaged = file.data[:place] + bytes([file.data[place] ^ 0x10]) + file.data[place + 1 :]
        with pytest.raises(CorruptError, match="do not fit their checksum") as caught:
            decode_block(damaged, block, file.part.path)
        assert (caught.value.path, caught.value.offset) == ("archive/p/x.jsonl", 0)
        with pytest.raises(CorruptError):
            decode_block(file.data[:place], block, file.part.path)
    for place in range(len(file.index)):
        with pytest.raises(CorruptError) as caught:
            decode_index(file.index[:place] + bytes([file.index[place] ^ 1]) + file.index[place + 1 :], file.part.path)
        assert caught.value.path == "archive/p/x.index"


NOW, THEN, BEFORE = "2027-02-01T00:00:00.000000Z", "2027-01-25T00:00:00.000000Z", "2027-01-24T23:59:59.999999Z"


def test_tombstones_go_when_they_were_compacted_long_ago() -> None:
    """They were written at `TS`, longer ago than all of these."""
    set_, new = row("a"), row("b", dead=True)
    young, old, needed = (row(id, dead=True, folded=folded) for id, folded in (("c", NOW), ("d", BEFORE), ("e", THEN)))
    kept = list(Ages(NOW, THEN).of([set_, new, young, old, needed], {"e"}))
    assert kept == [set_, row("b", dead=True, folded=NOW), young, needed]
    assert [one.line for one in kept if one.id != "b"] == [set_.line, young.line, needed.line]
    assert list(Ages(NOW, "").of([old, new], ())) == [old, row("b", dead=True, folded=NOW)]
    assert list(Ages(NOW, NOW).of([set_, young, old, new], ())) == [set_], "a TTL of 0"


def test_the_row_of_a_record_from_a_log_does_not_say_when_it_was_compacted() -> None:
    record = Delete(TS, 1, "a", "x", "2026-Q4", folded=BEFORE)
    assert Row.new(record) == Row("x", encode_commit(Delete(TS, 1, "a", "x", "2026-Q4")), "", False)


# -- size tiers


def test_tiers_grow_by_four() -> None:
    assert [tier(size) for size in (0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, 4 * BLOCK_BYTES, 4 * BLOCK_BYTES + 1)] == [
        0,
        0,
        0,
        1,
        1,
        2,
    ]
    assert tier(BLOCK_BYTES * 4**10) == 10


@pytest.mark.parametrize("size", [100, BLOCK_BYTES, 10 * BLOCK_BYTES])
def test_each_record_is_rewritten_about_once_per_tier(size: int) -> None:
    """Ten thousand compactions of equal tails: the total written grows with the logarithm of the store, and so does the
    number of runs."""
    compactions = 10_000
    runs: list[int] = []
    written = most = 0
    for _ in range(compactions):
        merging = runs_to_merge([size, *runs])
        merged = size + sum(runs[: merging - 1])
        runs = [merged, *runs[merging - 1 :]]
        written += merged
        most = max(most, len(runs))
    assert sum(runs) == compactions * size
    tiers = tier(compactions * size) + 1
    # A compaction reads and writes whole blocks. So up to one block more is no extra cost.
    assert written <= compactions * ((tiers + 1) * size + BLOCK_BYTES)
    assert most <= 3 * tiers
    assert math.log(compactions, 4) < tiers + 4


@given(st.lists(st.integers(1, 10**10), min_size=1, max_size=30))
def test_merging_never_takes_more_than_there_is(sizes: list[int]) -> None:
    merging = runs_to_merge(sizes)
    assert 1 <= merging <= len(sizes)
    assert merging == 1 or merging >= 4


# -- reading


records = st.dictionaries(st.text("abcé😀", max_size=4), st.booleans(), max_size=40)


@given(records, st.lists(st.text("abcé😀", max_size=4), max_size=10))
def test_whole_and_by_blocks_give_the_same(kept: dict[str, bool], asked: list[str]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot, "BLOCK_BYTES", 200)
        patch.setattr(snapshot, "PART_BYTES", 700)
        backend = open_backend("memory://")
        rows = [row(id, dead=dead) for id, dead in sorted(kept.items())]
        run = store_run(backend, rows)
        by_block, loaded = BlockRun(backend, run), load_runs(backend, [run])[run.name]
        assert list(by_block.rows()) == rows
        assert list(by_block.records()) == list(loaded.records()) == [one.record for one in rows]
        assert isinstance(loaded, LoadedRun)
        assert loaded.dead == {id for id, dead in kept.items() if dead}
        for id in [*asked, *kept]:
            expected = next((one.record for one in rows if one.id == id), None)
            assert by_block.get(id) == loaded.get(id) == expected
            assert by_block.is_live(id) is loaded.is_live(id) is (None if expected is None else not kept[id])
        backend.close()


@pytest.mark.usefixtures("small")
def test_ids_asked_for_in_order_read_each_block_once(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [row(f"{number:03}") for number in range(100)]
    run = store_run(backend, rows)
    reads: Counter[tuple[str, int]] = Counter()
    read = MemoryBackend.read

    def count(self: MemoryBackend, path: str, start: int = 0, stop: int | None = None) -> bytes:
        reads[path, start] += 1
        return read(self, path, start, stop)

    monkeypatch.setattr(MemoryBackend, "read", count)
    monkeypatch.setattr(MemoryBackend, "map", lambda self, path: None)
    stored = BlockRun(backend, run)
    assert [stored.get(f"{number:03}") for number in range(100)] == [one.record for one in rows]
    assert set(reads.values()) == {1}
    assert stored.get("zz") is None
    assert stored.get("") is None
    assert set(reads.values()) == {1}, "outside of all parts: nothing to read"


@pytest.mark.usefixtures("small")
def test_damage_and_loss_are_named(backend: Backend) -> None:
    run = store_run(backend, [row(f"{number:03}") for number in range(60)])
    part = run.parts[1]
    data = backend.read(part.path)
    backend.delete([part.path])
    with pytest.raises(MissingFileError):
        load_runs(backend, [run])
    backend.create(part.path, data[:500] + b"#" + data[501:])
    with pytest.raises(CorruptError) as caught:
        load_runs(backend, [run])
    assert caught.value.path == part.path
    blocks = decode_index(backend.read(index_path(part.path)), part.path).blocks
    assert caught.value.offset == blocks[bisect.bisect_right([block.offset for block in blocks], 500) - 1].offset
    other = backend.read(index_path(run.parts[0].path))
    backend.delete([index_path(part.path)])
    backend.create(index_path(part.path), other)
    with pytest.raises(CorruptError, match="is the index of another file"):
        BlockRun(backend, run).get(part.first)


@given(st.lists(records, max_size=5))
def test_the_newest_row_of_each_id_wins_a_merge(runs: list[dict[str, Any]]) -> None:
    sources = [[row(id, clock=age + 1, dead=dead) for id, dead in sorted(run.items())] for age, run in enumerate(runs)]
    merged = list(merge_rows(iter(sources)))
    assert [one.id for one in merged] == sorted(set().union(*runs))
    for one in merged:
        assert one.record.clock == 1 + next(age for age, run in enumerate(runs) if one.id in run)


def test_rows_are_left_alone_by_the_garbage_collector() -> None:
    """It would traverse all rows that a compaction holds, everything that a tail brings, while no thread runs."""
    rows = tuple(row(str(number)) for number in range(10))
    gc.collect()
    assert not any(map(gc.is_tracked, (rows, *rows)))


BLOCKS = [Block("a", 0, 10, "00000000"), Block("b", 10, 10, "00000000")]


@pytest.mark.parametrize(
    ("blocks", "reason"),
    [
        ([BLOCKS[0], Block("b", 11, 9, "")], "a gap or an overlap at byte 10"),
        ([BLOCKS[0], Block("b", 9, 11, "")], "a gap or an overlap at byte 10"),
        ([Block("a", -10, 20, ""), BLOCKS[1]], "a gap or an overlap at byte 0"),
        ([BLOCKS[0], Block("b", 10, -10, "")], "a gap or an overlap at byte 10"),
        ([BLOCKS[0], Block("b", 10, 2**64, "")], "cover 18446744073709551626 bytes of 20"),
        ([BLOCKS[0]], "cover 10 bytes of 20"),
        ([BLOCKS[0], Block("a", 10, 10, "")], "do not ascend"),
    ],
    ids=["gap", "overlap", "negative offset", "negative length", "huge", "short", "order"],
)
def test_an_index_with_a_right_checksum_is_not_believed_everything(blocks: list[Block], reason: str) -> None:
    path = part_path("00000000000000000002-ab", 0)
    with pytest.raises(CorruptError, match=reason) as caught:
        decode_index(encode_checked(Index(20, 2, "", blocks)), path)
    assert (caught.value.path, caught.value.offset) == (index_path(path), 0)
