"""The merge compared with its plain reference: any interleaving, undos, batches and seals."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opslog
from opslog.format.commits import (
    Batch,
    Commit,
    Delete,
    DeleteOp,
    Record,
    Seal,
    Set,
    SetOp,
    Undo,
    decode_commits,
    encode_commit,
)
from opslog.merge.merge import Merge, reference
from opslog.merge.undo import Recent, newest_undoable

TS = "2026-11-20T12:00:00.000000Z"

IDS = st.sampled_from("xyz")
KINDS = st.sampled_from(["set", "set", "set", "delete", "batch", "undo", "seal"])


def put(clock: int, agent: str, id: str, number: int = 0) -> Set:
    return Set(TS, clock, agent, id, msgspec.Raw(b'{"n":%d}' % (number or clock)))


class Author:
    """Writes a log like a store: an undo names the author's newest commit in the window that is not cancelled."""

    def __init__(self, agent: str, window: int) -> None:
        self.agent = agent
        self.window = window
        self.log: list[Commit] = []

    def write(self, kind: str, clock: int, ids: list[str]) -> None:
        commit: Commit
        match kind:
            case "set":
                commit = put(clock, self.agent, ids[0])
            case "delete":
                commit = Delete(TS, clock, self.agent, ids[0])
            case "batch":
                ops: list[SetOp | DeleteOp] = [SetOp(id, msgspec.Raw(b'{"b":%d}' % clock)) for id in ids]
                commit = Batch(TS, clock, self.agent, [*ops, DeleteOp(ids[0])])
            case "seal":
                commit = Seal(TS, clock, self.agent)
            case "void":
                # No writer makes such an undo. A reader must not let it cross a seal, reach too far, or count twice.
                commit = Undo(TS, clock, self.agent, max(1, clock - len("".join(ids)) - 1))
            case _:
                target = self.undoable()
                if target is None:
                    return
                commit = Undo(TS, clock, self.agent, target)
        self.log.append(commit)

    def undoable(self) -> int | None:
        cancelled = {commit.target for commit in self.log if isinstance(commit, Undo)}
        recent = self.log[-self.window :] if self.window else []
        for commit in reversed(recent):
            if isinstance(commit, Seal):
                return None
            if commit.records and commit.clock not in cancelled:
                return commit.clock
        return None


@st.composite
def logs(draw: Any, window: int, kinds: st.SearchStrategy[str] = KINDS) -> dict[str, list[Commit]]:
    """A log for each agent. The clocks are as Lamport clocks may be: they increase in a log, and are arbitrary between
    logs."""
    authors = [Author(agent, window) for agent in "abc"]
    clocks = dict.fromkeys("abc", 0)
    for author, kind, step, ids in draw(
        st.lists(
            st.tuples(st.sampled_from(authors), kinds, st.integers(1, 3), st.lists(IDS, min_size=1, max_size=3)),
            max_size=60,
        )
    ):
        clocks[author.agent] += step
        author.write(kind, clocks[author.agent], ids)
    return {author.agent: author.log for author in authors}


def interleaved(draw: Any, logs: dict[str, list[Commit]]) -> Iterator[Commit]:
    rest = {agent: list(log) for agent, log in logs.items() if log}
    while rest:
        agent = draw(st.sampled_from(sorted(rest)))
        yield rest[agent].pop(0)
        if not rest[agent]:
            del rest[agent]


@pytest.mark.parametrize("window", [0, 1, 2, 5, 32])
@given(data=st.data())
def test_any_order_of_reading_gives_the_reference(window: int, data: Any) -> None:
    written = data.draw(logs(window))
    everything = [commit for log in written.values() for commit in log]
    merge = Merge(window)
    read: list[Commit] = []
    for commit in interleaved(data.draw, written):
        touched = merge.apply(commit)
        read.append(commit)
        if isinstance(commit, Set | Delete | Batch):
            assert tuple(touched) == commit.records
        if len(read) % 7 == 0:
            assert merge.winners() == reference(read)
    assert merge.winners() == reference(everything)
    for agent, log in written.items():
        author = Author(agent, window)
        author.log = log
        target = newest_undoable(merge.recent.get(agent, ()))
        assert (target.clock if target else None) == author.undoable()


