"""The ids from the shared log that a manifest lists: a plain set of another document costs neither a request nor a
lookup, and every answer stays exact."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opslog
from opslog.backends import Backend, open_backend
from opslog.errors import CorruptError
from opslog.format import snapshot
from opslog.format.commits import Delete, Record, Set, encode_commit
from opslog.format.hashes import decode_hashes, encode_hashes, hashes_fault, id_hash
from opslog.format.layout import TRANSACTIONS, manifest_path
from opslog.format.manifest import Manifest, Part, decode_manifest, encode_manifest
from opslog.format.snapshot import SHARED_MAX, Row, build_parts
from opslog.replica.state import State
from opslog.snapshot import runs
from opslog.snapshot.manifests import ManifestStore
from opslog.snapshot.runs import BlockRun
from opslog.snapshot.shared_ids import SharedIds
from opslog.store import replica_of
from opslog.verify.verify import verify
from tests.support.bucket import BUCKETS

TS = "2026-11-20T12:00:00.000000Z"
SETTINGS = opslog.Settings(undo_window=1)
_numbers = itertools.count()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and parts of a few documents, none of them loaded."""
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    monkeypatch.setattr(snapshot, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(snapshot, "PART_BYTES", 3000)


def row(id: str, agent: str = "a", *, dead: bool = False) -> Row:
    record: Record = Delete(TS, 1, agent, id) if dead else Set(TS, 1, agent, id, msgspec.Raw(b"{}"))
    return Row.of(record, encode_commit(record))


def parts_of(url: str | Path) -> list[Part]:
    return [part for run in ManifestStore(open_backend(url)).newest().runs for part in run.parts]


def with_lists(url: str | Path, change: Callable[[Part], Any]) -> None:
    """Replace the list of each part in the newest manifest."""
    backend: Backend = open_backend(url)
    manifest = ManifestStore(backend).newest()
    changed = [
        msgspec.structs.replace(run, parts=[msgspec.structs.replace(part, shared=change(part)) for part in run.parts])
        for run in manifest.runs
    ]
    path = manifest_path(manifest.number)
    backend.delete([path])
    backend.create(path, encode_manifest(msgspec.structs.replace(manifest, runs=changed)))


def fill(url: str | Path, *, guarded: bool = True) -> list[str]:
    """A store whose snapshot has 200 documents in one run. Every twentieth of them is guarded. Returns the others."""
    ids = [f"{number:03}" for number in range(200)]
    with opslog.open(url, agent="writer", settings=SETTINGS, compact_after=None) as store:
        if guarded:
            with store.transaction() as transaction:
                for id in ids[::20]:
                    transaction[id] = {"n": 0}
            store.create("last", {})
        store.update({id: {"n": 0} for id in ids if id not in store})
        store["newest"] = {}
        store.compact(full=True)
    return [id for number, id in enumerate(ids) if number % 20]


# -- lists of hashes


@given(st.sets(st.text()))
def test_hashes_come_back(ids: set[str]) -> None:
    hashes = {id_hash(id) for id in ids}
    data = encode_hashes(id_hash(id) for id in ids)
    assert list(decode_hashes(data)) == sorted(hashes)
    assert hashes_fault(data, len(ids)) is None
    assert len(data) == 4 * len(hashes)


@pytest.mark.parametrize(
    ("data", "most", "fault"),
    [
        (b"\0\0\0", 5, "cut short"),
        (b"\0\0\0\2\0\0\0\1", 5, "do not ascend"),
        (b"\0\0\0\1\0\0\0\1", 5, "do not ascend"),
        (b"\0\0\0\1\0\0\0\2", 1, "2 hashes of 1 ids"),
    ],
)
def test_invalid_lists_of_hashes(data: bytes, most: int, fault: str) -> None:
    assert fault in (hashes_fault(data, most) or "")
    part = Part("snapshots/00000000000000000002-ab/part-00000.jsonl", most, most, 100, "a", "b", "00", data)
    run = opslog.format.manifest.Run("00000000000000000002-ab", [part])
    with pytest.raises(CorruptError, match=fault):
        decode_manifest(encode_manifest(Manifest(number=2, created="", runs=[run])), "m", 2)


# -- what a writer of parts lists


def test_a_part_lists_sets_and_tombstones_from_the_shared_log_and_no_others() -> None:
    rows = [row("a"), row("b", TRANSACTIONS), row("c", dead=True), row("d", TRANSACTIONS, dead=True)]
    (file,) = build_parts("run", rows)
    assert file.part.shared == encode_hashes([id_hash("b"), id_hash("d")])
    (plain,) = build_parts("run", [row("a")])
    assert plain.part.shared == b""
    assert b'"shared":""' in msgspec.json.encode(plain.part)
    stamped = row("d", TRANSACTIONS, dead=True).stamped(TS)
    assert stamped.shared
    assert stamped.deleted == TS


def test_a_part_with_too_many_lists_none() -> None:
    rows = [row(f"{number:05}", TRANSACTIONS) for number in range(SHARED_MAX + 1)]
    (most,) = build_parts("run", rows[:-1])
    assert isinstance(most.part.shared, bytes)
    assert len(most.part.shared) == 4 * SHARED_MAX
    (more,) = build_parts("run", rows)
    assert more.part.shared is None
    assert msgspec.json.decode(msgspec.json.encode(more.part), type=Part) == more.part


def test_a_part_without_a_list_may_have_every_id_between_its_first_and_its_last() -> None:
    listed, unlisted = (
        Part(f"{name}", 2, 2, 100, first, last, "00", shared)
        for name, first, last, shared in (("x", "a", "c", encode_hashes([id_hash("b")])), ("y", "e", "g", None))
    )
    ids = SharedIds([opslog.format.manifest.Run("r", [listed, unlisted])])
    assert not ids.is_complete
    assert [id for id in "abcdefgh" if ids.may_have(id)] == ["b", "e", "f", "g"]
    assert SharedIds([opslog.format.manifest.Run("r", [listed])]).is_complete


# -- what a writer saves


def log_of(store: opslog.Store[Any], id: str) -> str:
    record = store.record(id)
    assert record is not None
    return record.agent


def requests(url: str, ids: list[str]) -> Counter[str]:
    """The requests of plain sets of this many documents, in a store that has just been opened."""
    asked = BUCKETS[url.removeprefix("bucket://")].asked
    with opslog.open(url, agent="other", compact_after=None) as store:
        since = len(asked)
        for id in ids:
            store[id] = {"n": 1}
        return Counter(request.method for request in asked[since:])


@pytest.mark.usefixtures("small")
def test_plain_sets_of_other_documents_cost_no_request() -> None:
    url = f"bucket://lists-{next(_numbers)}"
    others = fill(url)
    assert len(parts_of(url)) > 5
    assert requests(url, [*others, "", "new", "zzz"]) == {"put_new": len(others) + 3}
    assert verify(open_backend(url)).problems == []


@pytest.mark.usefixtures("small")
def test_plain_sets_of_other_documents_wait_for_no_thread_in_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"bucket://lists-{next(_numbers)}"
    others = fill(url)
    lookups: list[str] = []
    get = BlockRun.get

    def noted(self: BlockRun, id: str) -> Record | None:
        lookups.append(id)
        return get(self, id)

    monkeypatch.setattr(BlockRun, "get", noted)

    async def main() -> None:
        async with opslog.aio.open(url, agent="other", compact_after=None) as store:
            await asyncio.gather(*(store.set(id, {"n": 1}) for id in others))
            assert lookups == []
            await store.set("020", {"n": 1})
            assert set(lookups) == {"020"}

    asyncio.run(main())


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("unknown", [None, msgspec.UNSET])
def test_unlisted_ids_are_looked_up(unknown: Any) -> None:
    """Parts of opslog 0.1 have no list, nor have those with too many ids."""
    url = f"bucket://lists-{next(_numbers)}"
    others = fill(url)
    with_lists(url, lambda part: unknown)
    assert requests(url, others[:1]) == {"put_new": 1, "get": 2}
    with opslog.open(url, agent="third", compact_after=None) as store:
        for id in ("020", "021"):
            store[id] = {"n": 2}
        assert log_of(store, "020") == TRANSACTIONS
        assert log_of(store, "021") == "third"
    assert verify(open_backend(url)).problems == []


@pytest.mark.usefixtures("small")
def test_a_full_compaction_lists_what_an_older_program_did_not() -> None:
    url = f"bucket://lists-{next(_numbers)}"
    others = fill(url)
    with_lists(url, lambda part: msgspec.UNSET)
    with opslog.open(url, agent="writer", compact_after=None) as store:
        assert store.compact(full=True).number is not None
        assert store.compact(full=True).number is None, "once"
    assert requests(url, others) == {"put_new": len(others)}


@pytest.mark.usefixtures("small")
def test_a_store_without_transactions_is_not_rewritten_for_its_lists(tmp_path: Path) -> None:
    fill(tmp_path, guarded=False)
    with_lists(tmp_path, lambda part: msgspec.UNSET)
    with opslog.open(tmp_path, agent="writer", compact_after=None) as store:
        assert store.compact(full=True).number is None


# -- whatever the lists say, the answer is exact


def test_a_newer_run_that_is_plain_ends_what_an_older_one_lists(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="a", settings=SETTINGS, compact_after=None) as a:
        a.create("x", {"n": 1})
        a["filler"] = {"t": "x" * 500_000}
        a.create("y", {})
        a["z"] = {}
        a.compact()
        with opslog.open(tmp_path, agent="late", compact_after=None) as late:
            late_replica = replica_of(late)
            late.refresh()
            late_replica.clock.observe(10_000_000)
            # As an agent that had not read the transaction, and whose clock is ahead all the same.
            log = late_replica.log
            assert log is not None
            log.finish(log.queue(Set("", 0, "", "x", msgspec.Raw(b'{"n":2}'))))
            late["other"] = {}
            a.refresh()
            a.compact()
        manifest = ManifestStore(open_backend(tmp_path)).newest()
        assert [part.shared for part in manifest.runs[0].parts] == [b""]
        assert len(manifest.runs) == 2
        assert a["x"] == {"n": 2}
        with opslog.open(tmp_path, agent="b", compact_after=None) as b:
            b["x"] = {"n": 3}
            b["y"] = {"n": 3}
            assert log_of(b, "x") == "b"
            assert log_of(b, "y") == TRANSACTIONS
    assert verify(open_backend(tmp_path)).problems == []


def test_equal_hashes_change_no_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path)
    monkeypatch.setattr(runs, "LOADED_BYTES", 0)
    with opslog.open(tmp_path, agent="b", compact_after=None) as store:
        state = replica_of(store).state
        assert not state.guards(["new"])
        assert state.shared_ids is not None
        monkeypatch.setattr(state.shared_ids, "hashed", {"020", "021", "new"})  # as if all had the hash of 020
        assert state.shared_ids.may_have("021")
        assert not state.guards(["021", "new"])
        assert state.guards(["021", "020"])


