"""Where tests put their stores: a directory, and real S3 servers through each driver. The same code tests all."""

from __future__ import annotations

from typing import Any, NamedTuple

import opslog
from opslog.backends import open_backend
from tests.support.s3_servers import NAMES

DIRECTORY = "directory"
REMOTE = "remote"
"""A directory, through `opslog serve`. Its stores are there from the beginning: these, with these settings."""
REMOTE_STORES = {"store": opslog.Settings(grace_seconds=0, undo_window=8), "0": None, "1": None, "2": None}
SERVERS = [f"{server}-{driver}" for server in NAMES for driver in ("s3fs", "obstore")]


class Place(NamedTuple):
    """Room for the stores of one test.

    :ivar base: a directory, or the URL of a prefix; `query`: what comes after the name of a store in it.
    :ivar options: for `opslog.open` there.
    """

    base: str
    query: str
    options: dict[str, Any]

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
