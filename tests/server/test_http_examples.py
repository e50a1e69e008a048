"""Every example of docs/http.md, as written there, against `opslog serve`."""

from __future__ import annotations

import itertools
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from opslog.doors.tokens import Tokens
from tests.support.documents import ROOT, blocks
from tests.support.servers import serving

PAGE = ROOT / "docs" / "http.md"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")


@pytest.mark.skipif(shutil.which("curl") is None, reason="the examples are written for curl")
def test_examples_print_what_is_shown(tmp_path: Path) -> None:
    found = [block for block in blocks(PAGE) if block.language in ("sh", "text")]
    ran = 0
    with serving("--memory", "--store", f"tasks={tmp_path / 'tasks'}") as server:
        places = {"store": f"{server.root}/v1/store/tasks", "feed": f"{server.url}/stores/tasks"}
        for block, shown in itertools.pairwise(found):
            if block.language == "sh" and shown.language == "text":
                command = ["bash", "-euo", "pipefail", "-c", block.text]
                done = subprocess.run(
                    command, env={**os.environ, **places}, capture_output=True, text=True, check=False, timeout=60
                )
                assert done.returncode == 0, (block.text, done.stderr)
                printed = done.stdout.replace("\r", "").strip()
                assert TIME.sub("TIME", printed) == TIME.sub("TIME", shown.text.strip()), block.text
                ran += 1
    assert ran == sum(block.language == "text" for block in found) > 10


def test_the_file_of_tokens_that_is_shown_can_be_read(tmp_path: Path) -> None:
    (shown,) = (block.text for block in blocks(PAGE) if block.language == "toml")
    file = tmp_path / "tokens.toml"
    file.write_text(shown)
    token = Tokens.load(file).find("Bearer test")
    assert token is not None
    assert token.author() == "planner"
