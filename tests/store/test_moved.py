"""The store's directory is moved away or replaced, or its lock files are removed, beside open stores: everybody who
opens the path finds what was acknowledged, and both directories stay stores."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.support.moving import Change, place_for, renamed_above, renamed_and_copied, switched

Store = opslog.Store[dict[str, Any]]


def locks_removed(root: Path) -> Path:
    shutil.rmtree(root / "locks")
    return root


CHANGES = [renamed_and_copied, switched, renamed_above, locks_removed]


@pytest.fixture(params=CHANGES, ids=lambda change: change.__name__)
def change(request: pytest.FixtureRequest) -> Change:
    chosen: Change = request.param
    return chosen


@pytest.fixture
def root(tmp_path: Path, change: Change) -> Path:
    return place_for(tmp_path, change)


def stored(root: Path) -> dict[str, Any]:
    with opslog.open(root, read_only=True) as fresh:
        return dict(fresh.items())


def check(root: Path) -> None:
    report = verify(open_backend(root))
    assert report.ok, report.problems


def archive(store: Store) -> None:
    store.archive(lambda document: True, "old")


def batch(store: Store) -> None:
    with store.batch():
        store["new"] = {}
        del store["old"]


WRITES: dict[str, Callable[[Store], object]] = {
    "set": lambda store: store.set("new", {}),
    "delete": lambda store: store.delete("old"),
    "batch": batch,
    "undo": lambda store: store.undo(),
    "archive": archive,
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("has_written", [True, False])
def test_no_write_is_acknowledged_that_nobody_finds(root: Path, change: Change, write: str, has_written: bool) -> None:
    with opslog.open(root, agent="a") as store:
        store["old"] = {}
    store = opslog.open(root, agent="a")
    expected = ["old"]
    if has_written:
        store["one"] = {}
        expected.append("one")
    former = change(root)
    for _ in range(2):
        with pytest.raises(opslog.ReopenError, match="open it again"):
            WRITES[write](store)
    assert sorted(store) == sorted(expected), "memory is what the log is"
    store.close()
    for place in (former, root):
        assert sorted(stored(place)) == sorted(expected)
        check(place)
    with opslog.open(root, agent="a") as store:
        WRITES[write](store)
        assert stored(root) == dict(store.items())
        if write == "archive":
            assert sorted(store.load_archive("old")) == sorted(expected)
    check(root)


@pytest.mark.parametrize("write", WRITES)
def test_a_buffered_write_is_not_flushed_where_nobody_finds_it(root: Path, change: Change, write: str) -> None:
    store = opslog.open(root, agent="a", durability="buffered", buffer_seconds=3600)
    store["old"] = {}
    store.flush()
    former = change(root)
    with suppress(opslog.ReopenError):  # an archive is a file, and is refused at once
        WRITES[write](store)
        with pytest.raises(opslog.OpslogError, match="open it again"):
            store.flush()
    with suppress(opslog.OpslogError):
        store.close()
    for place in (former, root):
        assert sorted(stored(place)) == ["old"]
        check(place)


def test_with_asyncio(root: Path, change: Change) -> None:
    async def story() -> Path:
        async with opslog.aio.open(root, agent="a") as store:
            await asyncio.gather(*(store.set(f"{number}", {}) for number in range(20)))
            former = change(root)
            outcomes = await asyncio.gather(
                *(store.set(f"new-{number}", {}) for number in range(20)), return_exceptions=True
            )
            assert {isinstance(outcome, opslog.ReopenError) for outcome in outcomes} == {True}
            with pytest.raises(opslog.ReopenError):
                async with store.batch() as batch:
                    await batch.set("new", {})
            return former

    former = asyncio.run(story())
    for place in (former, root):
        assert len(stored(place)) == 20
        check(place)


def test_two_writers_of_which_one_came_after_the_change(root: Path, change: Change) -> None:
    """An acknowledged write is found at the path, in whatever order they write."""
    stores = [opslog.open(root, agent="a"), opslog.open(root, agent="b")]
    acknowledged = []
    for number, store in enumerate(stores):
        store[f"before {number}"] = {}
        acknowledged.append(f"before {number}")
    change(root)
    for agent in ("a", "b", "c"):
        with suppress(opslog.AgentBusyError):
            stores.append(opslog.open(root, agent=agent))
    for turn in range(3):
        for number, store in enumerate([*stores, *reversed(stores)]):
            with suppress(opslog.ReopenError):
                store[f"{turn} {number}"] = {}
                acknowledged.append(f"{turn} {number}")
    assert len(acknowledged) > 2, "somebody could write"
    assert sorted(stored(root)) == sorted(acknowledged)
    check(root)
    for store in stores:
        store.close()
    for agent in ("a", "b", "c"):
        with opslog.open(root, agent=agent) as store:
            assert sorted(store) == sorted(acknowledged)
            store[agent] = {}
            acknowledged.append(agent)
    check(root)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_reader_says_that_there_is_something_else_to_be_read(root: Path, change: Change, read_only: bool) -> None:
    with opslog.open(root, agent="a") as store:
        store["one"] = {}
    with opslog.open(root, agent="b", read_only=read_only) as reader:
        change(root)
        with opslog.open(root, agent="c") as store:
            store["two"] = {}
        if change is locks_removed:
            assert [commit.agent for commit in reader.refresh()] == ["c"]
            return
        for _ in range(2):
            with pytest.raises(opslog.ReopenError, match="another directory stands at"):
                reader.refresh()
            assert dict(reader.items()) == {"one": {}}
        with pytest.raises(opslog.ReopenError):
            next(reader.watch())
    assert sorted(stored(root)) == ["one", "two"]


def test_the_archives_of_a_directory_that_was_moved_away_are_not_said_to_be_none(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "store", agent="a") as store:
        store["one"] = {}
        assert store.archives() == []
        store.archive(lambda document: True, "then")
        (tmp_path / "store").rename(tmp_path / "elsewhere")
        with pytest.raises(opslog.MissingStoreError):
            store.archives()
        with pytest.raises(opslog.MissingStoreError):
            store.load_archive("then")
        (tmp_path / "elsewhere").rename(tmp_path / "store")
        assert store.archives() == ["then"]


def test_a_compaction_in_the_background_says_why_it_ended(tmp_path: Path) -> None:
    root = place_for(tmp_path, renamed_and_copied)
    with opslog.open(root, agent="a", settings=opslog.Settings(undo_window=0), compact_after=1_000_000) as store:
        store["one"] = {}
        former = renamed_and_copied(root)
        before = sorted(path.relative_to(root) for path in root.rglob("*"))
        with pytest.raises(opslog.ReopenError, match="another directory stands at"):
            store.compact()
        assert sorted(path.relative_to(root) for path in root.rglob("*")) == before
    check(root)
    check(former)


CHANGING = ("link", "unlink", "mkdir", "rmdir")
"""The calls with which a compaction changes a directory."""


@pytest.mark.parametrize("is_link", [False, True])
def test_a_compaction_is_never_half_in_one_directory_and_half_in_another(tmp_path: Path, is_link: bool) -> None:
    """A copy from before the compaction replaces the directory, before each of the calls that change it."""
    for turn in range(100):
        root, former, copy = (tmp_path / f"{name}-{turn}" for name in ("store", "former", "copy"))
        if is_link:
            former.mkdir()
            root.symlink_to(former)
        expected = fill(root)
        shutil.copytree(root, copy)

        def replace(root: Path = root, former: Path = former, copy: Path = copy) -> None:
            if is_link:
                root.unlink()
                root.symlink_to(copy)
            else:
                root.rename(former)
                copy.rename(root)

        with opslog.open(root, agent="a", compact_after=None) as store:
            is_replaced = compact_and_replace(store, replace, turn)
        if not is_replaced:
            break  # it had fewer calls
        for place in (root, former):
            assert stored(place) == expected, (turn, place)
            check(place)
            with opslog.open(place, agent="b", compact_after=None) as store:
                store.compact(full=True)
                assert dict(store.items()) == expected
    assert 5 < turn < 99


def fill(root: Path) -> dict[str, Any]:
    """A store in which a compaction has something to write, to merge and to collect."""
    settings = opslog.Settings(undo_window=0, grace_seconds=0)
    with opslog.open(root, agent="a", compact_after=None, settings=settings) as store:
        for turn in range(3):
            for number in range(5):
                store[str(number)] = {"turn": turn}
            store.compact()
        store["last"] = {}
        return dict(store.items())


def compact_and_replace(store: Store, replace: Callable[[], None], turn: int) -> bool:
    """Compact, and replace the directory after this many calls. Returns whether there were so many."""
    calls = 0
    with pytest.MonkeyPatch.context() as patch:

        def watch(function: str) -> None:
            real = getattr(os, function)

            def call(*args: Any, **options: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls == turn + 1:
                    replace()
                return real(*args, **options)

            patch.setattr(os, function, call)

        for function in CHANGING:
            watch(function)
        with suppress(opslog.ReopenError):
            store.compact(full=True)
    return calls > turn
