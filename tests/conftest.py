from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of two megabytes."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a small filesystem")
    place = tmp_path / "small"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting is not permitted here: {mounted.stderr.strip()}")
    yield place
    # Lazily: a test that failed may still have files open.
    subprocess.run(["umount", "--lazy", str(place)], check=True)
