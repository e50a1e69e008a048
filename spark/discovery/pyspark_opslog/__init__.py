"""Where Spark finds the data source `opslog`: it imports every module whose name begins with ``pyspark_``."""

from opslog.spark.source import DefaultSource

__all__ = ["DefaultSource"]
