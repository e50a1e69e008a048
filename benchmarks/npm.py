"""npm packages as peers: how they are installed, and driven from here by a script of a few commands."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.support.npm import PackagesMissingError, install

_PACKAGES = ("@backloghq/opslog@0.8.1", "@backloghq/opslog-s3@0.4.1", "node@22")


@cache
def npm_modules() -> Path | None:
    """The folder of the packages, with the Node.js that they require; None if they cannot be installed."""
    try:
        return install("npm", *_PACKAGES) / "node_modules"
    except PackagesMissingError as error:
        print(f"without the npm package: {error}", file=sys.stderr)
        return None


def node(modules: Path) -> str:
    """The Node.js that the packages require."""
    return str(modules / "node" / "bin" / "node")


class Driver:
    """A script of this folder in a process of its own: a JSON command per line goes in, an answer per line comes out.

    :param environment: added to that of this process.
    """

    def __init__(self, script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> None:
        modules = npm_modules()
        assert modules is not None, "contenders of a package are registered only where it is"
        program = str(Path(__file__).with_name(script))
        self._process = subprocess.Popen(
            [node(modules), "--max-old-space-size=12000", program, str(modules), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, *command: Any) -> Any:
        """A command, and its answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the npm package ended at {command[0]}"
        return json.loads(answer)

    def close(self) -> None:
        self._process.communicate(timeout=60)
