"""Compacting logs into snapshots, and collecting what nobody needs any more."""
