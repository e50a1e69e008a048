"""Where threads that nobody waits for report what went wrong: one logger per subject (docs/operations.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging


def logger(subject: str) -> logging.Logger:
    """The logger of a subject. Nearly every process ends without having had to import what logs.

    :param subject: "log" (buffers), "compaction", "aio", "doors", "storage", "access" or "mcp".
    """
    import logging

    # A program that has not configured logging is shown nothing; what matters to it is raised, too.
    top = logging.getLogger("opslog")
    if not any(isinstance(handler, logging.NullHandler) for handler in top.handlers):
        top.addHandler(logging.NullHandler())
    return logging.getLogger(f"opslog.{subject}")
