"""Importers: pure readers that turn a foreign source into a stream of commits.

    opslog.importers.jsonl      read_json_lines      JSON lines: plain documents, or lines of opslog itself
    opslog.importers.tables     read_table           Parquet and CSV: a document per row
    opslog.importers.backlog    read_backlog         a directory written by npm @backloghq/opslog 0.2 to 0.8
    opslog.importers.git        read_git             the first-parent history of a git repository

A reader yields :class:`ImportedCommit` in the order in which the commits must be applied, and knows nothing of stores.
If it cannot read something exactly, it raises an error that names the file and the byte offset
(:class:`opslog.errors.CorruptError`) or says what to do (:class:`opslog.errors.UsageError`); nothing is silently
skipped. Errors come while iterating, so commits before the bad line may already have been applied.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = ["ImportedCommit", "ImportedOp"]


@dataclass(frozen=True, slots=True)
class ImportedOp:
    """One change to one document."""

    op: Literal["set", "delete"]
    id: str
    # The whole new document of a set; None for a delete.
    document: dict[str, Any] | None
    # Schema version of `document`, 1 where the source knows none.
    version: int = 1


@dataclass(frozen=True, slots=True)
class ImportedCommit:
    """Ops that one agent wrote together."""

    # A valid agent name; None: the importing agent.
    agent: str | None
    # ``2026-11-20T12:00:00.123456Z``: UTC, microseconds; None: now.
    ts: str | None
    # At least one.
    ops: tuple[ImportedOp, ...]
    # Its origin, ``file:line``; for messages only.
    source: str
