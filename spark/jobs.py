"""Whole jobs, for the command line: start Spark, do one thing, and end what was started."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession

from opslog.backends import open_backend
from opslog.bulk.replay import Format
from opslog.environment import REAL
from opslog.history import Point
from opslog.spark.read.output import write_state
from opslog.spark.read.planning import find_recent, survey_state
from opslog.spark.read.replaying import replay
from opslog.spark.sessions import session


def replay_into(
    url: str,
    directory: Path,
    form: Format,
    *,
    as_of: Point | None = None,
    master: str | None = None,
    variant: bool = False,
    watched: bool = False,
) -> int:
    """Replay a store into a directory, which every machine of Spark has to see. Returns the number of documents.

    :param watched: show on stderr how far Spark is.
    """
    with closing(open_backend(url, create=False)) as backend:
        found = survey_state(backend, as_of)
        clocks = [found.manifest.clock]
        if as_of is None:
            clocks += [find_recent(backend, log, 1).clock for log in found.logs]
    with running("opslog replay", master, watched=watched) as spark:
        return write_state(
            replay(spark, url, as_of=as_of),
            directory,
            form,
            REAL,
            settings=found.manifest.settings,
            clock=max(clocks),
            bytes=found.log_bytes + found.snapshot_bytes,
            variant=variant,
        )


@contextmanager
def running(name: str, master: str | None, *, watched: bool) -> Iterator[SparkSession]:
    """A session of Spark, which ends with the block if it began with it."""
    existed = SparkSession.getActiveSession() is not None
    spark = session(
        name,
        master=master,
        config={"spark.ui.enabled": False, "spark.ui.showConsoleProgress": watched, "spark.log.level": "ERROR"},
    )
    try:
        yield spark
    finally:
        if not existed:
            spark.stop()
