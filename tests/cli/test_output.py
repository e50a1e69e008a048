"""Output at a terminal: nothing in a document or an id controls the terminal, ids stay whole, and a line is one
document."""

from __future__ import annotations

import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import opslog
from opslog.cli import output
from opslog.cli.app import app
from opslog.cli.output import id_text, rows, short_time
from opslog.environment import format_ts
from tests.cli.calling import PROGRAM, at_terminal, call, read_terminal, shell, start_at_terminal

STYLE = re.compile(r"\x1b\[[0-9;]*m")
EVIL = "evil\x1b]0;title\x07\x9b31m\x7f\u202e\r\n"
"""Sets the title of a window, changes the colour of what follows, and returns to the start of the line."""


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
    "command",
    [
        ["ls"],
        ["ls", "--ids"],
        ["get", EVIL],
        ["history", EVIL],
        ["ops"],
        ["query", "FROM documents"],
        ["query", f'SELECT id AS "{EVIL}" FROM documents'],
        ["--json", "ops"],
        ["--json", "ls"],
    ],
)
def test_nothing_stored_acts_on_a_terminal(store: Path, command: list[str]) -> None:
    shown = STYLE.sub("", at_terminal(store, *command, columns=200))
    raw = {"\x7f", "\x9b", "\u202e"} if "--json" in command else set()  # JSON text may hold these; it is for programs
    assert {char for char in shown if char != "\n" and not char.isprintable()} <= raw
    assert "evil" in shown


@pytest.mark.parametrize("where", ["a file", "an error"])
def test_no_name_of_a_file_acts_on_a_terminal(store: Path, where: str) -> None:
    """Anybody who may write to the directory may give a file any name."""
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


