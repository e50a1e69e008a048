"""The Spark session to use: the existing one, or a new one that starts on this machine without further setup."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping

from pyspark.sql import SparkSession

from opslog.spark.java import java_home

# Settings that make Spark work well with opslog and can be changed while a session runs.
SETTINGS = {
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Pass the predicates of a query to the data source, which then reads only files that can match.
    "spark.sql.python.filterPushdown.enabled": "true",
}

_LOCAL = {
    # Works on a machine that cannot resolve its own name, as is common for containers and laptops.
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


# The partitions of a shuffle on this machine. Spark's own 200 are for clusters: a small store would spend its time
# starting tasks.
_PARTITIONS_PER_CORE, _PARTITIONS_MIN = 4, 16


def _partitions(master: str) -> int:
    """The number of partitions of a shuffle if Spark runs on this machine alone, unless `config` gives one."""
    match = re.fullmatch(r"local\[(\d+)(?:,\d+)?\]", master)
    cores = int(match[1]) if match else os.cpu_count() or 1
    return max(_PARTITIONS_MIN, _PARTITIONS_PER_CORE * cores)


def session(
    name: str = "opslog", *, master: str | None = None, config: Mapping[str, str | bool | int] | None = None
) -> SparkSession:
    """The Spark session of this process, with the settings that opslog needs; started if there is none.

    If Spark is already running (under ``spark-submit``, in a notebook of a managed service, with a session that this
    process began), it is used, and only settings that can change while it runs are applied. Otherwise this finds a
    Java first (`opslog.spark.java`), and lets local workers run on this process's Python. Starting takes some
    seconds. ``session().stop()`` ends the session.

    :param name: the application's name on Spark's own pages.
    :param master: as in ``spark-submit --master``; ``sc://host:port`` is a Spark Connect server. None: the value of
        `SPARK_REMOTE` or `PYSPARK_SUBMIT_ARGS`, else ``local[*]``. Workers on other machines need opslog
        installed, too, and run on the Python that `PYSPARK_PYTHON` names there.
    :param config: further settings of Spark, by their names. A session that starts on this machine alone has
        ``spark.sql.shuffle.partitions`` 4 per core, at least 16, in place of Spark's 200.
    :raises UsageError: there is no Java; the error names what to install.
    """
    running = SparkSession.getActiveSession()
    # Sessions of Spark Connect have a class of their own. The usual builder finds an existing one only if the
    # environment has the address of its server.
    builder = (SparkSession if running is None else type(running)).builder.appName(name)
    if running is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        builder = _starting(builder, master)
    return builder.config(map={**SETTINGS, **(config or {})}).getOrCreate()


def _starting(builder: SparkSession.Builder, master: str | None) -> SparkSession.Builder:
    """A builder with the address of Spark, and with the settings that it needs if that is this machine."""
    remote = os.environ.get("SPARK_REMOTE")
    connects = remote is not None or (master or "").startswith("sc://")
    if master is None:
        master = remote
    if master is None and "--master" not in os.environ.get("PYSPARK_SUBMIT_ARGS", ""):
        master = "local[*]"
    if master is None or not master.startswith("sc://"):
        os.environ["JAVA_HOME"] = java_home()
    if master is None:
        return builder
    if master.startswith("local"):
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        builder = builder.config(map={**_LOCAL, "spark.sql.shuffle.partitions": str(_partitions(master))})
    return builder.remote(master) if connects else builder.master(master)
