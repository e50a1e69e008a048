from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_benchmark_of_spark_runs_small(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-W", "error", "-m", "benchmarks.spark", "--small", "--page", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "page.json").read_text())
    measured = {(each["store"], each["job"]["contender"]) for each in report["results"]}
    contenders = {contender for store, contender in measured if store == "hot"}
    assert len(contenders) == 6
    assert measured == {(store, name) for store in ("unique", "hot") for name in contenders} | {
        ("growth", "opslog replay")
    }
    jobs = {each["job"]["contender"]: each["job"] for each in report["results"]}
    assert jobs["native: read.json, window"]["shuffle"] > 0
    assert all(job["wall"] > 0 and job["peak"] > 0 for job in jobs.values())
    text = page.read_text()
    assert text.count("| met |") + text.count("| missed |") == 4, "each goal is measured"
