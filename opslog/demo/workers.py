"""The worker processes of the demo, from both sides.

A worker is `python -m MODULE ARGUMENTS` with two pipes: it reads words of one letter and writes a `Status` per line.
It also stops when its input ends, so no worker outlives the demo, however that ends.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

from opslog.environment import REAL

STOP = b"s"
STAY = b"t"
REPORT = b"r"


class DemoError(Exception):
    """The demo cannot go on; the message gives the reason, and where to read more."""


class Status(msgspec.Struct, frozen=True):
    """A worker's report about itself, sent now and then. Counts are of all its sessions: they never fall.

    :ivar state: "holding" means running, and not finishing the task that it has.
    :ivar found: how many commits of its earlier sessions it found in the store when it came back; None in the first.
    :ivar lag: how many commits of others the last refresh found.
    :ivar tasks: how many it has done; `task`: its current one.
    """

    state: str
    commits: int = 0
    undos: int = 0
    batches: int = 0
    conflicts: int = 0
    lag: int = 0
    compactions: int = 0
    tasks: int = 0
    task: str = ""
    found: int | None = None


class Conductor:
    """The worker's side: it reads the conductor's words and writes reports."""

    def __init__(self) -> None:
        self._words = b""
        self._gone = False

    def says(self, word: bytes, wait_seconds: float = 0.0) -> bool:
        """Whether the conductor has said this word, or is gone. If not, waits for a new word first."""
        ready = not self._heard(word) and select.select([sys.stdin.fileno()], [], [], wait_seconds)[0]
        if ready:
            words = os.read(sys.stdin.fileno(), 16)
            self._words += words
            self._gone = not words
        return self._heard(word)

    def said(self, word: bytes) -> bool:
        """Whether this word was heard already."""
        return word in self._words

    def wait_for(self, word: bytes) -> None:
        while not self.says(word, wait_seconds=1.0):
            pass

    def report(self, status: Status) -> None:
        sys.stdout.buffer.write(msgspec.json.encode(status) + b"\n")
        sys.stdout.buffer.flush()

    def _heard(self, word: bytes) -> bool:
        return self._gone or word in self._words


class Worker:
    """The conductor's side: a running process, and its last report.

    :param errors: the file for the process's standard error.
    :param before: the last report of an earlier process of this name.
    """

    def __init__(
        self, name: str, module: str, arguments: list[str], errors: Path, before: Status | None = None
    ) -> None:
        self.name = name
        self.status = msgspec.structs.replace(before or Status(""), state="starting", task="")
        self.is_killed = False
        self._errors = errors
        with errors.open("xb") as file:
            # A process group of its own, so that Ctrl-C reaches only the conductor, which ends the workers.
            self._process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                process_group=0,
            )
        self._listener = threading.Thread(target=self._listen, name=f"listen-{name}", daemon=True)
        self._listener.start()

    def say(self, word: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(word)
            self._process.stdin.flush()
        except BrokenPipeError as error:
            raise self._death() from error

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone. Does nothing to a process that has ended."""
        self.is_killed = True
        self._process.kill()
        self._end()

    def wait_until(self, state: str, deadline: float) -> None:
        """Return when the worker has said that it is in this state.

        :raises DemoError: it ended instead, or did not get there before `deadline` (monotonic seconds).
        """
        while not self.is_in(state, deadline):
            REAL.sleep(0.02)

    def is_in(self, state: str, deadline: float) -> bool:
        """Whether the worker is in this state. Errors as of `wait_until`."""
        if self.status.state == state:
            return True
        self.check_alive()
        if REAL.monotonic() > deadline:
            raise DemoError(f"{self.name} is still {self.status.state}, and should be {state} by now")
        return False

    def wait(self, timeout_seconds: float) -> None:
        """Return when the process has ended well.

        :raises DemoError: it failed, or goes on after `timeout_seconds`.
        """
        try:
            code = self._process.wait(timeout_seconds)
        except subprocess.TimeoutExpired as error:
            raise DemoError(f"{self.name} does not end: it is {self.status.state}") from error
        if code != 0:
            raise self._death()
        self._end()

    def check_alive(self) -> None:
        """:raises DemoError: the process has ended."""
        if self._process.poll() is not None:
            raise self._death()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.status = msgspec.json.decode(line, type=Status)

    def _end(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.wait()
        self._listener.join()
        self._process.stdin.close()
        self._process.stdout.close()

    def _death(self) -> DemoError:
        code = self._process.wait()
        lines = self._errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = lines[-1] if lines else "nothing"
        return DemoError(
            f"{self.name} ended by itself with exit code {code}; its last words: {last} (all of them: {self._errors})"
        )
