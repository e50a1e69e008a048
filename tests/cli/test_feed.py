"""changes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import opslog as library
from tests.cli.calling import INTERRUPTED_PROGRAM, PROGRAM
from tests.cli.conftest import Opslog


def lines_of(answer: Any) -> list[dict[str, Any]]:
    return [{name: value for name, value in line.items() if name != "ts"} for line in answer.values]


def test_changes_since_a_token(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="a", version=2) as a:
        a["x"], a["y"] = {"n": 1}, {"n": 1}
        reset, *documents, end = lines_of(opslog("changes", "--json"))
        assert (reset, end["op"], end["commits"]) == ({"op": "reset"}, "token", [])
        assert documents == [
            {
                "op": "set",
                "id": id,
                "existed": False,
                "clock": clock,
                "agent": "a",
                "author": "a",
                "data": {"n": 1},
                "v": 2,
            }
            for id, clock in (("x", 1), ("y", 2))
        ]
        a["x"] = {"n": 2}
        del a["y"]
        a["z"] = {}
        a.undo()
    *documents, again = lines_of(opslog("changes", "--since", end["token"], "--json"))
    assert documents == [
        {"op": "set", "id": "x", "existed": True, "clock": 3, "agent": "a", "author": "a", "data": {"n": 2}, "v": 2},
        {"op": "delete", "id": "y", "existed": True, "clock": 4, "agent": "a", "author": "a"},
        {"op": "delete", "id": "z", "existed": False},
    ]
    assert [(commit["op"], commit["ids"], commit["author"], commit["won"]) for commit in again["commits"]] == [
        ("set", ["x"], "a", True),
        ("delete", ["y"], "a", True),
        ("set", ["z"], "a", False),
        ("undo", ["z"], "a", True),
    ]
    rest = lines_of(opslog("changes", "--since", again["token"], "--json"))
    assert [(line["op"], line["commits"]) for line in rest] == [("token", [])]
    first = lines_of(opslog("changes", "--since", end["token"], "--limit", "1", "--json"))
    assert [line["op"] for line in first] == ["set", "token"]


def test_in_a_pipe_there_are_tabs_between(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="a") as a:
        a["a\tb"] = {"n": 1}
    lines = opslog("changes").out.splitlines()
    assert lines[:2] == ["reset\t\t", 'set\t"a\\tb"\t{"n":1}']
    op, _, token = lines[2].split("\t")
    assert (op, len(lines)) == ("token", 3)
    with library.open(root, agent="a") as a:
        del a["a\tb"]
    assert opslog("changes", "--since", token).out.splitlines()[:1] == ['delete\t"a\\tb"\t']


def test_an_invalid_token_is_wrong_usage(opslog: Opslog, root: Path) -> None:
    library.open(root).close()
    answer = opslog("changes", "--since", "5")
    assert (answer.code, answer.out) == (2, "")
    assert "is not a token of changes" in answer.err
    assert opslog("changes", "--follow", "--limit", "1").code == 2


def test_follow_goes_on_until_an_interrupt_and_takes_no_name(root: Path) -> None:
    with library.open(root, agent="main", compact_after=None) as store:
        store["x"] = {"n": 1}
        process = subprocess.Popen(
            [*INTERRUPTED_PROGRAM, "-s", str(root), "--json", "changes", "--follow", "--every", "0.01"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        begun = [json.loads(process.stdout.readline())["op"] for _ in range(3)]
        assert begun == ["reset", "set", "token"]
        store["y"] = {"n": 2}
        change, end = (json.loads(process.stdout.readline()) for _ in range(2))
        assert (change["op"], change["id"], change["data"]) == ("set", "y", {"n": 2})
        assert [commit["ids"] for commit in end["commits"]] == [["y"]]
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_follow_ends_when_its_reader_leaves(root: Path) -> None:
    library.open(root).close()
    process = subprocess.Popen(
        [*PROGRAM, "-s", str(root), "changes", "--follow"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reset\t\t\n"
    process.stdout.close()
    assert process.wait(60) == 141
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()
