from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, cast

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import opslog.spark
from opslog.spark import sessions


def pythons(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.record_batch([pa.array([sys.executable])], names=["python"])


def test_workers_run_on_the_python_of_this_process(spark: SparkSession) -> None:
    found = spark.range(4).mapInArrow(pythons, "python string").distinct().collect()
    assert [row.python for row in found] == [sys.executable]


def test_a_session_that_is_there_is_used(spark: SparkSession) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")
    again = opslog.spark.session("another", config={"spark.sql.shuffle.partitions": 3})
    assert again.sparkContext is spark.sparkContext
    assert again.sparkContext.appName == "tests"
    assert again.conf.get("spark.sql.python.filterPushdown.enabled") == "true"
    assert again.conf.get("spark.sql.shuffle.partitions") == "3"
    again.conf.set("spark.sql.shuffle.partitions", "2")


class Settings(SparkSession.Builder):
    """A builder that returns its settings, and starts nothing."""

    def getOrCreate(self) -> Any:
        return self._options


def test_a_session_of_another_kind_is_found_by_its_own_builder(monkeypatch: pytest.MonkeyPatch) -> None:
    """For example, a notebook may get a session of Spark Connect."""

    class Connected:
        builder = Settings()

    monkeypatch.setattr(SparkSession, "getActiveSession", Connected)
    monkeypatch.delattr(SparkSession, "builder")
    settings = cast("dict[str, str]", opslog.spark.session("mine"))
    assert settings["spark.app.name"] == "mine"
    assert not {"spark.master", "spark.remote"} & set(settings)


@pytest.mark.parametrize(
    ("remote", "master", "expected"),
    [
        (None, None, {"spark.master": "local[*]"}),
        (None, "spark://host:7077", {"spark.master": "spark://host:7077"}),
        (None, "sc://host", {"spark.remote": "sc://host"}),
        ("sc://host", None, {"spark.remote": "sc://host"}),
        ("local[2]", None, {"spark.remote": "local[2]"}),
    ],
)
def test_where_a_session_starts(
    monkeypatch: pytest.MonkeyPatch, remote: str | None, master: str | None, expected: dict[str, str]
) -> None:
    for name in ("JAVA_HOME", "PYSPARK_PYTHON", "PYSPARK_GATEWAY_PORT", "PYSPARK_SUBMIT_ARGS", "SPARK_REMOTE"):
        monkeypatch.setenv(name, "")  # so that it is restored afterwards
        monkeypatch.delenv(name)
    if remote is not None:
        monkeypatch.setenv("SPARK_REMOTE", remote)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", Settings())
    settings = cast("dict[str, str]", opslog.spark.session(master=master))
    assert {name: settings[name] for name in ("spark.master", "spark.remote") if name in settings} == expected
    here = not any(place.startswith("sc://") for place in expected.values())
    assert ("JAVA_HOME" in os.environ) == here, "a Java is looked for where Spark starts on this machine"
    assert ("PYSPARK_PYTHON" in os.environ) == ("spark.driver.host" in settings) == ("local" in str(expected))


@pytest.mark.parametrize(
    ("master", "given", "partitions"),
    [("local[2]", {}, "16"), ("local[8,3]", {}, "32"), ("local[2]", {"spark.sql.shuffle.partitions": "5"}, "5")],
    ids=["few cores", "more cores", "given"],
)
def test_a_session_on_one_machine_has_few_shuffle_partitions(
    monkeypatch: pytest.MonkeyPatch, master: str, given: dict[str, str], partitions: str
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "builder", Settings())
    monkeypatch.setattr(sessions, "java_home", lambda: os.environ.get("JAVA_HOME", ""))
    settings = cast("dict[str, str]", opslog.spark.session("mine", master=master, config=given))
    assert settings["spark.sql.shuffle.partitions"] == partitions
