"""npm packages that tests and benchmarks need: each set is installed once, in a folder of build/ that git ignores."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "build"


class PackagesMissingError(Exception):
    """Packages cannot be installed. The message says why."""


def install(name: str, *packages: str, root: Path = ROOT) -> Path:
    """The folder ``build/<name>`` with these packages, pinned as ``name@version``, all of them complete.

    Several processes may ask at once: one installs, the others wait for it. An installation that was interrupted is
    made again. What is in ``node_modules`` says nothing about it: npm makes a package's folder before its files.

    :raises PackagesMissingError: there is no npm here, or it could not install them.
    """
    if shutil.which("npm") is None or shutil.which("node") is None:
        raise PackagesMissingError("there is no npm and node here")
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    note = folder / "installed.json"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not note.exists() or json.loads(note.read_text()) != list(packages):
            note.unlink(missing_ok=True)
            options = ("--prefix", str(folder), "--no-audit", "--no-fund", "--fetch-retries=0")
            done = subprocess.run(["npm", "install", *options, *packages], capture_output=True, text=True, check=False)
            if done.returncode:
                raise PackagesMissingError(f"{', '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
            note.write_text(json.dumps(packages))
    return folder


def installed(name: str, *packages: str) -> Path:
    """As :func:`install`, for tests: skips the test if the packages cannot be installed."""
    try:
        return install(name, *packages)
    except PackagesMissingError as error:
        pytest.skip(str(error))
