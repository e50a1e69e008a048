"""Spark on a store: a data source for snapshots and logs, replay to the same state, and compaction at scale.

spark = opslog.spark.session()
spark.read.format("opslog").load("s3://bucket/tasks").select("id", "data")
opslog.spark.replay(spark, "s3://bucket/tasks", as_of="2026-11-20T12:00:00Z")
opslog.spark.compact(spark, "s3://bucket/tasks")
"""

try:
    from opslog.spark.compaction.compacting import compact
    from opslog.spark.read.replaying import replay
    from opslog.spark.sessions import session
except ModuleNotFoundError as error:
    if error.name is None or error.name.partition(".")[0] == "opslog":
        raise
    raise ModuleNotFoundError(
        f"opslog.spark needs {error.name}: pip install 'opslog[spark]'", name=error.name
    ) from error

__all__ = ["compact", "replay", "session"]
