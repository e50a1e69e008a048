from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import opslog.spark

SMALL: dict[str, str | bool | int] = {
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": 2,
    "spark.default.parallelism": 2,
    "spark.ui.enabled": False,
    "spark.ui.showConsoleProgress": False,
    "spark.log.level": "ERROR",
    "spark.python.worker.faulthandler.enabled": True,
    # By default Spark waits 15 seconds for a process to connect to a socket. A machine with a load of 10 needs longer.
    "spark.python.authenticate.socketTimeout": "240s",
}
"""Settings for small data on a busy machine."""

# An installed opslog has the module where Spark searches for it. With an editable one Spark does not find it by itself.
DISCOVERY = Path(__file__).parents[2] / "spark" / "discovery"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One Spark for all tests of this process, because it takes seconds to start. It runs two tasks at once, and tries
    each three times."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(DISCOVERY), prepend=os.pathsep)
        session = opslog.spark.session("tests", master="local[2,3]", config=SMALL)
        yield session
        session.stop()
