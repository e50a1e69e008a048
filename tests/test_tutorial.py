"""A script follows the tutorial: it saves what the tutorial says to save, and types its commands in one shell, in
order."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documents import ROOT, blocks

TUTORIAL = ROOT / "docs" / "tutorial.md"
MARK = "@@ end of a command @@"


@pytest.mark.timeout(240)
def test_the_tutorial_shows_the_real_output(tmp_path: Path) -> None:
    script, expected = [f"cd '{tmp_path}'"], []
    for block in blocks(TUTORIAL):
        if block.language == "python":
            (name,) = re.findall(r"Save this as `([a-z]+\.py)`", block.before)
            script.append(f"cp '{tmp_path}/saved-{block.line}' '{name}'")
            (tmp_path / f"saved-{block.line}").write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                script += [command, f"printf '{MARK}\\n'"]
                expected.append((command, output))
    done = subprocess.run(
        ["bash"],
        input="\n".join(script).encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={
            **{name: value for name, value in os.environ.items() if not name.startswith("OPSLOG_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        check=True,
        timeout=200,
    )
    printed = done.stdout.decode().split(f"{MARK}\n")[:-1]
    assert list(zip([command for command, _ in expected], printed, strict=True)) == expected
