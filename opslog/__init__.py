"""An embedded, multi-writer, event-sourced document store."""

__version__ = "0.1.0"
