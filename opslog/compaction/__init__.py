"""Compacting logs into snapshots, and collecting garbage."""
