"""The last release, as it was committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.documents import ROOT

RELEASE = "bd90177"
"""The commit of 0.1.0. It has no tag, and was published only here. Later releases have tags."""


def release_in(folder: Path) -> Path:
    """The tree of the last release, in a new folder. Skips the test if there is no history, as beside a wheel."""
    archive, source = folder / "source.tar", folder / "source"
    made = subprocess.run(
        ["git", "-C", ROOT, "archive", "--format=tar", "--output", archive, RELEASE], capture_output=True, check=False
    )
    if made.returncode != 0:
        why = made.stderr.decode(errors="replace").strip()
        shallow = subprocess.run(
            ["git", "-C", ROOT, "rev-parse", "--is-shallow-repository"], capture_output=True, check=False
        )
        assert shallow.stdout.strip() != b"false", f"the whole history is here, but not {RELEASE}: {why}"
        pytest.skip(f"no git history here, so no {RELEASE}: {why}")
    source.mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", source], check=True)
    return source
