"""Spark on a store: a data source for snapshots and logs, replay to the same state, and compaction at scale.

This release does not contain it yet.
"""
