"""A compaction with the kernel writes the same bytes as one in Python."""

from __future__ import annotations

import random
import re
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import opslog
from opslog.backends import Backend
from opslog.chunks import batched
from opslog.compaction import compact
from opslog.errors import CorruptError
from opslog.format import scanned, snapshot
from opslog.format.checksum import crc32, encode_checked, sha256
from opslog.format.commits import Delete, Record, Set, decode_records, encode_commit
from opslog.format.layout import TRANSACTIONS, index_path, manifest_path
from opslog.format.manifest import Run, encode_manifest
from opslog.format.snapshot import Row
from opslog.log import reader
from opslog.log.survey import survey
from opslog.merge.lines import Lines
from opslog.merge.stamps import outranks
from opslog.snapshot import merging
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import merge_rows
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.fuzz.mutations import mutate

_kernel = pytest.importorskip("opslog.kernel._kernel", reason="the kernel was not built")

TS = "2026-11-24T12:00:00.000000Z"


def fill(root: Path, seed: int, turn: int = 0) -> None:
    """Sets of the usual form and unusual ones: deletes, batches, undos, other versions, and escaped ids.

    :param turn: how often that was done before.
    """
    chance = random.Random(seed)
    for number, agent in enumerate(("a", "b", "c")):
        settings = opslog.Settings(undo_window=chance.choice([0, 1, 5])) if turn == number == 0 else None
        version = 1 + number + 3 * turn
        with opslog.open(root, agent=agent, settings=settings, version=version, durability="buffered") as store:
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
                store.create(f"claim-{agent}-{turn}", {})


def files(root: Path) -> dict[str, bytes]:
    """The runs, without the random part of their names."""
    return {f"{path.parent.name[:20]}/{path.name}": path.read_bytes() for path in sorted(root.glob("snapshots/*/*"))}


def use(monkeypatch: pytest.MonkeyPatch, used: bool) -> None:
    """Compact with the kernel or without it, whatever the environment says."""
    monkeypatch.setattr(scanned, "scan", _kernel.scan if used else None)
    monkeypatch.setattr(compact, "Table", _kernel.Table if used else None)
    monkeypatch.setattr("opslog.merge.lines.Table", _kernel.Table)
    monkeypatch.setattr("opslog.merge.lines.Winners", _kernel.Winners)
    monkeypatch.setattr("opslog.snapshot.merging.rows", _kernel.rows)
    monkeypatch.setattr("opslog.snapshot.merging.Merger", _kernel.Merger)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(6, 12))])
def test_runs_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """The first compaction, and later ones over its result, in which runs are merged or not."""
    chance = random.Random(seed)
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 700)
    monkeypatch.setattr(snapshot, "PART_BYTES", 3000)
    monkeypatch.setattr("opslog.compaction.compact.format_ts", lambda _: TS)
    merged = most = 0
    for turn in range(5):
        root, other = tmp_path / str(turn), tmp_path / f"{turn}-other"
        fill(root, seed * 10 + turn, turn)
        shutil.copytree(root, other)
        monkeypatch.setattr("opslog.snapshot.runs._PASS", chance.choice([0, 8, 1000]))
        full = chance.random() < 0.2
        found: list[tuple[object, ...]] = []
        for path in (root, other):
            use(monkeypatch, path is other)
            with opslog.open(path, agent="reader", version=99) as store:
                before = list(store.items())
                done = store.compact(full=full)
                manifest = replica_of(store).state.manifest
                parts = [
                    (part.records, part.live, part.bytes, part.first, part.last, part.shared, part.sha256)
                    for run in manifest.runs
                    for part in run.parts
                ]
                assert list(store.items()) == before
                assert len(store) == len(before)
                assert verify(replica_of(store).backend).ok
                figures = done.commits, done.records, done.bytes, done.runs_merged, manifest.documents
                found.append((files(path), before, figures, parts))
                merged, most = merged + done.runs_merged, max(most, len(files(path)))
        assert found[0] == found[1]
        shutil.copytree(other, tmp_path / str(turn + 1))
    assert merged > 0
    assert most > 4


