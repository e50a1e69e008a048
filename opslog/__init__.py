"""An embedded, multi-writer, event-sourced document store.

    import opslog

    with opslog.open("./tasks", agent="planner") as store:
        store["task-1"] = {"title": "Build API", "status": "active"}

Everything public is on this page. `opslog.backends` holds the storages and what a new one needs.
"""

from opslog.commits import Batch, Commit, Delete, Seal, Set, Undo
from opslog.compaction import Compaction
from opslog.environment import Environment
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    ClosedError,
    CommitUnknownError,
    CorruptError,
    DataError,
    FormatVersionError,
    HistoryGoneError,
    InvalidDocumentError,
    InvalidNameError,
    LockedError,
    MissingFileError,
    NotFoundError,
    OpslogError,
    ReadOnlyError,
    ReopenError,
    RetryError,
    SchemaVersionError,
    UsageError,
    WriteFailedError,
)
from opslog.history import Revision
from opslog.manifest import Settings
from opslog.opening import open
from opslog.stats import Stats
from opslog.store import Store

__version__ = "0.1.0"

__all__ = [
    "AgentBusyError",
    "AgentFencedError",
    "AlreadyExistsError",
    "Batch",
    "ClosedError",
    "Commit",
    "CommitUnknownError",
    "Compaction",
    "CorruptError",
    "DataError",
    "Delete",
    "Environment",
    "FormatVersionError",
    "HistoryGoneError",
    "InvalidDocumentError",
    "InvalidNameError",
    "LockedError",
    "MissingFileError",
    "NotFoundError",
    "OpslogError",
    "ReadOnlyError",
    "ReopenError",
    "RetryError",
    "Revision",
    "SchemaVersionError",
    "Seal",
    "Set",
    "Settings",
    "Stats",
    "Store",
    "Undo",
    "UsageError",
    "WriteFailedError",
    "open",
]
