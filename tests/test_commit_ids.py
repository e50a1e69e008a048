"""Which documents a commit changed, and which ones an undo gave back: as `refresh`, `watch`, `ops` and `changes` report
it."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import opslog
from opslog.format.commits import Batch, Commit, Delete, Seal, Set, SetOp, Undo, decode_commits, encode_commit
from opslog.merge.merge import Merge
from opslog.merge.undo import Reachable
from opslog.store import replica_of
from tests.support import bucket

assert bucket.BUCKETS is not None  # which registers bucket://
TS = "2026-11-20T12:00:00.123456Z"
DATA = msgspec.Raw(b"{}")
_numbers = itertools.count()

Store = opslog.Store[dict[str, Any]]


@pytest.fixture(params=["directory", "bucket"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "directory" else f"bucket://ids-{next(_numbers)}"


def open_store(url: str, agent: str, undo_window: int = 32) -> Store:
    settings = opslog.Settings(undo_window=undo_window, grace_seconds=0.0)
    return opslog.open(url, agent=agent, compact_after=None, settings=settings)


def shown(commits: Iterable[opslog.Commit]) -> list[tuple[str, tuple[str, ...]]]:
    return [(commit.op, commit.ids) for commit in commits]


SOME = [("set", ("x",)), ("batch", ("y", "x")), ("undo", ("y", "x")), ("undo", ("x",))]


def write_some(store: Store) -> None:
    store["x"] = {}
    with store.batch():
        store["y"] = {}
        del store["x"]
        store["y"] = {"n": 2}
    assert store.undo()
    assert store.undo()


def test_each_commit_says_which_documents_it_changed(url: str) -> None:
    with open_store(url, "a") as writer, open_store(url, "b") as reader:
        token = reader.changes().token
        write_some(writer)
        assert shown(reader.refresh()) == SOME
        assert shown(reader.ops()) == shown(writer.ops()) == SOME
        assert [(effect.op, effect.ids) for effect in reader.changes(token).commits] == SOME
        write_some(writer)
        assert shown(itertools.islice(reader.watch(0.001), 4)) == SOME
        assert shown(writer.ops(since=6)) == SOME[2:], "also where what they cancel is left out"


def test_with_asyncio(url: str) -> None:
    async def watch() -> list[opslog.Commit]:
        open_store(url, "a").close()
        async with opslog.aio.open(url, agent="b", compact_after=None) as reader:
            found = []
            with open_store(url, "a") as writer:
                write_some(writer)
            async for commit in reader.watch(0.001):
                found.append(commit)
                if len(found) == 4:
                    break
            assert shown(await reader.ops()) == SOME
            return found

    assert shown(asyncio.run(watch())) == SOME


def test_an_undo_in_the_shared_log(url: str) -> None:
    with open_store(url, "a") as writer, open_store(url, "b") as reader:
        writer.create("x", {})
        reader.refresh()
        assert writer.undo()
        assert shown(reader.refresh()) == [("undo", ("x",))]
        assert shown(reader.ops()) == [("set", ("x",)), ("undo", ("x",))]


def test_an_undo_that_arrives_while_the_store_is_reloaded(url: str) -> None:
    """What it cancels was read before that."""
    with open_store(url, "a") as writer, open_store(url, "b") as reader:
        writer["x"] = {}
        reader.refresh()
        writer.undo()
        replica_of(reader).state.is_torn = True
        assert shown(reader.refresh()) == [("undo", ("x",))]


def test_an_undo_whose_target_is_before_the_oldest_cut_in_the_same_segment(tmp_path: Path) -> None:
    with open_store(str(tmp_path), "a", 2) as writer, open_store(str(tmp_path), "b", 2) as other:
        writer["x"] = {}
        other.refresh()
        writer.undo()
        for number in range(3):
            writer["y"] = {"n": number}
            other["z"] = {"n": number}
        for number in range(3):
            writer.compact()
            writer["y"] = {"more": number}
        replica_of(other).state.is_torn = True
        news = shown(other.refresh())
        assert news[0] == ("undo", ("x",))
        assert shown(other.ops())[:2] == [("set", ("x",)), ("undo", ("x",))], "the target is still there"


def test_ids_of_commits_no_longer_kept_are_unknown() -> None:
    with open_store(f"bucket://ids-{next(_numbers)}", "a", undo_window=2) as writer:
        writer["x"] = {}
        assert writer.undo()
        writer["y"] = {}
        assert shown(writer.ops()) == [("set", ("x",)), ("undo", ("x",)), ("set", ("y",))]
        for number in range(2):
            writer.compact()
            writer[f"z{number}"] = {}
        assert shown(writer.ops())[:2] == [("undo", ()), ("set", ("y",))]


def test_ids_are_no_part_of_a_line() -> None:
    undo = Undo(TS, 2, "a", 1)
    assert undo.ids == ()
    undo.note_ids(("x",))
    line = encode_commit(undo)
    assert b"ids" not in line
    assert undo == Undo(TS, 2, "a", 1)
    (forged,) = decode_commits(line.replace(b"}", b',"ids":["z"],"_ids":["z"]}'), "", 0)
    assert forged.ids == ()
    assert Seal(TS, 1, "a").ids == ()


@pytest.mark.parametrize("seed", range(30))
def test_merging_and_reading_give_the_same_ids(seed: int) -> None:
    choices = random.Random(seed)
    window = choices.randrange(5)
    merge, reachable = Merge(window), Reachable(window)
    found = 0
    for clock in range(1, 200):
        commit: Commit
        kind = choices.random()
        if kind < 0.3:
            commit = Undo(TS, clock, "a", max(1, clock - choices.randrange(1, 7)))
        elif kind < 0.35:
            commit = Seal(TS, clock, "a")
        elif kind < 0.5:
            commit = Batch(TS, clock, "a", [SetOp(choices.choice("xyz"), DATA) for _ in range(3)])
        elif kind < 0.6:
            commit = Delete(TS, clock, "a", choices.choice("xyz"))
        else:
            commit = Set(TS, clock, "a", choices.choice("xyz"), DATA)
        reachable.note(commit)
        only_read = commit.ids
        touched = tuple(record.id for record in merge.apply(commit))
        assert only_read == commit.ids == touched
        found += isinstance(commit, Undo) and bool(touched)
    assert found or window == 0
