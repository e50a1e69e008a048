"""Opening a store: from a URL to a `Store`."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar, Unpack, overload

from opslog.backends import Appender, Backend, open_backend
from opslog.compaction.automatic import COMPACT_AFTER
from opslog.concurrency.locking import Section
from opslog.environment import REAL, Environment
from opslog.errors import UsageError
from opslog.format.commits import Commit
from opslog.format.documents import Document, Migrate, Schema, check_type, check_version
from opslog.format.layout import check_agent
from opslog.format.manifest import Settings
from opslog.replica.decoded import CACHE_BYTES
from opslog.replica.loading import Loader
from opslog.replica.replica import Replica
from opslog.replica.state import State
from opslog.snapshot.manifests import check_settings
from opslog.store import Store

if TYPE_CHECKING:
    from opslog.history import Point
    from opslog.log.writer import Buffer
    from opslog.options import Durability, Log, OpenOptions

T = TypeVar("T")

# Threads and signal handlers may open stores of one type at once: see `opslog.format.prepared`. Forks wait, so that a
# child never finds a type that is half analysed.
_checking_types = Section("opslog.open with a type")
os.register_at_fork(
    before=_checking_types.lock.acquire,
    after_in_parent=_checking_types.lock.release,
    after_in_child=_checking_types.lock.release,
)

# The agent name if the caller names none.
MAIN = "main"


@overload
def open(url: str | os.PathLike[str], *, type: type[T], **options: Unpack[OpenOptions]) -> Store[T]: ...


@overload
def open(url: str | os.PathLike[str], *, type: None = ..., **options: Unpack[OpenOptions]) -> Store[Document]: ...


def open(
    url: str | os.PathLike[str],
    *,
    agent: str = MAIN,
    type: type[Any] | None = None,
    version: int | None = 1,
    migrate: Migrate | None = None,
    read_only: bool = False,
    as_of: Point | None = None,
    log: Log = "own",
    durability: Durability = "fsync",
    buffer_seconds: float = 0.1,
    buffer_bytes: int = 64 * 1024,
    compact_after: int | None = COMPACT_AFTER,
    cache_bytes: int = CACHE_BYTES,
    settings: Settings | None = None,
    environment: Environment = REAL,
    **storage_options: Any,
) -> Store[Any]:
    """Open a store. If there is none and it is opened for writing, create it.

    :param url: a directory, or ``memory://name``; or any scheme for which a backend is installed.
    :param agent: the name to write under; one live writer per name. Not with `as_of`.
    :param type: the type of documents: a dataclass, a TypedDict or a msgspec.Struct. Reading leaves out fields of
        stored documents that it does not know, and a set that would delete them is refused. None: plain dicts.
    :param version: the schema version of documents, written with each of them. None: for tools that know no schema.
    :param migrate: called when a document of an older version is read, with the document and its version; returns it in
        the form of `version`. The stored document changes only when it is next set.
    :param read_only: write nothing, take no agent name.
    :param as_of: open the state as it was at a clock or at a time, for reading only; `refresh` does not change it.
    :param log: where writes go. "own": to the log of this agent; transactions, and writes to documents that are
        guarded, to the shared log. "shared": all of them to the shared log, each as a transaction, so that any number
        of processes may have the same name, and none leaves a log behind: for sessions that come and go. Each document
        that is written is guarded then, and each write costs a refresh.
    :param durability: "fsync": a call returns when its commit is durable. "buffered": it returns at once, and a
        crash can lose the last writes; `flush` and `close` make it durable.
    :param buffer_seconds: how long a buffer waits for more commits before it is written (on S3, as one object).
    :param buffer_bytes: the size from which on it is written at once.
    :param compact_after: compact in the background when so many commits (or 64 MiB, or about a thousand segments; on
        object storages about 250) are not compacted; None: never. The store keeps its own writes in memory; the first
        `refresh` after a compaction frees them.
    :param cache_bytes: how much memory the cache of decoded documents may take; reading a cached document costs a copy.
        When the cache is full, a document is kept only if it is read again soon. 0: no cache. A store with a `type`
        has none.
    :param settings: the settings of a store that this call creates. An existing store keeps its own; a setting that is
        neither its own nor the default is refused.
    :param environment: clocks and random names, for simulations.
    :param storage_options: options of the backend.
    :raises UsageError: an option does not exist, or cannot have this value; `as_of` lies in the future; the store has
        other `settings`; `url` is neither text nor a path (`InvalidNameError`); a signal handler gives a `type`, and
        interrupted its thread while that was analysing one.
    :raises AgentBusyError: another live process writes under this agent name. (If that is a compaction that seals this
        agent's log, this call waits for it.)
    :raises NotFoundError: `read_only`, and there is no store.
    :raises HistoryGoneError: the state at `as_of` was compacted away.
    :raises DataError: the store cannot be read; the error names the file and the byte offset.
    """
    _check_writing(log, durability, buffer_seconds, buffer_bytes, compact_after)
    if cache_bytes < 0:
        raise UsageError(f"cache_bytes is a number of bytes from 0 on, not {cache_bytes!r}")
    if settings is not None and not isinstance(settings, Settings):
        raise UsageError(
            f"settings takes an opslog.Settings, as in settings=opslog.Settings(grace_seconds=60), not {settings!r:.60}"
        )
    if version is not None:
        check_version(version)
    if type is not None:
        _checking_types.run(check_type, type)
    if storage_options:
        _check_storage(url, storage_options)
    included = None if as_of is None else _included(as_of)
    writes = not read_only and as_of is None
    if writes:
        check_agent(agent)
    elif as_of is not None and agent != MAIN:
        raise UsageError(f"nobody writes to a view of the past: leave out agent={agent!r}, or as_of")
    backend = open_backend(url, create=writes, **storage_options)
    appender: Appender | None = None
    try:
        loader = Loader(backend, own=agent if writes and log == "own" else None)
        if writes:
            if log == "own":
                from opslog.log.session import take_name

                # Take the name first: after the load, the store's own log must not change any more.
                appender = take_name(backend, agent, environment)
            loader.manifests.create_first(settings or Settings(), environment)
        read_at = environment.monotonic()
        if settings is not None:
            check_settings(settings, loader.manifests.newest())
        state = loader.load() if as_of is None else _load_as_of(loader, as_of, environment)
        replica = Replica(
            loader,
            state,
            read_at=read_at,
            agent=None if appender is None else agent,
            author=agent if writes else None,
            appender=appender,
            schema=Schema(type, version, migrate),
            buffer=None if durability == "fsync" else _buffer(buffer_seconds, buffer_bytes),
            compact_after=compact_after,
            cache_bytes=cache_bytes,
            environment=environment,
            included=included,
        )
        replica.as_of = as_of
        return Store(replica)
    except BaseException:
        try:
            _give_back(appender, backend)
        finally:
            _give_back(appender, backend)  # again, since a second exception may have ended the first one
        raise


def _give_back(appender: Appender | None, backend: Backend) -> None:
    if appender is not None:
        appender.close()
    backend.close()


# The functions below import what few programs need where they use it, so that others need not wait.


def _check_storage(url: str | os.PathLike[str], given: dict[str, Any]) -> None:
    from opslog.options import OPEN, check_storage_options

    check_storage_options(url, given, "opslog.open", OPEN)


def _buffer(seconds: float, size: int) -> Buffer:
    from opslog.log.writer import Buffer

    return Buffer(seconds, size)


def _included(point: Point) -> Callable[[Commit], bool]:
    """A function that says whether a commit belongs to a point in the past."""
    from opslog.history import conditions

    return conditions(point)[1]


def _load_as_of(loader: Loader, point: Point, environment: Environment) -> State:
    from opslog.history import load_as_of

    return load_as_of(loader, point, environment)


def _check_writing(
    log: Log, durability: Durability, buffer_seconds: float, buffer_bytes: int, compact_after: int | None
) -> None:
    """Check the options for writing.

    :raises UsageError: an option cannot have this value, or not together with another option.
    """
    if log not in ("own", "shared"):
        raise UsageError(f'log is "own" or "shared", not {log!r}')
    if durability not in ("fsync", "buffered"):
        raise UsageError(f'durability is "fsync" or "buffered", not {durability!r}')
    if log == "shared" and durability == "buffered":
        raise UsageError("transactions wait until they are durable: leave out durability='buffered', or log='shared'")
    if compact_after is not None and compact_after < 1:
        raise UsageError(f"compact_after is a number of commits from 1 on, or None, not {compact_after!r}")
    if not buffer_seconds > 0 or buffer_bytes < 1:
        raise UsageError(f"a buffer takes a time and a size above 0, not {buffer_seconds!r} and {buffer_bytes!r}")
