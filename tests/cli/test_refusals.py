"""Refusals: each has a sentence that says what to do, and an exit code that says who caused it."""

from __future__ import annotations

import gzip
import os
import sys
from pathlib import Path

import click
import pytest

import opslog
from opslog.cli import program
from opslog.cli.app import app
from tests.cli.calling import call

NO_UTF8 = os.fsdecode(b"\xff")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with opslog.open(root) as store:
        store["a"] = {"n": 1}
    return root


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["get", NO_UTF8], "lone surrogate"),
        (["delete", "a", NO_UTF8], "lone surrogate"),
        (["set", NO_UTF8, "{}"], "lone surrogate"),
        (["history", NO_UTF8], "lone surrogate"),
        (["--agent", NO_UTF8, "undo"], "not a valid name"),
        (["--agent", "", "undo"], "not a valid name"),
        (["--store", "", "ls"], "give --store DIRECTORY, or set OPSLOG_STORE"),
        (["archive", "--older-than", "9999999w"], "the longest is 36500d"),
        (["archive", "--list", "--where", "n=1"], "--list and --load stand alone"),
        (["archive", "--load", "p", "--dry-run"], "--list and --load stand alone"),
        (["archive", "--list", "--load", "p"], "--list and --load stand alone"),
        (["archive", "--period", "p"], "say which documents"),
        (["archive", "--dry-run"], "say which documents"),
        (["archive", "--load", "../p"], "not a valid name"),
        (["import", "x", "--rev", "HEAD"], "--rev and --contents are for --git"),
        (["import", "x", "--git", "y"], "name one source"),
        (["import", "/no/such/file"], "check path and permissions"),
        (["export", "--as-of", "yesterday"], "as_of takes a clock"),
        (["ls", "--where", "n"], "after n, =, !=, <"),
        (["set", "a", "nonsense"], "DOCUMENT, byte 0: not JSON"),
        (["set", "a"], "stdin, byte 0: not JSON"),
        (["compact", "--keep-history", "soon"], "write it as 90s"),
        (["completion", "tcsh"], "tcsh"),
        (["ls", "--limit", "99999999999999999999"], "the largest number that is possible here"),
        (["ls", "--offset", "99999999999999999999"], "the largest number that is possible here"),
        (["ls", "--limit", "9223372036854775807", "--offset", "1"], "the largest number that is possible here"),
        (["ops", "--limit", "99999999999999999999"], "the largest number that is possible here"),
        (["watch", "--every", "nan"], "nan is not a number"),
        (["watch", "--every", "inf"], "is not in the range"),
        (["changes", "--follow", "--every", "1e10"], "is not in the range"),
        (["nosuch"], "nosuch"),
        ([], "opslog"),
    ],
)
def test_wrong_usage_exits_with_2(store: Path, arguments: list[str], reason: str) -> None:
    result = call(store, *arguments)
    assert (result.code, result.out) == (2, "")
    assert reason in result.err
    result = call(store, *arguments, "--json") if arguments else call(store, "--json")
    assert (result.code, result.out) == (2, "")
    assert result.error["error"] in {"UsageError", "InvalidNameError", "InvalidDocumentError"}
    assert set(result.error) <= {"error", "message", "place"}


def test_every_number_has_an_end_and_is_a_number() -> None:
    context = click.Context(app)
    checked = []
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        for option in command.params:
            if not isinstance(option.type, (type(click.INT), type(click.FLOAT))):
                continue
            for value in ("nan", "NaN", "inf", "-inf", "9" * 30, "9" * 5000, "1e300"):
                with pytest.raises(click.UsageError):
                    option.type_cast_value(context, value)
            checked.append((name, option.name))
    assert {("ls", "limit"), ("ls", "offset"), ("watch", "every"), ("serve", "rate")} <= set(checked)


def test_the_largest_numbers_are_possible(store: Path) -> None:
    most = str(2**53 - 1)
    for arguments in (["ls", "--limit", most, "--offset", "0"], ["ops", "--limit", most], ["changes", "--limit", most]):
        assert call(store, *arguments).out.count("\n") >= 1
    assert call(store, "ls", "--limit", most, "--offset", most) == (0, "", "")


