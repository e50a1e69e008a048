"""The errors of opslog, as one tree. The branches say what the caller should do next.

OpslogError
├── UsageError (ValueError)             fix the call
│   ├── InvalidDocumentError            the document cannot be stored exactly; the message names the place in it
│   ├── InvalidNameError                an agent name, id, period or URL that no store can hold
│   ├── QueryError                      a condition or a path that cannot be read; the message points at the place
│   ├── ExpiredKeyError                 (doors) a request's key is too old to be known: read, then decide
│   ├── ReadOnlyError                   a write to a store opened read-only or at a point in time
│   └── ClosedError                     the store was closed, or this is a forked child
├── NotFoundError (KeyError)            no such document, archive or store: create it or ask for another
│   ├── MissingStoreError               no store at this place
│   └── MissingFileError                (backends) no such file or object
├── RetryError                          nothing was changed: try again later
│   ├── AgentBusyError                  another live process writes under this agent name
│   ├── LockedError                     another process holds this lock
│   ├── AlreadyExistsError              (backends) somebody else created that path first
│   ├── ConflictError                   a document that the call read has changed: read it again, then decide
│   │   ├── ExistsError                 the document that was to be created exists
│   │   └── LeaseLostError              the lease was taken over, or released: leave what was done for it
│   └── WriteFailedError                the commit is definitely not in the log (disk full, directory gone, read-only)
│       └── SealedError                 (internal) a seal came first; the store repeats the commit with a new clock
├── ReopenError                         close the store and open it again, then check
│   ├── CommitUnknownError              the commit may or may not be in the log
│   └── AgentFencedError                another process took over this agent name; the commit is not in the log
└── DataError                           the stored data is not what this program can read
    ├── CorruptError                    names the file and the byte offset; `opslog verify` lists all such places
    ├── FormatVersionError              the store was written by a newer opslog
    ├── SchemaVersionError              the document was written under a newer schema version
    ├── SchemaMismatchError             the document is whole, and does not fit the store's type: see `migrate`
    └── HistoryGoneError                that point of the past was compacted away

All of them pickle with their attributes, because Spark and multiprocessing carry them between processes.
"""

from __future__ import annotations

from typing import Any, Self


def _restore(cls: type[OpslogError], args: tuple[Any, ...], state: dict[str, Any]) -> OpslogError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class OpslogError(Exception):
    """The root: everything that opslog raises on purpose."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; ours are sentences.
        return str(self.args[0]) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), self.args, dict(self.__dict__))

    def reworded(self, message: str) -> Self:
        """The same error, with its attributes, under another message."""
        error = type(self)(message)
        error.__dict__.update(self.__dict__)
        return error


class UsageError(OpslogError, ValueError):
    """The call cannot work as it was made."""


class InvalidDocumentError(UsageError):
    """The document cannot be stored exactly, or would delete fields that the store's type does not know.

    :ivar place: where in the document, in the form ``$.tasks[3].due``.
    """

    def __init__(self, message: str, place: str = "$") -> None:
        super().__init__(message)
        self.place = place


class InvalidNameError(UsageError):
    """A name that a store cannot hold."""


class QueryError(UsageError):
    """A condition or a path that cannot be read.

    :ivar offset: where in the text, counted in characters; None if it is no text.
    :ivar place: where in the mapping, in the form ``where['hours']['>']``; empty if it is a text.
    """

    def __init__(self, message: str, offset: int | None = None, place: str = "") -> None:
        super().__init__(message)
        self.offset = offset
        self.place = place


class ExpiredKeyError(UsageError):
    """A request is repeated under a key that is so old that it is unknown whether it was carried out. Nothing was
    written."""


class ReadOnlyError(UsageError):
    """This store was opened for reading only."""


class ClosedError(UsageError):
    """The store is closed, or belongs to the parent of this process."""


class NotFoundError(OpslogError, KeyError):
    """No such document, archive or store."""


class MissingStoreError(NotFoundError):
    """There is no store at this place.

    :ivar url: the place.
    """

    def __init__(self, message: str, url: str = "") -> None:
        super().__init__(message)
        self.url = url


class MissingFileError(NotFoundError):
    """No such file or object on the backend.

    :ivar path: the requested path, relative to the store's root.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class RetryError(OpslogError):
    """Nothing was changed; the same call may succeed later."""


