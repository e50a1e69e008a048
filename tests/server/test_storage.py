"""Checks each storage against the contract in `opslog.server.protocol.storage`, and the directory's own behaviour."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import Any

import lmdb
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from opslog.errors import CorruptError, FormatVersionError, LockedError, UsageError, WriteFailedError
from opslog.server.protocol.model import Closer, Fork, Producer, Segment, Stream
from opslog.server.protocol.storage import Changes, Shard, Storage
from opslog.server.storage import lmdb_shard
from opslog.server.storage.directory import DirectoryStorage
from opslog.server.storage.lmdb_shard import LmdbShard
from opslog.server.storage.memory import MemoryShard

Reopen = Callable[..., DirectoryStorage]
FULL = Stream(
    id=7,
    path="events/abc",
    content_type="text/plain; charset=utf-8",
    created=1.25,
    accessed=2.5,
    tail=90,
    closed=True,
    closer=Closer("p", 1, 2),
    seq="\xff1",
    ttl=5,
    expires_at="2030-01-01T00:00:00Z",
    inherited=(Segment(1, 0, 10), Segment(2, 10, 20)),
    fork=Fork("events/a", 20, 3, inherits_expiry=True),
    forks=2,
    deleted=True,
    earliest=4,
)


def stream(path: str, id: int = 1, tail: int = 0) -> Stream:
    return Stream(id=id, path=path, content_type="text/plain", created=1.0, accessed=1.0, tail=tail)


@pytest.fixture
def shard(storage: Storage) -> Shard:
    return storage.shards[0]


def test_metadata_in_memory_is_that_of_the_last_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appends and followers do not decode it again; a limited number of streams is kept."""
    monkeypatch.setattr(lmdb_shard, "_KNOWN_STREAMS", 2)
    shard = LmdbShard(tmp_path, 1 << 24)
    shard.commit(Changes(streams={path: stream(path) for path in "abc"}))
    assert shard.stream("c") is shard.stream("c")
    assert shard.stream("a") is not shard.stream("a")
    for changes in ({"a": stream("a", tail=1)}, {"b": None}, {"c": stream("c", tail=2), "a": stream("a", tail=3)}):
        shard.commit(Changes(streams=dict(changes)))
        found = {path: shard.stream(path) for path in "abc"}
        assert {path: one for path, one in found.items() if one is not None} == {
            one.path: one for one in shard.streams()
        }
    shard.close()


def test_metadata_comes_back_as_it_was(shard: Shard) -> None:
    shard.commit(Changes(streams={FULL.path: FULL}))
    assert shard.stream(FULL.path) == FULL
    assert list(shard.streams()) == [FULL], "as it was written, too"
    assert shard.stream("events") is None
    shard.commit(Changes(streams={FULL.path: None}))
    assert shard.stream(FULL.path) is None


def test_streams_are_listed_in_the_order_of_their_paths(shard: Shard) -> None:
    paths = sorted({"a", "a/b", "a-b", "ä", "b", "😀", *(f"n{number:04}" for number in range(600))})
    shard.commit(Changes(streams={path: stream(path) for path in reversed(paths)}))
    assert [found.path for found in shard.streams()] == paths
    assert [found.path for found in shard.streams("a/b")] == paths[paths.index("a/b") + 1 :]
    listing = shard.streams("n0300")
    assert next(listing).path == "n0301"
    shard.commit(Changes(streams=dict.fromkeys(paths)))
    assert list(shard.streams()) == []
    listing.close()  # type: ignore[attr-defined]


def test_producers_belong_to_their_stream(shard: Shard) -> None:
    long = "p" * 2000
    shard.commit(Changes(producers={(1, "p"): Producer(3, 4), (1, long): Producer(5, 6)}))
    assert shard.producer(1, "p") == Producer(3, 4)
    assert shard.producer(1, long) == Producer(5, 6)
    assert shard.producer(1, long + "p") is None
    assert shard.producer(2, "p") is None


def test_records_are_found_by_range(shard: Shard) -> None:
    shard.commit(Changes(records=[(1, 0, b"abc"), (1, 3, b"d"), (2, 0, b"xyz"), (1, 4, b"efgh")]))
    everything = [(0, b"abc"), (3, b"d"), (4, b"efgh")]
    assert list(shard.records(1, 0, 8, 100)) == everything
    assert list(shard.records(1, 0, 8, 3)) == everything[:1]
    assert list(shard.records(1, 0, 8, 4)) == everything[:2]
    assert list(shard.records(1, 2, 8, 2)) == everything[:2], "bytes before the start do not count"
    assert list(shard.records(1, 5, 8, 100)) == everything[2:]
    assert list(shard.records(1, 0, 4, 100)) == everything[:2]
    assert list(shard.records(1, 8, 9, 100)) == []
    assert list(shard.records(3, 0, 9, 100)) == []


