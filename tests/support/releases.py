"""The last release, as its commit has it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.documents import ROOT

RELEASE = "bd90177"
"""The commit of 0.1.0. It has no tag, and was published nowhere but here; later releases have one."""


def release_in(folder: Path) -> Path:
    """The tree of the last release, in a new folder below; skips where git does not have it, as beside a wheel."""
    archive, source = folder / "source.tar", folder / "source"
    made = subprocess.run(
        ["git", "-C", ROOT, "archive", "--format=tar", "--output", archive, RELEASE], capture_output=True, check=False
    )
    if made.returncode != 0:
        why = made.stderr.decode(errors="replace").strip()
        assert not (os.environ.get("CI") and (ROOT / ".git").exists()), f"CI needs the whole history: {why}"
        pytest.skip(f"no git history here, so no {RELEASE}: {why}")
    source.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    return source
