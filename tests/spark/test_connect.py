"""Spark Connect, where a session is a client of Spark's server. It runs in a process of its own, because a process can
have only one kind of session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import opslog
from tests.support.documents import ROOT

PROGRAM = ROOT / "tests" / "support" / "connect_program.py"

for package in ("grpc", "grpc_status", "zstandard"):
    pytest.importorskip(package, reason="needs pip install 'pyspark[connect]'")


@pytest.mark.slow
def test_all_that_a_session_does_with_a_store(tmp_path: Path) -> None:
    url = tmp_path / "store"
    with opslog.open(url, agent="app", settings=opslog.Settings(undo_window=3), compact_after=None) as store:
        for number in range(60):
            store[f"{number % 20:02}"] = {"n": number}
        store.undo()
        store.archive(lambda document: document["n"] % 7 == 0, "2026-Q1")
        before = [[record.id, bytes(record.data).decode()] for record in store.records()]
        ops = sum(len(getattr(commit, "ops", [commit])) for commit in store.ops())
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_REMOTE": "local[2]",
        "SPARK_TESTING": "1",  # the server then takes any free port
    }
    command = [sys.executable, str(PROGRAM), str(url)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "store-found").read_text())
    after = before + [[f"new-{n}", f'{{"n":{n}}}'] for n in range(20)]
    assert found["before"] == sorted(before)
    assert found["ops"] == ops
    assert found["archive"] == 3
    assert found["typed"] == [[f"{n:02}", n] for n in range(10)]
    assert found["replayed"] == [sorted(before)] * 2
    assert found["compacted"] == 2
    assert found["after"] == sorted(after)
    assert {id for id, _ in after} <= set(found["streamed"])
