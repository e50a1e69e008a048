"""The options of `opslog.open`, each stated once: for type checkers, and for the error about an unknown option."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Set
from typing import Any, Literal, TypedDict

from opslog.backends.registry import parameters
from opslog.environment import Environment
from opslog.errors import UsageError
from opslog.format.documents import Migrate
from opslog.format.manifest import Settings
from opslog.history import Point

Durability = Literal["fsync", "buffered"]
Log = Literal["own", "shared"]


class StorageOptions(TypedDict, total=False):
    """The options of the storages that come with opslog; docs/s3.md says more. Pass those of another storage as a
    dictionary: ``opslog.open(url, **options)``."""

    # Of a store in memory: its clock, for tests.
    now: Callable[[], float]
    # Of a directory: a log begins a new segment once the current one has reached this size.
    segment_bytes: int
    # Of object storages: how long to find out the outcome of a put.
    deadline_seconds: float
    # Of object storages: how long the lock of a compaction that crashed delays the next one.
    lease_seconds: float
    # This one and the next ones are of `s3fs.S3FileSystem`.
    anon: bool
    key: str
    secret: str
    token: str
    profile: str
    endpoint_url: str
    use_ssl: bool
    client_kwargs: dict[str, Any]
    config_kwargs: dict[str, Any]
    s3_additional_kwargs: dict[str, Any]
    # This one and the next ones are of obstore's stores, for gs:// and az://.
    config: dict[str, Any]
    client_options: dict[str, Any]
    retry_options: dict[str, Any]
    credential_provider: Any


class OpenOptions(StorageOptions, total=False):
    """The options of `opslog.open` besides the URL and `type`; its docstring explains each."""

    agent: str
    version: int | None
    migrate: Migrate | None
    read_only: bool
    as_of: Point | None
    log: Log
    durability: Durability
    buffer_seconds: float
    buffer_bytes: int
    compact_after: int | None
    cache_bytes: int
    settings: Settings | None
    environment: Environment


# The options that `opslog.open` handles itself.
OPEN = frozenset({*OpenOptions.__annotations__, "type"} - {*StorageOptions.__annotations__})


def check_storage_options(url: str | os.PathLike[str], given: Mapping[str, Any], whose: str, own: Set[str]) -> None:
    """Check that the caller or the storage has each option. Also refuses an option whose name is close to one of the
    caller's: some storages ignore unknown options.

    :param whose: the caller, for the message.
    :param own: the caller's own options.
    :raises UsageError: an option is refused; the error names it, and the nearest one that exists.
    """
    if not given:
        return
    from difflib import get_close_matches  # only needed for such options

    names, takes_others = parameters(url)
    for name in given:
        # (`create` is for the caller to say.)
        if name in names or (takes_others and name != "create" and not get_close_matches(name, own, cutoff=0.8)):
            continue
        nearest = get_close_matches(name, own | names, n=1)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"it has {', '.join(sorted(own))}."
        storage = f"This storage takes {', '.join(sorted(names))}" if names else "This storage takes none"
        raise UsageError(f"{whose} has no option {name!r}: {hint} {storage}")
