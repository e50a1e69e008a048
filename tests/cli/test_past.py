"""history, ops."""

from __future__ import annotations

from pathlib import Path

import pytest

import opslog as library
from opslog.backends import open_backend
from opslog.compaction.compact import compact
from opslog.environment import REAL
from tests.cli.conftest import Opslog


@pytest.fixture(autouse=True)
def past(root: Path) -> None:
    with library.open(root, agent="a", version=2) as a, library.open(root, agent="b") as b:
        a["x"] = {"n": 1}
        b.refresh()
        b["y"] = {}
        b.undo()
        a.refresh()
        a["x"] = {"n": 2}
        a.archive(lambda document: document["n"] == 2, "old")


def test_ops_are_the_lines_of_the_logs_and_undos_say_what_they_gave_back(opslog: Opslog, root: Path) -> None:
    lines = [line for path in root.glob("ops/*/*") for line in path.read_text().splitlines(keepends=True)]
    undone = '"op":"undo","target":2'
    lines = [line.replace(undone, f'{undone},"ids":["y"]') for line in lines]
    answer = opslog("ops")
    assert sorted(answer.out.splitlines(keepends=True)) == sorted(lines)
    assert [line["clock"] for line in answer.values] == [1, 2, 3, 4, 5]
    assert opslog("--json", "ops").out == answer.out
    assert [line["clock"] for line in opslog("ops", "--since", "3").values] == [4, 5]
    assert [line["clock"] for line in opslog("ops", "--by", "b").values] == [2, 3]
    assert opslog("ops", "--by", "nobody") == (0, "", "")


@pytest.mark.parametrize("command", [["ops"], ["history", "x"]])
def test_limit_takes_the_newest_and_leaves_them_in_their_order(opslog: Opslog, command: list[str]) -> None:
    whole = opslog(*command, "--json").values
    assert len(whole) > 2
    for limit in (0, 1, 2, 99):
        answer = opslog(*command, "--json", "--limit", str(limit))
        assert (answer.code, answer.values) == (0, whole[len(whole) - min(limit, len(whole)) :])


def test_limit_counts_what_the_other_options_leave(opslog: Opslog) -> None:
    assert [line["clock"] for line in opslog("ops", "--by", "b", "--limit", "1").values] == [3]
    assert [line["clock"] for line in opslog("ops", "--since", "3", "--limit", "9").values] == [4, 5]


def test_ops_that_are_gone_are_an_error(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="c") as store:
        for number in range(40):
            store["z"] = {"number": number}
    backend = open_backend(str(root))
    compact(backend, REAL)
    backend.delete(["manifests/00000000000000000001.json"])
    answer = opslog("ops", "--since", "1")
    assert (answer.code, answer.out) == (3, "")
    assert "partly compacted away" in answer.err
    backend.close()


def test_history(opslog: Opslog) -> None:
    answer = opslog("history", "x", "--json")
    assert [{name: value for name, value in line.items() if name != "ts"} for line in answer.values] == [
        {"clock": 1, "agent": "a", "author": "a", "op": "set", "id": "x", "undone": False, "data": {"n": 1}, "v": 2},
        {"clock": 4, "agent": "a", "author": "a", "op": "set", "id": "x", "undone": False, "data": {"n": 2}, "v": 2},
        {"clock": 5, "agent": "a", "author": "a", "op": "delete", "id": "x", "undone": False, "archived": "old"},
    ]
    (line,) = opslog("history", "y").out.split("\n")[:-1]
    clock, ts, *rest = line.split("\t")
    assert (clock, ts[-1], rest) == ("2", "Z", ["b", "set", "undone", "{}"])
    answer = opslog("history", "z")
    assert (answer.code, answer.out) == (1, "")
    assert "nothing is known of a document 'z'" in answer.err
