"""Loggers, one per subject (docs/operations.md). Threads that nobody waits for report errors to them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger(subject: str) -> logging.Logger:
    """The logger of a subject. Imports `logging` only now: nearly every process ends without a need for it.

    :param subject: "log" (buffers), "compaction", "aio", "doors", "storage", "access" or "mcp".
    """
    import logging

    # A program that has not configured logging is shown nothing; what matters to it is raised, too.
    top = logging.getLogger("opslog")
    if not any(isinstance(handler, logging.NullHandler) for handler in top.handlers):
        top.addHandler(logging.NullHandler())
    return logging.getLogger(f"opslog.{subject}")