def test_lines_are_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_CHUNK_BYTES", 1000)
    use(monkeypatch, True)
    for turn in range(2):
        fill(tmp_path, turn, turn)
        with opslog.open(tmp_path, agent="reader", version=99) as store:
            backend = replica_of(store).backend
            tail = survey(ManifestStore(backend), partial(compact.Tail.read, backend))
            assert tail.merge.lines is not None
            rows = compact._Winners(backend, tail, None)
            assert sum(len(some) for some in rows._rows) < rows.count / 2
            store.compact()


IDS = st.text('ab\u00fc\U0001f680"\n', min_size=0, max_size=3)


@st.composite
def records(draw: st.DrawFn) -> Record:
    id, clock = draw(IDS), draw(st.integers(1, 6))
    agent = draw(st.sampled_from(["a", "b", "ab", TRANSACTIONS]))
    record: Record = Set(TS, clock, agent, id, msgspec.Raw(b'{"a":1}'), draw(st.sampled_from([1, 7, 9999])))
    if draw(st.integers(0, 3)) == 0:
        archived, folded = draw(st.sampled_from([None, "2026-Q4"])), draw(st.sampled_from([None, TS]))
        record = Delete(TS, clock, agent, id, archived, folded)
    if agent == TRANSACTIONS:
        record.by, record.tx = "a", "t"
    return record


@st.composite
def runs(draw: st.DrawFn) -> list[Record]:
    """Records in order of id. A run of another program may have more than one record of an id."""
    return sorted(draw(st.lists(records())), key=lambda record: record.id)


def in_chunks(run: list[Record], draw: Callable[[st.SearchStrategy[int]], int]) -> Iterator[Any]:
    """As rows of the kernel, some at a time."""
    while run:
        count = draw(st.integers(1, 3))
        some, run = run[:count], run[count:]
        yield merging.rows_of(b"".join(map(encode_commit, some)), "x", 0)


def winners_of(sets: list[Set]) -> Any:
    """The winners among the rows that lines can hold, as Python objects."""
    table = Lines()
    held = {item.id: item for item in sets if item.agent != TRANSACTIONS}
    settled: dict[str, Record] = dict(held)
    table.absorb(settled)
    return table, {id: held[id] for id in sorted(held.keys() - settled.keys())}


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), stored=st.lists(runs(), max_size=4), mine=runs())
def test_any_merge(data: st.DataObject, stored: list[list[Record]], mine: list[Record]) -> None:
    """Winners, sizes, and the merge of several runs are the same as in Python."""
    mine = list({record.id: record for record in mine}.values())
    with pytest.MonkeyPatch.context() as patch:
        use(patch, True)
        lines, sets = winners_of([record for record in mine if isinstance(record, Set)])
        winners = lines.winners()
        for run in stored:
            winners.begin()
            for chunk in in_chunks(run, data.draw):
                winners.meet(chunk)
        found = {id: next((r for run in stored for r in run if r.id == id), None) for id in sets}
        dropped = set(data.draw(st.lists(IDS)))
        for id in dropped:
            winners.drop(id)
        better = [
            item
            for id, item in sets.items()
            if id not in dropped and ((other := found[id]) is None or outranks(item, other))
        ]
        new = sum(not isinstance(found[item.id], Set) for item in better)
        assert winners.figures() == (len(better), sum(len(encode_commit(item)) for item in better), new)
        above = [Row.new(record) for record in mine if record.id not in sets]
        rows = [[*map(Row.new, better)], *([Row.of(item, encode_commit(item)) for item in run] for run in stored)]
        expected = list(merge_rows([above, *rows]))
        merged = merging.Merged(
            [
                merging.rows_from(batched(above, 2)),
                winners,
                *(in_chunks(run, data.draw) for run in stored),
            ]
        )
        room = data.draw(st.integers(0, 500))
        got: list[bytes] = []
        for row in merged:
            if isinstance(row, Row):
                assert row.deleted is not None or row.shared
                got.append(row.line)
                continue
            while (some := row.take(room)) is not None:
                taken = some.text.splitlines(keepends=True)
                ids = [row.id for row in expected[len(got) : len(got) + some.records]]
                assert (len(taken), ids[0], ids[-1]) == (some.records, some.first, some.last)
                assert len(some.text) - len(taken[-1]) < max(room, 1)
                got += taken
        assert got == [row.line for row in expected]