def test_the_free_key_space_is_ordered(shard: Shard) -> None:
    shard.commit(Changes(values={b"s/2": b"two", b"s/1": b"", b"t/1": b"other"}))
    assert list(shard.values(b"s/")) == [(b"s/1", b""), (b"s/2", b"two")]
    assert shard.value(b"s/1") == b""
    shard.commit(Changes(values={b"s/1": None, b"s/9": None}))
    assert list(shard.values(b"s/")) == [(b"s/2", b"two")]
    assert shard.value(b"s/1") is None


def test_stream_ids_are_never_used_again(shard: Shard) -> None:
    assert shard.next_id() == 1
    shard.commit(Changes(streams={"a": stream("a")}, next_id=2))
    shard.commit(Changes(streams={"a": None}, dropped=[1]))
    assert shard.next_id() == 2


def test_dropped_and_trimmed_records_are_removed(shard: Shard) -> None:
    shard.commit(Changes(records=[(1, 0, b"abc"), (1, 3, b"def"), (2, 0, b"xy")], producers={(1, "p"): Producer(0, 0)}))
    assert shard.usage().bytes == 8
    shard.commit(Changes(trimmed={1: 4}))
    while shard.tidy():
        pass
    assert list(shard.records(1, 0, 9, 9)) == [(3, b"def")]
    assert shard.usage().bytes == 5
    shard.commit(Changes(dropped=[1]))
    while shard.tidy():
        pass
    assert list(shard.records(1, 0, 9, 9)) == []
    assert shard.producer(1, "p") is None
    assert list(shard.records(2, 0, 9, 9)) == [(0, b"xy")]
    assert shard.usage().bytes == 2


def test_a_stream_that_is_trimmed_and_dropped_in_one_commit_leaves_nothing(shard: Shard) -> None:
    shard.commit(Changes(records=[(1, 0, b"abc"), (1, 3, b"def")], producers={(1, "p"): Producer(0, 0)}))
    shard.commit(Changes(trimmed={1: 3}, dropped=[1]))
    while shard.tidy():
        pass
    assert list(shard.records(1, 0, 9, 9)) == []
    assert shard.producer(1, "p") is None
    assert shard.usage().bytes == 0


def test_records_that_version_0_2_left_behind_are_removed(tmp_path: Path) -> None:
    """Those of existing streams, and those that forks inherit, stay."""
    fork = replace(stream("fork", 3, tail=3), inherited=(Segment(2, 0, 3),))
    shard = LmdbShard(tmp_path, 1 << 24)
    shard.commit(
        Changes(
            streams={"a": stream("a", 1, tail=3), "fork": fork},
            records=[(1, 0, b"abc"), (2, 0, b"def"), (7, 0, b"ghi"), (7, 3, b"jkl"), (8, 0, b"mno")],
            producers={(1, "p"): Producer(0, 0), (7, "p"): Producer(0, 0)},
        )
    )
    shard.close()
    with lmdb.open(str(tmp_path), max_dbs=8) as opened, opened.begin(write=True) as txn:
        assert txn.delete(b"leaks", db=opened.open_db(b"shard", txn))
    shard = LmdbShard(tmp_path, 1 << 24)
    while shard.tidy():
        pass
    assert [len(shard.records(id, 0, 9, 9)) for id in (1, 2, 7, 8)] == [1, 1, 0, 0]
    assert (shard.producer(1, "p"), shard.producer(7, "p")) == (Producer(0, 0), None)
    assert shard.usage().bytes == 6
    shard.close()


def test_a_shard_opens_although_it_cannot_search_for_what_was_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(self: LmdbShard, txn: Any) -> list[bytes]:
        raise lmdb.MapFullError("full")

    with monkeypatch.context() as patch:
        patch.setattr(LmdbShard, "_leaks", fail)
        shard = LmdbShard(tmp_path, 1 << 24)
    assert caplog.messages == [f"{tmp_path} was not searched for data of deleted streams"]
    shard.commit(Changes(records=[(1, 0, b"abc")]))
    shard.close()
    shard = LmdbShard(tmp_path, 1 << 24)
    assert shard.tidy()
    assert shard.usage().bytes == 0
    shard.close()


