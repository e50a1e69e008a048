"""Threads within one process: locks that a signal's handler can meet, workers, buffers at exit."""
