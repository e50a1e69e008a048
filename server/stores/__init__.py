"""Served stores: their calls, which run off the event loop, and their feeds."""
