"""Short programs in processes of their own, given as text."""

from __future__ import annotations

import subprocess
import sys


class Process:
    """A Python process that runs `program`. It prints a line when it has reached a point, and continues when
    resumed."""

    def __init__(self, program: str, *args: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", program, *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self.process.pid

    def hear(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def resume(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end. Returns the exit code."""
        self.process.communicate(timeout=60)
        return self.process.returncode

    def kill(self) -> None:
        self.process.kill()
        self.end()