def test_a_store_under_a_name_that_is_no_utf8(tmp_path: Path) -> None:
    result = call(tmp_path / NO_UTF8, "ls", "--json")
    assert result.code == 3
    assert result.error["error"] == "NotFoundError"
    assert "\\udcff" in result.error["message"]


def test_no_store_is_a_failure_and_makes_none(tmp_path: Path) -> None:
    for arguments in (["ls"], ["archive", "--list"], ["archive", "--load", "p"], ["archive", "-w", "a=1", "--dry-run"]):
        result = call(tmp_path / "nowhere", *arguments, "--json")
        assert (result.code, result.error["error"]) == (3, "NotFoundError")
    assert not list(tmp_path.iterdir())


def test_a_missing_document_exits_with_1(store: Path) -> None:
    for arguments, ids in ((["get", "x"], ["x"]), (["delete", "a", "x", "y"], ["x", "y"]), (["history", "x"], ["x"])):
        result = call(store, *arguments)
        assert (result.code, result.out) == (1, "")
        assert all(repr(id) in result.err for id in ids)
        result = call(store, *arguments, "--json")
        assert (result.code, result.out) == (1, "")
        assert (result.error["error"], result.error["ids"]) == ("NotFoundError", ids)
    result = call(store, "archive", "--load", "p", "--json")
    assert (result.code, result.out, result.error["error"]) == (1, "", "NotFoundError")
    assert call(store, "ls", "--ids").out == "a\n"


def test_an_archive_that_lost_a_file_is_damage_not_a_no(store: Path) -> None:
    assert call(store, "archive", "-w", "n=1", "--period", "p").code == 0
    (data,) = store.glob("archive/p/*.jsonl")
    data.unlink()
    result = call(store, "archive", "--load", "p", "--json")
    assert (result.code, result.out) == (3, "")
    assert result.error["path"] == f"archive/p/{data.name}"


@pytest.mark.parametrize("content", [b'{"id":7}\n', b"nonsense\n", gzip.compress(b'{"id":"a"}\n', mtime=0)[:-6]])
def test_a_source_that_cannot_be_read_leaves_no_store(tmp_path: Path, content: bytes) -> None:
    source = tmp_path / "source"
    source.write_bytes(content)
    result = call(tmp_path / "store", "import", str(source), "--json")
    assert result.code == 3
    assert (result.error["error"], result.error["path"]) == ("CorruptError", str(source))
    assert isinstance(result.error["offset"], int)
    assert call(tmp_path / "store", "ls").code == 3


def test_a_source_that_cannot_be_opened_leaves_no_directory(tmp_path: Path) -> None:
    assert call(tmp_path / "store", "import", str(tmp_path / "nosuch")).code == 2
    assert call(tmp_path / "store", "import", "-", stdin=b"nonsense").code == 3
    assert not list(tmp_path.iterdir())


def test_the_place_in_a_document_is_named(store: Path) -> None:
    result = call(store, "set", "a", '{"tasks":[{"n":18446744073709551616}]}', "--json")
    assert result.code == 2
    assert result.error["place"] == "$.tasks[0].n"


def test_a_directory_that_does_not_exist_is_named_as_it_was_given(store: Path, tmp_path: Path) -> None:
    result = call(store, "export", str(tmp_path / "no" / "out"))
    assert result == (3, "", f"opslog: {tmp_path}/no/out: No such file or directory\n")


def test_a_defect_of_opslog_is_never_mistaken_for_a_refusal(
    store: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(opslog, "open", fail)
    assert program.run(["-s", str(store), "ls"]) == 3
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "ZeroDivisionError: a defect" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
def test_a_defect_is_a_failure_also_if_nobody_can_read_its_traceback(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(opslog, "open", fail)
    with open("/dev/full", "w", buffering=1) as full:
        monkeypatch.setattr(sys, "stderr", full)
        assert program.run(["-s", str(store), "ls"]) == 3
