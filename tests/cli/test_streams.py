"""Standard streams that are closed, full, or that nobody reads any more; and paths that are no regular files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

import opslog
from tests.cli.calling import INTERRUPTED_PROGRAM, PROGRAM, call, shell


@pytest.fixture
def store(tmp_path: Path) -> Path:
    root = tmp_path / "store"
    with opslog.open(root) as store:
        store["a"] = {"n": 1}
        store["b"] = {"n": 2}
    return root


@pytest.mark.parametrize("closed", ["0", "1", "2", "0 1 2"])
def test_closed_streams_are_no_obstacle(store: Path, closed: str) -> None:
    """And no file of the store takes the number of a closed stream."""
    redirections = " ".join(f"{number}>&-" for number in closed.split())
    done = shell(f"opslog set c '{{}}' {redirections}; opslog ls --ids {redirections}; echo $?", store.parent)
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""
    with opslog.open(store, read_only=True) as opened:
        assert list(opened) == ["a", "b", "c"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize("command", ["ls", "get a", "export", "ops", "stats", "--help"])
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure(store: Path, command: str, unbuffered: str) -> None:
    done = shell(f"PYTHONUNBUFFERED={unbuffered} opslog {command} > /dev/full; echo $?", store.parent)
    assert done.stdout == "3\n"
    assert done.stderr == "opslog: cannot read or write: No space left on device\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("-s missing get a", 3),
        ("-s missing get a --json", 3),
        ("get x", 1),
        ("set a {} --create", 1),
        ("ls --no-such-option", 2),
        ("", 2),
        ("get a", 0),
    ],
)
def test_the_exit_code_is_the_same_if_nobody_can_read_why(store: Path, command: str, code: int) -> None:
    """A full disk behind stderr, and a reader of it that is gone. The exit code used to be 1, which means "no"."""
    arguments = command.split()
    unread, gone = os.pipe()
    os.close(unread)
    with open(gone, "wb") as closed, open("/dev/full", "wb") as full:
        for errors in (closed, full):
            done = subprocess.run(
                [*PROGRAM, *([] if "missing" in arguments or not arguments else ["-s", str(store)]), *arguments],
                cwd=store.parent,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
                timeout=60,
            )
            assert (done.returncode, done.stdout) == (code, b'{"n":1}\n' if code == 0 else b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="only Linux has a full device")
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_cannot_be_written_is_a_failure_also_if_that_cannot_be_said(store: Path, unbuffered: str) -> None:
    done = shell(f"export PYTHONUNBUFFERED={unbuffered}; opslog ls > /dev/full 2> /dev/full; echo $?", store.parent)
    assert done.stdout == "3\n"


def test_a_reader_that_leaves_ends_a_command_quietly(store: Path) -> None:
    with opslog.open(store, durability="buffered") as opened:
        for number in range(5000):
            opened[f"{number:04}"] = {"text": "x" * 50}
    for command in ("ls", "ops", "export", "--json ls"):
        done = shell(f'opslog {command} | head -1 > /dev/null; echo "${{PIPESTATUS[0]}}"', store.parent)
        assert (done.stdout, done.stderr) == ("141\n", ""), command


def test_watch_ends_when_its_reader_leaves_even_if_nothing_happens(store: Path) -> None:
    reader, writer = os.pipe()
    process = subprocess.Popen([*PROGRAM, "-s", str(store), "watch"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    os.close(reader)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (141, "")


def test_watch_takes_no_name_and_ends_with_an_interrupt(store: Path) -> None:
    process = subprocess.Popen(
        [*INTERRUPTED_PROGRAM, "-s", str(store), "--agent", "main", "watch", "--every", "0.01"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    heard = threading.Event()
    with opslog.open(store, agent="main", compact_after=None) as opened:

        def write() -> None:
            # The command prints this after it has opened the store. So write until it has printed something.
            while not heard.is_set():
                opened["a"] = {"n": 3}

        writer = threading.Thread(target=write)
        writer.start()
        line = process.stdout.readline()
        heard.set()
        writer.join()
    assert {**json.loads(line), "ts": "", "clock": 0} == {
        **{"ts": "", "clock": 0, "agent": "main", "op": "set"},
        **{"id": "a", "data": {"n": 3}},
    }
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")


def test_an_interrupt_says_nothing(store: Path) -> None:
    process = subprocess.Popen(
        [*INTERRUPTED_PROGRAM, "-s", str(store), "set", "a", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    # More than a pipe holds: once everything is written, the command is reading.
    process.stdin.write(b" " * (1 << 20))
    process.stdin.flush()
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == (b"", b"")
    assert process.returncode == 130
    assert call(store, "get", "a").out == '{"n":1}\n'


def test_export_to_what_is_no_file_leaves_it_in_place(store: Path, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    done = shell("cat fifo & opslog export fifo; wait", tmp_path)
    assert done.stderr == ""
    assert [line for line in done.stdout.splitlines() if "data" in line] == call(store, "export").out.splitlines()
    assert fifo.is_fifo()
    assert call(store, "export", os.devnull).code == 0
    assert Path(os.devnull).is_char_device()
    done = shell("(echo before; opslog export /dev/stdout; echo after) >> out; tail -1 out", tmp_path)
    assert done.stdout == "after\n", "what is appended after it goes to the same file"


def test_export_through_a_link_replaces_what_it_leads_to(store: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("old")
    (tmp_path / "link").symlink_to("kept")
    assert call(store, "export", str(tmp_path / "link")).code == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "kept").read_text() == call(store, "export").out
    assert {path.name for path in tmp_path.iterdir()} == {"store", "kept", "link"}
