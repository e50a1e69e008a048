"""Stores that are served: their calls off the event loop, and their feeds."""
