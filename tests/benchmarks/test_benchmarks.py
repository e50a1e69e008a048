from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.goals import GOALS, KERNEL_GOALS

ROOT = Path(__file__).parents[2]

WORKLOADS = {
    "set, durable, one caller",
    "set, durable, 16 threads",
    "set, durable, 64 tasks",
    "set, buffered",
    "modify, one caller",
    "modify, 64 tasks of one process",
    "count in one document, 8 processes",
    "slowest of 8 counting processes, against the fastest",
    "plain sets with 1 % of the documents guarded, against none guarded",
    "plain sets without any transaction, against sets that know of none",
    "requests of 100 plain sets on S3, 1 % guarded",
    "batch of 100",
    "get, random",
    "get, random, of 200,000 documents, and read a field",
    "get, random, large snapshot",
    "scan with a predicate, per document",
    "find 100 of 200,000 documents by equality",
    "find the top 10 of 200,000 documents by a field",
    "first question in SQL, 1,000,000 documents",
    "later question in SQL, 1,000,000 documents",
    "question in SQL after 1 new document of 1,000,000",
    "open a log of 1,000,000 commits over 200,000 ids, per commit",
    "open a snapshot of 1,000,000, one get",
    "open a snapshot of 10,000,000, one get",
    "memory: 1,000,000 documents, opened",
    "memory: 1,000,000 documents, after 10,000 gets",
    "memory: 1,000,000 documents, after a scan",
    "memory: a log of 1,000,000 commits, opened",
    "memory: a log of 1,000,000 documents, opened",
    "memory: 10,000,000 documents, after 10,000 gets",
    "get from the command line",
    "first byte of opslog ls, 150,000 documents",
    "first byte of opslog ops, 150,000 commits",
    "refresh after 1 commit, 100,000 in the tails",
    "refresh after 1 commit, 1,000,000 in the tails",
    "refresh after 1 commit of each of 100 agents",
    "undo, 100,000 in the tails",
    "undo, 1,000,000 in the tails",
    "changes after 1 new document",
    "bytes written per byte set, while growing to 10,000,000",
    "compact 1,000,000 documents, in batches of 1,000, over a snapshot of as many, per document",
    "compact a new log of 1,000,000 sets, per document",
    "slowest in a thousand sets beside a compaction of 1,000,000",
    "set, durable, through a server",
    "requests through a server",
}
WITHOUT_FLOOR = (
    "memory: ",
    "bytes written",
    "modify, ",
    "count in one document",
    "slowest of 8 counting processes",
    "plain sets with",
    "requests of",
    "requests through a server",
    "set, durable, through a server",
    "changes ",
    "find ",
    "first question",
    "later question",
    "question in SQL",
)


@pytest.mark.slow
def test_every_workload_on_s3_runs_small() -> None:
    command = [sys.executable, "-m", "benchmarks.s3", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compact 40 objects, s3fs: " in done.stdout


def test_line_checksums_run_small() -> None:
    command = [sys.executable, "-W", "error", "-m", "benchmarks.line_checksums", "--small"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "CRC-32, running" in done.stdout


@pytest.mark.long
def test_every_workload_runs_small(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    command = [sys.executable, "-W", "error", "-m", "benchmarks", "--small", "--page", str(page)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "page" / "results.json").read_text())["results"]
    assert {result["workload"] for result in results} == WORKLOADS
    text = page.read_text()
    for workload in WORKLOADS:
        assert workload in done.stdout
        assert f"## {workload}\n" in text
        contenders = [result["contender"] for result in results if result["workload"] == workload]
        assert contenders[0].startswith("opslog"), "ratios are taken to the first"
        assert workload.startswith(WITHOUT_FLOOR) or contenders[1].startswith("floor"), "every workload has a floor"
    for plot in re.findall(r"\]\((.*\.svg)\)", text):
        assert "</svg>" in (tmp_path / plot).read_text()
    assert len(list((tmp_path / "page").glob("*.svg"))) == len(WORKLOADS)
    if "without the npm package" not in done.stderr:
        verdicts = text.count("| met |") + text.count("| missed |")
        assert verdicts == len(GOALS) + len(KERNEL_GOALS), "each goal is measured (without the kernel in another run)"
    assert all(result["values"] and min(result["values"]) > 0 for result in results if result["unit"] == "µs")