@pytest.mark.parametrize("seed", range(10))
def test_damaged_rows(seed: int) -> None:
    """What the kernel can read of a snapshot, Python can read, too, with the same result."""
    chance = random.Random(seed)
    lines = b"".join(
        encode_commit(item)
        for item in (
            Set(TS, 5, "a", "a", msgspec.Raw(b'{"a":[1.5,null,"\\u00fc"]}'), 3),
            Set(TS, 6, "agent", "b", msgspec.Raw(b"{}")),
            Set(TS, 7, TRANSACTIONS, "c", msgspec.Raw(b"{}"), by="a", tx="t"),
            Delete(TS, 8, "a", "d", "2026-Q4", TS),
            Delete(TS, 9, TRANSACTIONS, "e", None, TS, by="a", tx="t"),
        )
    )
    taken = 0
    for _ in range(3000):
        text = mutate(lines, chance, [lines])
        if not text.endswith(b"\n"):
            continue
        found = _kernel.rows(text, None)
        if found is None:
            continue
        taken += 1
        expected = decode_records(text, "x", 0)
        places = text.splitlines(keepends=True)
        assert len(places) == len(expected)
        merger = _kernel.Merger((None,))
        merger.give(0, found)
        for number, (item, place) in enumerate(zip(expected, places, strict=True)):
            check_compared(item, place)
            if number and item.id == expected[number - 1].id:
                continue  # only the first one of an id counts
            if isinstance(item, Set) and item.agent != TRANSACTIONS:
                assert merger.take(1) == (place, 1, item.id, item.id)
            else:
                assert merger.take(1) is None
                assert merger.row() == place
    assert taken > 100


def first_twice(data: bytes) -> bytes:
    return data[: data.index(b"\n") + 1] + data


def by_a_long_name(data: bytes) -> bytes:
    return data.replace(b'"agent":"a"', b'"agent":"%b"' % (b"a" * 2**16), 1)


def without_its_end(data: bytes) -> bytes:
    return data[:-1]


@pytest.mark.parametrize("cut", [False, True], ids=["", "its blocks end within lines"])
@pytest.mark.parametrize("change", [bytes, first_twice, by_a_long_name, without_its_end])
def test_parts_of_another_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[bytes], bytes], cut: bool
) -> None:
    """Parts with right checksums and unusual content are read in the same way as in Python."""
    monkeypatch.setattr("opslog.compaction.compact.format_ts", lambda _: TS)
    root, other = tmp_path / "one", tmp_path / "other"
    with opslog.open(root, agent="a", settings=opslog.Settings(undo_window=0), compact_after=None) as store:
        store.update({f"id-{number:02}": {"n": number} for number in range(30)})
        store.compact()
        rewrite_the_part(root, replica_of(store).backend, change, cut)
        store.update({f"id-{number:02}": {"n": -number} for number in range(20, 50)})
    shutil.copytree(root, other)
    found: list[object] = []
    for path in (root, other):
        use(monkeypatch, path is other)
        with opslog.open(path, agent="b", compact_after=None) as store:
            try:
                store.compact(full=True)
            except CorruptError as error:
                found.append(re.sub("-[0-9a-f]+/", "/", str(error)))
            else:
                found.append((files(path), len(store), list(store.items())))
    assert found[0] == found[1]
    assert isinstance(found[0], str) is cut


def rewrite_the_part(root: Path, backend: Backend, change: Callable[[bytes], bytes], cut: bool) -> None:
    manifest = ManifestStore(backend).newest()
    (run,) = manifest.runs
    (part,) = run.parts
    data = change((root / part.path).read_bytes())
    middle = len(data) // 2 if cut else len(data)
    blocks = [
        snapshot.Block(first, start, stop - start, crc32(data[start:stop]))
        for first, start, stop in (("id-00", 0, middle), ("id-20", middle, len(data)))
        if start < stop
    ]
    count = len(data.splitlines())
    part = msgspec.structs.replace(part, bytes=len(data), records=count, live=count, sha256=sha256(data))
    manifest = msgspec.structs.replace(manifest, runs=[Run(run.name, [part])])
    (root / part.path).write_bytes(data)
    index = snapshot.Index(part.bytes, part.records, part.sha256, blocks)
    (root / index_path(part.path)).write_bytes(encode_checked(index))
    (root / manifest_path(manifest.number)).write_bytes(encode_manifest(manifest))