class AgentBusyError(RetryError):
    """Another live process writes under this agent name.

    :ivar agent: the name.
    :ivar holder: the process that holds it (pid, host), as far as that is known.
    """

    def __init__(self, message: str, agent: str = "", holder: str = "") -> None:
        super().__init__(message)
        self.agent = agent
        self.holder = holder


class LockedError(RetryError):
    """Another process holds this lock.

    :ivar lock: its name.
    :ivar holder: its holder (pid, host), as far as that is known.
    """

    def __init__(self, message: str, lock: str = "", holder: str = "") -> None:
        super().__init__(message)
        self.lock = lock
        self.holder = holder


class AlreadyExistsError(RetryError):
    """Somebody else created that path first.

    :ivar path: the path, relative to the store's root.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class ConflictError(RetryError):
    """A document that the call read has been written since. Nothing was written.

    :ivar id: the document; empty if a query over several documents would now return something else.
    :ivar record: the current record, as in `Store.record`; None if there is no document.
    """

    def __init__(self, message: str, id: str = "", record: Any = None) -> None:
        super().__init__(message)
        self.id = id
        self.record = record


class ExistsError(ConflictError):
    """The document that was to be created exists; `record` has its author."""


class LeaseLostError(ConflictError):
    """A lease is no longer held: it was not renewed in time and taken over, or it was released. Nothing was written;
    `record` has the new holder, `id` names the document of the lease."""


class WriteFailedError(RetryError):
    """The write did not happen, or only a leading part of it did.

    Backends raise it from ``Appender.append`` with `durable` set to the number of leading bytes that are in the log
    and safe. Callers of the store get it only for commits that are definitely not in the log.

    :ivar durable: how many leading bytes of the data reached the log, 0 for none.
    """

    def __init__(self, message: str, durable: int = 0) -> None:
        super().__init__(message)
        self.durable = durable


class ReopenError(OpslogError):
    """This store object cannot go on; open the store again and check what is there."""


class CommitUnknownError(ReopenError):
    """The outcome of a commit is unknown: it may or may not be in the log. Reopen the store and check."""


class AgentFencedError(ReopenError):
    """Another process took over this agent name, or can, because the lock file or the store's directory was removed or
    replaced. The commit is definitely not in the log.

    :ivar path: the segment that the other process created, if it is known.
    """

    def __init__(self, message: str, path: str = "") -> None:
        super().__init__(message)
        self.path = path


class SealedError(WriteFailedError):
    """A seal has the segment number of this commit, which therefore needs a clock above the seal's. The store does this
    itself."""


class DataError(OpslogError):
    """The stored data is not what this program can read."""


class CorruptError(DataError):
    """Something stored cannot be read.

    :ivar path: the file, relative to the store's root.
    :ivar offset: the byte offset in it, or None.
    """

    def __init__(self, message: str, path: str = "", offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset


class FormatVersionError(DataError):
    """The store was written by a newer opslog.

    :ivar needed: the format version that can read it.
    """

    def __init__(self, message: str, needed: int = 0) -> None:
        super().__init__(message)
        self.needed = needed


class SchemaVersionError(DataError):
    """A document was written under a newer schema version than this program knows.

    :ivar id: the document.
    :ivar version: the version it was written under.
    """

    def __init__(self, message: str, id: str = "", version: int = 0) -> None:
        super().__init__(message)
        self.id = id
        self.version = version


class SchemaMismatchError(DataError):
    """A document is not damaged, but does not fit the type that the store was opened with, or `migrate` returned
    something else than a document.

    :ivar id: the document.
    :ivar version: the schema version it was written under.
    """

    def __init__(self, message: str, id: str = "", version: int = 0) -> None:
        super().__init__(message)
        self.id = id
        self.version = version


class HistoryGoneError(DataError):
    """That point of the past was compacted away.

    :ivar oldest: the smallest clock that can still be read.
    """

    def __init__(self, message: str, oldest: int = 0) -> None:
        super().__init__(message)
        self.oldest = oldest


class FilesystemWarning(UserWarning):
    """A store is written on a filesystem that it was not tested on: one that machines share. Not an error; you can
    filter it with the module `warnings`."""
