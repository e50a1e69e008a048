"""set --create, --if-stamp, delete --if-stamp, get --stamp, ls --stamp, and the name of the author."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.calling import at_terminal
from tests.cli.conftest import Opslog


def _stamp(opslog: Opslog, id: str) -> str:
    return opslog("get", id, "--stamp").out.split("\t")[0]


def test_one_of_two_creators_succeeds(opslog: Opslog) -> None:
    assert opslog("-a", "one", "set", "x", '{"by":1}', "--create") == (0, "", "")
    refused = opslog("-a", "two", "set", "x", '{"by":2}', "--create")
    assert (refused.code, refused.out) == (1, "")
    first, second = refused.err.splitlines()
    assert "'x' exists" in first
    assert f"one wrote it, with stamp {_stamp(opslog, 'x')}" in first
    assert second == 'opslog: there now: {"by":1}'
    assert opslog("get", "x").out == '{"by":1}\n'


def test_a_document_that_was_deleted_can_be_created(opslog: Opslog) -> None:
    opslog("set", "x", "{}")
    opslog("delete", "x")
    assert opslog("set", "x", '{"n":1}', "--create").code == 0


def test_a_stamp_serves_once(opslog: Opslog) -> None:
    opslog("set", "x", '{"n":0}')
    before = _stamp(opslog, "x")
    assert opslog("-a", "one", "set", "x", '{"n":1}', "--if-stamp", before) == (0, "", "")
    for command in (["set", "x", '{"n":2}'], ["delete", "x"]):
        refused = opslog("-a", "two", *command, "--if-stamp", before)
        assert (refused.code, refused.out) == (1, "")
        assert f"has not the stamp {before} any more" in refused.err
        assert refused.err.endswith('opslog: there now: {"n":1}\n')
    assert opslog("delete", "x", "--if-stamp", _stamp(opslog, "x")) == (0, "", "")
    assert opslog("get", "x").code == 1


def test_set_says_which_stamp_the_document_has_now(opslog: Opslog) -> None:
    for condition in (["--create"], [], ["--if-stamp"]):
        options = [*condition, _stamp(opslog, "x")] if condition == ["--if-stamp"] else condition
        (answer,) = opslog("--json", "set", "x", "{}", *options).values
        assert answer == {"set": "x", "stamp": _stamp(opslog, "x")}


def test_programs_learn_from_a_conflict_what_is_there_now(opslog: Opslog) -> None:
    opslog("-a", "one", "set", "x", '{"n":1}', "--create")
    (now,) = opslog("get", "x", "--stamp", "--json").values
    assert (now["author"], now["stamp"], now["data"]) == ("one", "1000@transactions", {"n": 1})
    refused = opslog("--json", "set", "x", "{}", "--create")
    assert (refused.code, refused.out) == (1, "")
    assert list(refused.error) == ["error", "message", "id", "now"]
    assert (refused.error["error"], refused.error["id"], refused.error["now"]) == ("ExistsError", "x", now)
    opslog("delete", "x")
    refused = opslog("--json", "set", "x", "{}", "--if-stamp", "1000@transactions")
    assert (refused.code, refused.error["error"], refused.error["now"]) == (1, "ConflictError", None)
    assert "there now" not in opslog("set", "x", "{}", "--if-stamp", "1000@transactions").err


@pytest.mark.parametrize(
    "options",
    [
        ["set", "x", "{}", "--create", "--if-stamp", "1@a"],
        ["set", "x", "{}", "--if-stamp", "latest"],
        ["set", "x", "{}", "--if-stamp", "1@"],
        ["delete", "x", "y", "--if-stamp", "1@a"],
        ["delete", "x", "--if-stamp", ""],
        ["ls", "--ids", "--stamp"],
    ],
)
def test_conditions_that_cannot_be(opslog: Opslog, root: Path, options: list[str]) -> None:
    opslog("set", "x", "{}")
    answer = opslog(*options)
    assert (answer.code, answer.out) == (2, "")
    assert opslog("get", "x").out == "{}\n"


def test_a_store_is_not_made_by_a_stamp_that_nothing_has(opslog: Opslog, root: Path) -> None:
    assert opslog("delete", "x", "--if-stamp", "1@a").code == 3
    assert not root.exists()
    assert opslog("set", "x", "{}", "--if-stamp", "1@a").code == 1
    assert opslog("ls").out == ""


def test_an_undo_that_others_have_built_on_is_a_no(opslog: Opslog) -> None:
    opslog("-a", "one", "set", "x", '{"n":1}', "--create")
    opslog("-a", "two", "set", "x", '{"n":2}', "--if-stamp", _stamp(opslog, "x"))
    refused = opslog("-a", "one", "undo")
    assert (refused.code, refused.out) == (1, "")
    assert 'there now: {"n":2}' in refused.err
    assert opslog("-a", "two", "undo").code == 0
    assert opslog("get", "x").out == '{"n":1}\n'


class TestAuthors:
    @pytest.fixture(autouse=True)
    def documents(self, opslog: Opslog) -> None:
        opslog("-a", "one", "set", "plain", '{"n":1}')
        opslog("-a", "two", "set", "guarded", '{"n":2}', "--create")

    def test_of_documents(self, opslog: Opslog) -> None:
        assert opslog("ls", "--stamp").out.splitlines() == [
            'guarded\t1001@transactions\ttwo\t{"n":2}',
            'plain\t1@one\tone\t{"n":1}',
        ]
        assert [(line["id"], line["author"]) for line in opslog("ls", "--stamp", "--json").values] == [
            ("guarded", "two"),
            ("plain", "one"),
        ]
        assert (
            opslog("ls", "--stamp", "--where", "n=1", "--json").values
            == opslog("get", "plain", "--stamp", "--json").values
        )

    def test_of_commits(self, opslog: Opslog, root: Path) -> None:
        assert [line["id"] for line in opslog("ops", "--by", "two").values] == ["guarded"]
        assert opslog("ops", "--by", "transactions").out == ""
        assert opslog("history", "guarded").out.split("\t")[2] == "two"
        assert opslog("history", "guarded", "--json").values[0]["author"] == "two"
        changes = opslog("changes", "--json").values
        assert {line["id"]: line["author"] for line in changes if line["op"] == "set"} == {
            "guarded": "two",
            "plain": "one",
        }

    def test_at_a_terminal(self, root: Path) -> None:
        for command in (["ops"], ["history", "guarded"], ["ls", "--stamp"], ["get", "guarded", "--stamp"]):
            shown = at_terminal(root, *command, columns=120)
            assert "two" in shown, command
