"""Compacting a store with Spark."""
