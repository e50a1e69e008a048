"""The common options of one call, and the store that they name. Without click, whose import takes long."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING

import msgspec

import opslog
from opslog.backends import Backend, open_backend
from opslog.environment import REAL, Environment
from opslog.format.documents import Document
from opslog.snapshot.manifests import ManifestStore

if TYPE_CHECKING:
    from opslog.history import Point

# Exit codes. 1 is "no": not found, a conflict, nothing to undo.
DONE, USAGE, FAILED = 0, 2, 3

# The variable by which a shell asks for completions; the scripts of `opslog completion` set it.
COMPLETE = "_OPSLOG_COMPLETE"


class Session(msgspec.Struct):
    """The common options of one call.

    :ivar store: a directory or URL.
    :ivar agent: the name that was given to write under; None: none was given.
    :ivar json: whether a program reads the output.
    """

    store: str | None = None
    agent: str | None = None
    json: bool = False

    @property
    def author(self) -> str:
        """The name to write under."""
        return "main" if self.agent is None else self.agent

    @property
    def url(self) -> str:
        """The store's URL.

        :raises click.UsageError: none was named.
        """
        if not self.store:
            import click

            raise click.UsageError("no store was named: give --store DIRECTORY, or set OPSLOG_STORE")
        return self.store

    # The command line has no schema: it reads documents of every version as they are, and a set keeps the version.
    # It starts no compaction: nobody should wait for one because they set a document. `opslog compact` does that.

    def reading(self, as_of: Point | None = None, *, environment: Environment = REAL) -> opslog.Store[Document]:
        """The store for reading. It must exist."""
        return opslog.open(self.url, read_only=True, version=None, as_of=as_of, environment=environment)

    def writing(self, *, create: bool = False) -> opslog.Store[Document]:
        """The store for writing.

        :param create: create it if it does not exist. Otherwise it must exist.
        """
        if not create:
            with self.existing():
                pass
        return opslog.open(self.url, agent=self.author, version=None, compact_after=None)

    @contextmanager
    def storage(self, *, create: bool = False) -> Iterator[Backend]:
        """The storage, whether there is a store on it or not."""
        with closing(open_backend(self.url, create=create)) as backend:
            yield backend

    @contextmanager
    def existing(self) -> Iterator[Backend]:
        """The storage of a store that exists, for commands that need no documents in memory."""
        with self.storage() as backend:
            ManifestStore(backend).newest()
            yield backend