@pytest.mark.parametrize("gathered", ["before the transaction", "when the plain set stood over it", "on loading"])
def test_what_an_undo_gives_back_is_guarded_again(tmp_path: Path, gathered: str) -> None:
    """A transaction's record may have stood under a plain one when the ids of the shared log were gathered."""
    with (
        opslog.open(tmp_path, agent="a", compact_after=None) as a,
        opslog.open(tmp_path, agent="late", compact_after=None) as late,
        opslog.open(tmp_path, agent="c", compact_after=None) as c,
    ):
        a.create("other", {})
        if gathered == "before the transaction":
            c.refresh()
            c["plain"] = {}
        a.create("x", {"n": 1})
        log = replica_of(late).log
        assert log is not None
        replica_of(late).clock.observe(10_000_000)
        # As one who had not read the transaction, and whose clock is ahead all the same.
        log.finish(log.queue(Set("", 0, "", "x", msgspec.Raw(b'{"n":2}'))))
        c.refresh()
        if gathered == "on loading":
            replica_of(c)._reload()
        c["plain"] = {}
        assert replica_of(c).state.shared_ids is not None
        assert c["x"] == {"n": 2}
        assert late.undo()
        c.refresh()
        assert c["x"] == {"n": 1}
        c["x"] = {"n": 3}
        assert log_of(c, "x") == TRANSACTIONS
        assert log_of(c, "plain") == "c"