def test_a_table_shows_lines_while_others_are_still_made(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    def lines() -> Iterator[list[str]]:
        for number in range(1000):
            if number == 500:
                sys.stdout.flush()
                assert capfdbinary.readouterr().out.count(b"\n") > 400
            yield [f"id-{number}" * (1 + number // 600), "x" * 300]

    monkeypatch.setattr(output, "is_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "80")
    rows(["id", "document"], lines(), paged=False)
    sys.stdout.flush()
    shown = capfdbinary.readouterr().out.decode().splitlines()
    assert shown[-1].startswith("id-999id-999  xxx")
    assert all(len(line) <= 80 for line in shown)


def test_a_table_that_is_longer_than_the_screen_goes_through_the_pager(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opslog.open(tmp_path / "store", agent="one") as store, store.batch():
        for number in range(300):
            store[f"task-{number:03}"] = {}
    monkeypatch.setenv("PAGER", "head -n 3")
    assert at_terminal(tmp_path / "store", "ls").splitlines() == ["id        document", "task-000  {}", "task-001  {}"]


def test_watch_shows_a_line_for_each_document_to_a_person(tmp_path: Path) -> None:
    set_line = re.compile(rb'^\d\d:\d\d:\d\d  planner  set     task-\d+ +\{"title":"Build"\}\r?$', re.MULTILINE)
    undo_line = re.compile(rb"  planner  undo    task-\d+ +took back its commit \d+\r?$", re.MULTILINE)
    with opslog.open(tmp_path / "store", agent="planner") as store:
        process, master = start_at_terminal(tmp_path / "store", "watch", "--every", "0.01")
        seen, number = b"", 0
        # It may begin at any time, between a batch and its undo, too: then its first line is the undo's.
        while process.poll() is None and not (set_line.search(seen) and undo_line.search(seen)):
            number += 1
            with store.batch():
                store[f"task-{number}"] = {"title": "Build"}
                store["other"] = {"n": number}
            store.undo()
            if select.select([master], [], [], 0.05)[0]:
                seen += read_terminal(master)
    process.send_signal(signal.SIGINT)
    while read_terminal(master):
        pass
    os.close(master)
    assert process.wait() == 0, seen
    assert set_line.search(seen), seen
    assert undo_line.search(seen), seen


def test_a_query_shows_times_of_writes_as_other_commands_do(tmp_path: Path) -> None:
    with opslog.open(tmp_path / "store", agent="one") as store:
        store["a"] = {}
    query = "SELECT ts, ts AS computed FROM documents"
    shown = at_terminal(tmp_path / "store", "query", query).splitlines()[1]
    assert re.fullmatch(r"\d+ (s|min) ago +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", shown)
    ts, computed = call(tmp_path / "store", "query", query).out.split()
    assert ts == computed


def test_a_token_is_whole_however_narrow_the_terminal_is(store: Path) -> None:
    token = call(store, "changes").out.splitlines()[-1].split("\t")[2]
    shown = at_terminal(store, "changes", columns=40).splitlines()
    assert len(token) > 40
    assert shown[-1] == f"go on with --since {token}"
    assert shown[0].split() == ["op", "id", "document"]


def test_times_are_short_for_people() -> None:
    now = time.time()
    assert re.fullmatch(r"\d s ago", short_time(format_ts(now - 3)))
    assert short_time(format_ts(now - 185)) == "3 min ago"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d", short_time(format_ts(now - 100_000)))
    assert re.fullmatch(r"\d\d:\d\d:\d\d|\d{4}-.*", short_time(format_ts(now + 60)))


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
    common = {"output", "program", "reading", "session"}
    assert_loads(store, ["get", "task-1"], {"orjson"}, common)
    of_click = {"app", "documents", "options", "values"}
    assert_loads(store, ["get", "task-1", "--stamp"], {"click", "orjson"}, common | of_click)


def assert_loads(store: Path, command: list[str], packages: set[str], modules: set[str]) -> None:
    code = "import sys; from opslog.cli.program import run; run(sys.argv[1:]); print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code, "-s", str(store), *command], capture_output=True, text=True, check=True
    )
    document, line = done.stdout.splitlines()
    assert '{"title":' in document
    loaded = line.split()
    slow = {"click", "orjson", "rich", "pyspark", "pandas", "fsspec", "s3fs", "asyncio", "uvicorn"}
    assert slow & {name.partition(".")[0] for name in loaded} == packages
    assert {name for name in loaded if name.startswith("opslog.cli.")} == {f"opslog.cli.{name}" for name in modules}


@pytest.mark.parametrize(
    "arguments",
    [
        ["get", "task-1"],
        ["get", "task-1", "--json"],
        ["--json", "get", "task-9"],
        ["get", "task-9"],
        ["-s", "elsewhere", "get", "task-1"],
        ["-s", "elsewhere", "get", "task-1", "--json"],
        ["-s", "elsewhere", "get", "--store", "$STORE", "task-1"],
        ["--store=$STORE", "get", "task-1"],
        ["get", "-s$STORE", "task-1"],
        ["get", "--store", "", "task-1"],
        ["get", "task-1", "-s"],
        ["get", "task-1", "--store", "--json"],
        ["get", "-s", "get", "task-1"],
        ["-s", "get", "task-1"],
        ["get", "--", "task-1"],
        ["get", "--", "-1"],
        ["get", "-1"],
        ["get", "get"],
        ["get", ""],
        ["get", "a\0b"],
        ["get", "x" * 5000],
        ["get"],
        ["task-1", "get"],
        ["get", "task-1", "task-1"],
        ["get", "task-1", "--agent", "a"],
        ["get", "task-1", "--help"],
    ],
    ids=lambda words: " ".join(words)[:40],
)
def test_get_is_the_same_with_click_and_without(store: Path, arguments: list[str]) -> None:
    arguments = [word.replace("$STORE", str(store)) for word in arguments]
    assert call(store, *arguments) == call(store, *arguments, commands=app)


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_cut_off_is_no_success(tmp_path: Path, unbuffered: str) -> None:
    """The document is longer than a pipe holds, so its reader leaves while it is written."""
    with opslog.open(tmp_path, agent="a") as store:
        store["big"] = {"text": "x" * 1_000_000}
    reading = subprocess.Popen(
        [*PROGRAM, "--store", str(tmp_path), "get", "big"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    assert reading.stdout is not None
    assert os.read(reading.stdout.fileno(), 10) == b'{"text":"x'
    reading.stdout.close()
    assert reading.wait() == 141


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
