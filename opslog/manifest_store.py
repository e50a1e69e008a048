"""Manifests on storage: the newest one is the truth, and each number is created once."""

from __future__ import annotations

from opslog.backends import Backend, Entry
from opslog.errors import CorruptError, MissingFileError, NotFoundError
from opslog.layout import MANIFESTS, OPS, manifest_number, manifest_path
from opslog.manifest import Manifest, decode_manifest, encode_manifest


class ManifestStore:
    """The manifests of one store. Reading the newest costs one listing and, when it is new, one read."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._newest: Manifest | None = None

    def entries(self) -> list[tuple[int, Entry]]:
        """(number, entry) of every manifest, oldest first."""
        listed = ((manifest_number(entry.path), entry) for entry in self._backend.list(MANIFESTS))
        return [(number, entry) for number, entry in listed if number is not None]

    def newest_number(self) -> int:
        """The number of the live manifest, 0 where there is none."""
        entries = self.entries()
        return entries[-1][0] if entries else 0

    def newest(self) -> Manifest:
        """The live manifest.

        :raises NotFoundError: there is no store here. :raises CorruptError: there are logs, but no manifest.
        """
        while True:
            number = self.newest_number()
            if number == 0:
                raise self._missing()
            if self._newest is not None and self._newest.number == number:
                return self._newest
            try:
                self._newest = self.read(number)
            except MissingFileError:
                continue  # superseded and collected between the listing and the read
            return self._newest

    def read(self, number: int) -> Manifest:
        """:raises MissingFileError: it never existed or was collected. :raises CorruptError, FormatVersionError:"""
        path = manifest_path(number)
        return decode_manifest(self._backend.read(path), path, number)

    def create(self, manifest: Manifest) -> None:
        """:raises AlreadyExistsError: somebody else made this number first; see also `Backend.create`."""
        self._backend.create(manifest_path(manifest.number), encode_manifest(manifest))

    def _missing(self) -> NotFoundError | CorruptError:
        if self._backend.list(OPS):
            return CorruptError(
                f"{self._backend.url}: there are logs but no manifest: {MANIFESTS} was removed. Restore it from a copy; "
                "without it nobody can say what the snapshots and the logs mean together",
                MANIFESTS,
            )
        return NotFoundError(f"no store at {self._backend.url}: open it for writing to create one, or check the name")
