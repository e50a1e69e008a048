"""The official conformance suite for servers: every scenario that applies to a server with its own tools and resources.
The other scenarios call tools, prompts and resources that only a server made for the suite has."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

import opslog
from tests.support.mcp_clients import http
from tests.support.npm import installed

# The suite needs a newer node than some machines have.
PACKAGES = ("@modelcontextprotocol/conformance@0.1.16", "node@22.23.3")
SCENARIOS = {
    "server-initialize": 1,
    "ping": 1,
    "tools-list": 1,
    "resources-list": 1,
    "server-sse-multiple-streams": 2,
    "dns-rebinding-protection": 2,
}


@pytest.mark.long
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_scenario(tmp_path: Path, scenario: str) -> None:
    folder = installed("mcp-conformance", *PACKAGES)
    with opslog.open(tmp_path / "store", agent="a") as store:
        store["a"] = {"n": 1}
    suite = folder / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    node = folder / "node_modules" / ".bin" / "node"
    with http(str(tmp_path / "store")) as url:
        done = subprocess.run(
            [str(node), str(suite), "server", "--url", url, "--scenario", scenario],
            cwd=tmp_path,
            env=dict(os.environ),
            capture_output=True,
            text=True,
            check=False,
        )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    counts = re.search(r"Passed: (\d+)/(\d+), (\d+) failed", said)
    assert counts is not None, said
    assert (int(counts[1]), int(counts[3])) == (SCENARIOS[scenario], 0), said
