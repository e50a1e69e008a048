"""Where tests put their stores: a directory, and real S3 servers through each driver. The same code tests all."""

from __future__ import annotations

from typing import Any, NamedTuple

from opslog.backends import open_backend
from tests.support.s3_servers import NAMES

DIRECTORY = "directory"
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
        return not self.query

    def url(self, name: str = "store") -> str:
        return f"{self.base}/{name}{self.query}"

    def paths(self, prefix: str, name: str = "store") -> list[str]:
        """The files of a store."""
        backend = open_backend(self.url(name))
        try:
            return [entry.path for entry in backend.list(prefix)]
        finally:
            backend.close()