def check_compared(item: Record, place: bytes) -> None:
    """A set of the same id wins by the same rule."""
    for clock, agent in (
        (item.clock, item.agent),
        (item.clock, item.agent + "a"),
        (item.clock - 1, "~"),
        (2**63 - 1, "~"),
    ):
        if clock < 1 or not agent.isalnum() or not item.id.isalnum():
            continue
        mine = Set(TS, clock, agent, item.id, msgspec.Raw(b"{}"))
        table = _kernel.Table()
        table.add(_kernel.scan(encode_commit(mine), agent)[0])
        winners = _kernel.Winners(table)
        winners.meet(_kernel.rows(place, None))
        assert winners.figures()[0] == outranks(mine, item)
        assert not outranks(mine, item) or winners.figures()[2] == isinstance(item, Delete)


def test_misuse() -> None:
    table = _kernel.Table()
    table.add(_kernel.scan(line(1, "x"), "a")[0])
    winners, rows = _kernel.Winners(table), _kernel.rows(line(1, "x"), None)
    assert (winners.next(), winners.skip(), winners.next(), winners.skip()) == ("x", None, None, None)
    wrong: Callable[[], object]
    for wrong in (lambda: _kernel.rows(b"x", None), lambda: _kernel.rows(line(1, "x"), ())):
        with pytest.raises(ValueError, match="line"):
            wrong()
    for wrong in (
        lambda: _kernel.rows("x", None),
        lambda: _kernel.rows(line(1, "x"), [("x", 1, "a", True)]),
        lambda: _kernel.rows(line(1, "x"), ("x",)),
        lambda: _kernel.rows(line(1, "x"), (("x", "y", "a", True),)),
        lambda: _kernel.Winners(rows),
        lambda: _kernel.Winners(table, table=table),
        lambda: winners.meet(table),
        lambda: winners.drop(1),
        lambda: _kernel.Merger([None]),
        lambda: _kernel.Merger((rows,)),
        lambda: _kernel.Merger((), sources=()),
        lambda: _kernel.Merger((None,)).give(0, winners),
        type(rows),
    ):
        with pytest.raises(TypeError):
            wrong()
    merger = _kernel.Merger((winners, None))
    assert merger.take(1) == 1
    merger.give(1, rows)
    for wrong in (
        lambda: merger.give(0, rows),
        lambda: merger.give(1, rows),
        lambda: merger.give(2, rows),
        lambda: merger.give(-1, rows),
        merger.row,
    ):
        with pytest.raises(ValueError, match="no "):
            wrong()
    assert merger.take(1) == (line(1, "x"), 1, "x", "x")
    assert merger.take(1) == 1
    merger.give(1, None)
    assert (merger.take(1), merger.row(), _kernel.Merger(()).take(1), _kernel.Merger(()).row()) == (None,) * 4


def test_places_in_a_table() -> None:
    ids = [f"{number * 7 % 50:02}" for number in range(50)]
    lines = [line(clock, id) for clock, id in enumerate(ids, 1)]
    sets, _ = _kernel.scan(b"".join(lines), "a")
    table = _kernel.Table()
    assert (table.block(0, 0, 5), table.rank("x")) == ((b"", 0), 0)
    table = _kernel.Table()
    table.add(sets)
    ordered = sorted(ids)
    for id in ("", "0", "00", "000", "17", "17x", "\U00010000", "99"):
        assert table.rank(id) == bisect_left(ordered, id)
    for start in range(0, 50, 7):
        for room in (0, 1, 100, 1000, 10**9):
            text, after = table.block(start, 50, room)
            assert text == table.lines(start, after)
            assert after == 50 or len(text) >= room
            assert after == start or len(table.lines(start, after - 1)) < room
    for bad in ((-1, 1, 1), (2, 1, 1), (0, 51, 1), (0, 50, -1)):
        with pytest.raises(ValueError, match="range"):
            table.block(*bad)
    with pytest.raises(UnicodeEncodeError):
        table.rank("\ud800")


def line(clock: int, id: str) -> bytes:
    return encode_commit(Set(TS, clock, "a", id, msgspec.Raw(b"{}")))
