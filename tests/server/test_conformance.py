"""The whole official conformance suite of the protocol passes, on each storage."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.npm import installed
from tests.support.servers import serving

PACKAGES = ("@durable-streams/server-conformance-tests@0.3.6", "vitest@4.0.15")
SUITE = Path(__file__).with_name("conformance.test.mjs")
TESTS = 338


@pytest.fixture(scope="session")
def vitest() -> Path:
    """The folder in which the suite can be run."""
    folder = installed("conformance", *PACKAGES)
    shutil.copy(SUITE, folder)  # packages are found from the directory of the file
    return folder


@pytest.mark.long
@pytest.mark.timeout(280)
@pytest.mark.parametrize("storage", ["lmdb", "memory"])
def test_official_suite(vitest: Path, tmp_path: Path, storage: str) -> None:
    options = ("--memory",) if storage == "memory" else ("--data", str(tmp_path / "data"))
    report = tmp_path / "report.json"
    # On a busy machine, the suite's own five seconds for a test are almost used up by other work.
    patience = "--testTimeout=60000"
    command = ["npx", "vitest", "run", SUITE.name, "--reporter=json", f"--outputFile={report}", patience]
    with serving("--long-poll-seconds", "2", "--webhook-loopback", *options) as server:
        settings = {"CONFORMANCE_TEST_URL": server.root}
        done = subprocess.run(
            command, cwd=vitest, env={**os.environ, **settings}, capture_output=True, text=True, check=False
        )
        assert report.exists(), done.stdout + done.stderr
    found = json.loads(report.read_text())
    results = [test for file in found["testResults"] for test in file["assertionResults"]]
    failed = [f"{test['fullName']}: {test['failureMessages']}" for test in results if test["status"] == "failed"]
    assert not failed, "\n".join(failed)
    passed = sum(test["status"] == "passed" for test in results)
    assert passed == len(results) == TESTS
