"""An embedded, multi-writer, event-sourced document store.

    import opslog

    with opslog.open("./tasks", agent="planner") as store:
        store["task-1"] = {"title": "Build API", "status": "active"}

Everything public is on this page, and, for asyncio, in `opslog.aio`. `opslog.backends` holds the storages and what a
new one needs.
"""

from importlib import import_module as _import_module
from typing import TYPE_CHECKING as _TYPE_CHECKING

from opslog.environment import Environment
from opslog.errors import (
    AgentBusyError,
    AgentFencedError,
    AlreadyExistsError,
    ClosedError,
    CommitUnknownError,
    ConflictError,
    CorruptError,
    DataError,
    ExistsError,
    FilesystemWarning,
    FormatVersionError,
    HistoryGoneError,
    InvalidDocumentError,
    InvalidNameError,
    LeaseLostError,
    LockedError,
    MissingFileError,
    MissingStoreError,
    NotFoundError,
    OpslogError,
    QueryError,
    ReadOnlyError,
    ReopenError,
    RetryError,
    SchemaMismatchError,
    SchemaVersionError,
    UsageError,
    WriteFailedError,
)
from opslog.format.commits import Batch, Commit, Delete, Seal, Set, Stamp, Undo
from opslog.format.manifest import Settings
from opslog.opening import open
from opslog.replica.found import Found
from opslog.store import Store

__version__ = "0.3.0.dev0"

__all__ = [
    "AgentBusyError",
    "AgentFencedError",
    "AlreadyExistsError",
    "Batch",
    "Change",
    "Changes",
    "ClosedError",
    "Commit",
    "CommitUnknownError",
    "Compaction",
    "ConflictError",
    "CorruptError",
    "DataError",
    "Delete",
    "Effect",
    "Environment",
    "ExistsError",
    "FilesystemWarning",
    "FormatVersionError",
    "Found",
    "Group",
    "HistoryGoneError",
    "InvalidDocumentError",
    "InvalidNameError",
    "Lease",
    "LeaseLostError",
    "LockedError",
    "MissingFileError",
    "MissingStoreError",
    "NotFoundError",
    "OpslogError",
    "QueryError",
    "ReadOnlyError",
    "ReopenError",
    "RetryError",
    "Revision",
    "SchemaMismatchError",
    "SchemaVersionError",
    "Seal",
    "Set",
    "Settings",
    "Stamp",
    "Stats",
    "Store",
    "Transaction",
    "Undo",
    "UsageError",
    "WriteFailedError",
    "open",
]

if _TYPE_CHECKING:
    from opslog import aio as aio
    from opslog.compaction.compact import Compaction
    from opslog.history import Revision
    from opslog.lease import Lease
    from opslog.query.question import Group
    from opslog.replica.feed import Change, Changes, Effect
    from opslog.replica.transaction import Transaction
    from opslog.stats import Stats
else:
    # What is imported when it is used: a program that opens a store, reads and writes needs none of it, and asyncio
    # takes as long to import as everything else here.
    _LATER = {
        "Change": "opslog.replica.feed",
        "Changes": "opslog.replica.feed",
        "Compaction": "opslog.compaction.compact",
        "Effect": "opslog.replica.feed",
        "Group": "opslog.query.question",
        "Lease": "opslog.lease",
        "Revision": "opslog.history",
        "Stats": "opslog.stats",
        "Transaction": "opslog.replica.transaction",
    }

    def __getattr__(name: str) -> object:
        if name == "aio":
            return _import_module("opslog.aio")
        if name in _LATER:
            value = globals()[name] = getattr(_import_module(_LATER[name]), name)
            return value
        raise AttributeError(f"module 'opslog' has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names, without the modules that they come from."""
    return sorted([*__all__, "__doc__", "__version__", "aio"])
