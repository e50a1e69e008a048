"""Whole stores at once: import, copy, replay."""
