"""`opslog serve` in a process of its own."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def served(*options: str) -> Iterator[str]:
    """Its address with the stream root, without a slash at the end."""
    command = [sys.executable, "-m", "opslog", "serve", "--port", "0", "--json", *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield _address(process)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if line.startswith("{") and (url := json.loads(line).get("url")):
            return str(url).rstrip("/")
    raise AssertionError("opslog serve did not start:\n" + "".join(said))
