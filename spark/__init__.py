"""Spark on a store: a data source for snapshots and logs, replay to the same state, and compaction at scale.

spark = opslog.spark.session()
"""

from opslog.spark.sessions import session

__all__ = ["session"]
