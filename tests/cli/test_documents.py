"""get, set, delete, undo."""

from __future__ import annotations

from pathlib import Path

import pytest

import opslog as library
from tests.cli.conftest import Opslog

EXACT = '{"z":1,"a":[null,true,-9223372036854775808,18446744073709551615,0.1],"é":"😀\\n","n":{}}'


def test_a_document_comes_back_as_it_was_given(opslog: Opslog) -> None:
    assert opslog("set", "task-1", EXACT) == (0, "", "")
    assert opslog("get", "task-1") == (0, EXACT + "\n", "")
    assert opslog("set", "task-1", "-", stdin=b' {"from": "stdin"} \n') == (0, "", "")
    assert opslog("get", "task-1").out == '{"from":"stdin"}\n'
    assert opslog("set", "task-1", stdin=b"{}").code == 0
    assert opslog("get", "task-1", "--json").out == "{}\n"


@pytest.mark.parametrize("id", ["", " ", "-x", "a/b", "a\nb", "é😀", "--json"])
def test_any_id_that_a_shell_can_pass(opslog: Opslog, id: str) -> None:
    assert opslog("set", "--", id, '{"a":1}').code == 0
    assert opslog("get", "--", id).out == '{"a":1}\n'
    assert opslog("ls", "--json").values == [{"id": id, "data": {"a": 1}}]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[1]", "a document is a JSON object"),
        ("{", "byte 1: not JSON"),
        ('{"a":1,"a":2}', "has the name 'a' twice"),
        ('{"a":NaN}', "NaN is not JSON"),
        ('{"a":[1,36893488147419103232]}', r"at $.a[1], the integer 36893488147419103232 does not fit in 64 bits"),
        ('{"a":"\\ud800"}', "surrogate"),
    ],
)
def test_documents_that_cannot_be_stored_exactly_are_refused(
    opslog: Opslog, root: Path, text: str, reason: str
) -> None:
    for answer in (opslog("set", "x", text), opslog("set", "x", stdin=text.encode())):
        assert (answer.code, answer.out) == (2, "")
        assert reason in answer.err
    assert opslog("ls").code in (0, 3)
    assert not list(root.glob("ops/*/*"))


def test_a_missing_document_is_a_no(opslog: Opslog, root: Path) -> None:
    opslog("set", "x", "{}")
    assert opslog("get", "y") == (1, "", f"opslog: no document 'y' in {root}\n")
    answer = opslog("--json", "get", "y")
    assert (answer.code, answer.out) == (1, "")
    assert answer.error == {"error": "NotFoundError", "message": "no document 'y'", "ids": ["y"]}


def test_delete_is_all_or_nothing(opslog: Opslog, root: Path) -> None:
    for id in "abc":
        opslog("set", id, "{}")
    answer = opslog("delete", "a", "x", "y")
    assert answer == (1, "", f"opslog: no document 'x', 'y' in {root}\n")
    assert opslog("ls", "--ids").out == "a\nb\nc\n"
    assert opslog("--json", "delete", "a", "b", "a").values == [{"deleted": ["a", "b"]}]
    assert opslog("ls", "--ids").out == "c\n"
    assert opslog("delete", "c") == (0, "", "")


def test_undo_is_that_of_the_agent(opslog: Opslog) -> None:
    opslog("--agent", "one", "set", "x", '{"by":1}')
    opslog("set", "x", '{"by":2}', "--agent", "two")
    assert opslog("undo", "-a", "one").code == 0
    assert opslog("get", "x").out == '{"by":2}\n'
    assert opslog("--agent", "two", "--json", "undo").values == [
        {"undone": True, "documents": [{"id": "x", "data": None}]}
    ]
    assert opslog("get", "x").code == 1
    answer = opslog("--agent", "two", "undo")
    assert (answer.code, answer.out) == (1, "")
    assert "'two' has nothing left to undo" in answer.err
    again = opslog("undo", "--agent", "two", "--json")
    assert (again.code, again.values) == (1, [{"undone": False, "documents": []}])


def test_undo_says_what_it_took_back(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="one") as one:
        one["kept"] = {"n": 1}
        one["others"] = {"n": 1}
        with one.batch():
            one["kept"] = {"n": 2}
            one["others"] = {"n": 2}
            one["tab\t"] = {"n": 2}
        one.create("guarded", {"by": "a transaction"})
    opslog("--agent", "two", "set", "others", '{"n":3}')
    assert opslog("--agent", "one", "undo") == (0, "guarded\tdeleted\n", "")
    assert opslog("--agent", "one", "undo") == (0, 'kept\t{"n":1}\nothers\t{"n":3}\n"tab\\t"\tdeleted\n', "")


def test_a_set_keeps_the_schema_version(opslog: Opslog, root: Path) -> None:
    with library.open(root, agent="program", version=3) as store:
        store["x"] = {"v": "three"}
    opslog("set", "x", '{"v":"still three"}')
    with library.open(root, read_only=True, version=3) as store:
        assert [record.v for record in store.records()] == [3]


def test_reading_never_makes_a_store(opslog: Opslog, root: Path) -> None:
    for command in (["get", "x"], ["ls"], ["history", "x"], ["ops"], ["watch"], ["stats"], ["verify"], ["export"]):
        answer = opslog(*command)
        assert (answer.code, answer.out) == (3, ""), command
        assert answer.err.startswith(
            f"opslog: no store at {root}: check the name; `opslog set` and `opslog import` create"
        )
    for command in (["delete", "x"], ["undo"], ["compact"], ["archive", "--older-than", "1s"], ["archive", "--list"]):
        assert opslog(*command).code == 3, command
    assert not root.exists()
