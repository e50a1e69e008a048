"""What is shown: nothing of a document or an id acts on a terminal, ids stay whole, a line is one document."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import opslog
from opslog.cli.output import id_text
from tests.cli.calling import at_terminal, call, shell

STYLE = re.compile(r"\x1b\[[0-9;]*m")
EVIL = "evil\x1b]0;title\x07\x9b31m\x7f\u202e\r\n"
"""Sets the title of a window, the colour of what follows, and goes back to the start of the line."""


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with opslog.open(root, agent="one") as store:
        store[EVIL] = {EVIL: EVIL}
        store["task-1"] = {"title": "x" * 300}
        store["[bold]task-2[/bold]"] = {"title": "😀" * 60}
        store["i" * 200] = {"n": 1}
    return root


@pytest.mark.parametrize(
    "command", [["ls"], ["ls", "--ids"], ["get", EVIL], ["history", EVIL], ["ops"], ["--json", "ops"], ["--json", "ls"]]
)
def test_nothing_stored_acts_on_a_terminal(store: Path, command: list[str]) -> None:
    shown = STYLE.sub("", at_terminal(store, *command, columns=200))
    raw = {"\x7f", "\x9b", "\u202e"} if "--json" in command else set()  # JSON text may hold these; that is for programs
    assert {char for char in shown if char != "\n" and not char.isprintable()} <= raw
    assert "evil" in shown


@pytest.mark.parametrize("where", ["a file", "an error"])
def test_no_name_of_a_file_acts_on_a_terminal(store: Path, where: str) -> None:
    """Whoever may write to the directory may give a file any name."""
    if where == "a file":
        (store / "ops" / "one" / EVIL).write_bytes(b"")
        result = call(store, "verify")
        assert result.out.count("\n") == 2
    else:
        result = call(store, "import", str(store / EVIL))
        assert result.err.count("\n") == 1
    shown = result.out + result.err
    assert r"evil\u001b]0;title\u0007\u009b31m\u007f\u202e\u000d\u000a" in shown
    assert {char for char in shown if not char.isprintable()} == {"\n"}


def test_an_id_that_would_break_a_line_is_a_json_string(store: Path) -> None:
    assert [id_text(id) for id in ("a b", "é😀", "", '"', "a\tb", "\x9b")] == [
        *("a b", "é😀", '""', r'"\""', r'"a\tb"', '"\x9b"')
    ]
    lines = call(store, "ls").out.split("\n")
    assert len(lines) == 5
    assert [line.split("\t")[0][:8] for line in lines] == ["[bold]ta", r'"evil\u0', "iiiiiiii", "task-1", ""]
    assert [value["id"] for value in call(store, "ls", "--json").values] == sorted(
        [EVIL, "task-1", "[bold]task-2[/bold]", "i" * 200]
    )


def test_a_table_fits_the_terminal_and_keeps_ids_whole(store: Path) -> None:
    shown = STYLE.sub("", at_terminal(store, "ls", columns=80)).splitlines()
    assert len(shown) == 5
    assert shown[0].split() == ["id", "document"]
    assert shown[1].startswith("[bold]task-2[/bold] ")
    assert shown[1].rstrip().endswith("…")
    assert re.fullmatch(r"i+…  \{\"n\":1\} *", shown[3])
    assert shown[4].startswith("task-1 ")
    assert all(len(line) <= 80 for line in shown)


def test_a_pipe_gets_the_same_without_styles(store: Path) -> None:
    for command in (["ls"], ["ops"], ["history", "task-1"], ["stats"], ["get", "task-1"], ["verify"]):
        result = call(store, *command)
        assert result.code == 0
        assert result.err == ""
        assert "\x1b" not in result.out
        assert "…" not in result.out


def test_progress_is_drawn_for_people_only(store: Path, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    commands = {"exporting": ["export", out], "importing": ["import", out], "verifying": ["verify"]}
    for label, command in (commands | {"compacting": ["compact", "--full"]}).items():
        assert label in at_terminal(store, *command)
        assert label not in at_terminal(store, *command, "--json")
        assert call(store, *command).err == ""


def test_get_is_quick_to_load(store: Path) -> None:
    code = "import sys; from opslog.cli.app import run; run(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "-s", str(store), "get", "task-1"], capture_output=True, text=True, check=True
    )
    document, modules = done.stdout.splitlines()
    assert document.startswith('{"title":')
    packages = {name.partition(".")[0] for name in modules.split()}
    assert {"opslog", "click", "orjson"} <= packages
    assert packages.isdisjoint({"rich", "pyspark", "pandas", "fsspec", "s3fs", "asyncio", "uvicorn"})
    assert {name for name in modules.split() if name.startswith("opslog.cli.")} == {
        f"opslog.cli.{name}" for name in ("app", "documents", "output", "session", "values")
    }


def test_completion_offers_ids_that_can_be_typed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_OPSLOG_COMPLETE": "zsh_complete", "COMP_WORDS": "opslog history ", "COMP_CWORD": "2"}.items():
        monkeypatch.setenv(name, value)
    result = call(store)
    assert result.code == 0
    assert result.out.split("\n")[1::3] == ["[bold]task-2[/bold]", "i" * 200, "task-1"]
    assert call(store.with_name("nowhere")).err == ""


def test_the_completion_script_is_one_of_its_shell(store: Path) -> None:
    for name in ("bash", "zsh", "fish"):
        result = call(store, "completion", name)
        assert (result.code, result.err) == (0, "")
        assert f"_OPSLOG_COMPLETE={name}_complete" in result.out
    typed = """
        eval "$(opslog completion bash)"
        COMP_WORDS=(opslog get ta) COMP_CWORD=2
        _opslog_completion opslog
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    assert shell(typed, store.parent).stdout == "task-1\n"
