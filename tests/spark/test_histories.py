"""Real histories of hundreds of authors, with compactions in between: Spark also finds the true tree, now and at
earlier points."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import Any

import orjson
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from opslog.backends import open_backend
from opslog.bulk.copying import copy
from opslog.spark import replay
from tests import test_histories
from tests.support.random_stores import state

pytestmark = pytest.mark.skipif(
    not test_histories.DATA.is_dir(), reason=f"the histories are not at {test_histories.DATA}"
)


@pytest.mark.parametrize(
    ("history", "compact_every"),
    [
        pytest.param("httpx", 97, marks=pytest.mark.long),
        pytest.param("redis", 500, marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_a_real_history_gives_the_true_trees(
    spark: SparkSession, tmp_path: Path, history: str, compact_every: int
) -> None:
    url = str(tmp_path / "store")
    clocks = test_histories.replay(history, compact_every, f"memory://spark-{history}")
    copy(open_backend(f"memory://spark-{history}"), open_backend(url))
    trees: dict[int, Any] = {point["after_commits"]: point["tree"] for point in test_histories.lines(f"{history}-tree")}

    def at(view: str, commits: int) -> DataFrame:
        frame = spark.read.format("opslog").option("view", view).option("asOf", clocks[commits]).load(url)
        return frame.select(F.lit(commits).alias("commits"), "*")

    found: dict[int, dict[str, str]] = {commits: {} for commits in clocks}
    for each in reduce(DataFrame.union, [at("state", commits) for commits in clocks]).collect():
        found[each.commits][each.id] = orjson.loads(each.data)["blob"]
    assert found == {commits: trees[commits] for commits in clocks}
    assert sorted(map(tuple, replay(spark, url, partitions=3).collect())) == state(url)
    commits = sorted(clocks)[len(clocks) // 2]
    past = replay(spark, url, as_of=clocks[commits], partitions=3).collect()
    assert {each.id: orjson.loads(each.data)["blob"] for each in past} == trees[commits]
