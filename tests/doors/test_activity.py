"""What commits show about who did what, and which writes lost."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

import opslog
from opslog.doors.activity import Activity, activity
from opslog.doors.operations import Operations
from opslog.format.commits import Commit, Delete, Seal, Set, Undo
from opslog.format.layout import TRANSACTIONS

DATA = msgspec.Raw(b"{}")
NOBODY: dict[str, int] = {}


def ts(second: int) -> str:
    return f"2026-11-24T12:00:{second:02}.000000Z"


def written(second: int, clock: int, agent: str, id: str = "a", by: str = "") -> Set:
    return Set(ts(second), clock, agent, id, DATA, by=by)


def lost(found: Activity) -> list[tuple[str, str, str]]:
    return [(each.id, each.author, each.to.author) for each in found.lost]


@pytest.mark.parametrize(
    ("commits", "expected"),
    [
        ([written(1, 1, "ann"), written(2, 1, "bob")], [("a", "ann", "bob")]),  # the same clock
        ([written(9, 1, "ann"), written(2, 5, "bob")], [("a", "ann", "bob")]),  # made later, and counts less
        ([written(1, 1, "ann"), written(2, 2, "bob")], []),  # may have known
        ([written(9, 1, "ann"), written(2, 2, "ann")], []),  # its own
        ([written(1, 1, "ann", "a"), written(2, 1, "bob", "b")], []),  # other documents
        ([written(1, 1, "ann"), Delete(ts(2), 1, "bob", "a")], [("a", "ann", "bob")]),
        (
            [written(9, 1, TRANSACTIONS, by="ann"), written(2, 2, TRANSACTIONS, by="bob")],
            [],
        ),  # in one order, in one log
        ([written(1, 1, "ann"), Seal(ts(1), 1, "bob"), written(2, 2, "bob")], []),
    ],
)
def test_a_write_lost_if_another_one_that_was_made_no_later_counts_in_its_place(
    commits: list[Commit], expected: list[tuple[str, str, str]]
) -> None:
    assert lost(activity(commits, NOBODY, 10)) == expected


def test_agents_are_known_by_what_is_retained_and_by_their_clocks() -> None:
    commits: list[Commit] = [
        *(written(clock, clock, "ann", f"task-{clock}") for clock in range(1, 6)),
        Undo(ts(6), 6, "ann", 5),
        written(7, 7, TRANSACTIONS, by="bob"),
    ]
    found = activity(commits, {"ann": 6, "long-ago": 3, "bob": 7}, 3)
    assert [(each.name, each.clock, each.ts) for each in found.agents] == [
        ("bob", 7, ts(7)),
        ("ann", 6, ts(6)),
        ("long-ago", 3, None),
    ]
    ann = found.agents[1]
    assert (ann.commits, ann.writes, ann.undos, ann.ids) == (6, 5, 1, ["task-5", "task-4", "task-3"])
    assert (found.retained, [each.stamp for each in found.commits]) == (7, [f"7@{TRANSACTIONS}", "6@ann", "5@ann"])
    assert [each.stamp for each in found.limited(1).commits] == [f"7@{TRANSACTIONS}"]


def test_the_answer_is_bounded_however_many_commits_documents_and_agents_there_are() -> None:
    def commits() -> Iterator[Commit]:
        for number in range(1, 2001):
            yield written(1, number, "ann", f"task-{number}")
            yield written(1, number, "bob", f"task-{number}")

    found = activity(commits(), {f"agent-{number}": number for number in range(500)}, 100)
    assert (len(found.commits), len(found.lost), found.retained) == (100, 100, 4000)
    assert (len(found.agents), found.more_agents) == (200, 302)
    assert found.agents[0].lost + found.agents[1].lost == 2000


def test_no_documents_are_held_however_long_they_are() -> None:
    def commits() -> Iterator[Commit]:
        for number in range(1, 1001):
            yield Set(ts(1), number, "ann", f"task-{number}", msgspec.Raw(b"%100000d" % number))

    tracemalloc.start()
    try:
        activity(commits(), NOBODY, 1000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5_000_000, "of documents of 100 MB"


def test_a_batch_names_some_of_its_documents(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="ann", version=None) as store:
        store.update({f"task-{number:02}": {} for number in range(25)})
        (commit,) = Operations(store).activity(10).commits
        assert (commit.op, len(commit.ids), commit.more_ids) == ("batch", 10, 15)


def test_undos_say_what_they_gave_back_and_others_writes_are_seen(tmp_path: Path) -> None:
    with opslog.open(tmp_path, agent="ann", version=None) as ann, opslog.open(tmp_path, agent="bob") as bob:
        ann["a"] = {"n": 1}
        assert ann.undo()
        for number in range(3):
            bob["b"] = {"n": number}
        found = Operations(ann).activity(10)
        undo = next(each for each in found.commits if each.op == "undo")
        assert (undo.author, undo.ids) == ("ann", ["a"])
        assert {agent.name: agent.commits for agent in found.agents} == {"ann": 2, "bob": 3}
