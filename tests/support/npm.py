"""npm packages that tests need: installed once, in a folder that git ignores."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "build"


def installed(name: str, *packages: str) -> Path:
    """The folder with these packages, pinned as ``name@version``. Skips the test if they are not available."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("this needs node and npm")
    folder = ROOT / name
    note = folder / "installed.json"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:  # tests run in several processes
        fcntl.flock(lock, fcntl.LOCK_EX)
        _install(folder, note, packages)
    return folder


def _install(folder: Path, note: Path, packages: tuple[str, ...]) -> None:
    if not note.exists() or json.loads(note.read_text()) != list(packages):
        command = ["npm", "install", "--prefix", str(folder), "--no-audit", "--no-fund", *packages]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"{', '.join(packages)} cannot be installed: {done.stderr.strip()[-300:]}")
        note.write_text(json.dumps(packages))
