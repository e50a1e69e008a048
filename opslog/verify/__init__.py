"""Checking a store's files against the format's rules, and mending what can be mended."""