@pytest.mark.parametrize("durability", ["fsync", "buffered"])
@pytest.mark.parametrize("undoer", ["another thread of the store", "another agent"])
def test_what_an_undo_gives_back_while_a_plain_set_is_on_its_way_is_guarded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, durability: Any, undoer: str
) -> None:
    """The set has found its document plain, and the undo comes in before the set is queued."""
    with (
        opslog.open(tmp_path, agent="a", compact_after=None) as a,
        opslog.open(tmp_path, agent="late", compact_after=None, durability=durability) as late,
        opslog.open(tmp_path, agent="c", compact_after=None, durability=durability) as c,
    ):
        writer = late if undoer == "another thread of the store" else c
        a.create("x", {"n": 1})
        log = replica_of(late).log
        assert log is not None
        replica_of(late).clock.observe(10_000_000)
        log.finish(log.queue(Set("", 0, "", "x", msgspec.Raw(b'{"n":2}'))))
        log.flush()
        writer.refresh()
        assert writer["x"] == {"n": 2}
        own = replica_of(writer).log
        assert own is not None
        queue = own.queue

        def undo() -> None:
            assert late.undo()
            writer.refresh()

        def queue_after_an_undo(*arguments: Any) -> Any:
            monkeypatch.undo()
            thread = threading.Thread(target=undo)
            thread.start()
            thread.join()
            return queue(*arguments)

        monkeypatch.setattr(own, "queue", queue_after_an_undo)
        writer["x"] = {"n": 3}
        writer.flush()
        assert writer["x"] == {"n": 3}
        assert log_of(writer, "x") == TRANSACTIONS


