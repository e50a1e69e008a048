"""Real processes: each a fresh interpreter that runs one of `tests.support.programs`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = Path(__file__).with_name("programs.py")


class Process:
    """A running program: `hear` its next JSON line, `resume` it, `kill` it."""

    def __init__(self, program: Callable[..., None], args: tuple[object, ...]) -> None:
        self._name = program.__name__
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", str(PROGRAMS), self._name, json.dumps(args)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._stdin, self._stdout = self._process.stdin, self._process.stdout

    @property
    def pid(self) -> int:
        return self._process.pid

    def hear(self) -> Any:
        """Its next value; an assertion fails if it ended instead."""
        line = self._stdout.readline()
        assert line.endswith(b"\n"), f"{self._name} ended with exit code {self._process.wait()} after {line!r}"
        return json.loads(line)

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def resume(self) -> None:
        self._stdin.write(b"\n")
        self._stdin.flush()

    def end(self) -> None:
        """Wait until it has ended by itself, without an error."""
        self._stdin.close()
        assert self._process.wait() == 0, f"{self._name} ended with exit code {self._process.returncode}"

    def kill(self) -> list[Any]:
        """Kill it with SIGKILL. Returns the whole lines of its output that nobody had read."""
        self._process.send_signal(signal.SIGKILL)
        rest = self._stdout.read()
        assert self._process.wait() == -signal.SIGKILL, f"{self._name} ended by itself: {self._process.returncode}"
        return [json.loads(line) for line in rest.splitlines(keepends=True) if line.endswith(b"\n")]

    def discard(self) -> None:
        """Make sure that it has ended and its pipes are closed."""
        self._process.kill()
        self._process.wait()
        self._stdout.close()
        if not self._stdin.closed:
            self._stdin.close()


@contextmanager
def start(program: Callable[..., None], *args: object) -> Iterator[Process]:
    """Run a program of `tests.support.programs` with JSON arguments. It is gone after the block."""
    process = Process(program, args)
    try:
        yield process
    finally:
        process.discard()
