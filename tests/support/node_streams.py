"""The reference server of Durable Streams, from npm, for tests and comparisons."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import portalocker

_FOLDER = Path(__file__).parents[2] / "build" / "npm-streams"
_PACKAGES = {"server": "@durable-streams/server@0.3.7"}


@cache
def package(name: str) -> Path | None:
    """The folder in which the package is installed; None if it is not available."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    _FOLDER.mkdir(parents=True, exist_ok=True)
    found = _FOLDER / "node_modules" / "@durable-streams" / name
    with portalocker.Lock(_FOLDER / "lock", timeout=200):  # tests run in several processes
        if not found.exists():
            options = ("--prefix", str(_FOLDER), "--no-audit", "--no-fund", "--fetch-retries=0")
            subprocess.run(["npm", "install", *options, _PACKAGES[name]], capture_output=True, check=False)
    return found if found.exists() else None


def install(name: str, *packages: str) -> Path | None:
    """A folder in which these packages are installed; None if they are not available."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    folder = _FOLDER.with_name(f"npm-{name}")
    folder.mkdir(parents=True, exist_ok=True)
    installed = folder / "installed.json"
    with portalocker.Lock(folder / "lock", timeout=200):  # tests run in several processes
        if not installed.exists() or json.loads(installed.read_text()) != list(packages):
            options = ("--prefix", str(folder), "--no-audit", "--no-fund", "--fetch-retries=0")
            if subprocess.run(["npm", "install", *options, *packages], capture_output=True, check=False).returncode:
                return None
            installed.write_text(json.dumps(packages))
    return folder


@contextmanager
def reference_server(**options: Any) -> Iterator[str]:
    """The address of a running reference server. The options are those of its `DurableStreamTestServer`."""
    place = package("server")
    assert place is not None, "ask package() first"
    script = Path(__file__).with_name("node_streams.mjs")
    process = subprocess.Popen(
        ["node", script, place, json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        assert address, "the reference server did not start"
        yield address
    finally:
        process.communicate(timeout=30)
