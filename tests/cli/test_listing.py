"""ls, count."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import opslog as library
from tests.cli.calling import call
from tests.cli.conftest import Opslog


class TestLs:
    DOCUMENTS: dict[str, dict[str, Any]] = {  # noqa: RUF012  (nobody changes it)
        "a": {"status": "active", "n": 1, "by": {"team": 7}},
        "b": {"status": "active", "n": True},
        "c": {"status": "done", "n": None},
        "d": {"n": "1", "a.b": 1},
        "e": {"by": 5},
    }

    @pytest.fixture(autouse=True)
    def documents(self, root: Path) -> None:
        with library.open(root) as store:
            for id, document in reversed(self.DOCUMENTS.items()):
                store[id] = document

    def test_everything_in_order_of_id(self, opslog: Opslog) -> None:
        assert opslog("--json", "ls").values == [{"id": id, "data": data} for id, data in self.DOCUMENTS.items()]
        assert opslog("ls").out.split("\n")[:-1][0] == 'a\t{"status":"active","n":1,"by":{"team":7}}'
        assert opslog("ls", "--ids").out.split() == [*"abcde"]
        assert opslog("ls", "--ids", "--json").values == [{"id": id} for id in "abcde"]

    @pytest.mark.parametrize(
        ("where", "ids"),
        [
            (["status=active"], "ab"),
            (['status="active"'], "ab"),
            (["n=1"], "a"),
            (["n=true"], "b"),
            (['n="1"'], "d"),
            (["n=null"], "ce"),
            (["by.team=7"], "a"),
            (['by={"team":7}'], "a"),
            (["by.team.x=7"], ""),
            (["status=active", "n=1"], "a"),
            (['status=""'], ""),
            (['status="a=b"'], ""),
        ],
    )
    def test_where(self, opslog: Opslog, where: list[str], ids: str) -> None:
        options = [text for condition in where for text in ("--where", condition)]
        assert opslog("ls", "--ids", *options).out.split() == [*ids]

    @pytest.mark.parametrize("where", ["status", "=active", "", "status=", "status=a=b"])
    def test_invalid_conditions_are_refused(self, opslog: Opslog, where: str) -> None:
        answer = opslog("ls", "-w", where)
        assert answer.code == 2
        assert "is expected here" in answer.err


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        (["--where", 'status = "active" and hours > 3'], "c"),
        (["--where", "status=active"], "ac"),
        (["-w", "status=active", "-w", "hours<5"], "a"),
        (["--sort", "-hours"], "bcad"),
        (["--sort", "hours", "--where", "exists hours"], "acb"),
        (["--sort", "status", "--sort", "-hours", "--where", "exists hours"], "cab"),
        (["--sort", "hours", "--desc"], "bcad"),
        (["--sort", "status", "--desc"], "dbca"),
        (["--desc", "--limit", "2"], "dc"),
        (["--limit", "2"], "ab"),
        (["--limit", "2", "--offset", "1"], "bc"),
        (["--limit", "0"], ""),
        (["--sort", "-@id", "--limit", "1"], "d"),
    ],
)
def test_ls_takes_the_conditions_of_find(tasks: Path, options: list[str], ids: str) -> None:
    shown = call(tasks, "ls", "--ids", *options)
    assert (shown.code, "".join(shown.out.split())) == (0, ids)
    assert [value["id"] for value in call(tasks, "ls", "--json", *options).values] == [*ids]


def test_count_counts_and_groups(tasks: Path) -> None:
    assert call(tasks, "count").out == "4\n"
    assert call(tasks, "count", "-w", "status = active").out == "2\n"
    assert call(tasks, "count", "--by", "status").out == '2\t"active"\n1\t"done"\n1\t["active"]\n'
    assert call(tasks, "count", "--by", "status", "--where", "hours > 4", "--json").values == [
        {"value": "active", "count": 1},
        {"value": "done", "count": 1},
    ]
    assert call(tasks, "count", "--json").values == [{"count": 4}]


def test_ls_count_and_get_show_the_past(tasks: Path) -> None:
    with library.open(tasks) as store:
        clock = store.records().__next__().clock
        store["a"] = {"status": "done"}
        del store["b"]
    assert call(tasks, "ls", "--ids").out.split() == ["a", "c", "d"]
    assert call(tasks, "ls", "--ids", "--as-of", "4").out.split() == ["a", "b", "c", "d"]
    assert call(tasks, "ls", "--ids", "--as-of", "4", "-w", "status = done").out == "b\n"
    assert call(tasks, "count", "--as-of", str(clock)).out == "1\n"
    assert call(tasks, "count", "--as-of", "4", "--by", "status", "-w", "status = done").out == '1\t"done"\n'
    assert call(tasks, "get", "a", "--as-of", "4").out == '{"status":"active","hours":3}\n'
    assert call(tasks, "get", "b", "--as-of", "0").code == 1
    for command in (["ls"], ["count"], ["get", "a"]):
        result = call(tasks, *command, "--as-of", "yesterday")
        assert (result.code, result.out) == (2, "")
        assert "as_of takes a clock" in result.err
