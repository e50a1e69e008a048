"""How far long work has come: in units that people know, and only for people."""

from __future__ import annotations

import gzip
import os
import pty
import re
import subprocess
from pathlib import Path

import pytest

import opslog
from opslog.cli import progress
from opslog.cli.progress import Steps, amounts, size_text, time_text
from tests.cli.calling import PROGRAM, at_terminal, call, read_terminal


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with opslog.open(tmp_path / "store", agent="one", settings=opslog.Settings(undo_window=1)) as store:
        with store.batch():
            for number in range(1499):
                store[f"task-{number}"] = {"n": number}
        store["last"] = {"n": 0}
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("unit", "done", "total", "rate", "text"),
    [
        ("documents", 0, None, None, ""),
        ("documents", 0, 200_000, None, "  0%  0 of 200,000 documents"),
        ("documents", 104_000, 200_000, 81_234.5, " 52%  104,000 of 200,000 documents, 81,000 a second, 1 s left"),
        ("documents", 200_000, 200_000, 7.4, "100%  200,000 of 200,000 documents, 7 a second"),
        ("commits", 1200, None, 350.0, "1,200 commits, 350 a second"),
        ("bytes", 12_340_000, 45_000_000, 4.06e6, " 27%  12.3 of 45.0 MB, 4.1 MB/s, 8 s left"),
        ("bytes", 200, 3_000_000_000, 1e6, "  0%  0.0 of 3.0 GB, 1.0 MB/s, 50 min left"),
        ("bytes", 20, 200, None, " 10%  20 of 200 bytes"),
        ("bytes", 1, None, 1.0, "1 byte, 1 byte/s"),
    ],
)
def test_amounts_are_in_units_that_people_know(
    unit: progress.Unit, done: int, total: int | None, rate: float | None, text: str
) -> None:
    assert amounts(unit, done, total, rate) == text


def test_sizes_and_times_are_short() -> None:
    assert [size_text(size) for size in (0, 999, 1000, 1_550_000, 2e12)] == [
        *("0 bytes", "999 bytes", "1.0 kB", "1.6 MB", "2.0 TB")
    ]
    assert [time_text(seconds) for seconds in (0.2, 99, 100, 5000, 6100)] == [
        *("1 s", "99 s", "2 min", "83 min", "1 h 42 min")
    ]


def test_the_line_shows_the_step_that_was_advanced_last() -> None:
    from rich.progress import Progress

    display = Progress(disable=True)
    steps = Steps(display)
    first, second = steps.step("copying", "bytes"), steps.step("verifying", "bytes")
    assert first is not None
    assert second is not None

    def shown() -> list[tuple[str, float, float | None]]:
        return [(task.description, task.completed, task.total) for task in display.tasks if task.visible]

    assert shown() == [("copying", 0, None)]
    first(5, 10)
    assert shown() == [("copying", 5, 10)]
    second(0, 0)
    assert shown() == [("verifying", 0, None)]
    second(3, 7)
    assert shown() == [("verifying", 3, 7)]
    first(1, 20)
    assert shown() == [("copying", 1, 20)]


def test_nothing_is_printed_when_nobody_watches() -> None:
    assert Steps(None).step("copying", "bytes") is None


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Makes the program draw the line at each change, and not only ten times a second."""
    code = tmp_path / "sitecustomize.py"
    code.write_text(
        "import rich.progress\n"
        "update = rich.progress.Progress.update\n"
        "rich.progress.Progress.update = lambda self, *a, **k: (update(self, *a, **k), self.refresh())[0]\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))


@pytest.mark.usefixtures("at_once")
def test_long_work_shows_percent_and_units(store: Path, tmp_path: Path) -> None:
    lines, table, packed = tmp_path / "out.jsonl", tmp_path / "out.csv", tmp_path / "out.jsonl.gz"
    shown = at_terminal(store, "export", str(lines), columns=120)
    assert re.search(r"exporting .* 6\d%  1,000 of 1,500 documents", shown)
    packed.write_bytes(gzip.compress(lines.read_bytes()))
    assert call(store, "export", str(table)).code == 0
    for file, of in ((lines, r"of \d+\.\d kB"), (packed, r"of \d+\.\d kB"), (table, "of 1,500 documents")):
        shown = at_terminal(tmp_path / "new", "import", str(file), columns=120)
        assert re.search(rf"importing .*\d+%  [\d.,]+ {of}", shown), file
        assert "imported 1,500 documents in 1,500 commits\n" in shown
    assert re.search(r"compacting .*100%  1,499 of 1,499 documents", at_terminal(store, "compact"))
    assert re.search(r"verifying .*(99|100)%  [\d.]+ of [\d.]+ kB", at_terminal(store, "verify", columns=120))
    shown = at_terminal(store, "copy", str(store), str(tmp_path / "copy"), columns=120)
    assert re.search(r"copying .*100%  [\d.]+ of [\d.]+ kB[\s\S]*verifying .*(99|100)%  [\d.]+ of [\d.]+ kB", shown)
    shown = at_terminal(tmp_path / "new", "replay", "--engine", "python", "--to", str(tmp_path / "all"), columns=120)
    assert re.search(r"reading logs .*100%  [\d.]+ of [\d.]+ kB[\s\S]*writing .*100%  1,500 of 1,500 documents", shown)


@pytest.mark.usefixtures("at_once")
def test_an_import_of_a_repository_counts_its_commits(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()

    def git(*arguments: str, stdin: bytes = b"") -> None:
        subprocess.run(["git", "-C", str(repository), *arguments], input=stdin, check=True, capture_output=True)

    git("init", "--bare")
    commits = (
        f"commit refs/heads/main\ncommitter A <a@x> {number} +0000\ndata 0\n\nM 644 inline f\ndata <<E\n{number}\nE\n\n"
        for number in range(1, 251)
    )
    git("fast-import", stdin="".join(commits).encode())
    shown = at_terminal(tmp_path / "new", "import", "--git", str(repository), "--rev", "main", columns=120)
    assert re.search(r"importing .*80%  200 of 250 commits", shown)
    assert "imported 250 versions of documents in 250 commits\n" in shown


def test_lines_in_a_file_are_not_disturbed(store: Path, tmp_path: Path) -> None:
    """Only stderr is a terminal."""
    master, slave = pty.openpty()
    with (tmp_path / "out").open("wb") as out:
        command = [*PROGRAM, "--store", str(store), "export", "--plain"]
        process = subprocess.Popen(command, stdout=out, stderr=slave, env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    seen = b""
    while data := read_terminal(master):
        seen += data
    os.close(master)
    assert process.wait() == 0
    assert b"exporting" in seen
    assert (tmp_path / "out").read_text() == call(store, "export", "--plain").out


def test_summaries_are_in_english(store: Path, tmp_path: Path) -> None:
    assert call(store, "compact").out.startswith("compacted 1 commit into manifest 2; wrote 1,499 records, ")
    one = tmp_path / "one.jsonl"
    one.write_text('{"op":"batch","agent":"x","ops":[{"op":"set","id":"a","data":{}},{"op":"delete","id":"b"}]}\n')
    assert call(store, "import", str(one)).out == "imported 1 document and 1 deletion in 1 commit\n"
    assert call(store, "export", str(tmp_path / "out")).out == f"exported 1,501 documents to {tmp_path / 'out'}\n"
    assert re.search(r"with 1,501 records, [\d.]+ kB$|, [\d.]+ kB$", call(store, "verify").out)
