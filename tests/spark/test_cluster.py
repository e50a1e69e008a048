"""On a real cluster: a master and two workers, with executors in processes of their own. One of the workers is
killed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import opslog
from opslog.backends import open_backend
from opslog.verify.verify import verify
from tests.support.spark_cluster import cluster

DISCOVERY = Path(__file__).parents[2] / "spark" / "discovery"

DRIVER = """
import json, os, signal, sys
import opslog.spark
from pyspark.sql import functions as F

master, url, marker = sys.argv[1:]
config = {
    "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.ui.enabled": False,
    "spark.executor.memory": "512m", "spark.driver.memory": "512m", "spark.sql.shuffle.partitions": 2,
}
spark = opslog.spark.session("cluster", master=master, config=config)
state = spark.read.format("opslog").load(url)
read = sorted((row.id, row.data) for row in state.collect())
compacted = opslog.spark.compact(spark, url)

def unlucky(batches):
    # The first attempt of one task takes its whole executor with it.
    from pyspark import TaskContext
    context = TaskContext.get()
    if context.partitionId() == 1 and not os.path.exists(marker):
        open(marker, "x").close()
        os.kill(os.getppid(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)
    yield from batches

rows = spark.range(0, 100, 1, 4).selectExpr("concat('new-', id) id", "id n").mapInArrow(unlucky, "id string, n long")
rows.write.format("opslog").option("agent", "etl").mode("append").save(url)
print(json.dumps({"read": read, "compacted": compacted.number}))
spark.stop()
"""


@pytest.mark.slow
def test_reading_compacting_and_writing_on_a_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(DISCOVERY))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    url = tmp_path / "store"
    with opslog.open(url, agent="app", settings=opslog.Settings(undo_window=3, grace_seconds=0)) as store:
        for number in range(500):
            store[f"{number % 90:02}"] = {"n": number}
        expected = dict(store.items())
        texts = sorted([record.id, bytes(record.data).decode()] for record in store.records())
    with cluster(tmp_path) as master:
        arguments = [master, str(url), str(tmp_path / "marker")]
        done = subprocess.run([sys.executable, "-c", DRIVER, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["read"] == texts
    assert result["compacted"] == 2
    assert (tmp_path / "marker").exists(), "an executor was killed"
    with opslog.open(url, read_only=True) as store:
        assert dict(store.items()) == expected | {f"new-{n}": {"n": n} for n in range(100)}
        assert sum(commit.agent == "etl" for commit in store.ops()) == 1
    backend = open_backend(str(url))
    assert verify(backend).problems == []
    assert backend.list("staging/") == []
    backend.close()
