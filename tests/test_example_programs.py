"""The programs of examples/ do what their page shows, and keep their further promises."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

import opslog
from tests.support.consoles import check_console
from tests.support.documents import ROOT

EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
LINES_MAX = 90


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a copy of the examples."""
    for name in PROGRAMS:
        shutil.copy(EXAMPLES / name, tmp_path)
    shutil.copytree(EXAMPLES / "board", tmp_path / "board")
    return tmp_path


def run(place: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", *arguments], cwd=place, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.long
def test_the_page_shows_what_the_programs_print(place: Path) -> None:
    check_console(EXAMPLES / "README.md", place)


def test_there_are_four_programs_of_a_page_each_and_the_page_describes_them() -> None:
    text = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert len(PROGRAMS) == 4
    for name in PROGRAMS:
        assert f"[{name}]({name})" in text
        assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) <= LINES_MAX, "a page, no more"


def test_the_task_of_a_worker_that_was_killed_is_done_by_another(place: Path) -> None:
    run(place, "task_board.py", "tasks-board", "add", "one", "two")
    with opslog.open(place / "tasks-board", agent="dead") as dead:
        assert opslog.Lease(dead, "task-001", seconds=0.2).claim()
    assert run(place, "task_board.py", "tasks-board", "work", "ann", "--seconds", "0.2").split("\n")[:2] == [
        "ann did task-002",
        "ann did task-001",
    ]
    with opslog.open(place / "tasks-board", read_only=True) as board:
        assert board.count('status = "done" and by = "ann"') == 2


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (['{"image": "x", "memory_gb": 2}'], 1, 'no such job: {"image": "x", "memory_gb": 2}. A job needs an image,'),
        (['{"memory_mb": 2}'], 1, "A job needs an image, and may have memory_mb\n"),
        (["[1]"], 1, "no such job: [1]."),
        (["{"], 2, "error: argument fields: invalid"),
        ([], 2, "error: the following arguments are required: fields"),
    ],
)
def test_settings_that_do_not_exist_are_refused(place: Path, given: list[str], code: int, message: str) -> None:
    done = subprocess.run(
        [sys.executable, "audit.py", "settings", "set", "ann", "report", *given],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert "__init__" not in done.stderr


def test_the_mirror_goes_on_where_a_killed_one_was(place: Path) -> None:
    def mirrored() -> dict[str, str]:
        with closing(sqlite3.connect(place / "copy.sqlite")) as database:
            return dict(database.execute("SELECT id, document FROM documents ORDER BY id").fetchall())

    with opslog.open(place / "tasks-board", agent="a") as store:
        store["x"] = {"n": 1}
        command = [sys.executable, "mirror.py", "tasks-board", "copy.sqlite", "--follow"]
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, text=True, env=environment) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == "1 written, 0 deleted\n"
            store["y"] = {"n": 2}
            assert follower.stdout.readline() == "1 written, 0 deleted\n"
            follower.send_signal(signal.SIGKILL)
        store["z"] = {"n": 1.5, "text": "ü"}
        del store["x"]
        assert run(place, "mirror.py", "tasks-board", "copy.sqlite") == "1 written, 1 deleted\n"
        assert {id: json.loads(text) for id, text in mirrored().items()} == dict(store)
        assert run(place, "mirror.py", "tasks-board", "copy.sqlite") == "0 written, 0 deleted\n"
