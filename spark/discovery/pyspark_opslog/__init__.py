"""Lets Spark find the data source `opslog`: Spark imports every module whose name begins with ``pyspark_``."""

from opslog.spark.source import DefaultSource

__all__ = ["DefaultSource"]