def test_many_records_are_removed_in_steps(reopen: Reopen) -> None:
    with_many = reopen()
    (shard,) = with_many.shards
    for start in range(0, 12_000, 1000):
        shard.commit(Changes(records=[(1, position, b"x") for position in range(start, start + 1000)]))
    shard.commit(Changes(dropped=[1], producers={(2, "p"): Producer(0, 0)}))
    assert shard.tidy()
    left = shard.usage().bytes
    assert 0 < left < 12_000
    with_many.close()
    (shard,) = (again := reopen()).shards
    while shard.tidy():
        pass
    assert shard.usage().bytes == 0
    assert shard.producer(2, "p") == Producer(0, 0)
    again.close()


def test_a_durable_shard_says_when_only_the_disk_is_left(shard: Shard) -> None:
    seen: list[bytes | None] = []
    shard.commit(Changes(values={b"k": b"v"}), lambda: seen.append(shard.value(b"k")))
    assert seen == ([None] if shard.durable else [])
    assert shard.value(b"k") == b"v"


def test_readers_see_whole_commits(shard: Shard) -> None:
    shard.commit(Changes(streams={"a": stream("a")}))
    torn: list[int] = []

    def write() -> None:
        for tail in range(1, 300):
            shard.commit(Changes(records=[(1, tail - 1, b"x")], streams={"a": stream("a", tail=tail)}))

    writer = Thread(target=write)
    writer.start()
    while writer.is_alive():
        found = shard.stream("a")
        assert found is not None
        if len(shard.records(1, 0, 1000, 1000)) < found.tail:
            torn.append(found.tail)
    writer.join()
    assert not torn


change = st.tuples(st.sampled_from("abc"), st.binary(min_size=1, max_size=9), st.booleans())


@settings(max_examples=40, deadline=None)
@given(
    groups=st.lists(st.lists(change, min_size=1, max_size=6), max_size=6),
    reads=st.lists(st.integers(0, 40), max_size=6),
)
def test_lmdb_does_what_memory_does(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[tuple[str, bytes, bool]]], reads: list[int]
) -> None:
    durable, model = LmdbShard(tmp_path_factory.mktemp("shard"), 2**26), MemoryShard()
    tails: dict[int, int] = {}
    try:
        for group in groups:
            changes = Changes()
            for path, data, drop in group:
                id = ord(path)
                if drop and tails.get(id) and not any(record[0] == id for record in changes.records):
                    changes.trimmed[id] = tails[id] // 2
                changes.records.append((id, tails.get(id, 0), data))
                tails[id] = tails.get(id, 0) + len(data)
                changes.streams[path] = stream(path, id, tails[id])
                changes.producers[id, path] = Producer(0, tails[id])
                changes.values[path.encode()] = data if not drop else None
            for each in (durable, model):
                each.commit(changes)
                while each.tidy():
                    pass
        assert list(durable.streams()) == list(model.streams())
        assert list(durable.values(b"")) == list(model.values(b""))
        assert durable.usage().bytes == model.usage().bytes
        for id, tail in tails.items():
            assert durable.producer(id, chr(id)) == model.producer(id, chr(id))
            for start in reads:
                expected = list(model.records(id, start, tail, 12))
                assert list(durable.records(id, start, tail, 12)) == expected
    finally:
        durable.close()


