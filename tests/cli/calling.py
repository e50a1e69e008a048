"""Calling commands: in this process, in a process of their own, and at a terminal."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import click
import orjson

from opslog.cli.program import run

PROGRAM = (sys.executable, "-W", "error", "-m", "opslog")
# An interrupt may come between making an object and the `with` that would close it. That is not a fault of the program.
INTERRUPTED_PROGRAM = (*PROGRAM[:-2], "-W", "ignore::ResourceWarning", *PROGRAM[-2:])


class Result(NamedTuple):
    """The output of a command, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def values(self) -> list[Any]:
        """The JSON values in the lines of its output."""
        return [orjson.loads(line) for line in self.out.split("\n")[:-1]]

    @property
    def error(self) -> Any:
        """Its error as JSON, which must be one line."""
        assert self.err.count("\n") == 1
        return orjson.loads(self.err)


def call(
    store: Path, *arguments: str, stdin: bytes = b"", commands: click.Group | None = None, **settings: str
) -> Result:
    """Run a command on a store, in this process and without a terminal. No call may end in a traceback.

    :param commands: as of `run`.
    :param settings: additional environment variables.
    """
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OPSLOG_")}
    with (
        mock.patch.dict(os.environ, environment | {"OPSLOG_STORE": str(store)} | settings, clear=True),
        mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin))),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        code = run(arguments, commands)
    texts = []
    for stream in (out, err):
        stream.flush()
        data = stream.buffer
        assert isinstance(data, io.BytesIO)
        texts.append(data.getvalue().decode())
    assert "Traceback" not in texts[1], texts[1]
    return Result(code, *texts)


def shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a bash script in the directory `cwd`. In it `opslog` is this one, and OPSLOG_STORE is `store`."""
    return subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env={**os.environ, "OPSLOG_STORE": "store", "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def at_terminal(store: Path, *arguments: str, columns: int = 80) -> str:
    """What a person sees of a command at a terminal with so many columns."""
    process, master = start_at_terminal(store, *arguments, columns=columns)
    seen = b""
    while data := read_terminal(master):
        seen += data
    os.close(master)
    assert process.wait() == 0, seen.decode()
    return seen.decode().replace("\r\n", "\n")


def start_at_terminal(store: Path, *arguments: str, columns: int = 80) -> tuple[subprocess.Popen[bytes], int]:
    """Start a command at a terminal. Yields it, and the end that a person reads from."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "--store", str(store), *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**os.environ, "TERM": "xterm", "COLUMNS": str(columns)},
    )
    os.close(slave)
    return process, master


def read_terminal(master: int) -> bytes:
    try:
        return os.read(master, 65536)
    except OSError:  # Linux reports so that nobody has the other end open any more
        return b""