class Held:
    """Some records, in place of lines that the kernel holds."""

    def __init__(self, records: list[Set]) -> None:
        self._by_id = {record.id: record for record in records}

    def get(self, id: str) -> Set | None:
        return self._by_id.get(id)


@pytest.mark.parametrize("window", [0, 1, 2, 5, 32])
@given(data=st.data())
def test_many_sets_at_once_are_the_same_one_by_one(window: int, data: Any) -> None:
    one_by_one, at_once = Merge(window), Merge(window)
    if data.draw(st.booleans()):
        held: Any = Held([put(data.draw(st.integers(1, 30)), agent, id) for agent, id in zip("ab", "xy", strict=True)])
        one_by_one.lines = at_once.lines = held
    read = list(interleaved(data.draw, data.draw(logs(window, st.one_of(KINDS, st.just("set"), st.just("void"))))))
    for (_, is_set), group in groupby(read, key=lambda commit: (commit.agent, isinstance(commit, Set))):
        commits = list(group)
        for commit in deepcopy(commits):
            one_by_one.apply(commit)
        if is_set:
            at_once.apply_sets([commit for commit in commits if isinstance(commit, Set)])
        else:
            for commit in commits:
                at_once.apply(commit)
        assert at_once.settled == one_by_one.settled
        assert at_once.contested == one_by_one.contested
        assert at_once.undone == one_by_one.undone
        for agent in "abc":
            assert _recent(at_once, agent) == _recent(one_by_one, agent)


def test_a_set_settles_one_large_batch_at_most() -> None:
    settled: list[int] = []
    settle = Merge._settle

    def noted(self: Merge, entry: Recent) -> None:
        settled.append(len(entry.records))
        settle(self, entry)

    settings = opslog.Settings(undo_window=32)
    with opslog.open("memory://large-batches", agent="a", settings=settings, compact_after=None) as store:
        for size in [1000] * 4 + [1] * 20 + [1000] * 8:
            store.update({f"n{number}": {} for number in range(size)})
        with patch.object(Merge, "_settle", noted):
            store["x"] = {}  # merges what was collected before
            of_each_set = []
            for number in range(300):
                settled.clear()
                store["x"] = {"n": number}
                of_each_set.append(settled.copy())
    assert [some for some in of_each_set if max(some, default=0) > 1] == [[1000]] * 12
    assert [1] * 20 in of_each_set, "small batches are settled together"
    assert len([some for some in of_each_set if some]) < 20, "sets are merged many at once again"


@pytest.mark.parametrize("window", [0, 1, 2, 5, 32])
@given(data=st.data())
def test_loading_whole_logs_is_applying_their_commits(window: int, data: Any) -> None:
    written = data.draw(logs(window, st.one_of(KINDS, st.just("void"))))
    one_by_one, loaded = Merge(window), Merge(window)
    for commit in interleaved(data.draw, deepcopy(written)):
        one_by_one.apply(commit)
    chunks: dict[str, list[list[Commit]]] = {}
    for agent, log in written.items():
        places = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=4)) | {0, len(log)})
        chunks[agent] = [log[start:stop] for start, stop in pairwise(places)]
    turns = data.draw(st.permutations([agent for agent, some in chunks.items() for _ in some]))
    loaded.load((agent, chunks[agent].pop()) for agent in turns)
    assert loaded.settled == one_by_one.settled
    for agent in written:
        assert _recent(loaded, agent) == _recent(one_by_one, agent)
    by_stamp = attrgetter("stamp")
    assert {id: sorted(records, key=by_stamp) for id, records in loaded.contested.items()} == {
        id: sorted(records, key=by_stamp) for id, records in one_by_one.contested.items()
    }
    # And the merge continues from there.
    for agent in written:
        for commit in (put(1000, agent, "x"), Undo(TS, 1001, agent, 1000)):
            assert [record.id for record in loaded.apply(commit)] == [record.id for record in one_by_one.apply(commit)]
    assert loaded.winners() == one_by_one.winners()