class TestDirectory:
    def test_everything_is_there_after_a_restart(self, reopen: Reopen) -> None:
        first = reopen(shards=2)
        first.shards[1].commit(
            Changes(
                streams={FULL.path: FULL},
                producers={(7, "p"): Producer(1, 2)},
                records=[(7, 0, b"abc")],
                values={b"k": b"v"},
                next_id=8,
            )
        )
        first.close()
        second = reopen()
        shard = second.shards[1]
        assert (second.name, len(second.shards)) == (first.name, 2)
        assert shard.stream(FULL.path) == FULL
        assert shard.producer(7, "p") == Producer(1, 2)
        assert list(shard.records(7, 0, 3, 9)) == [(0, b"abc")]
        assert shard.value(b"k") == b"v"
        assert shard.next_id() == 8
        assert shard.usage().bytes == 3
        second.close()
        second.close()

    def test_paths_are_spread_over_the_shards(self, reopen: Reopen) -> None:
        opened = reopen(shards=3)
        homes = [opened.home(f"events/{number}") for number in range(300)]
        assert all(60 < homes.count(number) < 140 for number in range(3))
        opened.close()

    def test_another_number_of_shards_is_refused(self, reopen: Reopen) -> None:
        reopen(shards=2).close()
        with pytest.raises(UsageError, match="has 2 shards, not 3"):
            reopen(shards=3)
        with pytest.raises(UsageError, match="1 to 256 shards"):
            reopen(shards=0)
        reopen(shards=2).close()

    def test_other_layouts_are_refused(self, reopen: Reopen, tmp_path: Path) -> None:
        reopen().close()
        manifest = tmp_path / "data" / "layout.json"
        layout = json.loads(manifest.read_text())
        manifest.write_text(json.dumps(layout | {"version": 2}))
        with pytest.raises(FormatVersionError, match="a newer opslog reads it"):
            reopen()
        manifest.write_text(json.dumps(layout | {"hash": "crc32"}))
        with pytest.raises(UsageError, match="the layout of something else"):
            reopen()
        manifest.write_text("{")
        with pytest.raises(CorruptError, match=r"layout\.json cannot be read"):
            reopen()
        manifest.write_text(json.dumps(layout | {"shards": 2}))
        with pytest.raises(CorruptError, match="shard-001 is missing"):
            reopen()

    def test_a_directory_of_something_else_is_left_alone(self, reopen: Reopen, tmp_path: Path) -> None:
        (tmp_path / "data").mkdir()
        (tmp_path / "data" / "letter.txt").write_text("dear")
        with pytest.raises(UsageError, match=r"is not empty \(letter\.txt\)"):
            reopen()

    def test_a_crash_while_laying_out_is_made_up_for(self, reopen: Reopen, tmp_path: Path) -> None:
        (tmp_path / "data" / "shard-000").mkdir(parents=True)
        (tmp_path / "data" / "layout.json.new").write_text("{")
        opened = reopen(shards=2)
        assert len(opened.shards) == 2
        opened.close()

    def test_one_process_serves_a_directory(self, reopen: Reopen) -> None:
        first = reopen()
        with pytest.raises(LockedError, match="is locked by"):
            reopen(wait_seconds=0.2)
        closing = Thread(target=first.close)
        closing.start()
        second = reopen(wait_seconds=30.0)  # it waits for a process that is about to end
        closing.join()
        second.close()

    def test_a_full_database_refuses_and_keeps_what_it_has(self, tmp_path: Path) -> None:
        shard = LmdbShard(tmp_path, 2**20)
        shard.commit(Changes(records=[(1, 0, b"abc")]))
        with pytest.raises(WriteFailedError, match="greatest size"):
            shard.commit(Changes(records=[(1, 3, bytes(2**21))], streams={"a": stream("a")}))
        assert shard.stream("a") is None
        shard.commit(Changes(records=[(1, 3, b"def")]))
        assert len(shard.records(1, 0, 6, 9)) == 2
        shard.close()

    @pytest.mark.parametrize("error", [MemoryError, KeyboardInterrupt])
    def test_a_commit_that_was_not_prepared_changes_nothing_and_the_next_one_goes_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
    ) -> None:
        shard = LmdbShard(tmp_path, 2**20)
        apply = shard._apply

        def fail(changes: Changes, txn: Any) -> None:
            apply(changes, txn)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(shard, "_apply", fail)
            with pytest.raises(WriteFailedError if error is MemoryError else error):
                shard.commit(Changes(records=[(1, 0, b"abc")]))
        shard.commit(Changes(records=[(1, 0, b"def")]))
        assert list(shard.records(1, 0, 9, 9)) == [(0, b"def")]
        shard.close()

    def test_a_full_disk_refuses(self, small_disk: Path) -> None:
        shard = LmdbShard(small_disk, 2**30)
        shard.commit(Changes(records=[(1, 0, b"abc")]))
        with pytest.raises(WriteFailedError, match="small"):
            shard.commit(Changes(records=[(1, 3, bytes(2**22))]))
        assert list(shard.records(1, 0, 9, 9)) == [(0, b"abc")]
        shard.close()

    def test_damage_is_named(self, reopen: Reopen, tmp_path: Path) -> None:
        reopen().close()
        (tmp_path / "data" / "shard-000" / "data.mdb").write_bytes(b"x" * 8192)
        with pytest.raises(CorruptError, match="shard-000"):
            reopen()


def test_every_field_of_a_stream_is_stored() -> None:
    """`FULL` sets every field to something else than its default. Otherwise the tests above would not notice a field
    that is lost."""
    defaults = Stream(id=0, path="", content_type="", created=0.0, accessed=0.0)
    same = [name for name in Stream.__struct_fields__ if getattr(FULL, name) == getattr(defaults, name)]
    assert not same
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(FULL), type=Stream)
    assert decoded == FULL
    assert replace(FULL, tail=91) != FULL
