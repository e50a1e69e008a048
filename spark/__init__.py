"""Spark on a store: a data source for snapshots and logs, replay to the same state, and compaction at scale.

spark = opslog.spark.session()
opslog.spark.compact(spark, "s3://bucket/tasks")
"""

from opslog.spark.compacting import compact
from opslog.spark.replaying import replay
from opslog.spark.sessions import session

__all__ = ["compact", "replay", "session"]
