"""Threads within one process: locks that are safe with signal handlers, workers, buffers at exit."""