def test_while_others_transactions_come_in_nobody_takes_a_document_for_plain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the moment at which their count is up and the one at which the state has them. Before that the queue
    finds that the commit is out of date."""
    commit = Set("", 0, "", "x", msgspec.Raw(b"{}"))
    seen: dict[str, list[int | None]] = {"apply": [], "_apply": []}
    with opslog.open(tmp_path, agent="a") as a, opslog.open(tmp_path, agent="b") as b:
        a["x"] = {}
        b.refresh()
        replica = replica_of(b)
        assert replica.unguarded(commit, at_once=True) is not None
        a.modify("x", lambda document: {"n": 1})

        def asking(name: str) -> Callable[..., None]:
            real = getattr(State, name)

            def ask(self: State, *arguments: Any) -> None:
                thread = threading.Thread(target=lambda: seen[name].append(replica.unguarded(commit, at_once=True)))
                thread.start()
                thread.join()
                real(self, *arguments)

            return ask

        for name in seen:
            monkeypatch.setattr(State, name, asking(name))
        b.refresh()
        monkeypatch.undo()
        assert seen["apply"]
        assert replica.guards not in seen["apply"]
        assert set(seen["_apply"]) == {None}
        assert replica.unguarded(commit) is None
        assert replica.unguarded(Set("", 0, "", "y", msgspec.Raw(b"{}")), at_once=True) is not None


# -- verify


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("more", [False, True])
def test_verify_finds_a_list_that_is_wrong(tmp_path: Path, more: bool) -> None:
    fill(tmp_path)

    def wrong(part: Part) -> bytes:
        assert isinstance(part.shared, bytes)
        hashes = list(decode_hashes(part.shared))
        return encode_hashes([*hashes, 7] if more else hashes[1:])

    count = sum(bool(part.shared) for part in parts_of(tmp_path))
    with_lists(tmp_path, wrong)
    report = verify(open_backend(tmp_path))
    assert not report.ok
    newest = ManifestStore(open_backend(tmp_path)).newest()
    assert {problem.path for problem in report.problems} == {manifest_path(newest.number)}
    assert len(report.problems) == (len(parts_of(tmp_path)) if more else count)
    assert "from the shared log" in report.problems[0].message
    assert verify(open_backend(tmp_path), repair=True).problems == report.problems, (
        "nothing that a repair could put right"
    )
