"""Manifests on storage: the newest one is the truth, and each number is created once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from opslog.backends import Backend, Entry, ListsWithLogs
from opslog.environment import Environment, format_ts
from opslog.errors import (
    AlreadyExistsError,
    CorruptError,
    MissingFileError,
    MissingStoreError,
    NotFoundError,
    RetryError,
    UsageError,
)
from opslog.format.layout import MANIFESTS, OPS, manifest_number, manifest_path, segment_of
from opslog.format.manifest import Manifest, Settings, decode_manifest, encode_manifest

T = TypeVar("T")

# How often a read starts again because a compaction moved the cut meanwhile. Each time, less is left to read.
_ATTEMPTS_MAX = 1000

# How often a file may be missing under the same manifest before it counts as lost.
_MISSES_MAX = 5


def first_retained(numbers: Sequence[int], oldest: int) -> int:
    """The index of the first retained manifest. Retained are the newest, and before it all that follow each other
    without a gap, back to the `oldest` that the newest names. Pure.

    :param numbers: of the manifests that exist, in ascending order.
    """
    first = max(0, len(numbers) - 1)
    while first and numbers[first - 1] == numbers[first] - 1 >= oldest:
        first -= 1
    return first


def check_settings(wanted: Settings, manifest: Manifest) -> None:
    """Check that an existing store has the settings that a program wants. A setting that the program leaves at its
    default may have any value. Pure.

    :raises UsageError: the store has other settings; the error names them.
    """
    defaults = Settings()
    differing = [
        f"{name} is {there!r}, not {getattr(wanted, name)!r}"
        for name, there in msgspec.structs.asdict(manifest.settings).items()
        if getattr(wanted, name) not in (there, getattr(defaults, name))
    ]
    if differing:
        raise UsageError(
            f"settings= are for a new store, and this one exists with others: {'; '.join(differing)}. Leave settings "
            "out, or give those it has; `compact` with keep_history changes how long history is kept"
        )


class ManifestStore:
    """The manifests of one store. Reading the newest costs one listing, and one read if it is new."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._lists_with_logs = backend if isinstance(backend, ListsWithLogs) else None
        self._newest: Manifest | None = None

    def entries(self, after: int = 0) -> list[tuple[int, Entry]]:
        """(number, entry) of every manifest with a number greater than `after`, oldest first."""
        return _numbered(self.backend.list(MANIFESTS, _path_before(after)))

    def retained(self) -> list[tuple[int, Entry]]:
        """(number, entry) of the newest manifest and those before it that are retained, oldest first.

        Manifests with smaller numbers may exist: some were not deleted yet, or a delayed write brought one back after
        it was collected. Costs a listing, and one read if the newest is new.
        """
        while entries := self.entries():
            try:
                newest = self._take(entries[-1][0])
            except MissingFileError:
                continue  # superseded and collected between the listing and the read
            return entries[first_retained([number for number, _ in entries], newest.oldest) :]
        return []

    def oldest(self) -> Manifest:
        """The oldest retained manifest.

        :raises NotFoundError: there is no store.
        """
        while True:
            self.newest()  # raises if there is no store
            for number, _ in self.retained()[:1]:
                with suppress(MissingFileError):  # collected meanwhile
                    return self.read(number)

    def newest_number(self) -> int:
        """The number of the live manifest, 0 where there is none."""
        entries = self.entries(self._before_known) or self.entries()
        return entries[-1][0] if entries else 0

    @property
    def _before_known(self) -> int:
        """The number after which to list. The listing includes the newest known manifest: it may be gone, with all
        others."""
        return self._newest.number - 1 if self._newest is not None else 0

    def newest(self) -> Manifest:
        """The live manifest.

        :raises NotFoundError: there is no store here.
        :raises CorruptError: there are logs, but no manifest.
        """
        while True:
            number = self.newest_number()
            if number == 0:
                # First the logs, then the manifests once more. A manifest is created before any log, so if there are
                # logs and then still no manifest, it was removed.
                has_logs = any(segment_of(entry.path) for entry in self.backend.list(OPS))
                if self.newest_number():
                    continue
                raise self._missing(has_logs)
            try:
                return self._take(number)
            except MissingFileError:
                continue  # superseded and collected between the listing and the read

    def newest_with_logs(self, seen: Mapping[str, int]) -> tuple[Manifest, Sequence[Entry] | None]:
        """The live manifest, and the logs as listed after it. None in place of the logs if listing them would take
        another request.

        :param seen: as in `Backend.list_logs`.
        :raises OpslogError: as in `newest`.
        """
        if self._lists_with_logs is None:
            return self.newest(), None
        listed, logs = self._lists_with_logs.list_with_logs(MANIFESTS, _path_before(self._before_known), seen)
        if entries := _numbered(listed):
            with suppress(MissingFileError):  # superseded and collected between the listing and the read
                return self._take(entries[-1][0]), logs
        return self.newest(), None

    def _take(self, number: int) -> Manifest:
        """Read the newest manifest, unless it is known already."""
        if self._newest is None or self._newest.number != number:
            self._newest = self.read(number)
        return self._newest

    def read(self, number: int) -> Manifest:
        """Read the manifest with this number.

        :raises MissingFileError: it never existed or was collected.
        :raises CorruptError: it is damaged.
        :raises FormatVersionError: a newer opslog wrote it.
        """
        path = manifest_path(number)
        return decode_manifest(self.backend.read(path), path, number)

    def create(self, manifest: Manifest) -> None:
        """:raises AlreadyExistsError: another process created this number first; see also `Backend.create`."""
        self.backend.create(manifest_path(manifest.number), encode_manifest(manifest))

    def create_first(self, settings: Settings, environment: Environment) -> None:
        """Create the store's id and the first manifest, unless there is a manifest. It comes before any log. If several
        processes race, one wins, and the others use its manifest. On return there is a manifest that survives a power
        cut.

        :raises UsageError: the settings are impossible.
        """
        if settings.fault:
            raise UsageError(f"a store cannot have these settings: {settings.fault}")
        try:
            newest = self.newest()
        except NotFoundError:
            from opslog.snapshot.identity import make_identity  # once in the life of a store

            # Before the manifest, so that every store has an id that was not made by an older program.
            make_identity(self.backend, environment.nonce())
            with suppress(AlreadyExistsError):
                created = format_ts(environment.time())
                self.create(Manifest(number=1, created=created, settings=settings))
            return
        # Its creator may be killed before it is durable. (If it was collected, its successor is durable.)
        with suppress(MissingFileError):
            self.backend.persist([manifest_path(newest.number)])

    def read_consistently(self, choose: Callable[[], Manifest], read: Callable[[Manifest], T]) -> T:
        """Choose a manifest and read it, and begin again until nothing was collected meanwhile. Returns what `read`
        returned.

        Garbage is collected only after a newer manifest exists. So if `choose` still picks the same manifest after
        everything was read, nothing was missed.

        :param read: may raise `MissingFileError` for a file that was collected before it was read.
        :raises CorruptError: a file that the manifest needs is missing for good.
        """
        missing_from, misses = 0, 0
        for _ in range(_ATTEMPTS_MAX):
            manifest = choose()
            try:
                result = read(manifest)
            except MissingFileError as error:
                # Collected meanwhile, or passed over by a listing made while files were being created: list again.
                misses = misses + 1 if missing_from == manifest.number else 1
                missing_from = manifest.number
                if misses == _MISSES_MAX:
                    raise self.lost(manifest, error) from error
                continue
            if choose().number == manifest.number:
                return result
        raise RetryError(
            f"{self.backend.url}: compactions follow each other faster than the store can be read; try again"
        )

    def lost(self, manifest: Manifest, error: MissingFileError) -> CorruptError:
        """The error for a missing file that no newer manifest explains."""
        return CorruptError(
            f"{self.backend.url}: manifest {manifest.number} needs a file that was lost: {error}. Something other than "
            "opslog removed it or cut it short: restore it from a copy; `opslog verify` lists all such places",
            error.path,
        )

    def _missing(self, has_logs: bool) -> NotFoundError | CorruptError:
        if has_logs:
            return CorruptError(
                f"{self.backend.url}: there are logs but no manifest: {MANIFESTS} was removed. Restore it from a "
                "copy; without a manifest the snapshots and the logs cannot be put together",
                MANIFESTS,
            )
        return MissingStoreError(
            f"no store at {self.backend.url}: open it for writing to create one, or check the name", self.backend.url
        )


def _path_before(number: int) -> str:
    """The path after which to list manifests with greater numbers."""
    return manifest_path(number) if number else ""


def _numbered(listed: Iterable[Entry]) -> list[tuple[int, Entry]]:
    numbered = ((manifest_number(entry.path), entry) for entry in listed)
    return [(number, entry) for number, entry in numbered if number is not None]
