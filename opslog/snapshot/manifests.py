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

# How often a read starts again because a compaction moved the cut meanwhile. Each time less is left to read.
_ATTEMPTS_MAX = 1000

# How often a file may be missing under one and the same manifest before it is called lost.
_MISSES_MAX = 5


def first_retained(numbers: Sequence[int], oldest: int) -> int:
    """At which index, in the numbers of the manifests that are there, those begin that are retained: the newest, and
    before it all that follow each other without a gap, from the `oldest` that the newest names. Pure."""
    first = max(0, len(numbers) - 1)
    while first and numbers[first - 1] == numbers[first] - 1 >= oldest:
        first -= 1
    return first


def check_settings(wanted: Settings, manifest: Manifest) -> None:
    """A store that exists has the settings that a program wants. What the program leaves at its default it does not ask
    for. Pure.

    :raises UsageError: it has others; names them.
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
    """The manifests of one store. Reading the newest costs one listing and, when it is new, one read."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._lists_with_logs = backend if isinstance(backend, ListsWithLogs) else None
        self._newest: Manifest | None = None

    def entries(self, after: int = 0) -> list[tuple[int, Entry]]:
        """(number, entry) of every manifest with a number greater than `after`, oldest first."""
        return _numbered(self.backend.list(MANIFESTS, _path_before(after)))

    def retained(self) -> list[tuple[int, Entry]]:
        """(number, entry) of the newest manifest and those before it that are retained, oldest first.

        Below them may lie what was not deleted yet, and what a delayed write brought back after it was collected.
        Costs a listing and, when the newest is new, one read.
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
            self.newest()  # there is a store, or this says that there is none
            for number, _ in self.retained()[:1]:
                with suppress(MissingFileError):  # collected meanwhile
                    return self.read(number)

    def newest_number(self) -> int:
        """The number of the live manifest, 0 where there is none."""
        entries = self.entries(self._before_known) or self.entries()
        return entries[-1][0] if entries else 0

    @property
    def _before_known(self) -> int:
        """After which number to list. The newest that is known is looked for, too: it may be gone with all others."""
        return self._newest.number - 1 if self._newest is not None else 0

    def newest(self) -> Manifest:
        """The live manifest.

        :raises NotFoundError: there is no store here.
        :raises CorruptError: there are logs, but no manifest.
        """
        while True:
            number = self.newest_number()
            if number == 0:
                # In this order: a manifest is created before any log, so logs seen first and no manifest after is
                # damage.
                has_logs = any(segment_of(entry.path) for entry in self.backend.list(OPS))
                if self.newest_number():
                    continue
                raise self._missing(has_logs)
            try:
                return self._take(number)
            except MissingFileError:
                continue  # superseded and collected between the listing and the read

    def newest_with_logs(self, seen: Mapping[str, int]) -> tuple[Manifest, Sequence[Entry] | None]:
        """The live manifest, and the logs as they were listed after it; None in their place where that would be another
        request.

        :param seen: as of `Backend.list_logs`.
        :raises OpslogError: as of `newest`.
        """
        if self._lists_with_logs is None:
            return self.newest(), None
        listed, logs = self._lists_with_logs.list_with_logs(MANIFESTS, _path_before(self._before_known), seen)
        if entries := _numbered(listed):
            with suppress(MissingFileError):  # superseded and collected between the listing and the read
                return self._take(entries[-1][0]), logs
        return self.newest(), None

    def _take(self, number: int) -> Manifest:
        """Read the newest one, unless it is known."""
        if self._newest is None or self._newest.number != number:
            self._newest = self.read(number)
        return self._newest

    def read(self, number: int) -> Manifest:
        """:raises MissingFileError: it never existed or was collected.
        :raises CorruptError: it is damaged.
        :raises FormatVersionError: a newer opslog wrote it.
        """
        path = manifest_path(number)
        return decode_manifest(self.backend.read(path), path, number)

    def create(self, manifest: Manifest) -> None:
        """:raises AlreadyExistsError: somebody else made this number first; see also `Backend.create`."""
        self.backend.create(manifest_path(manifest.number), encode_manifest(manifest))

    def create_first(self, settings: Settings, environment: Environment) -> None:
        """Where there is no manifest yet, create the store's id and the first manifest, which comes before any log. Of
        racing creators one wins, and the others use what it made. On return there is one that survives a power cut.

        :raises UsageError: settings that cannot be.
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
        # Whoever is creating it may be killed before it is durable. (One that was collected has a durable successor.)
        with suppress(MissingFileError):
            self.backend.persist([manifest_path(newest.number)])

    def read_consistently(self, choose: Callable[[], Manifest], read: Callable[[Manifest], T]) -> T:
        """What `read` makes of the manifest that `choose` picks, once nothing was collected meanwhile.

        Garbage is collected only after a newer manifest exists. So if the choice is still the same after everything was
        read, nothing was missed; otherwise `read` starts again.

        :param read: may raise `MissingFileError`, for something that was collected before it was read.
        :raises CorruptError: what a manifest needs is missing for good.
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
        """What to raise where a file is missing and no newer manifest explains it."""
        return CorruptError(
            f"{self.backend.url}: manifest {manifest.number} needs what is not there: {error}. Something other than "
            "opslog removed it or cut it short: restore it from a copy; `opslog verify` lists all such places",
            error.path,
        )

    def _missing(self, has_logs: bool) -> NotFoundError | CorruptError:
        if has_logs:
            return CorruptError(
                f"{self.backend.url}: there are logs but no manifest: {MANIFESTS} was removed. Restore it from a "
                "copy; without it nobody can say what the snapshots and the logs mean together",
                MANIFESTS,
            )
        return MissingStoreError(
            f"no store at {self.backend.url}: open it for writing to create one, or check the name", self.backend.url
        )


def _path_before(number: int) -> str:
    """After which path manifests with a greater number are."""
    return manifest_path(number) if number else ""


def _numbered(listed: Iterable[Entry]) -> list[tuple[int, Entry]]:
    numbered = ((manifest_number(entry.path), entry) for entry in listed)
    return [(number, entry) for number, entry in numbered if number is not None]