def _recent(merge: Merge, agent: str) -> list[tuple[Commit, tuple[Record, ...], bool]]:
    """For commits without records it does not matter whether they are cancelled."""
    recent = merge.recent.get(agent, ())
    return [(entry.commit, tuple(entry.records), bool(entry.records) and entry.cancelled) for entry in recent]


def test_loaded_records_do_not_hold_the_bytes_they_came_in() -> None:
    lines = b"".join(encode_commit(put(clock, "a", f"id-{clock}")) for clock in range(1, 51))
    batch = encode_commit(Batch(TS, 51, "a", [SetOp("b", msgspec.Raw(b"{}"))]))
    merge = Merge(2)
    merge.load(("a", decode_commits(some, "x", 0)) for some in (batch, lines))
    kept = [record.data for record in merge.settled.values() if isinstance(record, Set)]
    kept += [record.data for entry in merge.recent["a"] for record in entry.records if isinstance(record, Set)]
    assert len(kept) == 51
    for data in kept:
        behind: Any = memoryview(data).obj
        assert len(behind) == len(data), "not a part of something longer"


@given(data=st.data())
def test_settled_commits_are_those_that_no_undo_can_reach(data: Any) -> None:
    window = 3
    written = data.draw(logs(window))
    merge = Merge(window)
    for commit in interleaved(data.draw, written):
        merge.apply(commit)
    for agent, log in written.items():
        recent = [entry.commit for entry in merge.recent.get(agent, ())]
        after_seal = max((place + 1 for place, commit in enumerate(log) if isinstance(commit, Seal)), default=0)
        assert recent == log[max(after_seal, len(log) - window) :]
    settled = [
        commit for agent, log in written.items() for commit in log[: len(log) - len(merge.recent.get(agent, ()))]
    ]
    undos = [commit for log in written.values() for commit in log if isinstance(commit, Undo)]
    assert merge.settled == reference([*(commit for commit in settled if not isinstance(commit, Undo)), *undos])
    for id, records in merge.contested.items():
        assert records, f"nothing contests {id} any more, so it should be gone"


def test_the_greater_stamp_wins_and_the_name_decides_between_equal_clocks() -> None:
    merge = Merge(32)
    for commit in (put(5, "b", "x", 1), put(5, "a", "x", 2), put(4, "z", "x", 3), Delete(TS, 5, "ab", "x")):
        merge.apply(commit)
    winner = merge.winner("x")
    assert winner is not None
    assert winner.stamp == (5, "b")
    assert merge.winner("y") is None


def test_an_undo_brings_back_what_would_have_won_without_it() -> None:
    merge = Merge(4)
    for commit in (put(1, "a", "x", 1), put(2, "b", "x", 2), put(3, "a", "x", 3), put(4, "a", "y")):
        merge.apply(commit)
    assert [record.id for record in merge.apply(Undo(TS, 5, "a", 3))] == ["x"]
    winner = merge.winner("x")
    assert winner is not None
    assert winner.stamp == (2, "b")
    assert tuple(merge.apply(Undo(TS, 6, "a", 3))) == (), "cancelled already"
    assert tuple(merge.apply(Undo(TS, 7, "a", 1))) == (), "out of the window, so settled"
    assert set(merge.settled) == {"x"}


@pytest.mark.parametrize("size", [1, 2, 4])
def test_no_undo_reaches_across_a_seal(size: int) -> None:
    """No writer makes such an undo. If a reader let it count, it would show another state than a reader that began
    later."""
    log: list[Commit] = [put(1, "a", "x"), Seal(TS, 2, "a"), put(3, "a", "y"), Undo(TS, 4, "a", 1)]
    one_by_one, loaded = Merge(32), Merge(32)
    for commit in deepcopy(log):
        one_by_one.apply(commit)
    loaded.load(("a", log[start : start + size]) for start in reversed(range(0, len(log), size)))
    assert loaded.winners().keys() == one_by_one.winners().keys() == {"x", "y"}
