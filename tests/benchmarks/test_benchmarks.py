from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

WORKLOADS = {
    "set, durable, one caller",
    "set, durable, 16 threads",
    "set, durable, 64 tasks",
    "set, buffered",
    "batch of 100",
    "undo",
    "get, random",
    "open a snapshot, one get",
    "get, random, large snapshot",
    "refresh after 1 commit",
    "open a log, per commit",
    "compact, per new commit",
}


@pytest.mark.slow
def test_every_workload_on_s3_runs_small() -> None:
    command = [sys.executable, "-m", "benchmarks.s3", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compact 40 objects, s3fs: " in done.stdout


def test_every_workload_runs_small(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    command = [sys.executable, "-W", "error", "-m", "benchmarks", "--small", "--json", str(report)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads(report.read_text())["results"]
    assert {result["workload"] for result in results} == WORKLOADS
    for workload in WORKLOADS:
        assert workload in done.stdout
        contenders = [result["contender"] for result in results if result["workload"] == workload]
        assert contenders[0].startswith("opslog"), "ratios are taken to the first"
        assert contenders[1].startswith("floor"), "every workload has a floor"
    assert all(0 < result["least_us"] <= result["median_us"] <= result["most_us"] for result in results)
