"""Where tests put their stores: a directory, and real S3 servers through each driver. All use the same code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import opslog
from opslog.backends import open_backend
from tests.support.s3_servers import NAMES

DIRECTORY = "directory"
REMOTE = "remote"
"""A directory, through `opslog serve`. Its stores exist from the start: these, with these settings."""
LOSSY = "remote+lossy"
"""The same, over a network that loses, repeats and delays (`tests.support.served_storage`)."""
REMOTE_STORES = {
    "store": opslog.Settings(grace_seconds=0, undo_window=8),
    "plain": opslog.Settings(),
    "compacted": opslog.Settings(grace_seconds=0, undo_window=2),
    "transactions": opslog.Settings(grace_seconds=2.0, undo_window=4),
    **dict.fromkeys("012"),
}
SERVERS = [f"{server}-{driver}" for server in NAMES for driver in ("s3fs", "obstore")]


class Place(NamedTuple):
    """Room for the stores of one test.

    :ivar base: a directory, or the URL of a prefix.
    :ivar query: what comes after the name of a store in it.
    :ivar options: options for `opslog.open` there.
    :ivar restart: kills and restarts the test's own server, if it has one.
    """

    base: str
    query: str
    options: dict[str, Any]
    restart: Callable[[], None] = lambda: None

    @property
    def is_directory(self) -> bool:
        return self.base.startswith("/")

    def url(self, name: str = "store") -> str:
        return f"{self.base}/{name}{self.query}"

    def paths(self, prefix: str, name: str = "store") -> list[str]:
        """The files of a store."""
        backend = open_backend(self.url(name))
        try:
            return [entry.path for entry in backend.list(prefix)]
        finally:
            backend.close()
