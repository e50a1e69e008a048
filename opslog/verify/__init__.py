"""Checking a store's files against the format's rules, and repairing them where this loses nothing."""
